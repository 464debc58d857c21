"""Cost model of the planner: launches, memory sectors and bandwidth loss of kernels, in seconds and
bytes.

Twice: for one set of anchors whatever the others are, to choose which are worth a closer look, and
for kernels whose boundaries are decided, to the sector. Templates know better what a kernel takes
(`templates/estimate.py`), once it is lowered; `tests/segment/test_ranking.py` holds the order in
which partitions are ranked here to the one that their estimates give.
"""

from __future__ import annotations

from collections.abc import Sequence

from thunder_fuser.errors import Refusal
from thunder_fuser.ir.fusion import TensorView
from thunder_fuser.segment.anchors import AnchorGraph, Anchors, members, union
from thunder_fuser.segment.bandwidth_loss import BandwidthModel
from thunder_fuser.segment.dependencies import DependencyGraph
from thunder_fuser.segment.legality import Legality
from thunder_fuser.segment.recompute import Group, grouped


class Cost:
    def __init__(self, graph: AnchorGraph, legality: Legality) -> None:
        self.graph = graph
        self.legality = legality
        self.bandwidth = BandwidthModel(graph, legality)
        self.dependencies = DependencyGraph(graph)
        self._known: dict[Anchors, int] = {}
        self._exact: dict[object, int] = {}
        self._readers = self._overwriting()
        self._overwriters = union(1 << k for k in self._readers)

    def of(self, anchors: Anchors) -> int:
        """A kernel of these anchors, if it reads whole sources, and reductions of others."""
        if anchors not in self._known:
            read, written = self._read(anchors), self._written(anchors)
            price = self.graph.prices(1, read + written)
            self._known[anchors] = price + self._more(anchors, read)
        return self._known[anchors]

    def of_all(self, parts: Sequence[Anchors]) -> int:
        """Kernels in an order in which they can run, given what goes through memory between
        them.
        """
        return sum(map(self._of_group, grouped(self.graph, self.legality, parts)))

    def more(self, anchors: Anchors) -> int:
        """What a kernel costs beside its launch and its bytes. If nothing, two kernels never cost
        less than one that does the work of both.
        """
        return self._more(anchors, self._read(anchors))

    def refusal(self, a: Anchors, b: Anchors) -> Refusal | None:
        """Why two kernels are not one: that cannot be, or is slow. Nothing where there is no order
        of kernels with that one.
        """
        if self.dependencies.encloses(a, b):
            return None
        whole = self.legality.of(a | b)
        if isinstance(whole, Refusal):
            return whole
        loss = self.bandwidth.of(a | b, self._read(a | b))
        if loss is None or loss.is_shared or self.of(a | b) <= self.of(a) + self.of(b):
            return None
        return Refusal("parallel", str(loss))

    def apart(self, a: Anchors, b: Anchors) -> str:
        """Why two kernels are not one, in words."""
        other = "others gain more by sharing a kernel, or kernels would wait for each other"
        return str(self.refusal(a, b) or other)

    def shares(self, a: Anchors, b: Anchors) -> bool:
        """Whether two kernels read the same."""
        return not self._sources(a).isdisjoint(self._sources(b))

    def _sources(self, anchors: Anchors) -> set[TensorView]:
        reaches = (self.graph.anchors[k].reach for k in members(anchors))
        return set().union(*(reach.sources for reach in reaches))

    def _read(self, anchors: Anchors) -> int:
        graph = self.graph
        read = self._sources(anchors)
        foreign = union(graph.anchors[k].reach.folds for k in members(anchors)) & ~anchors
        read.update(graph.anchors[k].tensor for k in members(foreign))
        return sum(map(graph.bytes_of, read))

    def _written(self, anchors: Anchors) -> int:
        return sum(map(self.graph.bytes_of, self.legality.outputs(anchors)))

    def _of_group(self, group: Group) -> int:
        key = group.anchors, tuple(group.outputs), frozenset(group.reads)
        if key not in self._exact:
            graph = self.graph
            found = graph.parts.footprint(group.outputs, group.loads(graph))
            read = sum(graph.bytes_read(t, f) for t, f in found.items() if not t.is_cpu)
            written = sum(map(graph.bytes_of, group.outputs))
            price = graph.prices(1, read + written)
            self._exact[key] = price + self._more(group.anchors, read)
        return self._exact[key]

    def _more(self, anchors: Anchors, read: int) -> int:
        prices, loss = self.graph.prices, self.bandwidth.of(anchors, read)
        # Waiting that takes no longer than a launch goes on while the next kernel is launched.
        lost = 0 if loss is None else max(0, prices(0, loss.lost(read)) - prices.launch)
        if loss is not None and loss.is_shared:
            # What blocks pay that share rows: a barrier takes about as long as a launch.
            lost = min(lost, prices.launch)
        return lost + self._of_copies(anchors)

    def _of_copies(self, anchors: Anchors) -> int:
        """Updates that a kernel cannot write in place: a pointwise kernel can, if it does all that
        reads what is overwritten, the update among that.
        """
        overwriting = list(members(anchors & self._overwriters))
        if not overwriting:
            return 0
        is_row = self.graph.has_fold(anchors)
        copied = []
        for k in overwriting:
            readers = self._readers[k]
            is_reader = readers >> k & 1 and not readers & ~anchors
            if is_row or (readers and not is_reader):
                copied.append(self.graph.anchors[k].tensor)
        return sum(self.graph.prices(1, 2 * int(t.bytes)) for t in copied)

    def _overwriting(self) -> dict[int, Anchors]:
        """Anchors that overwrite an input, and all that read it."""
        graph = self.graph
        readers: dict[TensorView, Anchors] = {u.target: 0 for u in graph.fusion.updates}
        for k, anchor in enumerate(graph.anchors) if readers else ():
            for target in anchor.reach.sources & readers.keys():
                readers[target] |= 1 << k
        return {
            graph.number[update.value]: readers[update.target]
            for update in graph.fusion.updates
            if update.value in graph.number
        }
