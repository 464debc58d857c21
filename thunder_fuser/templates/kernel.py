"""A schedule as kernel IR, by the template that made it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from thunder_fuser import kernel_ir as ir
from thunder_fuser.ir.dtypes import DataType, compute_dtype
from thunder_fuser.ir.fusion import Expr, Scalar, TensorView, Val
from thunder_fuser.ir.tables.pointwise import COMPARISONS
from thunder_fuser.lower.frame import Buffers, Frame
from thunder_fuser.lower.scalar_graph import Argument, Compute, Load, PhiloxCall, Value
from thunder_fuser.templates.template import S, Schedule, Template

NOTHING: Mapping[Val, Expr] = MappingProxyType({})
_UNNAMED = COMPARISONS | {"cast", "where"}
"""Operations that are left out of kernel names."""


def kernel_of(
    template: Template[S],
    schedule: S,
    buffers: Buffers,
    definitions: Mapping[Val, Expr] = NOTHING,
) -> ir.KernelIR:
    """Lower a schedule of `template` to kernel IR. `definitions`: those of the fusion, for the
    user's lines.
    """
    index = DataType.Int32 if template.fits_int32(schedule) else DataType.Int
    lowered = template.lower(schedule, Frame(index, buffers, definitions))
    return ir.KernelIR(
        template.name,
        _operations(schedule, lowered.reductions),
        tuple(_parameters(schedule, buffers, lowered.scratch)),
        index,
        schedule.blocks,
        schedule.block_threads,
        lowered.blocks_per_sm,
        lowered.shared_bytes,
        lowered.body,
        lowered.cluster,
        lowered.min_blocks_hint,
    )


# ---- name and parameters of a kernel


def _nodes(schedule: Schedule) -> Iterator[Value]:
    for graph in schedule.graphs:
        yield from graph


def _operations(schedule: Schedule, reductions: Sequence[str]) -> tuple[str, ...]:
    gathers = ["gather" for graph in schedule.graphs if graph.checks]
    computed = [n.op for n in _nodes(schedule) if isinstance(n, (Compute, PhiloxCall))]
    done = dict.fromkeys([*reductions, *gathers, *computed])
    return tuple(op for op in done if op not in _UNNAMED)


def _parameters(
    schedule: Schedule, buffers: Buffers, scratch: Sequence[ir.Parameter]
) -> Iterator[ir.Parameter]:
    """Yield pointers, then scalars: inputs, outputs, scratch memory, scalars."""
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
    yield from scratch
    for source in sorted(scalars.values(), key=lambda s: s.id):
        # Scalars travel in a type that Python numbers convert to exactly: no 16-bit parameters.
        dtype = compute_dtype(source.dtype)
        if not dtype.is_complex:
            yield ir.Parameter(source.name, dtype, source, False)
            continue
        half = DataType.Double if dtype is DataType.ComplexDouble else DataType.Float
        for part in ("real", "imag"):
            yield ir.Parameter(f"{source.name}_{part}", half, source, False)
