"""Sets of integers that slices, reshapes and strides cut out of a dimension, in closed form.

    start + stride0 * [0, count0) + stride1 * [0, count1) + ...        nested: each stride is larger
                                                                       than all that follows spans

One such progression is "columns 3..5 of every row" of a flattened matrix without an enumeration of
rows, so the cost of an operation depends on how a set was cut and not on its size. Progressions are
canonical (equal sets of this form are equal values), and closed, up to a handful of pieces, under
the operations of domain transforms on an index: shift, clip, quotient and remainder.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from thunder_fuser.ir.integer.counts import listed

Step = tuple[int, int]
"""(stride, count)"""


@dataclass(frozen=True, slots=True)
class Progression:
    """A non-empty set. `steps` begin with the largest stride; every count is at least 2."""

    start: int
    steps: tuple[Step, ...] = ()

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(count for _, count in self.steps)

    @property
    def last(self) -> int:
        """The largest element."""
        return self.start + _span(self.steps)

    @property
    def is_interval(self) -> bool:
        """True if the elements are consecutive integers."""
        return not self.steps or (len(self.steps) == 1 and self.steps[0][0] == 1)

    @property
    def stride(self) -> int | None:
        """The distance of its elements, 1 for a single one; None if these are uneven."""
        return None if len(self.steps) > 1 else self.steps[0][0] if self.steps else 1

    def shift(self, by: int) -> Progression:
        """The set with `by` added to every element."""
        return Progression(self.start + by, self.steps)

    def __iter__(self) -> Iterator[int]:
        """The elements, in increasing order."""
        if not self.steps:
            yield self.start
            return
        (stride, count), rest = self.steps[0], self.steps[1:]
        for i in range(listed(count)):
            yield from Progression(self.start + stride * i, rest)


def interval(begin: int, end: int) -> Progression:
    """begin, ..., end - 1, which must be at least one integer."""
    return progression(begin, [(1, end - begin)])


def progression(start: int, steps: Sequence[Step]) -> Progression:
    """The canonical form of nested steps, largest stride first."""
    kept: list[Step] = []
    for stride, count in steps:
        if count == 1:
            continue
        if kept and kept[-1][0] == stride * count:
            stride, count = stride, count * kept.pop()[1]
        kept.append((stride, count))
    return Progression(start, tuple(kept))


def _span(steps: Sequence[Step]) -> int:
    return sum(stride * (count - 1) for stride, count in steps)


def are_apart(p: Progression, q: Progression) -> bool:
    """True if two sets are seen to share no element: by their ends, or as classes of one stride."""
    if p.last < q.start or q.last < p.start:
        return True
    return p.stride is not None and p.stride == q.stride and (p.start - q.start) % p.stride != 0


def clip(p: Progression, begin: int, end: int) -> list[Progression]:
    """The part of `p` in [begin, end), as disjoint pieces."""
    if p.last < begin or p.start >= end:
        return []
    if begin <= p.start and p.last < end:
        return [p]
    # As blocks i of the largest stride: those that intersect [begin, end), and those inside it.
    (stride, count), inner = p.steps[0], p.steps[1:]
    span = _span(inner)
    first = max(0, -((p.start + span - begin) // stride))
    stop = min(count, (end - 1 - p.start) // stride + 1)
    first_inside = max(first, -((p.start - begin) // stride))
    stop_inside = min(stop, (end - 1 - span - p.start) // stride + 1)
    pieces = []
    if first_inside < stop_inside:
        steps = [(stride, stop_inside - first_inside), *inner]
        pieces.append(progression(p.start + stride * first_inside, steps))
        ends = [(first, first_inside), (stop_inside, stop)]
    else:
        ends = [(first, stop)]
    cut = [begin + i for begin, end in ends for i in range(listed(end - begin))]
    for i in cut:
        pieces += clip(Progression(p.start + stride * i, inner), begin, end)
    return pieces


def join(q: Progression, r: Progression, m: int) -> Progression:
    """The integers m * x + y for x in q and y in r, which is within [0, m)."""
    steps = [(stride * m, count) for stride, count in q.steps]
    return progression(q.start * m + r.start, [*steps, *r.steps])


def divide(p: Progression, m: int) -> Iterator[tuple[Progression, Progression]]:
    """Pairs (q, r) whose products q * r are the points (x // m, x % m) of x in `p`, each once.

    The number of pairs depends on how the strides of `p` and m divide each other: a few if each
    divides the next, up to m if they are coprime.
    """
    whole = [step for step in p.steps if step[0] % m == 0]
    rest = [step for step in p.steps if step[0] % m]
    quotient, remainder = divmod(p.start, m)
    if remainder + _span(rest) < m:
        q = progression(quotient, [(stride // m, count) for stride, count in whole])
        yield q, progression(remainder, rest)
        return
    stride, count = rest[0]
    k = p.steps.index(rest[0])
    before, inner = p.steps[:k], p.steps[k + 1 :]
    if m % stride == 0:
        # m is a number of cells of `stride`. `inner` spans less than a cell, so its part in one
        # cell is repeated in `count` cells; these are cut where a multiple of m begins.
        outer = [(s // m, c) for s, c in before]
        for cell, within in divide(Progression(p.start, inner), stride):
            for blocks, cells in _cut(cell.start, count, m // stride):
                q = progression(blocks.start, [*outer, *blocks.steps])
                yield q, join(cells, within, stride)
        return
    # `period` elements of this step advance by a multiple of m: one class for each remainder.
    period = m // math.gcd(listed(stride), listed(m))
    for k in range(listed(min(period, count))):
        step = (stride * period, -(-(count - k) // period))
        yield from divide(progression(p.start + stride * k, [*before, step, *inner]), m)


def _cut(first: int, count: int, block: int) -> Iterator[tuple[Progression, Progression]]:
    """[first, first + count) as (blocks, positions in the block): head, middle and tail."""
    begin, skipped = divmod(first, block)
    end, kept = divmod(first + count, block)
    if begin == end:
        yield interval(begin, begin + 1), interval(skipped, kept)
        return
    if skipped:
        yield interval(begin, begin + 1), interval(skipped, block)
        begin += 1
    if begin < end:
        yield interval(begin, end), interval(0, block)
    if kept:
        yield interval(end, end + 1), interval(0, kept)


def unite(a: Progression, b: Progression) -> Progression | None:
    """The union, if it is a progression that differs from both in one step; else None."""
    if b.start < a.start:
        a, b = b, a
    for stride in sorted({1, *(s for s, _ in a.steps), *(s for s, _ in b.steps)}):
        count_a, rest = _without(a.steps, stride)
        count_b, rest_b = _without(b.steps, stride)
        apart, uneven = divmod(b.start - a.start, stride)
        if rest == rest_b and not uneven and apart <= count_a:
            steps = sorted([*rest, (stride, max(count_a, apart + count_b))], reverse=True)
            if all(steps[k][0] > _span(steps[k + 1 :]) for k in range(len(steps))):
                return progression(a.start, steps)
    return None


def _without(steps: Sequence[Step], stride: int) -> tuple[int, list[Step]]:
    """(count of the step with `stride`, or 1; the other steps)."""
    counts = [count for s, count in steps if s == stride]
    return (counts[0] if counts else 1), [step for step in steps if step[0] != stride]
