"""Search: which anchors share a kernel.

The best way is the cheapest one of those that are legal and can be put into an order. Joining
rarely costs anything: one kernel for all that is related is the best, if there can be one, unless
it loses bandwidth (`bandwidth_loss.py`). Otherwise a few anchors are divided in every possible way:
the cheapest divisions are compared by what then goes through memory. Of many anchors, the two sets
that gain most are joined while any can be, and then single ones are moved between sets while that
saves something (as in the priority fusion of XLA).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence

from thunder_fuser.errors import Refusal
from thunder_fuser.segment.anchors import Anchors, members, union
from thunder_fuser.segment.cost import Cost
from thunder_fuser.segment.dependencies import Order

EXACT = 7
"""Related anchors that are divided in every possible way."""
TRIED = 16
"""Legal divisions whose boundaries are decided, to compare them."""
SMALL = 32
"""Related anchors that are joined from two beginnings, to compare what comes of them."""
REFUSED = 32
"""Kernels that share nothing with a kernel, and cannot be one with it, before the search for one
that can be ends.
"""
ROUNDS = 3
"""How often every anchor is offered to other sets."""


def search(cost: Cost) -> list[Anchors]:
    """All anchors as sets that each can be a kernel, in an order in which they can run."""
    return _Search(cost).kernels()


class _Search:
    def __init__(self, cost: Cost) -> None:
        self.cost = cost
        self.graph = cost.graph
        self.legality = cost.legality
        self.dependencies = cost.dependencies

    def kernels(self) -> list[Anchors]:
        found: list[Anchors] = []
        for component in self.dependencies.components((1 << len(self.graph.anchors)) - 1):
            found += self._divide(component)
        return self._swapped(self._side_by_side(found))

    def _divide(self, component: Anchors) -> list[Anchors]:
        """The kernels of related anchors."""
        if self._is_best(component):
            return [component]
        if component.bit_count() <= EXACT:
            return self._cheapest(component)
        starts = [self._between_cuts(component)]
        if component.bit_count() <= SMALL:
            starts.append([1 << k for k in members(component)])
        ends = [self._side_by_side(self._moved(self._joined(start))) for start in starts]
        if len(ends) == 1:
            return ends[0]
        return self._refined(min(ends, key=self.cost.of_all))

    def _cheapest(self, component: Anchors) -> list[Anchors]:
        """The best of all divisions."""
        divisions = [
            (sum(map(self.cost.of, parts)), len(parts), parts)
            for parts in _divisions(list(members(component)))
            if all(map(self._is_one_piece, parts))
        ]
        found: list[list[Anchors]] = []
        for _, _, parts in sorted(divisions):
            order = self.dependencies.in_order(parts)
            if order is not None and all(map(self._is_legal, parts)):
                found.append(order)
                if len(found) == TRIED:
                    break
        return min(found, key=self.cost.of_all)

    def _between_cuts(self, component: Anchors) -> list[Anchors]:
        """Sets to begin with: what lies between the same cuts, where it is best as one kernel."""
        layers: dict[int, Anchors] = {}
        depths: dict[int, int] = {}
        for k in members(component):
            reach = self.graph.anchors[k].reach
            waits = [depths.get(f, 0) for f in members(reach.folds)]
            waits += [depths.get(b, 0) + 1 for b in members(reach.behind)]
            depths[k] = max(waits, default=0)
            layers[depths[k]] = layers.get(depths[k], 0) | 1 << k
        if len(layers) == 1:
            return self._alike(component)
        found: list[Anchors] = []
        for layer in layers.values():
            for part in self.dependencies.components(layer):
                found += [part] if self._is_best(part) else self._alike(part)
        return found

    def _is_best(self, anchors: Anchors) -> bool:
        """Whether one kernel can do all that is related, and two would cost a launch more."""
        return self._is_legal(anchors) and self.cost.more(anchors) <= self.graph.prices.launch

    def _alike(self, component: Anchors) -> list[Anchors]:
        """Sets to begin with: each reduction, and results that wait for the same and have the same
        points.
        """
        found: dict[object, list[Anchors]] = {}
        for k in members(component):
            anchor = self.graph.anchors[k]
            needs = self.dependencies.needs[k]
            alike = k if anchor.fold is not None else (needs, anchor.tensor.sizes)
            parts = found.setdefault(alike, [])
            if parts and self.legality.has_room(parts[-1], 1 << k):
                parts[-1] |= 1 << k
            else:
                parts.append(1 << k)
        return [part for parts in found.values() for part in parts]

    def _joined(self, parts: list[Anchors]) -> list[Anchors]:
        """Join two sets at a time, those first that gain most; of equals, the smaller ones."""
        waiting: list[tuple[int, int, Anchors, Anchors]] = []

        def offer(a: Anchors, b: Anchors) -> None:
            a, b = min(a, b), max(a, b)
            if self.dependencies.encloses(a, b):
                return
            gain = self.cost.of(a) + self.cost.of(b) - self.cost.of(a | b)
            if gain > 0:
                heapq.heappush(waiting, (-gain, (a | b).bit_count(), a, b))

        order = Order(self.dependencies, self._ordered(parts))
        for a in parts:
            for b in order.near(a):
                if a < b:
                    offer(a, b)
        while waiting:
            _, _, a, b = heapq.heappop(waiting)
            if a in order and b in order and self._change(order, (a, b), (a | b,)):
                for p in order.near(a | b):
                    offer(p, a | b)
        return order.parts

    def _moved(self, parts: list[Anchors]) -> list[Anchors]:
        """Move single anchors between sets while that is cheaper."""
        order = Order(self.dependencies, self._ordered(parts))
        for _ in range(ROUNDS):
            moved = [k for k in members(union(parts)) if self._move(k, order)]
            if not moved:
                break
        return order.parts

    def _move(self, anchor: int, order: Order) -> bool:
        """Move one anchor to where that is cheaper, if it is anywhere."""
        for home, other in self._moves(anchor, order):
            old, new = _transfer(1 << anchor, home, other)
            cheaper = sum(map(self.cost.of, new)) < sum(map(self.cost.of, old))
            if cheaper and self._change(order, old, new):
                return True
        return False

    def _moves(self, anchor: int, order: Order) -> Iterator[tuple[Anchors, Anchors]]:
        """From where to where an anchor could go."""
        home, mine = order.home(anchor), 1 << anchor
        near = (other for other in order.near(mine) if other != home)
        return ((home, other) for other in near if not self.dependencies.encloses(mine, other))

    def _change(self, order: Order, old: Sequence[Anchors], new: Sequence[Anchors]) -> bool:
        """Put new sets in the place of old ones, if that can be."""
        return all(map(self._is_legal, new)) and order.change(old, new)

    def _refined(self, parts: list[Anchors]) -> list[Anchors]:
        """Move single anchors where what then goes through memory costs less. Those moves are tried
        that seem to cost least.
        """
        order = Order(self.dependencies, parts)
        moves = [
            (sum(map(self.cost.of, new)) - sum(map(self.cost.of, old)), 1 << k, old, new)
            for k in members(union(parts))
            for home, other in self._moves(k, order)
            for old, new in [_transfer(1 << k, home, other)]
        ]
        least = self.cost.of_all(parts)
        for _, anchor, (home, other), _ in sorted(moves)[:TRIED]:
            if home not in parts or other not in parts:
                continue
            changed = self._changed(parts, *_transfer(anchor, home, other))
            if changed is not None and (found := self.cost.of_all(changed)) < least:
                parts, least = changed, found
        return parts

    def _changed(
        self, parts: list[Anchors], old: Sequence[Anchors], new: Sequence[Anchors]
    ) -> list[Anchors] | None:
        """With new sets for old ones, in order, if that can be."""
        order = self.dependencies.in_order([*(p for p in parts if p not in old), *new])
        return order if order is not None and all(map(self._is_legal, new)) else None

    def _side_by_side(self, parts: list[Anchors]) -> list[Anchors]:
        """The same sets in order, with one launch for pointwise kernels, and for reduction kernels,
        of which none waits for another, though they share nothing. What waits for rows wants
        registers.
        """
        parts = self._ordered(parts)
        order = Order(self.dependencies, parts)
        for first in parts:
            if first not in order or self.cost.bandwidth.is_waited(first):
                continue
            beside = self._beside(first, order)
            together = union((first, *beside))
            if beside and not self._change(order, (first, *beside), (together,)):
                self._join_some(first, beside, order)
        return self._ordered(order.parts)

    def _beside(self, first: Anchors, order: Order) -> list[Anchors]:
        """Sets that do not wait for a set, nor it for them, nor they for one another, as many as
        may be one kernel with it.
        """
        found: list[Anchors] = []
        apart = self.dependencies.apart(first)
        for other in order.parts if apart else ():
            if other & ~apart or not self.legality.may_meet(first, other):
                continue
            if not self.cost.bandwidth.is_waited(other):
                self.legality.join(first, other)
                first |= other
                apart &= self.dependencies.apart(other)
                found.append(other)
        return found

    def _join_some(self, first: Anchors, beside: Sequence[Anchors], order: Order) -> None:
        """Join sets with one, one after the other, that cannot all be joined with it."""
        refused = 0
        for other in beside:
            if self._change(order, (first, other), (first | other,)):
                first |= other
            else:
                refused += 1
            if refused == REFUSED:
                break

    def _swapped(self, parts: list[Anchors]) -> list[Anchors]:
        """The same sets, of which one comes before another that it need not wait for, where that
        can write something for the other one then that saves reading a sector.
        """
        if not 1 < len(parts) <= EXACT:
            return parts
        least, sector = self.cost.of_all(parts), self.graph.prices.sector
        for later in range(1, len(parts)):
            for earlier in reversed(range(later)):
                a, b = parts[earlier], parts[later]
                if self.dependencies.waits(b) & union(parts[earlier:later]):
                    break
                if not self.cost.shares(a, b):
                    continue
                changed = [*parts[:earlier], b, *parts[earlier:later], *parts[later + 1 :]]
                if (found := self.cost.of_all(changed)) <= least - sector:
                    parts, least = changed, found
                    break
        return parts

    def _ordered(self, parts: list[Anchors]) -> list[Anchors]:
        order = self.dependencies.in_order(parts)
        assert order is not None
        return order

    def _is_legal(self, anchors: Anchors) -> bool:
        return not isinstance(self.legality.of(anchors), Refusal)

    def _is_one_piece(self, anchors: Anchors) -> bool:
        """Whether a kernel has more than a launch to gain; pointwise kernels may do with that."""
        return (
            not self.graph.has_fold(anchors)
            or next(self.dependencies.components(anchors)) == anchors
        )


def _transfer(
    anchor: Anchors, home: Anchors, other: Anchors
) -> tuple[list[Anchors], list[Anchors]]:
    """Two sets before and after an anchor goes from one to the other."""
    left = [home & ~anchor] if home != anchor else []
    return [home, other], [other | anchor, *left]


def _divisions(items: Sequence[int]) -> Iterator[tuple[Anchors, ...]]:
    """Every way to divide items into sets."""
    if not items:
        yield ()
        return
    last = 1 << items[-1]
    for parts in _divisions(items[:-1]):
        yield (*parts, last)
        for k, part in enumerate(parts):
            yield (*parts[:k], part | last, *parts[k + 1 :])
