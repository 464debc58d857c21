"""Cost model of the planner: launches, memory sectors and bandwidth loss of kernels, in the units
of `prices.py`.

There are two estimates: a quick one of a set of anchors, independent of the other sets, to select
candidates; and one with exact sectors for kernels whose boundary tensors are decided. Estimates of
lowered kernels (`templates/estimate.py`) are more accurate; `tests/segment/test_ranking.py` holds
the ranking of partitions by this model to the ranking by those estimates.
"""

from __future__ import annotations

from collections.abc import Sequence

from thunder_fuser.errors import Refusal
from thunder_fuser.ir.fusion import TensorView
from thunder_fuser.segment.anchors.anchors import Anchors, members, union
from thunder_fuser.segment.anchors.dependencies import DependencyGraph
from thunder_fuser.segment.anchors.graph import AnchorGraph
from thunder_fuser.segment.legality import Legality
from thunder_fuser.segment.partition.bandwidth_loss import BandwidthModel
from thunder_fuser.segment.recompute.groups import Group
from thunder_fuser.segment.recompute.recompute import grouped


class Cost:
    """Prices of kernels and partitions of an anchor graph, remembered by set of anchors."""

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
        """Estimate a kernel that reads its sources and reductions of other kernels as a whole."""
        if anchors not in self._known:
            read, written = self._read(anchors), self._written(anchors)
            price = self.graph.prices(1, read + written)
            self._known[anchors] = price + self._more(anchors, read)
        return self._known[anchors]

    def of_all(self, parts: Sequence[Anchors]) -> int:
        """Return the price of a partition in executable order, with its boundaries decided."""
        return sum(map(self._of_group, grouped(self.graph, self.legality, parts)))

    def more(self, anchors: Anchors) -> int:
        """Return the price beyond launch and bytes: bandwidth loss and copies of updates. If it is
        0, splitting the kernel never reduces the price.
        """
        return self._more(anchors, self._read(anchors))

    def refusal(self, a: Anchors, b: Anchors) -> Refusal | None:
        """Return why two kernels are not fused: illegal or slower. None if the fused kernel would
        create a dependency cycle, or they may be fused.
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
        """Return the reason why two kernels are not fused, as text."""
        other = "other kernels gain more by fusion, or the kernels would depend on each other"
        return str(self.refusal(a, b) or other)

    def shares(self, a: Anchors, b: Anchors) -> bool:
        """True if two kernels read a common tensor."""
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
        # A delay no longer than a launch overlaps with the launch of the next kernel.
        lost = 0 if loss is None else max(0, prices(0, loss.lost(read)) - prices.launch)
        if loss is not None and loss.is_shared:
            # Blocks that share rows pay a barrier, which takes about as long as a launch.
            lost = min(lost, prices.launch)
        return lost + self._of_copies(anchors)

    def _of_copies(self, anchors: Anchors) -> int:
        """Return the price of copying updates that a kernel cannot write in place. A pointwise
        kernel can if it contains every reader of the overwritten input, the update among them; a
        kernel of rows if there is no reader.
        """
        overwriting = list(members(anchors & self._overwriters))
        if not overwriting:
            return 0
        is_row = self.graph.has_fold(anchors)
        copied = []
        for k in overwriting:
            readers = self._readers[k]
            is_reader = readers >> k & 1 and not readers & ~anchors
            if readers and (is_row or not is_reader):
                copied.append(self.graph.anchors[k].tensor)
        return sum(self.graph.prices(1, 2 * int(t.bytes)) for t in copied)

    def _overwriting(self) -> dict[int, Anchors]:
        """Map each anchor that overwrites an input to all anchors that read the input."""
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
