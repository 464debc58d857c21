"""Pieces of a point group: the points on each side of an index test, as groups of their own.

A cat pulled at one point is a select, so that a thread loads and computes the inputs of all pieces
and keeps one value. If a test splits the points into blocks of whole cache lines, each side can
have its own loop, in which the test is constant and the other side's loads are dead.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import gcd

from thunder_fuser.device import DeviceInfo
from thunder_fuser.ir.fusion import TensorView
from thunder_fuser.ir.integer.symint import Context, Form, Variable
from thunder_fuser.lower.body import KernelBody
from thunder_fuser.lower.points.point_groups import PointGroup, group_at
from thunder_fuser.lower.scalar_graph import Condition, Select

MOST_PIECES = 6
_LINE_BYTES = 128
"""Granularity of a piece's contiguous writes, in bytes: a cache line."""
_FEWEST_LINES = 4
"""Cache lines of a contiguous block, from which on a core may write parts of a line: its cache
merges them, where a GPU would write the line twice.
"""
_SHARED = 4
"""The tensors that several pieces read must fit this many times into the last-level cache, since
pieces read them at different times.
"""


@dataclass(frozen=True, slots=True)
class Cut:
    """Points whose digit `point // stride % extent` is in begin..end."""

    stride: int
    extent: int
    begin: int
    end: int

    def count(self, count: int) -> int:
        return count // self.extent * (self.end - self.begin)

    def place(self, point: Form) -> Form:
        """Return the index among all points of the cut's point number `point`."""
        rest, inner = divmod(point, self.stride)
        outer, digit = divmod(rest, self.end - self.begin)
        return (outer * self.extent + digit + self.begin) * self.stride + inner


def pieces(group: PointGroup, body: KernelBody, device: DeviceInfo) -> tuple[PointGroup, ...]:
    """Split a group into groups with the same points and fewer tests; the group itself if there
    are so many pieces that code for each does not pay.
    """
    shortest = _FEWEST_LINES if device.threads_are_serial else 0
    if len([*_sides(group, shortest)]) >= MOST_PIECES:
        return (group,)
    found: list[tuple[PointGroup, tuple[Cut, ...]]] = [(group, ())]
    k = 0
    while k < len(found) and len(found) < MOST_PIECES:
        whole, cuts = found[k]
        for sides in _sides(whole, shortest):
            parts = [(piece_at(group, body, (*cuts, cut)), (*cuts, cut)) for cut in sides]
            if _is_worth([part for part, _ in parts], body, device):
                found[k : k + 1] = parts
                break
        else:
            k += 1
    return tuple(part for part, _ in found)


def piece_at(group: PointGroup, body: KernelBody, cuts: tuple[Cut, ...]) -> PointGroup:
    count = group.count
    for cut in cuts:
        count = cut.count(count)
    context = Context()
    point = context.var("i", 0, count - 1)
    place = point
    for cut in reversed(cuts):
        place = cut.place(place)
    return group_at(group.tensors, body, point, place)


def _sides(group: PointGroup, shortest: int) -> Iterator[tuple[Cut, Cut]]:
    """Yield both sides of each test that splits the points into blocks of whole cache lines, or of
    at least `shortest` ones if that is above 0; the last test first.
    """
    widest = min(t.dtype.itemsize for t in group.tensors)
    seen: set[Condition] = set()
    found: set[tuple[Cut, Cut]] = set()
    for node in reversed([*group.graph]):
        if not isinstance(node, Select) or len(node.conditions) != 1 or node.positions:
            continue
        (condition,) = node.conditions
        if condition in seen:
            continue
        seen.add(condition)
        sides = _parted(condition, group)
        if sides is not None and sides not in found:
            found.add(sides)
            size = sides[0].stride * widest
            if size % _LINE_BYTES == 0 or 0 < shortest * _LINE_BYTES <= size:
                yield sides


def _parted(condition: Condition, group: PointGroup) -> tuple[Cut, Cut] | None:
    """Return the points below, and from, the digit at which a condition on one digit of the point
    changes; None for other conditions.
    """
    if len(condition.terms) != 1:
        return None
    ((digit, factor),) = condition.terms
    if not isinstance(digit.base, Variable) or group.point.terms[0][0].base is not digit.base:
        return None
    extent = digit.e if digit.e is not None else group.count // digit.s
    if group.count % (digit.s * extent):
        return None
    # The first digit at which the condition changes.
    first = condition.const // -factor + 1 if factor < 0 else -(condition.const // factor)
    if not 0 < first < extent:
        return None
    # In the largest common blocks of both sides: columns of a row become its heads.
    block = gcd(extent, first)
    stride, extent, first = digit.s * block, extent // block, first // block
    return Cut(stride, extent, 0, first), Cut(stride, extent, first, extent)


def _is_worth(parts: list[PointGroup], body: KernelBody, device: DeviceInfo) -> bool:
    """True if the tensors that both sides read stay in the last-level cache from one to the
    other.
    """
    read: list[set[TensorView]] = [{load.tensor for load in part.graph.loads} for part in parts]
    shared = set.intersection(*read)
    return _SHARED * sum(map(body.bytes_in_memory, shared)) <= device.last_level_bytes
