"""The map template: every thread computes a few vectors of consecutive points and stores them.

Outputs over one iteration space that read common data share a *part*; parts with different
iteration spaces share the launch, each with its own range of blocks (q, k and v of a rotary
embedding, the parameters of an optimizer). A part whose size no vector divides leaves its last
points to a scalar part.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass

from thunder_fuser.analysis.access import Access, plan_accesses, plan_store
from thunder_fuser.analysis.lanes import Lanes
from thunder_fuser.analysis.layout import loop_order
from thunder_fuser.analysis.pull import Pull
from thunder_fuser.analysis.value import Compute, ValueGraph
from thunder_fuser.device import DeviceInfo
from thunder_fuser.ir import ops
from thunder_fuser.ir.domain import Layout
from thunder_fuser.ir.fusion import Expr, TensorView, Val
from thunder_fuser.ir.symint import Context, Form
from thunder_fuser.schedule.store import Store

THREADS = 256
MAX_UNROLL = 4
MAX_INSTRUCTIONS = 8192
"""Arithmetic of one thread on a GPU, whose compiler unrolls all lanes and vectors: beyond some
thousand instructions wider accesses gain nothing and compiling takes longer than running.
"""
OCCUPANCY = 0.5
"""Share of a multiprocessor's threads that a kernel of unknown register use can be expected to get.
"""


@dataclass(frozen=True, slots=True)
class MapPart:
    """A range of blocks that computes `stores` at `count` points of one iteration space."""

    stores: tuple[Store, ...]
    graph: ValueGraph
    accesses: tuple[Access, ...]
    lanes: Lanes
    count: int
    unroll: int

    @property
    def vectors(self) -> int:
        return self.lanes.vectors

    @property
    def blocks(self) -> int:
        return -(-self.vectors // (THREADS * self.unroll))

    def __str__(self) -> str:
        wide = [a for a in self.accesses if a.is_vector]
        return (
            f"{', '.join(s.tensor.name for s in self.stores)}: {self.count} points, vector "
            f"{self.lanes.vector}, unroll {self.unroll}, {self.blocks} blocks of {THREADS}; "
            f"{len(wide)} of {len(self.accesses)} loads are vectors"
        )


@dataclass(frozen=True, slots=True)
class MapSchedule:
    """A map kernel: its parts in block order."""

    parts: tuple[MapPart, ...]

    @property
    def blocks(self) -> int:
        return sum(part.blocks for part in self.parts)

    @property
    def block_threads(self) -> int:
        return THREADS

    @property
    def graphs(self) -> tuple[ValueGraph, ...]:
        return tuple(part.graph for part in self.parts)

    @property
    def stores(self) -> tuple[Store, ...]:
        return tuple(store for part in self.parts for store in part.stores)

    def __str__(self) -> str:
        return "\n".join(["map", *(f"  {part}" for part in self.parts)])


def schedule_map(
    outputs: Sequence[TensorView],
    definitions: Mapping[Val, Expr],
    memory: Mapping[TensorView, Layout],
    destinations: Mapping[TensorView, Layout],
    overwritten: Container[TensorView],
    device: DeviceInfo,
) -> MapSchedule:
    """Schedule the outputs of one segment.

    memory        layouts of the tensors that are loaded (inputs and boundaries)
    destinations  layouts of the outputs
    overwritten   inputs that an output replaces in place: what reads one goes into one part
    """
    parts: list[MapPart] = []
    for group in _share_points(outputs, definitions, memory, destinations, overwritten):
        parts += _schedule_group(group, definitions, memory, destinations, device)
    return MapSchedule(tuple(parts))


def _schedule_group(
    group: Sequence[TensorView],
    definitions: Mapping[Val, Expr],
    memory: Mapping[TensorView, Layout],
    destinations: Mapping[TensorView, Layout],
    device: DeviceInfo,
) -> list[MapPart]:
    count = group[0].numel
    context = Context()
    point = context.var("i", 0, count - 1)
    index = _unflatten(point, group[0].sizes, loop_order(group[0], destinations[group[0]]))
    pull = Pull(definitions, memory, context)
    values = [(t, pull.emit(t, index), _address(index, destinations[t], context)) for t in group]
    alignment = {t.id: layout.alignment for t, layout in memory.items()}

    most = _most_points(pull.graph, device)

    def plan(count: int, offset: int, vector: int) -> MapPart:
        lanes = Lanes(point, count, offset, vector)
        accesses = plan_accesses(pull.graph, lanes, alignment)
        stores = tuple(
            Store(
                t,
                value,
                address,
                plan_store(address, lanes, t.dtype.itemsize, destinations[t].alignment),
            )
            for t, value, address in values
        )
        unroll = _unroll(accesses, lanes, most // vector, device)
        return MapPart(stores, pull.graph, accesses, lanes, count, unroll)

    best = _best(
        [
            plan(count - count % v, 0, v)
            for v in _vectors(pull.graph, group, min(count, most), device)
        ]
    )
    left = count - best.count
    return [best] + ([plan(left, best.count, 1)] if left else [])


def _best(parts: Sequence[MapPart]) -> MapPart:
    """The part with the fewest memory instructions for each point; the widest of equals."""
    return min(parts, key=lambda p: (_instructions(p) / p.lanes.vector, -p.lanes.vector))


def _instructions(part: MapPart) -> int:
    vector = part.lanes.vector
    stored = sum(
        sum(w.instructions(s.tensor.dtype.itemsize) for w in s.windows) or vector
        for s in part.stores
    )
    return stored + sum(a.instructions(vector) for a in part.accesses)


def _vectors(
    graph: ValueGraph, group: Sequence[TensorView], count: int, device: DeviceInfo
) -> list[int]:
    """Lanes worth trying: the narrowest type fills an access; wider types take several accesses."""
    sizes = [t.dtype.itemsize for t in group] + [load.dtype.itemsize for load in graph.loads]
    widest = max(1, device.vector_bytes // min(sizes))
    # Registers: at most 4 accesses' worth of the widest type in one array.
    widest = min(widest, 4 * device.vector_bytes // max(sizes))
    return [v for v in (64, 32, 16, 8, 4, 2, 1) if v <= widest and v <= max(count, 1)]


def _most_points(graph: ValueGraph, device: DeviceInfo) -> int:
    """Points of one thread, all together. A host compiler keeps the loop over lanes a loop."""
    cost = sum(ops.lookup(node.op).cost for node in graph if isinstance(node, Compute))
    return 1 << 30 if device.kind == "host" else max(1, MAX_INSTRUCTIONS // max(cost, 1))


def _unroll(accesses: Sequence[Access], lanes: Lanes, most: int, device: DeviceInfo) -> int:
    """Vectors per thread such that enough bytes are in flight, while blocks still fill
    the device.
    """
    loaded = sum(a.loads[0].dtype.itemsize * lanes.vector for a in accesses if not a.is_uniform)
    if not loaded or not device.bytes_in_flight_per_sm:
        return 1
    threads = int(device.threads_per_sm * OCCUPANCY)
    unroll = 1
    wanted = device.bytes_in_flight_per_sm
    while unroll * 2 <= min(MAX_UNROLL, most) and loaded * unroll * threads < wanted:
        unroll *= 2
    resident = device.sm_count * max(1, threads // THREADS)
    while unroll > 1 and lanes.vectors < THREADS * unroll * resident:
        unroll //= 2
    return unroll


def _unflatten(point: Form, sizes: Sequence[int], order: Sequence[int]) -> list[Form]:
    index = [point] * len(sizes)
    for k in reversed(order):
        point, index[k] = divmod(point, max(sizes[k], 1))
    return index


def _address(index: Sequence[Form], layout: Layout, context: Context) -> Form:
    return sum((i * s for i, s in zip(index, layout.strides, strict=True)), context.const(0))


def _share_points(
    outputs: Sequence[TensorView],
    definitions: Mapping[Val, Expr],
    memory: Mapping[TensorView, Layout],
    destinations: Mapping[TensorView, Layout],
    overwritten: Container[TensorView],
) -> list[list[TensorView]]:
    """Outputs that can be computed point by point together and have data in common."""
    reads = _reads(outputs, definitions, memory, overwritten)
    groups: list[tuple[tuple[object, ...], set[int], list[TensorView]]] = []
    for tensor in outputs:
        if not tensor.numel:
            continue
        key = (tensor.sizes, loop_order(tensor, destinations[tensor]))
        joined = [g for g in groups if g[0] == key and g[1] & reads[tensor]]
        if joined:
            home = joined[0]
            home[1].update(reads[tensor])
            home[2].append(tensor)
            for other in joined[1:]:
                home[1].update(other[1])
                home[2].extend(other[2])
                groups.remove(other)
        else:
            groups.append((key, set(reads[tensor]), [tensor]))
    position = {t: k for k, t in enumerate(outputs)}
    return [sorted(members, key=position.__getitem__) for _, _, members in groups]


def _reads(
    outputs: Sequence[TensorView],
    definitions: Mapping[Val, Expr],
    memory: Mapping[TensorView, Layout],
    overwritten: Container[TensorView],
) -> dict[TensorView, set[int]]:
    """For each output the tensors (ids) that it shares if another output needs them too.

    Single elements are not worth sharing, unless they are overwritten.
    """
    found: dict[TensorView, set[int]] = {}
    for tensor in outputs:
        seen: set[int] = set()
        needed: set[int] = set()
        stack: list[Val] = [tensor]
        while stack:
            value = stack.pop()
            if value.id in seen or not isinstance(value, TensorView):
                continue
            seen.add(value.id)
            if value.numel > 1 or value is tensor or value in overwritten:
                needed.add(value.id)
            if value not in memory and value in definitions:
                stack.extend(definitions[value].inputs)
        found[tensor] = needed
    return found
