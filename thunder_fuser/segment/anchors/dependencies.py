"""Dependencies between anchors, and neighbourhoods of anchors that share tensors.

Kernels of a partition must have a topological order; unrelated anchors are partitioned separately.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from thunder_fuser.ir.fusion import CutOp, FoldOp, IotaOp, OpaqueOp, RandomOp, TensorView, Val
from thunder_fuser.segment.anchors.anchors import Anchor, Anchors, Dependencies, members, union
from thunder_fuser.segment.anchors.graph import AnchorGraph

NEIGHBOURS = 8
"""Most preceding readers of a tensor that an anchor is linked to: anchors far apart in a program
are rarely fused.
"""


class DependencyGraph:
    """Precedence and neighbourhood of anchors, as bit sets.

    needs  for each anchor, those that must be computed before it
    near   for each anchor, those that it needs, that are needed by the same anchor, that read a
           common tensor, or that use the same random numbers or iota as a result without inputs.
           Of anchors that it needs for the order of calls alone, one is near.
    """

    def __init__(self, graph: AnchorGraph) -> None:
        self.needs = [a.reach.needs for a in graph.anchors]
        self.near: list[Anchors] = [0] * len(self.needs)
        self._ways: dict[Anchors, tuple[Anchors, Anchors]] = {}
        self._above: list[Anchors] = []
        for needs in self.needs:
            self._above.append(needs | union(self._above[k] for k in members(needs)))
        self._below = [0] * len(self.needs)
        for k in reversed(range(len(self.needs))):
            for other in members(self.needs[k]):
                self._below[other] |= self._below[k] | 1 << k
        # The last readers of a tensor, or at points of a shape, and those linked to each other.
        readers: dict[tuple[TensorView, object], Anchors] = {}
        beside: Anchors = 0
        made_of = _factories(graph)
        for k, anchor in enumerate(graph.anchors):
            operands = anchor.reach.folds | anchor.reach.behind
            self._link_in_order(operands, beside)
            beside = operands
            near = operands | _latest(anchor.reach.earlier, 1)
            points = anchor.tensor.sizes if anchor.fold is None else anchor.fold.input.sizes
            keys: list[tuple[TensorView, object]] = [(f, None) for f in made_of.get(k, ())]
            # Readers of one element, such as a learning rate, are not related by it.
            for source in anchor.reach.sources:
                is_one = source.numel <= 1 < anchor.tensor.numel
                if not is_one or source in graph.definitions:
                    keys += [(source, None), (source, points)]
            for key in keys:
                known = readers.get(key, 0)
                near |= known
                readers[key] = _with_next(known, k)
            self._link(k, near)
        for called in graph.in_order.values():
            # One component: what needs one of these anchors needs those of the calls before.
            for one, next_ in pairwise(members(union(called))):
                self._link(one, 1 << next_)

    def _link(self, anchor: int, others: Anchors) -> None:
        self.near[anchor] |= others
        for other in members(others):
            self.near[other] |= 1 << anchor

    def _link_in_order(self, anchors: Anchors, before: Anchors) -> None:
        """Link each of these with the last NEIGHBOURS before it among them. The first ones that are
        also the first ones of `before` are linked already.
        """
        differing = anchors ^ before
        same = (differing & -differing) - 1 if differing else anchors
        known = _latest(anchors & same, NEIGHBOURS)
        for anchor in members(anchors & ~same):
            self._link(anchor, known)
            known = _with_next(known, anchor)

    def encloses(self, a: Anchors, b: Anchors) -> bool:
        """True if an anchor outside two sets depends on one of them, and the other set on it: as
        one kernel they would make a cycle.
        """
        (above_a, below_a), (above_b, below_b) = self._way(a), self._way(b)
        return bool((above_a & below_b | above_b & below_a) & ~(a | b))

    def apart(self, anchors: Anchors) -> Anchors:
        """Return the anchors without dependencies on a set, in either direction."""
        above, below = self._way(anchors)
        return ((1 << len(self.needs)) - 1) & ~(above | below | anchors)

    def _way(self, anchors: Anchors) -> tuple[Anchors, Anchors]:
        """Return the transitive predecessors and successors of a set."""
        if anchors not in self._ways:
            ks = members(anchors)
            above, below = (union(map(way.__getitem__, ks)) for way in (self._above, self._below))
            self._ways[anchors] = above, below
        return self._ways[anchors]

    def around(self, anchors: Anchors) -> Anchors:
        """Return the neighbours of a set outside it."""
        return union(self.near[k] for k in members(anchors)) & ~anchors

    def waits(self, anchors: Anchors) -> Anchors:
        """Return the direct predecessors of a set outside it."""
        return union(self.needs[k] for k in members(anchors)) & ~anchors

    def components(self, anchors: Anchors) -> Iterator[Anchors]:
        """Yield the connected components of a set under `near`."""
        while anchors:
            part = 0
            grown = anchors & -anchors
            while grown:
                part |= grown
                grown = self.around(part) & anchors
            anchors &= ~part
            yield part

    def in_order(self, parts: Sequence[Anchors]) -> list[Anchors] | None:
        """Return the sets in topological order, or None if there is a cycle. Among sets that are
        ready at once, the one with the first anchor comes first.
        """
        everything = union(parts)
        home = {k: n for n, part in enumerate(parts) for k in members(part)}
        before = [{home[k] for k in members(self.waits(p) & everything)} for p in parts]
        after: list[list[int]] = [[] for _ in parts]
        for n, others in enumerate(before):
            for other in others:
                after[other].append(n)
        missing = [len(others) for others in before]
        ready = [n for n, count in enumerate(missing) if not count]
        found: list[Anchors] = []
        while ready:
            found += sorted((parts[n] for n in ready), key=_first)
            freed = []
            for n in (m for done in ready for m in after[done]):
                missing[n] -= 1
                if not missing[n]:
                    freed.append(n)
            ready = freed
        return found if len(found) == len(parts) else None


def _factories(graph: AnchorGraph) -> dict[int, tuple[TensorView, ...]]:
    """Return for each anchor the random and iota tensors that it depends on, as far as a stored
    anchor without inputs depends on them, too: such as a dropout mask, which any kernel that draws
    it may write.
    """
    if not any(map(_reads_nothing, graph.anchors)):
        return {}
    made_of: dict[Val, tuple[TensorView, ...]] = {}
    found: dict[int, tuple[TensorView, ...]] = {}
    for expr in graph.fusion.exprs:
        output = expr.output
        if not isinstance(output, TensorView):
            continue
        if isinstance(expr, (RandomOp, IotaOp)) and output.numel > 1:
            made_of[output] = (output,)
        elif not isinstance(expr, (CutOp, OpaqueOp)):
            met = dict.fromkeys(f for operand in expr.inputs for f in made_of.get(operand, ()))
            if met:
                made_of[output] = tuple(met)
        if output in made_of and output in graph.number:
            found[graph.number[output]] = made_of[output]
            if isinstance(expr, FoldOp):
                del made_of[output]
    alone = {f for k, met in found.items() if _reads_nothing(graph.anchors[k]) for f in met}
    return {k: tuple(f for f in met if f in alone) for k, met in found.items()}


def _reads_nothing(anchor: Anchor) -> bool:
    return anchor.fold is None and anchor.reach == Dependencies()


def _with_next(latest: Anchors, anchor: int) -> Anchors:
    """Return the last NEIGHBOURS anchors of a set after the next one is added."""
    latest |= 1 << anchor
    return latest if latest.bit_count() <= NEIGHBOURS else latest & (latest - 1)


def _latest(anchors: Anchors, count: int) -> Anchors:
    """Return the last anchors of a set, at most so many."""
    found = 0
    for _ in range(count):
        if not anchors:
            break
        last = 1 << anchors.bit_length() - 1
        anchors ^= last
        found |= last
    return found


class Order:
    """Topological order of sets of anchors, under incremental changes.

    Places of removed sets stay empty, so that a change moves only the sets between.
    """

    def __init__(self, graph: DependencyGraph, parts: Sequence[Anchors]) -> None:
        self._graph = graph
        self._places: list[Anchors | None] = list(parts)
        self._place = {part: n for n, part in enumerate(parts)}
        self._home = {k: part for part in parts for k in members(part)}

    @property
    def parts(self) -> list[Anchors]:
        return [part for part in self._places if part is not None]

    def __contains__(self, part: Anchors) -> bool:
        return part in self._place

    def home(self, anchor: int) -> Anchors:
        """Return the set that contains an anchor."""
        return self._home[anchor]

    def near(self, part: Anchors) -> list[Anchors]:
        """Return the sets with neighbours of a set, in order."""
        around = members(self._graph.around(part))
        found = {self._home[k] for k in around if k in self._home} - {part}
        return sorted(found, key=self._place.__getitem__)

    def change(self, old: Sequence[Anchors], new: Sequence[Anchors]) -> bool:
        """Replace old sets by new ones of the same anchors; False, and no change, on a cycle."""
        places = sorted(self._place[part] for part in old)
        first, last = places[0], places[-1] + 1
        window = [p for p in self._places[first:last] if p is not None and p not in old]
        found = self._graph.in_order([*window, *new])
        if found is None:
            return False
        for part in old:
            del self._place[part]
        self._places[first:last] = [*found, *[None] * (last - first - len(found))]
        self._place.update((part, first + n) for n, part in enumerate(found))
        self._home.update((k, part) for part in new for k in members(part))
        return True


def _first(part: Anchors) -> Anchors:
    """Return the first anchor of a set."""
    return part & -part
