"""The transpose template: tiles transposed in shared memory, where loads and stores have different
innermost dimensions.

Two dimensions of the output matter: I, the innermost one of the stores, and J, along which some
loads have stride 1. A block owns a tile of J x I. First it reads these loads with vectors along J
and writes them transposed to shared memory; then it computes and stores with vectors along I, where
all other loads are vectors too. A tile holds loaded values, so that arithmetic on either side is
part of the same kernel. All other dimensions number the tiles.

The dimensions are derived from the addresses (templates/transpose/axes.py): a batched permutation
of any rank, a reshape and a broadcast are the same case.

On the host one thread does the work of a block, with two loops in place of the barrier.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from thunder_fuser.device import DeviceInfo
from thunder_fuser.errors import Refusal
from thunder_fuser.ir.fusion import TensorView
from thunder_fuser.ir.integer.symint import Form
from thunder_fuser.lower.body import KernelBody
from thunder_fuser.lower.points.point_groups import PointGroup, point_groups
from thunder_fuser.lower.register_budget import TILE_REGISTERS
from thunder_fuser.lower.scalar_graph import Conjunction, Load, ScalarGraph
from thunder_fuser.lower.store import Store
from thunder_fuser.lower.vectors.lanes import LaneForms
from thunder_fuser.lower.vectors.vectorize import RegisterArray, plan_accesses
from thunder_fuser.templates.pointwise.parts import KernelOfParts
from thunder_fuser.templates.pointwise.schedule import (
    THREADS,
    PointwisePart,
    instructions,
    most_points,
    pointwise_parts,
    vectors_to_try,
)
from thunder_fuser.templates.prefetches import far_reads
from thunder_fuser.templates.transpose.axes import Axes, Plane, find_axes
from thunder_fuser.templates.transpose.tile import Tile, plan_tile

SIDE_BYTES = 256
"""Bytes of a tile's side, in the widest type in it; fewer where points are few."""
LONGEST_SIDE, SHORTEST_SIDE = 128, 32
MOST_STEPS = 8
"""Most vectors along I of one thread, all in flight at once."""
ROWS_AHEAD = 8
"""Rows of a tile that a host core prefetches ahead: too short for its own prefetcher."""
RESIDENT_BLOCKS = 3
"""Fewest resident blocks of a multiprocessor, for which shared memory must have room."""


@dataclass(frozen=True, slots=True)
class TransposePart:
    """A range of blocks, each with one tile of the points of a group.

    extents     extents of J and I
    sides       sides of a tile along J and I
    tiles       loads that pass through shared memory
    lanes       lanes of a vector along I: forms over the tile's number, local `j`, vector `q`, lane
                `v`
    inside      predicate of vectors that exist
    threads     threads of a block
    prefetches  tensors, and addresses in them, to prefetch for later rows
    narrow      the same with vectors of one point, for those of partial vectors, on a host
    """

    rounds: ClassVar[int] = 1

    stores: tuple[Store, ...]
    graph: ScalarGraph
    accesses: tuple[RegisterArray, ...]
    lanes: LaneForms
    tiles: tuple[Tile, ...]
    extents: tuple[int, int]
    sides: tuple[int, int]
    inside: Conjunction
    count: int
    blocks: int
    threads: int
    prefetches: tuple[tuple[TensorView, Form], ...] = ()
    narrow: TransposePart | None = None

    @property
    def shared_bytes(self) -> int:
        return sum(tile.bytes for tile in self.tiles)

    def __str__(self) -> str:
        turned = ", ".join(f"{t.load.tensor.name} by {t.width}" for t in self.tiles)
        j, i = self.sides
        return (
            f"{', '.join(s.tensor.name for s in self.stores)}: {self.count} points, tiles of "
            f"{j} x {i}, vector {self.lanes.vector}, {self.blocks} blocks of {self.threads}; "
            f"transposed: {turned}"
        )


@dataclass(frozen=True, slots=True)
class TransposeSchedule(KernelOfParts[PointwisePart | TransposePart]):
    """A kernel some of whose parts transpose tiles; the others are pointwise."""

    template: ClassVar[str] = "transpose"

    @property
    def shared_bytes(self) -> int:
        return max(p.shared_bytes for p in self.parts if isinstance(p, TransposePart))


def schedule_transpose(body: KernelBody, device: DeviceInfo) -> TransposeSchedule | Refusal:
    """Schedule the outputs of one segment, or refuse if no tile pays."""
    groups = point_groups(body)
    turned = [_transpose_part(group, body, device) for group in groups]
    refusals = [found for found in turned if isinstance(found, Refusal)]
    if len(refusals) == len(turned):
        return refusals[0] if refusals else Refusal("empty", "there is nothing to compute")
    parts: list[PointwisePart | TransposePart] = []
    for group, found in zip(groups, turned, strict=True):
        if isinstance(found, Refusal):
            parts += pointwise_parts(group, body, device)
        else:
            parts.append(found)
    return TransposeSchedule(tuple(parts))


# ---- one group


def _transpose_part(
    group: PointGroup, body: KernelBody, device: DeviceInfo
) -> TransposePart | Refusal:
    if group.graph.checks:
        return Refusal("position", "data decides what is read")
    found = find_axes(group, device.sector_bytes)
    if isinstance(found, Refusal):
        return found
    axes, _ = max(found, key=lambda each: each[1])
    loads = _loads_to_turn(Plane(group, axes, (1, 1)), device)
    if not loads:
        return Refusal("stride", "no load has the same strides everywhere")
    plane = _choose_sides(group, axes, loads, device)
    memory = body.memory(device)
    tiles: list[Tile] = []
    for load in loads:
        offset = sum(tile.bytes for tile in tiles)
        tiles.append(plan_tile(load, plane, offset, memory[load.tensor.id].alignment, device))

    def part(vector: int) -> tuple[float, TransposePart]:
        lanes = _lanes(plane, vector)
        accesses = plan_accesses(group.graph, lanes, memory)
        stores = group.stores(lanes, body, device)
        direct = [a for a in accesses if not set(a.loads) & set(loads)]
        return instructions(stores, direct, vector) / vector, TransposePart(
            stores,
            group.graph,
            accesses,
            lanes,
            tuple(tiles),
            (axes.j, axes.i),
            plane.sides,
            plane.inside(lanes),
            group.count,
            plane.tiles,
            1 if device.threads_are_serial else THREADS,
            _prefetches(direct, plane, device),
        )

    # The widest of those with the fewest memory instructions for each point.
    _, best = min(map(part, _vectors(plane, device)), key=lambda each: each[0])
    if axes.i % best.lanes.vector == 0:
        return best
    return replace(best, narrow=replace(part(1)[1], prefetches=()))


def _prefetches(
    direct: Sequence[RegisterArray], plane: Plane, device: DeviceInfo
) -> tuple[tuple[TensorView, Form], ...]:
    row = plane.variable("j", plane.sides[0])
    return tuple(
        (tensor, address.substitute({row: row + ROWS_AHEAD}))
        for tensor, address, _ in far_reads(direct, device)
    )


def _loads_to_turn(plane: Plane, device: DeviceInfo) -> list[Load]:
    """Return the loads to transpose that shared memory has room for with the smallest tile; others
    are strided.
    """
    room = device.shared_bytes_per_block // (2 * SHORTEST_SIDE**2)
    found = []
    for load in plane.group.graph.loads:
        if plane.turned(load) and load.dtype.itemsize <= room:
            room -= load.dtype.itemsize
            found.append(load)
    return found


def _choose_sides(
    group: PointGroup, axes: Axes, loads: Sequence[Load], device: DeviceInfo
) -> Plane:
    """Return the largest tile that leaves room for resident blocks, and work for all
    multiprocessors.

    As square as the dimensions allow; on the host twice as long along J, where a core prefetches.
    """
    widest = max(load.dtype.itemsize for load in loads)
    longest_j, longest_i = _power_of_two(axes.j), _power_of_two(axes.i)
    side = min(SIDE_BYTES // widest, LONGEST_SIDE)
    while True:
        area = side * side * (2 if device.threads_are_serial else 1)
        j = min(area // min(side, longest_i), longest_j)
        i = min(area // j, longest_i)
        plane = Plane(group, axes, (j, i))
        if side <= SHORTEST_SIDE or _fits(plane, loads, device):
            return plane
        side //= 2


def _fits(plane: Plane, loads: Sequence[Load], device: DeviceInfo) -> bool:
    points = plane.sides[0] * plane.sides[1]
    turned = sum(load.dtype.itemsize for load in loads)
    if device.threads_are_serial:
        return points * turned <= device.l2_bytes // 8
    direct = sum(load.dtype.itemsize for load in plane.group.graph.loads) - turned
    widest = max(load.dtype.itemsize for load in loads)
    vectors = points // max(_vectors(plane, device))
    return (
        points * turned * RESIDENT_BLOCKS <= device.shared_bytes_per_sm
        and points // THREADS * (direct + widest) <= 4 * TILE_REGISTERS
        and points // THREADS <= most_points(plane.group.graph, device)
        and vectors // THREADS <= MOST_STEPS
        and plane.tiles >= RESIDENT_BLOCKS * device.sm_count
    )


def _vectors(plane: Plane, device: DeviceInfo) -> list[int]:
    """Return vector widths along I to try, which divide it; a core stores anywhere, and the points
    of partial vectors one by one.
    """
    found = vectors_to_try(plane.group, plane.sides[1], device)
    return [v for v in found if plane.axes.i % v == 0 or device.threads_are_serial]


def _lanes(plane: Plane, vector: int) -> LaneForms:
    context = plane.group.point.context
    side_j, side_i = plane.sides
    lane = context.var("v", 0, vector - 1)
    along = context.var("q", 0, side_i // vector - 1) * vector + lane
    steps = plane.steps(context.var("j", 0, side_j - 1), along)
    return LaneForms(steps, lane, vector, side_j * side_i // vector)


def _power_of_two(count: int) -> int:
    """Return the smallest power of two that is not below `count`."""
    return 1 << (count - 1).bit_length()
