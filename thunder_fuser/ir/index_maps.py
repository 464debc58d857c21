"""Index maps of views: from a point of the logical dimensions to one of the root, and back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from thunder_fuser.errors import InternalError
from thunder_fuser.ir.domain import (
    Assume,
    Expand,
    Index,
    IterDomain,
    Merge,
    NewBroadcast,
    Reduce,
    Reorder,
    Resize,
    Split,
    Squeeze,
    Transform,
    replay,
    static,
)


@dataclass(frozen=True, slots=True)
class Guard:
    """A predicate `0 <= index < extent`; where it is false, the fill value of a pad is read.

    Only a padded side can be violated: `lower` and `upper` say which comparison can fail at all.
    """

    index: Index
    extent: int
    lower: bool = True
    upper: bool = True


def pull(
    index: Sequence[Index],
    root: Sequence[IterDomain],
    transforms: Sequence[Transform],
    zero: Index,
) -> tuple[tuple[Index, ...], tuple[Guard, ...]]:
    """The root point that a logical point is read from, and the guards under which it exists.

    Needs static extents; `zero` is the constant 0 of the index's context. Forms are exact inside
    the guards only: outside, the returned index may be out of bounds and must not be used to load.
    """
    stages = [tuple(root)]
    for step in transforms:
        stages.append(replay(stages[-1], (step,)))
    point = list(index)
    guards: list[Guard] = []
    for step, before in zip(reversed(transforms), reversed(stages[:-1]), strict=True):
        match step:
            case Split(axis, _, inner):
                point[axis : axis + 2] = [point[axis] * static(inner) + point[axis + 1]]
            case Merge(axis):
                sizes = static(before[axis].size), static(before[axis + 1].size)
                point[axis : axis + 1] = _unmerge(point[axis], *sizes, zero)
            case Resize(axis, left, right):
                point[axis] = point[axis] - static(left)
                grown = static(left) > 0, static(right) > 0
                if any(grown):
                    guards.append(Guard(point[axis], static(before[axis].size), *grown))
            case NewBroadcast(axis):
                del point[axis]
            case Squeeze(axis):
                point.insert(axis, zero)
            case Expand(axis, _):
                point[axis] = zero
            case Assume():
                raise InternalError(f"{step} is left, although sizes are known")
            case Reorder(order):
                point = [point[order.index(k)] for k in range(len(order))]
            case Reduce():
                raise InternalError("a reduction is no substitution of indices: it has a stage")
    return tuple(point), tuple(guards)


def push(
    index: Sequence[Index],
    root: Sequence[IterDomain],
    transforms: Sequence[Transform],
    zero: Index,
) -> tuple[Index, ...] | None:
    """The logical point of a root point; None if the map is not one to one for all points."""
    point, dims = list(index), tuple(root)
    for step in transforms:
        before, dims = dims, replay(dims, (step,))
        match step:
            case Split(axis, outer, inner):
                if static(outer) * static(inner) != static(before[axis].size):
                    return None
                point[axis : axis + 1] = divmod(point[axis], max(static(inner), 1))
            case Merge(axis):
                merged = point[axis] * static(before[axis + 1].size) + point[axis + 1]
                point[axis : axis + 2] = [merged]
            case NewBroadcast(axis):
                point.insert(axis, zero)
            case Squeeze(axis):
                del point[axis]
            case Reorder(order):
                point = [point[k] for k in order]
            case _:
                return None
    return tuple(point)


def _unmerge(index: Index, outer: int, inner: int, zero: Index) -> list[Index]:
    if outer == 1:
        return [zero, index]
    if inner <= 1:
        return [index, zero]
    quotient, remainder = divmod(index, inner)
    return [quotient, remainder]
