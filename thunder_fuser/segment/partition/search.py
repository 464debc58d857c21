"""Search for the cheapest partition of anchors into kernels.

A partition must be legal and have a topological order. Fusion rarely costs anything: one kernel for
all related anchors is best, if it is legal, unless it loses bandwidth (`bandwidth_loss.py`).
Otherwise few anchors are partitioned exhaustively, and the cheapest partitions are compared with
their boundary tensors decided. Many anchors are fused greedily, the pair of sets with the largest
gain first, and then single anchors are moved between sets while that is cheaper (as in the priority
fusion of XLA).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence

from thunder_fuser.errors import Refusal
from thunder_fuser.segment.anchors.anchors import Anchors, members, union
from thunder_fuser.segment.anchors.dependencies import Order
from thunder_fuser.segment.partition.cost import Cost

EXACT = 7
"""Most related anchors (and kernels, for swaps) for which all partitions are tried."""
TRIED = 16
"""Most candidate partitions, or moves, that are compared with their boundaries decided."""
SMALL = 32
"""Most related anchors for which the greedy search runs from two starts."""
REFUSED = 32
"""Most illegal pairs, among kernels that share nothing, before the search for a kernel to launch
together with one ends.
"""
ROUNDS = 3
"""Most passes over all anchors that try to move each to another set."""


def search(cost: Cost) -> list[Anchors]:
    """Partition all anchors into legal kernels, in executable order."""
    return _Search(cost).kernels()


class _Search:
    """Search state: the cost model, and the graphs and legality that it refers to."""

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
        """Partition a component of related anchors."""
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
        """Return the best partition of an exhaustive search."""
        divisions = [
            (sum(map(self.cost.of, parts)), len(parts), parts)
            for parts in _divisions(members(component))
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
        """Return start sets: anchors between the same cuts, where one kernel is best for them."""
        layers: dict[int, Anchors] = {}
        depths: dict[int, int] = {}
        for k in members(component):
            reach = self.graph.anchors[k].reach
            waits = [depths.get(f, 0) for f in members(reach.folds)]
            waits += [depths.get(b, 0) + 1 for b in members(reach.awaited)]
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
        """True if one kernel is legal, and its extra price is no more than another launch."""
        return self._is_legal(anchors) and self.cost.more(anchors) <= self.graph.prices.launch

    def _alike(self, component: Anchors) -> list[Anchors]:
        """Return start sets: single folds, and results of equal dependencies and sizes together."""
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
        """Join pairs of sets greedily by gain; among equal gains, smaller sets first."""
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
        """Move single anchors between sets while the estimated price falls."""
        order = Order(self.dependencies, self._ordered(parts))
        for _ in range(ROUNDS):
            moved = [k for k in members(union(parts)) if self._move(k, order)]
            if not moved:
                break
        return order.parts

    def _move(self, anchor: int, order: Order) -> bool:
        """Move one anchor to the first set where it is cheaper; True if it moved."""
        for home, other in self._moves(anchor, order):
            old, new = _transfer(1 << anchor, home, other)
            cheaper = sum(map(self.cost.of, new)) < sum(map(self.cost.of, old))
            if cheaper and self._change(order, old, new):
                return True
        return False

    def _moves(self, anchor: int, order: Order) -> Iterator[tuple[Anchors, Anchors]]:
        """Yield (present set, other set) for each possible move of an anchor."""
        home, mine = order.home(anchor), 1 << anchor
        near = (other for other in order.near(mine) if other != home)
        return ((home, other) for other in near if not self.dependencies.encloses(mine, other))

    def _change(self, order: Order, old: Sequence[Anchors], new: Sequence[Anchors]) -> bool:
        """Replace old sets by new ones, if these are legal and can be ordered."""
        return all(map(self._is_legal, new)) and order.change(old, new)

    def _refined(self, parts: list[Anchors]) -> list[Anchors]:
        """Move single anchors where the price with decided boundaries falls. The TRIED moves with
        the least estimated price are tried.
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
        """Return the partition with new sets for old ones, in order; None if not possible."""
        order = self.dependencies.in_order([*(p for p in parts if p not in old), *new])
        return order if order is not None and all(map(self._is_legal, new)) else None

    def _side_by_side(self, parts: list[Anchors]) -> list[Anchors]:
        """Fuse independent pointwise kernels, and independent reduction kernels, that share no
        tensor, to save launches (horizontal fusion). Kernels with consumers of a row's reduction
        are left alone, since they need registers.
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
        """Return sets that are independent of `first` and of one another, as many as may fit into
        one kernel with it.
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
        """Join sets with `first` one by one, since not all can be joined with it."""
        refused = 0
        for other in beside:
            if self._change(order, (first, other), (first | other,)):
                first |= other
            else:
                refused += 1
            if refused == REFUSED:
                break

    def _swapped(self, parts: list[Anchors]) -> list[Anchors]:
        """Move a set in front of an earlier one that it does not depend on, where the boundaries
        then cost at least a sector less, since it can store values for the other set.
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
        """True for connected anchors, and for pointwise ones, which may gain a launch only."""
        return (
            not self.graph.has_fold(anchors)
            or next(self.dependencies.components(anchors)) == anchors
        )


def _transfer(
    anchor: Anchors, home: Anchors, other: Anchors
) -> tuple[list[Anchors], list[Anchors]]:
    """Return two sets before and after an anchor moves from `home` to `other`."""
    left = [home & ~anchor] if home != anchor else []
    return [home, other], [other | anchor, *left]


def _divisions(items: Sequence[int]) -> Iterator[tuple[Anchors, ...]]:
    """Yield every partition of items into sets."""
    if not items:
        yield ()
        return
    last = 1 << items[-1]
    for parts in _divisions(items[:-1]):
        yield (*parts, last)
        for k, part in enumerate(parts):
            yield (*parts[:k], part | last, *parts[k + 1 :])
