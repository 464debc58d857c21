"""Axes of a transpose: the innermost dimensions of its loads and of its stores.

I is the innermost dimension of the stores, J another one, along which some loads have stride 1.
Both are found in the addresses, which are sums of digits of the flattened point; all other
dimensions number the tiles that the plane is cut into.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from thunder_fuser.errors import Refusal
from thunder_fuser.ir.integer.symint import Form, Variable
from thunder_fuser.lower.points.point_groups import PointGroup
from thunder_fuser.lower.scalar_graph import Conjunction, Load
from thunder_fuser.lower.vectors.lanes import LaneForms, lane_condition
from thunder_fuser.lower.vectors.vectorize import ALWAYS, simplify

SHORTEST_I = 128
"""Fewest points along I of a dimension of its own; shorter ones are joined with outer ones."""


@dataclass(frozen=True, slots=True)
class Axes:
    """The flattened point as ((outer * j + J) * middle + m) * i + I."""

    outer: int
    j: int
    middle: int
    i: int


def find_axes(group: PointGroup, sector: int) -> list[tuple[Axes, int]] | Refusal:
    """Return the axes along whose J some load has stride 1, with the bytes of these loads.

    Memory delivers at least a sector of bytes: a stride over shorter dimensions costs nothing.
    """
    found: dict[Axes, int] = {}
    refusal = Refusal("stride", "no load has stride 1 along another dimension than the stores")
    for load in group.graph.loads:
        axes = _axes_of(load, group)
        if axes is None:
            continue
        if simplify(group.graph.contexts[load]) != ALWAYS:
            text = "it is read with a stride, but only where a pad or cat asks for it"
            refusal = Refusal("guard", text, load.tensor.name)
        elif min(axes.j, axes.i) * load.dtype.itemsize < sector:
            text = f"{axes.j} x {axes.i} points are too few to turn"
            refusal = Refusal("extent", text, load.tensor.name)
        else:
            found[axes] = found.get(axes, 0) + load.dtype.itemsize
    return list(found.items()) or refusal


def _axes_of(load: Load, group: PointGroup) -> Axes | None:
    places = {group.count}
    along: tuple[int, int] | None = None
    strided = False
    for digit, coef in load.address.terms:
        if not isinstance(digit.base, Variable):
            return None
        places.add(digit.s)
        size = group.count // digit.s if digit.e is None else digit.e
        places.add(digit.s * size)
        if digit.s == 1:
            strided = coef != 1
        elif coef == 1:
            along = digit.s, size
    if along is None or not strided:
        return None
    place, j = along
    # I ends where an address first does; short dimensions above it are part of it.
    inner = sorted(p for p in places if 1 < p <= place and place % p == 0)
    i = next((p for p in inner if p >= SHORTEST_I), place)
    outer, rest = divmod(group.count, place * j)
    return None if rest else Axes(outer, j, place // i, i)


@dataclass(frozen=True, slots=True)
class Plane:
    """The points of a group, cut into tiles with `sides` along J and I.

    Forms are substituted in two steps: first J and I within their extents, so that digits of
    addresses separate along them, and then coordinates from the corner of a tile, which may reach
    further.
    """

    group: PointGroup
    axes: Axes
    sides: tuple[int, int]

    @property
    def counts(self) -> tuple[int, int]:
        """Tiles along J and along I."""
        return -(-self.axes.j // self.sides[0]), -(-self.axes.i // self.sides[1])

    @property
    def tiles(self) -> int:
        along_j, along_i = self.counts
        return self.axes.outer * self.axes.middle * along_j * along_i

    def variable(self, name: str, count: int) -> Form:
        return self.group.point.context.var(name, 0, count - 1)

    @property
    def exact(self) -> tuple[Form, Form, Mapping[Form, Form]]:
        """J, I, and the substitution of the point by them and by the number of the plane."""
        axes = self.axes
        j, i = self.variable("J", axes.j), self.variable("I", axes.i)
        o, m = self.variable("o", axes.outer), self.variable("m", axes.middle)
        return j, i, {self.group.point: ((o * axes.j + j) * axes.middle + m) * axes.i + i}

    def steps(self, local_j: Form, local_i: Form) -> list[Mapping[Form, Form]]:
        """Return the substitutions from the point to the tile's number and local coordinates."""
        j, i, first = self.exact
        along_j, along_i = self.counts
        rest, at_i = divmod(self.variable("tile", self.tiles), along_i)
        rest, at_j = divmod(rest, along_j)
        o, m = divmod(rest, self.axes.middle)
        second = {
            j: at_j * self.sides[0] + local_j,
            i: at_i * self.sides[1] + local_i,
            self.variable("o", self.axes.outer): o,
            self.variable("m", self.axes.middle): m,
        }
        return [first, second]

    def turned(self, load: Load) -> bool:
        """True if the load has stride 1 along J, and another stride along I."""
        j, i, step = self.exact
        address = load.address.substitute(step)
        strided = address.depends_on(i) and address.coefficient(i) != 1
        always = simplify(self.group.graph.contexts[load]) == ALWAYS
        return always and strided and address.coefficient(j) == 1

    def inside(self, lanes: LaneForms) -> Conjunction:
        """Return the predicate of vectors that exist, where the last tile is partial."""
        j, i, _ = self.exact
        extents, sides = (self.axes.j, self.axes.i), self.sides
        left = [
            lane_condition(extent - 1 - at, lanes)
            for at, extent, side in zip((j, i), extents, sides, strict=True)
            if extent % side
        ]
        return tuple(left)
