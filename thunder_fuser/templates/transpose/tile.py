"""Tile of a transpose in shared memory: written by vectors along J, read by vectors along I,
without bank conflicts.
"""

from __future__ import annotations

from dataclasses import dataclass

from thunder_fuser.device import DeviceInfo
from thunder_fuser.ir.integer.symint import Form
from thunder_fuser.lower.scalar_graph import Conjunction, Load
from thunder_fuser.lower.vectors.lanes import LaneForms
from thunder_fuser.templates.pointwise.schedule import THREADS
from thunder_fuser.templates.transpose.axes import Plane

UNIT_BYTES = 16
"""Bytes that a thread reads or writes at once, in memory and in a tile."""
BANK_UNITS = 8
"""Units that all banks of shared memory deliver at once."""
DEEPEST = 8
"""Most points along I that a thread transposes in registers: more would be too many registers."""


@dataclass(frozen=True, slots=True)
class Tile:
    """Tile of one load in shared memory.

    address  address in memory of the vector `a` along J, at the local position `i` along I
    width    elements of that vector
    depth    points along I at which a thread reads such vectors, to transpose them in registers: it
             writes `width` vectors of `depth` elements
    sides    points along J and along I
    ways     units that are swizzled (exchanged by XOR), so that threads that write one column have
             no bank conflicts; 1 where there are no banks
    spread   distance of the units of neighbouring vectors
    offset   bytes before it in shared memory
    inside   predicate of a vector's points that exist, over the point `w`
    whole    predicate of vectors all of whose points exist
    """

    load: Load
    address: Form
    inside: Conjunction
    width: int
    depth: int
    sides: tuple[int, int]
    ways: int
    spread: int
    offset: int
    whole: Conjunction
    is_aligned: bool = True

    @property
    def has_partial_vectors(self) -> bool:
        return self.whole != self.inside

    @property
    def unit(self) -> int:
        """Elements that stay contiguous under the swizzle."""
        return min(max(1, UNIT_BYTES // self.load.dtype.itemsize), self.sides[1])

    @property
    def bytes(self) -> int:
        return self.sides[0] * self.sides[1] * self.load.dtype.itemsize

    @property
    def blocks(self) -> int:
        """Squares of width x depth elements, each the work of one thread at a time."""
        return self.sides[0] // self.width * (self.sides[1] // self.depth)

    def place(self, j: int, i: int) -> int:
        """Return the element of the tile that holds a local point (csrc_templates/tile.cuh)."""
        unit = (j * self.sides[1] + i) // self.unit
        return (unit ^ j // self.width * self.spread % self.ways) * self.unit + i % self.unit


def plan_tile(load: Load, plane: Plane, offset: int, alignment: int, device: DeviceInfo) -> Tile:
    """Plan a tile with the widest reads that memory and the dimension allow, and work for all
    threads.
    """
    itemsize, (side_j, side_i) = load.dtype.itemsize, plane.sides
    context = load.address.context
    unit = max(1, UNIT_BYTES // itemsize)
    width = min(unit, side_j)
    while True:
        lane = context.var("w", 0, width - 1)
        vector = context.var("a", 0, side_j // width - 1)
        steps = plane.steps(vector * width + lane, context.var("r", 0, side_i - 1))
        lanes = LaneForms(steps, lane, width, side_j * side_i // width)
        address = lanes.at(lanes(load.address))[0]
        aligned = width * itemsize <= alignment and address.multiple_of(width)
        # A core reads anywhere, and the points of partial vectors one by one.
        if width == 1 or device.threads_are_serial or (aligned and plane.axes.j % width == 0):
            break
        width //= 2
    depth = min(unit, side_i)
    if not device.threads_are_serial:
        depth = min(depth, DEEPEST)
        while depth > 1 and side_j // width * (side_i // depth) < THREADS and depth * itemsize > 4:
            depth //= 2
    ways = 1 if device.threads_are_serial else min(BANK_UNITS, width * max(1, side_i // unit))
    spread = max(1, ways * width // side_j)
    inside = plane.inside(lanes)
    whole = tuple(lanes.at(condition)[-1] for condition in inside)
    shape = width, depth, plane.sides, ways, spread, offset
    return Tile(load, address, inside, *shape, whole, aligned)
