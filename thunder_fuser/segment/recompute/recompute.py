"""Recompute or store: choice of the boundary tensors between kernels, and of recomputed values.

By default a kernel recomputes from inputs whatever it needs, even if others compute it as well.
Reductions of other kernels it cannot compute: it reads them, or a value computed from them. Where
recomputing reads more bytes than an earlier kernel would write, an intermediate value is stored.
Both decisions are one minimum cut per kernel (`store_or_recompute.py`), earlier kernels first.
Candidates to store are values that an earlier kernel computes anyway, or computes from its own
reductions that are no smaller, or from tensors that it reads anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet

from thunder_fuser.analysis.footprint import Footprint, is_whole, reads_more
from thunder_fuser.ir.fusion import TensorView, Val
from thunder_fuser.segment.anchors.anchors import Anchors, members, union
from thunder_fuser.segment.anchors.graph import AnchorGraph
from thunder_fuser.segment.legality import Legal, Legality
from thunder_fuser.segment.recompute.groups import Group, StoreCandidate
from thunder_fuser.segment.recompute.kernel_slice import KernelSlice

_FEWER = "it moves fewer bytes than computing it again would"


def grouped(graph: AnchorGraph, legality: Legality, parts: Sequence[Anchors]) -> list[Group]:
    """Return the kernels of a partition, given in executable order, with boundaries decided."""
    groups: list[Group] = []
    home: dict[int, Group] = {}
    for part in parts:
        kernel = legality.of(part)
        assert isinstance(kernel, Legal)
        stored = (graph.anchors[k] for k in members(part))
        group = Group(part, kernel, 0, [a.tensor for a in stored if a.is_stored])
        groups.append(group)
        home.update(dict.fromkeys(members(part), group))
    _Boundaries(graph, legality, groups, home).choose()
    for group in groups:
        needs = union(graph.anchors[k].reach.needs for k in members(group.anchors))
        waits = [home[k].level for k in members(needs & ~group.anchors)]
        waits += [candidate.writer.level for candidate in group.reads.values()]
        group.level = 1 + max(waits, default=-1)
    groups.sort(key=lambda g: g.level)
    # Reductions that only empty results need are dropped.
    return [group for group in groups if group.outputs]


class _Boundaries:
    """Choice of the boundary tensors between groups.

    groups     kernels, in executable order
    writer     the group that writes each stored value
    computing  the first group that computes a value
    sources    tensors in memory before any kernel runs, as read by each group
    readers    groups that read such a tensor, in order
    demanded   elements of values that a group needs, found when it is asked for another output
    """

    def __init__(
        self,
        graph: AnchorGraph,
        legality: Legality,
        groups: Sequence[Group],
        home: Mapping[int, Group],
    ) -> None:
        self.graph = graph
        self.legality = legality
        self.groups = groups
        self.place = {group: k for k, group in enumerate(groups)}
        self.home = home
        self.writer: dict[Val, Group] = {t: g for g in groups for t in g.outputs}
        self.computing: dict[Val, Group] = {}
        self.sources: dict[Group, AbstractSet[TensorView]] = {}
        self.readers: dict[TensorView, list[Group]] = {}
        self.demanded: dict[Group, Mapping[TensorView, Footprint]] = {}

    def choose(self) -> None:
        """Choose the reads of each group, and add them to the outputs of their writers."""
        for group in self.groups:
            self._read(group, KernelSlice(self.graph, group, self._before(group)))

    def _before(self, reader: Group) -> Callable[[Val], bool]:
        """Return a predicate: True if an earlier group than `reader` stores a value anyway."""
        place = self.place[reader]

        def is_written(value: Val) -> bool:
            writer = self.writer.get(value)
            return writer is not None and self.place[writer] < place

        return is_written

    def _read(self, group: Group, kernel_slice: KernelSlice) -> None:
        """Choose which values a group reads and which it computes."""
        candidates = {
            v: c
            for v in kernel_slice.order
            if (c := self._candidate(v, group, kernel_slice)) is not None
        }
        while True:
            choice = kernel_slice.choose(candidates, self.writer)
            read = [
                v
                for v in map(kernel_slice.order.__getitem__, sorted(choice.read))
                if v in candidates
            ]
            refused = self._unwritable(read, candidates)
            if not refused:
                break
            for v in refused:
                del candidates[v]
        for v in read:
            assert isinstance(v, TensorView)
            writer = candidates[v].writer
            self.writer[v] = writer
            group.reads[v] = candidates[v]
            if v not in writer.outputs:
                writer.outputs.append(v)
        for v in map(kernel_slice.order.__getitem__, sorted(choice.computed)):
            self.computing.setdefault(v, group)
        found = map(kernel_slice.order.__getitem__, choice.read)
        self.sources[group] = self.graph.stops.intersection(found)
        for source in self.sources[group]:
            self.readers.setdefault(source, []).append(group)

    def _candidate(self, v: Val, reader: Group, kernel_slice: KernelSlice) -> StoreCandidate | None:
        """Return the group that would store a value for a reader, or None."""
        if not isinstance(v, TensorView):
            return None
        if kernel_slice.is_foreign(v):
            return StoreCandidate(self.home[self.graph.number[v]])
        if not kernel_slice.is_inner(v):
            return None
        able = (
            [(self.writer[v], "it is in memory anyway")]
            if v in self.writer
            else [
                (self._after_folds(v), ""),
                (self.computing.get(v), _FEWER),
                (self._beside(v, reader), _FEWER),
            ]
        )
        for writer, reason in able:
            if writer is not None and self.place[writer] < self.place[reader]:
                return StoreCandidate(writer, reason)
        return None

    def _beside(self, v: TensorView, reader: Group) -> Group | None:
        """Return the first group that reads all sources of a value, if writing and reading the
        value moves fewer bytes than reading the sources again.
        """
        reach, size = self.graph.reach(v), self.graph.bytes_of
        if reach.folds or not all(s in self.readers for s in reach.sources):
            return None
        if 2 * size(v) >= sum(map(size, reach.sources)):
            return None
        rarest = min((self.readers[s] for s in reach.sources), key=len)
        for group in rarest:
            if reach.sources <= self.sources[group] and self._is_after(group, reach.awaited):
                return group
        return None

    def _after_folds(self, v: TensorView) -> Group | None:
        """Return the group of all folds that a value reads, if it is no larger than the largest."""
        reach = self.graph.reach(v)
        homes = [self.home[k] for k in members(reach.folds)]
        largest = max((self.graph.anchors[k].tensor.bytes for k in members(reach.folds)), default=0)
        if not homes or any(h is not homes[0] for h in homes) or v.bytes > largest:
            return None
        return homes[0] if self._is_after(homes[0], reach.awaited) else None

    def _is_after(self, group: Group, anchors: Anchors) -> bool:
        return all(self.place[self.home[k]] < self.place[group] for k in members(anchors))

    def _unwritable(
        self, wanted: Sequence[Val], candidates: Mapping[Val, StoreCandidate]
    ) -> list[Val]:
        """Return values that their writers cannot write in addition to their outputs and the other
        wanted values. A kernel can always write its own anchors.
        """
        refused: list[Val] = []
        written: dict[Group, list[TensorView]] = {}
        for v in wanted:
            assert isinstance(v, TensorView)
            group = candidates[v].writer
            if self._is_own(group, v):
                continue
            outputs = written.setdefault(
                group, list(dict.fromkeys([*group.outputs, *self.legality.outputs(group.anchors)]))
            )
            if self._may_write(group, v, outputs):
                outputs.append(v)
            else:
                refused.append(v)
        return refused

    def _is_own(self, group: Group, v: TensorView) -> bool:
        number = self.graph.number.get(v)
        return number is not None and bool(group.anchors >> number & 1)

    def _may_write(self, group: Group, v: TensorView, outputs: Sequence[TensorView]) -> bool:
        is_free = self.computing.get(v) is group or not self._reads_more(group, v)
        return is_free and self.legality.may_write(group.anchors, outputs, v)

    def _reads_more(self, group: Group, v: TensorView) -> bool:
        """True if a group would have to read more elements to compute a value."""
        parts, loaded = self.graph.parts, group.loads(self.graph)
        done = self._done(group)
        if parts.is_static and not any(t in loaded for t in (*done, v)):
            found = reads_more(self.graph.fusion, v, loaded, self._demanded_by(group))
            if found is not None:
                return found
        return parts.footprint([*done, v], loaded) != parts.footprint(done, loaded)

    def _done(self, group: Group) -> list[TensorView]:
        """Return the values that a group computes as a whole."""
        made = [self.graph.anchors[k].tensor for k in members(group.anchors)]
        return list(dict.fromkeys((*made, *group.outputs)))

    def _demanded_by(self, group: Group) -> Mapping[TensorView, Footprint]:
        """Return the elements that a group needs of the values that it computes and reads. An
        output that it computes as a whole for others does not change them.
        """
        known = self.demanded.get(group)
        if known is None or not all(is_whole(t, known) for t in group.outputs):
            known = self.graph.parts.demanded(self._done(group), group.loads(self.graph))
            self.demanded[group] = known
        return known
