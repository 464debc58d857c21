"""Partition: a fusion as segments, in execution order, with what goes through memory between them.

Each kernel that `placement.py` decides on is a segment. Results that are views of memory that
exists anyway are segments that launch nothing, and so is a cat whose pieces kernels have
written where it has them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from thunder_fuser.analysis.footprint import footprint
from thunder_fuser.analysis.layout import View
from thunder_fuser.ir.domain import Layout
from thunder_fuser.ir.fusion import Fusion, TensorView
from thunder_fuser.segment.destinations import joined_tensors
from thunder_fuser.segment.in_place import updates_in_place
from thunder_fuser.segment.kernels import Group
from thunder_fuser.segment.orders import order_boundaries
from thunder_fuser.segment.placement import Placement
from thunder_fuser.segment.plan import Boundary, Segment, SegmentedFusion
from thunder_fuser.segment.prices import LAUNCH, PER_BYTE

CUT = "the definition cuts here (segment_set)"
MAX_TRIALS = 4
"""As many tensors are asked about one by one: whether kernels had better write slices of them."""


def partition(fusion: Fusion, layouts: Sequence[Layout] | None = None) -> SegmentedFusion:
    """The plan of a static fusion. `layouts` of its tensor inputs (default: as they are
    declared).
    """
    best = _Partition(fusion, layouts).plan()
    joined: tuple[TensorView, ...] = ()
    tensors = _collected(best)
    # All at once, then with one more or less, where these are few enough to ask about each.
    trials = [tensors, *([t] for t in tensors if 1 < len(tensors) <= MAX_TRIALS)]
    for changed in trials if tensors else ():
        trial = tuple(t for t in tensors if (t in joined) != (t in changed))
        found = _Partition(fusion, layouts, trial).plan()
        if found.bytes <= best.bytes and _cost(found) < _cost(best):
            best, joined = found, trial
        if best.bytes == best.bytes_ideal:
            break
    return best


def _collected(pulled: SegmentedFusion) -> list[TensorView]:
    """Tensors that had perhaps better be written in pieces: those that a kernel collects from what
    others wrote.
    """
    consumers = {k for b in pulled.boundaries for k in b.consumers}
    late = [s for s in pulled.segments if s.kind == "map" and s.index in consumers]
    layouts = {t: pulled.layouts[t] for s in late for t in s.outputs}
    return joined_tensors(pulled.fusion, layouts) if late else []


def _cost(plan: SegmentedFusion) -> int:
    return plan.bytes * PER_BYTE + plan.kernels * LAUNCH


class _Partition(Placement):
    def plan(self) -> SegmentedFusion:
        self.place_all()
        order_boundaries(self, self._unseen())
        written = [t for g in self.groups for t in g.outputs]
        rows = {t for g in self.groups if g.kind == "row" for t in g.outputs}
        in_place = updates_in_place(
            self.fusion,
            self.layouts,
            self.level,
            self.storage,
            self.views,
            written,
            rows,
            [t for t in self.reasons if t in self.level],
        )
        segments: list[Segment] = []
        made: dict[TensorView, int] = {}
        for depth in sorted(
            {*(g.level for g in self.groups), *(self.level[t] for t in self.views)}
        ):
            for group in self.groups:
                if group.level == depth:
                    segments.append(self._segment(len(segments), group))
                    made.update(dict.fromkeys(group.outputs, len(segments) - 1))
            for tensor, pieces in self.destinations.pieces.items():
                if self.level.get(tensor) == depth:
                    segments.append(Segment(len(segments), "join", pieces, (tensor,), ()))
                    made[tensor] = len(segments) - 1
            for tensor, view in self.views.items():
                if self.level[tensor] == depth:
                    segments.append(_alias_segment(len(segments), tensor, view))
        return SegmentedFusion(
            self.fusion,
            tuple(segments),
            self._boundaries(segments, made),
            self.layouts,
            self.storage,
            in_place,
            self.views,
            {t: self.destinations.slices[t] for t in self.destinations.slices if t in self.level},
            self._ideal(written),
        )

    def _unseen(self) -> list[TensorView]:
        """What kernels write for each other, in memory that no result shows."""
        if self.fusion.updates:
            return []
        shown = {self._root(t) for t in (*self.fusion.results, *self.views)}
        shown.update(self.destinations.slices)
        written = [t for g in self.groups for t in g.outputs]
        return [t for t in written if t not in shown]

    def _segment(self, index: int, group: Group) -> Segment:
        stops = self.stops_of(group)
        outputs = tuple(group.outputs)
        reads = footprint(self.fusion, outputs, stops)
        read = {t: f for t, f in reads.items() if not t.is_cpu}
        computed, _ = self.cone(group)
        return Segment(
            index,
            group.kind,
            tuple(dict.fromkeys(self.storage.get(t, t) for t in read)),
            outputs,
            tuple(e.op for e in self.fusion.exprs if e.output in computed and e.op != "cast"),
            bytes_read=self._distinct({t: f.elements * t.dtype.itemsize for t, f in read.items()}),
            bytes_written=sum(t.bytes for t in outputs),
            kernels=int(any(t.numel for t in outputs)),
            folds=tuple(group.folds),
            refusals=tuple(group.refusals),
        )

    def _boundaries(
        self, segments: Sequence[Segment], made: dict[TensorView, int]
    ) -> tuple[Boundary, ...]:
        why = (
            dict.fromkeys(map(self._root, self.storage.values()), CUT) | self.reasons | self.stored
        )
        read = [{self._root(t) for t in s.inputs} for s in segments]
        found: list[Boundary] = []
        for tensor, reason in why.items():
            producer = made.get(tensor)
            readers = tuple(
                s.index
                for s in segments
                if s.kernels and tensor in read[s.index] and s.index != producer
            )
            if producer is not None and readers:
                found.append(Boundary(tensor, producer, readers, tensor.bytes, reason))
        return tuple(found)

    def _distinct(self, read: Mapping[TensorView, int]) -> int:
        """Bytes, where some of what is read may be views of the same memory."""
        found: dict[TensorView, int] = {}
        for tensor, count in read.items():
            root = self._root(tensor)
            found[root] = min(found.get(root, 0) + count, max(root.bytes, count))
        return sum(found.values())

    def _root(self, tensor: TensorView) -> TensorView:
        """The tensor whose memory it is."""
        while True:
            tensor = self.storage.get(tensor, tensor)
            if tensor not in self.views:
                return tensor
            tensor = self.views[tensor].base

    def _ideal(self, written: Sequence[TensorView]) -> int:
        """Bytes if nothing but inputs and results touched memory."""
        made = {*written, *self.destinations.pieces}
        results = [t for t in self.fusion.results if t in made]
        reads = footprint(self.fusion, results, set(self.fusion.tensor_inputs))
        read = sum(f.elements * t.dtype.itemsize for t, f in reads.items() if not t.is_cpu)
        return read + sum(t.bytes for t in results)


def _alias_segment(index: int, tensor: TensorView, view: View) -> Segment:
    return Segment(index, "alias", (view.base,), (tensor,), (), views=(view,))
