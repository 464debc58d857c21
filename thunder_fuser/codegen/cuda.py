"""A schedule as CUDA C++ text: the last step before a compiler sees it.

The text has two phases for every vector: all loads, then arithmetic and stores. With several
vectors a thread, each phase is an unrolled loop of its own, so that every load is issued before the
first use.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from thunder_fuser.codegen.expressions import argument_type
from thunder_fuser.codegen.grid_text import COUNTER, WORKSPACE
from thunder_fuser.codegen.kernel import Kernel, Param
from thunder_fuser.codegen.pointwise_part import PointwiseWriter
from thunder_fuser.codegen.reduction_kernel import ReductionWriter
from thunder_fuser.codegen.transpose_part import TransposeWriter
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import Scalar, TensorView
from thunder_fuser.ir.tables import pointwise
from thunder_fuser.lower.scalar_graph import Argument, Compute, Load, PhiloxCall, Value
from thunder_fuser.templates.choose import Schedule
from thunder_fuser.templates.pointwise.schedule import PointwiseSchedule
from thunder_fuser.templates.reduction.schedule import ReductionSchedule
from thunder_fuser.templates.reduction.shared_memory import shared_bytes
from thunder_fuser.templates.transpose.schedule import TransposePart, TransposeSchedule

_KIND = {
    PointwiseSchedule: "pointwise",
    TransposeSchedule: "transpose",
    ReductionSchedule: "reduction",
}
_QUIET = frozenset({"cast", "where", "eq", "ne", "lt", "le", "gt", "ge"})
"""Operations that say little about a kernel in its name."""
_FLOAT8 = frozenset({DataType.Float8_e4m3fn, DataType.Float8_e5m2})


@dataclass(frozen=True, slots=True)
class Scratch:
    """Memory that a kernel needs besides tensors.

    bytes       of it
    is_counter  it counts arrivals at grid barriers: 0 before the first launch, and left alone
                between launches that do not overlap
    """

    bytes: int
    is_counter: bool = False


Bound = TensorView | Scalar | Scratch


@dataclass(frozen=True, slots=True)
class GeneratedKernel:
    """A kernel and what its parameters are bound to, in the order of `kernel.params`.

    A tensor stands for its data pointer, as scratch memory does; a scalar input or CPU scalar
    tensor for its value; complex scalars take two parameters, the real and the imaginary part.
    """

    kernel: Kernel
    arguments: tuple[Bound, ...]


def generate(schedule: Schedule, buffers: Mapping[TensorView, TensorView]) -> GeneratedKernel:
    """The kernel of a schedule. `buffers` maps an output that is written in place to its input."""
    parameters = _parameters(schedule, buffers)
    signature = ", ".join(_declaration(p, buffers) for p in parameters)
    text = (
        f'extern "C" __global__ void __launch_bounds__({_launch_bounds(schedule)}) '
        f"NAME({signature}) {{\n{_indented(_body(schedule, buffers))}\n}}\n"
    )
    name = _name(schedule, text)
    kernel = Kernel(
        name=name,
        source=text.replace("NAME", name, 1),
        headers=_headers(schedule),
        params=tuple(Param(p.name, p.ctype) for p in parameters),
        grid=(schedule.blocks, 1, 1),
        block=(schedule.block_threads, 1, 1),
        shared_bytes=_shared_bytes(schedule),
        collectives=_synchronises(schedule),
        cooperative=isinstance(schedule, ReductionSchedule) and bool(schedule.totals),
    )
    return GeneratedKernel(kernel, tuple(dict.fromkeys(p.bound for p in parameters)))


def _launch_bounds(schedule: Schedule) -> str:
    """Blocks that wait for each other must fit on the device together, whatever they hold."""
    together = isinstance(schedule, ReductionSchedule) and schedule.mapping.blocks_per_sm
    return f"{schedule.block_threads}, {together}" if together else f"{schedule.block_threads}"


def _body(schedule: Schedule, buffers: Mapping[TensorView, TensorView]) -> str:
    if isinstance(schedule, ReductionSchedule):
        index = "int" if ReductionWriter.fits_int32(schedule) else "long long"
        return ReductionWriter(schedule, buffers, index).text()
    narrow = all(
        TransposeWriter.fits_int32(part)
        if isinstance(part, TransposePart)
        else PointwiseWriter.fits_int32(part)
        for part in schedule.parts
    )
    index = "int" if narrow else "long long"
    texts: list[tuple[int, str]] = []
    for part in schedule.parts:
        if isinstance(part, TransposePart):
            text = TransposeWriter(part, buffers, index, schedule.block_threads).text()
        else:
            text = PointwiseWriter(part, buffers, index).text()
        texts.append((part.blocks, text))
    return _blocks(texts, index)


def _shared_bytes(schedule: Schedule) -> int:
    match schedule:
        case ReductionSchedule():
            return shared_bytes(schedule)
        case TransposeSchedule():
            return schedule.shared_bytes
        case PointwiseSchedule():
            return 0


def _synchronises(schedule: Schedule) -> bool:
    match schedule:
        case ReductionSchedule():
            return bool(schedule.threads > 1 or schedule.totals)
        case TransposeSchedule():
            turned = (p for p in schedule.parts if isinstance(p, TransposePart))
            return any(part.threads > 1 for part in turned)
        case PointwiseSchedule():
            return False


@dataclass(frozen=True, slots=True)
class _Parameter:
    name: str
    ctype: str
    bound: Bound


def _parameters(schedule: Schedule, buffers: Mapping[TensorView, TensorView]) -> list[_Parameter]:
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
    found = [
        _Parameter(t.name, f"const {t.dtype.ctype}*", t)
        for t in sorted(read.values(), key=lambda t: t.id)
        if t.id not in written
    ]
    found += [_Parameter(t.name, f"{t.dtype.ctype}*", t) for t in written.values()]
    if isinstance(schedule, ReductionSchedule) and schedule.totals:
        found.append(_Parameter(WORKSPACE, "unsigned char*", Scratch(schedule.workspace_bytes)))
        found.append(_Parameter(COUNTER, "unsigned*", Scratch(8, is_counter=True)))
    # Launches take pointers first, then numbers.
    for source in sorted(scalars.values(), key=lambda s: s.id):
        found += _scalar_parameters(source)
    return found


def _scalar_parameters(source: TensorView | Scalar) -> list[_Parameter]:
    dtype = argument_type(source.dtype)
    if not dtype.is_complex:
        return [_Parameter(source.name, dtype.ctype, source)]
    part = "double" if dtype is DataType.ComplexDouble else "float"
    return [_Parameter(f"{source.name}_{half}", part, source) for half in ("real", "imag")]


def _declaration(p: _Parameter, buffers: Mapping[TensorView, TensorView]) -> str:
    # Memory that is read and written in one kernel must not be promised to be unaliased.
    aliased = p.bound in buffers.values() or isinstance(p.bound, Scratch)
    if not p.ctype.endswith("*") or aliased:
        return f"{p.ctype} {p.name}"
    return f"{p.ctype} __restrict__ {p.name}"


def _blocks(parts: Sequence[tuple[int, str]], index: str) -> str:
    """Each part under its range of blocks; `block` counts from the start of the range."""
    if len(parts) == 1:
        return f"const {index} block = blockIdx.x;\n{parts[0][1]}"
    lines: list[str] = []
    first = 0
    for k, (blocks, text) in enumerate(parts):
        last = k == len(parts) - 1
        head = "{" if last else f"if (blockIdx.x < {first + blocks}u) {{"
        origin = f" - {first}" if first else ""
        lines.append(f"{'' if k == 0 else '} else '}{head}")
        lines.append(_indented(f"const {index} block = ({index})blockIdx.x{origin};\n{text}"))
        first += blocks
    return "\n".join([*lines, "}"])


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" if line else "" for line in text.splitlines())


def _nodes(schedule: Schedule) -> Iterator[Value]:
    for graph in schedule.graphs:
        yield from graph


def _headers(schedule: Schedule) -> tuple[str, ...]:
    found = ["prelude.cuh", "types.cuh", "vector.cuh"]
    dtypes = {node.dtype for node in _nodes(schedule)}
    for node in _nodes(schedule):
        if isinstance(node, Compute):
            dtypes.update(node.operand_dtypes)
    if _FLOAT8 & dtypes:
        found.append("fp8.cuh")
    if any(d.is_complex for d in dtypes):
        found.append("complex.cuh")
    computed = [node for node in _nodes(schedule) if isinstance(node, Compute)]
    if any(pointwise.lookup(node.op).header for node in computed):
        found.append("math.cuh")
    if any(isinstance(node, PhiloxCall) for node in _nodes(schedule)):
        found.append("philox.cuh")
    if any(graph.checks for graph in schedule.graphs):
        found.append("gather.cuh")
    if isinstance(schedule, ReductionSchedule):
        found.append("reduce.cuh")
    if isinstance(schedule, TransposeSchedule):
        found.append("tile.cuh")
    return tuple(found)


def _operations(schedule: Schedule) -> Iterator[str]:
    for node in _nodes(schedule):
        if isinstance(node, (Compute, PhiloxCall)):
            yield node.op


def _name(schedule: Schedule, text: str) -> str:
    """tf_<template>_<up to four telling operations>_<hash of the text>: the same program,
    the same name.
    """
    folded = [f.op for f in schedule.reductions] if isinstance(schedule, ReductionSchedule) else []
    gathers = ["gather" for graph in schedule.graphs if graph.checks]
    done = dict.fromkeys([*folded, *gathers, *_operations(schedule)])
    telling = [op for op in done if op not in _QUIET]
    kind = _KIND[type(schedule)]
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return "_".join(["tf", kind, *(telling[:4] or ["copy"]), digest])
