"""Lowering: the schedule of a kernel as kernel IR."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from thunder_fuser.ir.dtypes import DataType, compute_dtype
from thunder_fuser.ir.fusion import Expr, Scalar, TensorView, Val
from thunder_fuser.lower import kernel_ir as ir
from thunder_fuser.lower.frame import Buffers, Frame
from thunder_fuser.lower.scalar_graph import Argument, Compute, Load, PhiloxCall, Value
from thunder_fuser.templates.choose import Schedule
from thunder_fuser.templates.pointwise import lower as pointwise
from thunder_fuser.templates.pointwise.schedule import PointwisePart, PointwiseSchedule
from thunder_fuser.templates.reduction import lower as reduction
from thunder_fuser.templates.reduction.lower_grid import COUNTER, WORKSPACE
from thunder_fuser.templates.reduction.schedule import ReductionSchedule
from thunder_fuser.templates.reduction.shared_memory import shared_bytes
from thunder_fuser.templates.transpose import lower as transpose
from thunder_fuser.templates.transpose.schedule import TransposePart, TransposeSchedule

_NOTHING: Mapping[Val, Expr] = MappingProxyType({})
_QUIET = frozenset({"cast", "where", "eq", "ne", "lt", "le", "gt", "ge"})
"""Operations that say little about a kernel in its name."""


def lower(
    schedule: Schedule, buffers: Buffers, definitions: Mapping[Val, Expr] = _NOTHING
) -> ir.KernelIR:
    """The kernel of a schedule. `definitions` are those of the fusion, for the user's lines."""
    index = DataType.Int32 if _fits_int32(schedule) else DataType.Int
    frame = Frame(index, buffers, definitions)
    match schedule:
        case PointwiseSchedule():
            return _kernel("pointwise", schedule, frame, _parts(schedule, frame))
        case TransposeSchedule():
            body = _parts(schedule, frame)
            return _kernel("transpose", schedule, frame, body, shared=schedule.shared_bytes)
        case ReductionSchedule():
            body = tuple(reduction.ReductionLowering(schedule, frame).body())
            shared, together = shared_bytes(schedule), schedule.mapping.blocks_per_sm
            return _kernel("reduction", schedule, frame, body, together, shared)


def _kernel(
    template: str,
    schedule: Schedule,
    frame: Frame,
    body: ir.Body,
    blocks_per_sm: int = 0,
    shared: int = 0,
) -> ir.KernelIR:
    return ir.KernelIR(
        template,
        _operations(schedule),
        tuple(_parameters(schedule, frame.buffers)),
        frame.index,
        schedule.blocks,
        schedule.block_threads,
        blocks_per_sm,
        shared,
        body,
    )


def _fits_int32(schedule: Schedule) -> bool:
    if isinstance(schedule, ReductionSchedule):
        return reduction.fits_int32(schedule)
    return all(
        transpose.fits_int32(part)
        if isinstance(part, TransposePart)
        else pointwise.fits_int32(part)
        for part in schedule.parts
    )


# ---- parts of one launch


def _parts(schedule: PointwiseSchedule | TransposeSchedule, frame: Frame) -> ir.Body:
    """Each part under its range of blocks; `block` counts from the start of the range."""
    bodies = [_part(part, frame, schedule.block_threads) for part in schedule.parts]
    block: ir.Expr = ir.LaunchIndex.BLOCK
    if len(bodies) == 1:
        return (ir.Let("block", frame.index, block), *bodies[0])
    ends: list[int] = []
    for part in schedule.parts:
        ends.append(part.blocks + (ends[-1] if ends else 0))
    found: ir.Body = ()
    for k in reversed(range(len(bodies))):
        own: ir.Expr = ir.IntCast(block, frame.index)
        if k and ends[k - 1]:
            own = ir.Binary("-", own, ir.Int(ends[k - 1]))
        body = (ir.Let("block", frame.index, own), *bodies[k])
        found = (ir.If((ir.less(block, ends[k]),), body, found),) if found else body
    return found


def _part(part: PointwisePart | TransposePart, frame: Frame, block_threads: int) -> list[ir.Stmt]:
    if isinstance(part, TransposePart):
        return transpose.TransposeLowering(part, frame, block_threads).body()
    return pointwise.PointwiseLowering(part, frame).body()


# ---- what a kernel is called, and with what


def _nodes(schedule: Schedule) -> Iterator[Value]:
    for graph in schedule.graphs:
        yield from graph


def _operations(schedule: Schedule) -> tuple[str, ...]:
    folded = [f.op for f in schedule.reductions] if isinstance(schedule, ReductionSchedule) else []
    gathers = ["gather" for graph in schedule.graphs if graph.checks]
    computed = [n.op for n in _nodes(schedule) if isinstance(n, (Compute, PhiloxCall))]
    done = dict.fromkeys([*folded, *gathers, *computed])
    return tuple(op for op in done if op not in _QUIET)


def _parameters(schedule: Schedule, buffers: Buffers) -> Iterator[ir.Parameter]:
    """Pointers first, then numbers: what is read, what is written, scratch memory, scalars."""
    read: dict[int, TensorView] = {}
    scalars: dict[int, TensorView | Scalar] = {}
    written: dict[int, TensorView] = {}
    for node in _nodes(schedule):
        if isinstance(node, Load):
            read[node.tensor.id] = node.tensor
        elif isinstance(node, Argument):
            scalars[node.source.id] = node.source
    for store in schedule.stores:
        target = buffers.get(store.tensor, store.tensor)
        written[target.id] = target
    # Memory that is read and written in one kernel must not be promised to be unaliased.
    aliased = set(buffers.values())
    for t in sorted(read.values(), key=lambda t: t.id):
        if t.id not in written:
            yield ir.Parameter(t.name, t.dtype, t, True, aliased=t in aliased)
    for t in written.values():
        yield ir.Parameter(t.name, t.dtype, t, True, written=True, aliased=t in aliased)
    if isinstance(schedule, ReductionSchedule) and schedule.totals:
        parts, counter = ir.Scratch(schedule.workspace_bytes), ir.Scratch(8, is_counter=True)
        yield ir.Parameter(WORKSPACE, None, parts, True, written=True, aliased=True)
        yield ir.Parameter(COUNTER, None, counter, True, written=True, aliased=True)
    for source in sorted(scalars.values(), key=lambda s: s.id):
        # Scalars travel in a type that Python numbers convert to exactly: no 16-bit parameters.
        dtype = compute_dtype(source.dtype)
        if not dtype.is_complex:
            yield ir.Parameter(source.name, dtype, source, False)
            continue
        half = DataType.Double if dtype is DataType.ComplexDouble else DataType.Float
        for part in ("real", "imag"):
            yield ir.Parameter(f"{source.name}_{part}", half, source, False)
