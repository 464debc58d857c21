"""Sets of points of a tensor, as unions of boxes, and their images under domain transforms.

A box is one progression per dimension. `pulled` maps the points needed of a view's output to those
needed of its input; `measure` counts a union in which boxes may overlap.

The number of boxes is bounded. A set that would need more becomes the whole tensor and is marked as
not exact, which keeps it an upper bound.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise

from thunder_fuser.analysis.progression import (
    Progression,
    are_apart,
    clip,
    divide,
    interval,
    join,
    progression,
    unite,
)
from thunder_fuser.ir.domain import (
    Expand,
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
from thunder_fuser.ir.integer.counts import listed

BOX_LIMIT = 2048
_WORK_LIMIT = 200_000
"""Limit on slabs times boxes in `measure`, beyond which it returns an upper bound."""

Box = tuple[Progression, ...]


@dataclass(frozen=True, slots=True)
class Region:
    """The union of `boxes`, which may overlap; a superset of the intended set unless `exact`."""

    boxes: tuple[Box, ...]
    exact: bool = True

    def __bool__(self) -> bool:
        return bool(self.boxes)


EMPTY = Region(())
_ZERO = Progression(0)


def everything(dims: Sequence[IterDomain]) -> Region:
    """All elements; a broadcast dimension has one, whatever its visible size."""
    sizes = [1 if d.is_broadcast else static(d.extent) for d in dims]
    if 0 in sizes:
        return EMPTY
    return Region((tuple(interval(0, size) for size in sizes),))


def collapsed(region: Region, dims: Sequence[IterDomain]) -> Region:
    """The same points with index 0 along broadcast dimensions, which have one element."""
    if not any(d.is_broadcast for d in dims):
        return region
    boxes = [
        tuple(_ZERO if d.is_broadcast else p for p, d in zip(box, dims, strict=True))
        for box in region.boxes
    ]
    return _bounded(boxes, dims, region.exact)


def union(a: Region, b: Region, dims: Sequence[IterDomain]) -> Region:
    """The union; both are collapsed regions of a tensor with these dimensions."""
    for one, other in ((a, b), (b, a)):
        # Fast path: nothing is added to it, and there is nothing to join.
        if len(one.boxes) <= 1 and (one == other or other == EMPTY):
            return one
    whole = everything(dims)
    for region in (a, b):
        if region == whole:
            return region
    return _bounded([*a.boxes, *b.boxes], dims, a.exact and b.exact)


def without(box: Box, hole: Box) -> list[Box] | None:
    """Boxes that make up the points of a box outside of another; None if they are not seen to be
    boxes. Progressions of both have one stride.
    """
    if any(map(are_apart, box, hole)):
        return [box]
    inside, found = list(box), list[Box]()
    for k, (p, q) in enumerate(zip(box, hole, strict=True)):
        if p == q:
            continue
        met = clip(p, q.start, q.last + 1)
        if not q.is_interval or len(met) > 1:
            return None
        if not met:
            return [box]
        for part in (*clip(p, p.start, q.start), *clip(p, q.last + 1, p.last + 1)):
            found.append((*inside[:k], part, *box[k + 1 :]))
        inside[k] = met[0]
    return found


def pulled(region: Region, root: Sequence[IterDomain], transforms: Sequence[Transform]) -> Region:
    """The root points from which the transforms read `region`; padding has none."""
    for step, before in _backwards(root, transforms):
        region = _pulled(region, step, before)
    return region


def leaves(region: Region, root: Sequence[IterDomain], transforms: Sequence[Transform]) -> bool:
    """True if some point of `region` has no root point: a pad's fill value is read there."""
    for step, before in _backwards(root, transforms):
        if isinstance(step, Resize):
            begin = static(step.left)
            end = begin + static(before[step.axis].size)
            if volume(window(region, step.axis, begin, end)) < volume(region):
                return True
        region = _pulled(region, step, before)
    return False


def pushed(root: Sequence[IterDomain], transforms: Sequence[Transform]) -> Box | None:
    """The box of points that the transforms read from the root, rather than padding: the inverse of
    `pulled` for all of it. None if they leave out a point of the root, or the points are no box.
    """
    dims = tuple(root)
    box = tuple(interval(0, static(d.size)) for d in dims)
    for step in transforms:
        after = replay(dims, (step,))
        found = _push(box, step, dims, after)
        if found is None:
            return None
        dims, box = after, found
    return box


def _push(
    box: Box, step: Transform, before: Sequence[IterDomain], after: Sequence[IterDomain]
) -> Box | None:
    match step:
        case Split(axis, _, inner):
            parts = list(divide(box[axis], static(inner)))
            return (*box[:axis], *parts[0], *box[axis + 1 :]) if len(parts) == 1 else None
        case Merge(axis):
            merged = join(box[axis], box[axis + 1], static(before[axis + 1].size))
            return (*box[:axis], merged, *box[axis + 2 :])
        case Resize(axis, left, _):
            moved = box[axis].shift(static(left))
            fits = moved.start >= 0 and moved.last < static(after[axis].size)
            return (*box[:axis], moved, *box[axis + 1 :]) if fits else None
        case NewBroadcast(axis):
            return (*box[:axis], _ZERO, *box[axis:])
        case Squeeze(axis):
            return (*box[:axis], *box[axis + 1 :])
        case Expand(axis, size):
            return (*box[:axis], interval(0, static(size)), *box[axis + 1 :])
        case Reorder(order):
            return tuple(box[k] for k in order)
        case _:
            return None


def _backwards(
    root: Sequence[IterDomain], transforms: Sequence[Transform]
) -> Iterator[tuple[Transform, tuple[IterDomain, ...]]]:
    """The transforms from the last to the first, each with the dimensions before it."""
    stages = [tuple(root)]
    for step in transforms:
        stages.append(replay(stages[-1], (step,)))
    return zip(reversed(transforms), reversed(stages[:-1]), strict=True)


def window(region: Region, axis: int, begin: int, end: int) -> Region:
    """The part of `region` with index begin <= i < end along `axis`, shifted by -begin."""
    return Region(
        tuple(
            (*box[:axis], piece.shift(-begin), *box[axis + 1 :])
            for box in region.boxes
            for piece in clip(box[axis], begin, end)
        ),
        region.exact,
    )


def volume(region: Region) -> int:
    """Sum of the boxes' points; those in several boxes count several times."""
    return sum(math.prod(p.size for p in box) for box in region.boxes)


def _pulled(region: Region, step: Transform, before: Sequence[IterDomain]) -> Region:
    pieces = (piece for box in region.boxes for piece in _pull(box, step, before))
    return _bounded(pieces, before, region.exact)


def _pull(box: Box, step: Transform, before: Sequence[IterDomain]) -> Iterator[Box]:
    match step:
        case Split(axis, _, inner):
            merged = join(box[axis], box[axis + 1], static(inner))
            for piece in clip(merged, 0, static(before[axis].size)):
                yield (*box[:axis], piece, *box[axis + 2 :])
        case Merge(axis):
            for quotient, remainder in divide(box[axis], static(before[axis + 1].size)):
                yield (*box[:axis], quotient, remainder, *box[axis + 1 :])
        case Resize(axis, left, _):
            for piece in clip(box[axis].shift(-static(left)), 0, static(before[axis].size)):
                yield (*box[:axis], piece, *box[axis + 1 :])
        case NewBroadcast(axis):
            yield (*box[:axis], *box[axis + 1 :])
        case Squeeze(axis):
            yield (*box[:axis], _ZERO, *box[axis:])
        case Expand(axis, _):
            yield (*box[:axis], _ZERO, *box[axis + 1 :])
        case Reorder(order):
            yield tuple(box[order.index(k)] for k in range(len(order)))
        case Reduce(axis):
            for whole in everything(before[axis : axis + 1]).boxes:
                yield (*box[:axis], *whole, *box[axis:])


def _bounded(boxes: Iterable[Box], dims: Sequence[IterDomain], exact: bool) -> Region:
    """The boxes, joined where possible; everything if there are more than BOX_LIMIT."""
    found = list(islice(boxes, BOX_LIMIT + 1))
    if len(found) > BOX_LIMIT:
        return Region(everything(dims).boxes, exact=False)
    return Region(tuple(_joined(found)), exact)


def _joined(boxes: list[Box]) -> list[Box]:
    """Fewer boxes with the same union: boxes that differ in one dimension are joined along it."""
    count = len(boxes) + 1
    while 1 < len(boxes) < count:
        count = len(boxes)
        for axis in range(len(boxes[0])):
            groups: dict[tuple[Box, Box], list[Progression]] = {}
            for box in boxes:
                groups.setdefault((box[:axis], box[axis + 1 :]), []).append(box[axis])
            boxes = [
                (*before, p, *after)
                for (before, after), along in groups.items()
                for p in _united(along)
            ]
        boxes = list(dict.fromkeys(boxes))
    return boxes


def _united(progressions: list[Progression]) -> list[Progression]:
    kept: list[Progression] = []
    for p in sorted(progressions, key=lambda p: (p.start, p.steps)):
        together = unite(kept[-1], p) if kept else None
        if together is None:
            kept.append(p)
        else:
            kept[-1] = together
    return kept


# ---- counting

Span = tuple[int, int]


def measure(region: Region) -> tuple[int, bool]:
    """(number of distinct points, True if that is exact); else it is an upper bound.

    Every progression is written in the digits of a mixed radix common to its dimension. A box then
    is a product of plain intervals, and the union is counted by sweeping one digit after the other.
    """
    total = volume(region)
    if len(region.boxes) <= 1:
        return total, region.exact
    radices = [_radix(along) for along in zip(*region.boxes, strict=True)]
    digits = (spans for box in region.boxes for spans in _spans(box, radices))
    boxes = list(islice(digits, BOX_LIMIT + 1))
    if len(boxes) > BOX_LIMIT:
        return total, False
    counted = _Sweep().count(tuple(dict.fromkeys(boxes)))
    return (total, False) if counted is None else (counted, region.exact)


def _radix(along: Sequence[Progression]) -> list[int]:
    """Place values, largest first, each a divisor of the one before; the last is 1."""
    chain = [1]
    for stride in sorted({stride for p in along for stride, _ in p.steps}):
        if stride % chain[-1] == 0 and stride != chain[-1]:
            chain.append(stride)
    return chain[::-1]


def _spans(box: Box, radices: Sequence[Sequence[int]]) -> Iterator[tuple[Span, ...]]:
    """The box as products of digit intervals."""
    if not box:
        yield ()
        return
    for first in _digits(box[0], radices[0]):
        for others in _spans(box[1:], radices[1:]):
            yield (*first, *others)


def _digits(p: Progression, places: Sequence[int]) -> Iterator[tuple[Span, ...]]:
    if not places:
        yield ()
        return
    for quotient, remainder in divide(p, places[0]):
        for span in _intervals(quotient):
            for lower in _digits(remainder, places[1:]):
                yield (span, *lower)


def _intervals(p: Progression) -> Iterator[Span]:
    if p.is_interval:
        yield p.start, p.last + 1
    else:
        stride, count = p.steps[0]
        for k in range(listed(count)):
            yield from _intervals(progression(p.start + stride * k, p.steps[1:]))


class _Sweep:
    """Counts points of a union of interval boxes, digit by digit; sub-problems are memoised."""

    def __init__(self) -> None:
        self._known: dict[tuple[tuple[Span, ...], ...], int] = {}
        self._work = 0

    def count(self, boxes: tuple[tuple[Span, ...], ...]) -> int | None:
        """Number of points; None if it would exceed _WORK_LIMIT."""
        if len(boxes) == 1:
            return math.prod(end - begin for begin, end in boxes[0])
        if not boxes[0]:
            return 1
        known = self._known.get(boxes)
        if known is not None:
            return known
        cuts = sorted({edge for box in boxes for edge in box[0]})
        self._work += len(cuts) * len(boxes)
        if self._work > _WORK_LIMIT:
            return None
        total = 0
        for begin, end in pairwise(cuts):
            inside = [box[1:] for box in boxes if box[0][0] <= begin and end <= box[0][1]]
            if inside:
                found = self.count(tuple(dict.fromkeys(inside)))
                if found is None:
                    return None
                total += (end - begin) * found
        self._known[boxes] = total
        return total
