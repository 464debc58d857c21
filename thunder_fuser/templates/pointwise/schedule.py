"""The pointwise template: every thread computes a few vectors of consecutive points and stores
them.

Outputs over one iteration space that read common data share a *part*; parts with different
iteration spaces share the launch, each with its own range of blocks (q, k and v of a rotary
embedding, the parameters of an optimizer). A part whose size no vector divides leaves its last
points to a scalar part. On a core, short rows that no vector divides are parts by columns
(`lower/points/row_pieces.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from thunder_fuser.device import WARP_SIZE, DeviceInfo
from thunder_fuser.ir.fusion import TensorView
from thunder_fuser.ir.integer.symint import Form
from thunder_fuser.ir.tables import pointwise, random
from thunder_fuser.kernel_ir import WORD
from thunder_fuser.lower.body import KernelBody
from thunder_fuser.lower.points.point_groups import PointGroup, point_groups
from thunder_fuser.lower.points.point_pieces import pieces
from thunder_fuser.lower.points.point_rows import RowLanes, row_length
from thunder_fuser.lower.points.row_pieces import row_pieces
from thunder_fuser.lower.register_budget import (
    ARRAY_ACCESSES,
    BESIDE_EVENED_REGISTERS,
    EVENED_REGISTERS,
)
from thunder_fuser.lower.scalar_graph import Compute, Random, ScalarGraph, Value, forms
from thunder_fuser.lower.store import Store
from thunder_fuser.lower.vectors.lanes import Lanes
from thunder_fuser.lower.vectors.paired_lanes import can_pair
from thunder_fuser.lower.vectors.vectorize import RegisterArray, plan_accesses
from thunder_fuser.templates.pointwise.break_point import BreakPoint, find_break_point
from thunder_fuser.templates.pointwise.parts import KernelOfParts, rounds_of
from thunder_fuser.templates.prefetches import prefetches

THREADS = 256
MAX_UNROLL = 4
MAX_INSTRUCTIONS = 8192
"""Most arithmetic instructions of one thread on a GPU, whose compiler unrolls all lanes and
vectors: beyond some thousand, wider accesses gain nothing and compiling takes longer than running.
"""
OCCUPANCY = 0.5
"""Share of a multiprocessor's threads that a kernel of unknown register use can be expected to get.
"""
_LIGHT_BYTES, _LIGHT_INSTRUCTIONS = 32, 32
"""Most bytes of a thread's loads for one vector (those of two tensors), and most arithmetic of one
point, with which a multiprocessor gets all threads that it has room for.
"""
_MOST_CODE = 2048
"""Most instructions of a thread that stay in the instruction cache (32 KB on sm_90)."""
_RARE_CODE = {"sin": 4, "cos": 4, "tan": 4}
"""Factor of code size over instructions that usually run: CUDA inlines the reduction of large
arguments.  sin and cos of one bf16 tensor took 78 us on an H200 with two vectors, and 69 with one.
"""
_IN_FLIGHT_SHARE = 2 / 3
"""Share of the bytes in flight that a kernel that only reads needs.  One that writes as much has
its stores in flight, too, and is slower with more: relu of 2^27 bf16 on an H200 takes 130, 135 and
137 us with one, two and four vectors a thread (benchmarks/results/nvidia-h200.md).
"""


_LONG = 2
"""Least ratio of a row to the points of a warp for a test whether vectors lie in one row to pay: a
warp with some that do not takes both branches.
"""


@dataclass(frozen=True, slots=True)
class PointwisePart:
    """A range of blocks that computes `stores` at `count` points of one iteration space.

    prefetches   tensors, and addresses in them, to prefetch for later vectors
    paired       lanes are in the register order of `lower/vectors/paired_lanes.py`
    in_rows      the part for threads whose vectors lie in one row each, by
                 `lower/points/point_rows.py`
    break_point  rows outside and columns inside of it, on a host (`break_point.py`)
    rounds       rounds of blocks in which the pieces of one group take turns (`parts.py`)
    """

    stores: tuple[Store, ...]
    graph: ScalarGraph
    accesses: tuple[RegisterArray, ...]
    lanes: Lanes
    count: int
    unroll: int
    prefetches: tuple[tuple[TensorView, Form], ...] = ()
    paired: bool = False
    in_rows: PointwisePart | None = None
    break_point: BreakPoint | None = None
    rounds: int = 1

    @property
    def usual(self) -> PointwisePart:
        """The part that nearly all threads run."""
        return self.in_rows or self

    @property
    def rows(self) -> RowLanes | None:
        """Lanes of `in_rows`."""
        if self.in_rows is None:
            return None
        assert isinstance(self.in_rows.lanes, RowLanes)
        return self.in_rows.lanes

    @property
    def vectors(self) -> int:
        return self.lanes.vectors

    @property
    def words_loaded(self) -> int:
        """32-bit registers for a thread's loads."""
        wide = [a for a in self.usual.accesses if not a.is_uniform]
        each = sum(a.loads[0].dtype.itemsize for a in wide) * self.lanes.vector
        return each * self.unroll // WORD

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return THREADS if self.break_point is None else 1

    @property
    def blocks(self) -> int:
        each = THREADS * self.unroll if self.break_point is None else self.break_point.vectors
        return -(-self.vectors // (each * self.rounds)) * self.rounds

    def __str__(self) -> str:
        wide = [a for a in self.usual.accesses if a.is_vector]
        rows = f" in rows of {self.rows.length}" if self.rows else ""
        if (at := self.break_point) is not None:
            block = f"{at.rows} rows of {at.columns} vectors, with {len(at.kept)} kept loads"
        else:
            block = f"{THREADS}"
        turns = f" in {self.rounds} rounds" if self.rounds > 1 else ""
        return (
            f"{', '.join(s.tensor.name for s in self.stores)}: {self.count} points{rows}, vector "
            f"{self.lanes.vector}, unroll {self.unroll}, {self.blocks} blocks of {block}{turns}; "
            f"{len(wide)} of {len(self.accesses)} loads are vectors"
        )


@dataclass(frozen=True, slots=True)
class PointwiseSchedule(KernelOfParts[PointwisePart]):
    """A pointwise kernel."""

    template: ClassVar[str] = "pointwise"


def schedule_pointwise(body: KernelBody, device: DeviceInfo) -> PointwiseSchedule:
    """Schedule the outputs of one segment."""
    planned = [_parts_of_pieces(group, body, device) for group in point_groups(body)]
    evened = _evened([part for group in planned for parts in group for part in parts], device)
    found: list[PointwisePart] = []
    for group in planned:
        parts = [[next(evened) for _ in parts] for parts in group]
        rounds = rounds_of([first.blocks for first, *_ in parts]) if len(parts) > 1 else 1
        found += [replace(first, rounds=rounds) for first, *_ in parts]
        found += [left for _, *rest in parts for left in rest]
    return PointwiseSchedule(tuple(found))


def _parts_of_pieces(
    group: PointGroup, body: KernelBody, device: DeviceInfo
) -> list[list[PointwisePart]]:
    """Return the parts of each piece of a group. On a core, those of the pieces of its rows if
    these need fewer instructions than vectors that cross ends of rows.
    """
    whole = [pointwise_parts(piece, body, device) for piece in pieces(group, body, device)]
    if len(whole) > 1 or not device.threads_are_serial:
        return whole
    (first, *_), (widest, *_) = whole[0], vectors_to_try(group, group.count, device)
    crosses_rows = first.rows is not None or any(access.gather for access in first.accesses)
    if first.lanes.vector == widest and not crosses_rows:
        return whole
    split = (
        [pointwise_parts(piece, body, device) for piece in narrower]
        for narrower in row_pieces(group, body, widest)
    )
    return min([whole, *split], key=_cost_of_pieces)


def _cost_of_pieces(planned: Sequence[Sequence[PointwisePart]]) -> float:
    """Return memory instructions of all points, some of which are in vectors that cross rows."""
    found = 0.0
    for part in (part for parts in planned for part in parts):
        crossing = 1.0
        if part.in_rows is not None and part.rows is not None:
            crossing = min(1.0, (part.lanes.vector - 1) / part.rows.length)
            found += _cost(part) * part.count * (1 - crossing)
        each = instructions(part.stores, part.accesses, part.lanes.vector)
        found += crossing * each * part.vectors
    return found


def _evened(parts: Sequence[PointwisePart], device: DeviceInfo) -> Iterator[PointwisePart]:
    """Yield parts with more vectors a thread where they load little and another part of the launch
    loads much: its register pressure bounds the occupancy of all, and theirs leaves few bytes in
    flight. The backward of Llama-3's RoPE takes 67 us on an H200 with two vectors of queries, and
    69 with one.
    """
    words = [part.words_loaded for part in parts if part.accesses]
    is_uneven = bool(words) and 2 * min(words) < max(words) <= EVENED_REGISTERS
    if not is_uneven or device.threads_are_serial:
        yield from parts
        return
    wanted = _IN_FLIGHT_SHARE * device.bytes_in_flight_per_sm
    registers = max(words) + BESIDE_EVENED_REGISTERS
    threads = min(device.registers_per_sm // registers, device.threads_per_sm)
    for part in parts:
        moved = threads * _bytes_from_memory(part)
        most = min(MAX_UNROLL, _most_code_points(part.graph) // part.lanes.vector)
        most = min(most, EVENED_REGISTERS * part.unroll // max(part.words_loaded, 1))
        most = min(most, part.vectors // (threads * device.sm_count))
        unroll = part.unroll
        while part.in_rows is None and 2 * unroll <= most and 0 < moved * unroll < wanted:
            unroll *= 2
        yield replace(part, unroll=unroll)


def _bytes_from_memory(part: PointwisePart) -> float:
    """Return bytes of memory for the loads of a vector: a tensor that is read several times, or by
    many vectors, is read once, and then hits caches.
    """
    loaded: dict[TensorView, float] = {}
    for access in (a for a in part.accesses if not a.is_uniform):
        tensor, itemsize = access.loads[0].tensor, access.loads[0].dtype.itemsize
        loaded[tensor] = loaded.get(tensor, 0) + itemsize * part.lanes.vector
    return sum(min(size, tensor.bytes / part.vectors) for tensor, size in loaded.items())


def pointwise_parts(group: PointGroup, body: KernelBody, device: DeviceInfo) -> list[PointwisePart]:
    """Return one part, and one for the points that its vectors leave over."""
    most = most_points(group.graph, device)

    def plan(count: int, offset: int, vector: int) -> PointwisePart:
        return _part(group, Lanes(group.point, count, offset, vector), count, most, body, device)

    widest, *narrower = vectors_to_try(group, min(group.count, most), device)
    best = plan(group.count - group.count % widest, 0, widest)
    for vector in narrower:
        # Each vector takes an instruction for every store, and one for what is loaded.
        if _cost(best) <= (len(best.stores) + bool(best.accesses)) / vector:
            break
        part = plan(group.count - group.count % vector, 0, vector)
        if _cost(part) < _cost(best):
            best = part
    left = group.count - best.count
    return [best] + ([plan(left, best.count, 1)] if left else [])


def _part(
    group: PointGroup, lanes: Lanes, count: int, most: int, body: KernelBody, device: DeviceInfo
) -> PointwisePart:
    """Return the part for the points of `lanes`. `most`: points that a thread may compute."""

    def planned(lanes: Lanes, most: int) -> PointwisePart:
        accesses = plan_accesses(group.graph, lanes, body.memory(device))
        stores = group.stores(lanes, body, device)
        most_vectors = min(most, _most_code_points(group.graph)) // lanes.vector
        unroll = _unroll(accesses, lanes, most_vectors, device, _is_light(group.graph))
        ahead = prefetches(accesses, lanes, device)
        paired = device.threads_are_serial and can_pair(group.graph, accesses, stores, lanes)
        return PointwisePart(stores, group.graph, accesses, lanes, count, unroll, ahead, paired)

    part = planned(lanes, most)
    if device.threads_are_serial and (broken := _at_break_point(part)) is not None:
        return broken
    indices = [form for node in group.graph for form in forms(node)]
    length = row_length([*indices, *(s.address for s in part.stores)], lanes)
    at_a_time = 1 if device.threads_are_serial else WARP_SIZE
    # Both branches are code of a thread.
    room = min((length or 0) // (_LONG * at_a_time), most // 2)
    if length is None or room < lanes.vector:
        return part
    in_rows = planned(RowLanes(lanes, length), room)
    return replace(part, unroll=in_rows.unroll, in_rows=in_rows)


def _at_break_point(part: PointwisePart) -> PointwisePart | None:
    """Return the part in rows and columns, if lanes can then be in pairs, and only then."""
    at = None if part.paired else find_break_point(part.accesses, part.lanes)
    if at is None or not can_pair(part.graph, part.accesses, part.stores, part.lanes, at.kept):
        return None
    return replace(part, paired=True, break_point=at)


def _cost(part: PointwisePart) -> float:
    """Return memory instructions per point; the widest of parts with equally many is best."""
    vector, usual = part.lanes.vector, part.usual
    return instructions(usual.stores, usual.accesses, vector) / vector


def instructions(stores: Sequence[Store], accesses: Sequence[RegisterArray], vector: int) -> int:
    """Return memory instructions of one thread for a vector of points."""
    stored = sum(
        sum(w.instructions(s.tensor.dtype.itemsize) for w in s.windows) or vector for s in stores
    )
    return stored + sum(a.instructions(vector) for a in accesses)


def vectors_to_try(group: PointGroup, count: int, device: DeviceInfo) -> list[int]:
    """Return vector widths to try: the narrowest type fills an access; wider types take several."""
    sizes = [t.dtype.itemsize for t in group.tensors]
    sizes += [load.dtype.itemsize for load in group.graph.loads]
    widest = max(1, device.vector_bytes // min(sizes))
    widest = min(widest, ARRAY_ACCESSES * device.vector_bytes // max(sizes))
    return [v for v in (64, 32, 16, 8, 4, 2, 1) if v <= widest and v <= max(count, 1)]


def most_points(graph: ScalarGraph, device: DeviceInfo) -> int:
    """Return the most points of one thread. A host compiler does not unroll the loop over lanes."""
    cost = sum(_arithmetic(node) for node in graph)
    return 1 << 30 if device.threads_are_serial else max(1, MAX_INSTRUCTIONS // max(cost, 1))


def _arithmetic(node: Value) -> int:
    """Return the arithmetic of one point, in fp32 instructions."""
    match node:
        case Compute():
            return pointwise.lookup(node.op).cost
        case Random():
            return random.lookup(node.draw.op).cost
        case _:
            return 0


def _most_code_points(graph: ScalarGraph) -> int:
    """Return the most points of one thread whose code stays in the instruction cache."""
    code = sum(
        _arithmetic(node) * (_RARE_CODE.get(node.op, 1) if isinstance(node, Compute) else 1)
        for node in graph
    )
    return _MOST_CODE // max(code, 1)


def _is_light(graph: ScalarGraph) -> bool:
    return sum(_arithmetic(node) for node in graph) <= _LIGHT_INSTRUCTIONS


def _unroll(
    accesses: Sequence[RegisterArray], lanes: Lanes, most: int, device: DeviceInfo, is_light: bool
) -> int:
    """Return vectors per thread such that enough bytes are in flight, while blocks still fill the
    device.
    """
    loaded = sum(a.loads[0].dtype.itemsize * lanes.vector for a in accesses if not a.is_uniform)
    if not loaded or not device.bytes_in_flight_per_sm:
        return 1
    # A vector that first waits for scalars of its row has its loads in flight for a shorter time.
    waits = isinstance(lanes, RowLanes) or any(a.is_uniform for a in accesses)
    is_light = is_light and loaded <= _LIGHT_BYTES and not waits
    threads = int(device.threads_per_sm * (1 if is_light else OCCUPANCY))
    wanted = device.bytes_in_flight_per_sm * (_IN_FLIGHT_SHARE if is_light else 1)
    unroll = 1
    while unroll * 2 <= min(MAX_UNROLL, most) and loaded * unroll * threads < wanted:
        unroll *= 2
    resident = device.sm_count * max(1, threads // THREADS)
    while unroll > 1 and lanes.vectors < THREADS * unroll * resident:
        unroll //= 2
    return unroll
