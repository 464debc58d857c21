"""Assembly of a plan: kernels that `search.py` decides on, torch calls, views and cats become
segments in execution order, with the placement of their tensors.

Results that are views of memory that exists anyway are segments that launch nothing, and so is a
cat whose pieces kernels have written into its memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import TypeVar

from thunder_fuser.analysis.aliases import copy_chain
from thunder_fuser.analysis.footprint import footprint
from thunder_fuser.errors import Refusal
from thunder_fuser.ir.builder.opaque import shapes_of
from thunder_fuser.ir.domain import Layout
from thunder_fuser.ir.extract import Extract, extract
from thunder_fuser.ir.fusion import Expr, OpaqueOp, TensorView, Val
from thunder_fuser.ir.integer.counts import conditions, without_implied
from thunder_fuser.ir.tables import opaque
from thunder_fuser.segment.anchors.graph import AnchorGraph
from thunder_fuser.segment.communication_overlap import awaited
from thunder_fuser.segment.inplace_updates import Writer, updates_in_place
from thunder_fuser.segment.layouts.boundary_layouts import order_boundaries
from thunder_fuser.segment.legality import CUT, Legality
from thunder_fuser.segment.order import in_program_order
from thunder_fuser.segment.partition.cost import Cost
from thunder_fuser.segment.partition.search import search
from thunder_fuser.segment.placement import Buffer, Placement, SameAs, SliceOf, ViewOf
from thunder_fuser.segment.plan import Boundary, Kind, Segment, SegmentedFusion
from thunder_fuser.segment.recompute.groups import Group, computed_and_loaded
from thunder_fuser.segment.recompute.recompute import grouped

_T = TypeVar("_T")

MAX_REFUSALS = 8
"""Most earlier kernels per segment for which it records why it is not fused with them."""


class PlanAssembly:
    """Plan under construction.

    level  of each tensor: that of its kernel, or of its last piece's; -1 for inputs
    """

    def __init__(self, graph: AnchorGraph) -> None:
        self.graph = graph
        self.fusion = graph.fusion
        self.cost = Cost(graph, Legality(graph))
        self.groups = grouped(graph, self.cost.legality, search(self.cost))
        self.level = dict.fromkeys(self.fusion.tensor_inputs, -1)
        self.placement = graph.placement
        self.layouts = self.placement.layouts
        self._add_views_of_stored()
        for group in self.groups:
            for tensor in group.outputs:
                self.layouts.setdefault(tensor, self.graph.layout_of(tensor))
                self.level[tensor] = group.level
        sliced = self.graph.sliced
        for tensor, pieces in sliced.pieces.items():
            if tensor in self.layouts:
                self.level[tensor] = max(self.level[piece] for piece in pieces)
            elif tensor not in sliced.slices and any(piece in self.level for piece in pieces):
                # The whole is not read, but pieces that are read lie in its memory.
                self.layouts[tensor] = self.graph.layout_of(tensor)
        self._position = {v: k for k, v in enumerate(graph.definitions)}
        shown = (*self.placement.of(ViewOf), *self.placement.of(SameAs), *graph.calls)
        for tensor in sorted(shown, key=self._position.__getitem__):
            expr = graph.calls.get(tensor)
            read = expr.inputs if expr is not None else (self.placement.written(tensor),)
            self.level[tensor] = max((self.level[t] for t in read), default=-1)
        order_boundaries(self.graph, self.groups, self._unseen())
        stored = [f.output for g in self.groups for f in g.kernel.folds if f.output in g.outputs]
        self._stored = frozenset(stored)
        self._in_place = self._updates_in_place()

    def _unseen(self) -> list[TensorView]:
        """Return boundary tensors whose memory no result, view, slice or torch call shares."""
        if self.fusion.updates:
            return []
        place = self.placement
        seen = (*self.fusion.results, *place.of(ViewOf), *self.graph.called)
        shown = set(map(place.written, seen))
        shown.update(place.of(SliceOf))
        return [t for g in self.groups for t in g.outputs if t not in shown]

    def _add_views_of_stored(self) -> None:
        """Make results views where their source is stored for other kernels anyway."""
        graph = self.graph
        read = {t for g in self.groups for t in g.reads}
        if not read:
            return
        dense = {t: graph.layout_of(t) for g in self.groups for t in g.outputs}
        place = self.placement
        fixed = read | {u.value for u in self.fusion.updates}
        fixed |= set(map(place.behind_cuts, place.of(SameAs)))
        fixed |= {view.base for view in place.views.values()}
        fixed |= place.of(SliceOf).keys()
        for group in self.groups:
            for tensor in [t for t in group.outputs if t not in fixed]:
                source = copy_chain(tensor, graph.fusion)[-1]
                if source in read and source in dense:
                    view = graph.view_of(tensor, {source}, dense)
                    if view is not None:
                        group.outputs.remove(tensor)
                        self.layouts[source] = dense[source]
                        graph.add_view(tensor, view)
        self.groups = [group for group in self.groups if group.outputs]

    def plan(self) -> SegmentedFusion:
        """Return the plan."""
        with conditions() as assumed:
            made, device = self._segments(), self.graph.prices.device
            segments = awaited(
                in_program_order(made, self.fusion, self.placement, device), self.placement
            )
            ideal = self._ideal(sum(s.bytes for s in segments if s.kind == "opaque"))
        return SegmentedFusion(
            self.fusion,
            tuple(segments),
            self._boundaries(segments),
            self._placed(segments),
            ideal,
            conditions=without_implied(assumed),
        )

    def _updates_in_place(self) -> Mapping[TensorView, TensorView]:
        """Return the updates that kernels write into the inputs: output -> input."""
        graph = self.graph
        return updates_in_place(
            self.fusion,
            self.placement,
            [
                Writer(tuple(g.outputs), g.loads(graph), g.kernel.kind != "pointwise")
                for g in self.groups
            ],
            [Writer((t,), graph.stops, is_reduction=True) for t in graph.calls],
            graph.sliced.memory.keys(),
        )

    def _segments(self) -> list[Segment]:
        """Return kernels, torch calls, cats and views as segments, in execution order."""
        segments: list[Segment] = []
        touching: dict[TensorView, list[tuple[int, Group]]] = {}
        groups = _by_level((g.level, g) for g in self.groups)
        pieces = self.graph.sliced.pieces
        joins = _by_level((self.level[t], t) for t in pieces if t in self.level)
        seen = self.placement.views
        waiting = {e.output for e in _firsts(self.graph.calls.values())}
        views = _by_level((self.level[t], t) for t in seen)
        if waiting:
            both = sorted((*seen, *waiting), key=self._position.__getitem__)
            views = _by_level((self.level[t], t) for t in both)
        for level in sorted(set(self.level.values())):
            for group in groups.get(level, ()):
                made = self._segment(group, touching, len(segments))
                for tensor in dict.fromkeys((*made.inputs, *made.outputs)):
                    touching.setdefault(tensor, []).append((made.index, group))
                segments.append(made)
            for tensor in joins.get(level, ()):
                segments.append(self._free("concat", len(segments), pieces[tensor], tensor))
            for tensor in views.get(level, ()):
                if tensor in waiting:
                    segments.append(self._called(self.graph.calls[tensor], len(segments)))
                    continue
                view = seen[tensor]
                alias = self._free("alias", len(segments), (view.base,), tensor)
                segments.append(replace(alias, views=(view,)))
        return segments

    def _placed(self, segments: Sequence[Segment]) -> Placement:
        """Return the placement with allocated buffers added and unwritten pieces removed."""
        table = self.placement
        kept = {t: p for t, p in table.items() if t in self.level or not isinstance(p, SliceOf)}
        found = Placement(table.layouts, kept)
        owned = set(map(found.root, self.fusion.results))
        last = {found.root(t): s.index for s in segments for t in s.inputs}
        for segment in segments:
            if segment.awaited_by is not None:
                # Operand and result of a collective stay allocated until the result has arrived.
                end = segment.awaited_by if segment.awaited_by >= 0 else len(segments) - 1
                held = map(found.root, (*segment.inputs, *segment.outputs))
                last |= {t: max(last.get(t, 0), end) for t in held}
        for segment in segments:
            for tensor in map(found.owner, segment.outputs if segment.kind != "alias" else ()):
                if tensor not in found:
                    until = None if tensor in owned else max(segment.index, last.get(tensor, 0))
                    found.put(tensor, Buffer(tensor, tensor.bytes, segment.index, until))
        return found

    def _free(
        self, kind: Kind, index: int, sources: tuple[TensorView, ...], tensor: TensorView
    ) -> Segment:
        """Return a segment that launches nothing: a view, or a cat written in pieces."""
        found = extract(self.fusion, (tensor,), set(sources), {})
        # A pad of an empty tensor also reads that, in addition to its pieces.
        read = (v for v in map(found.whole, found.fusion.tensor_inputs) if not v.numel)
        inputs = tuple(dict.fromkeys((*sources, *read)))
        layouts = self._layouts_of(found)
        return Segment(index, kind, inputs, (tensor,), (), found.fusion, found.values, layouts)

    def _called(self, expr: OpaqueOp, index: int) -> Segment:
        """Return the segment of a torch call."""
        results = [e for e in self.graph.calls.values() if e.call == expr.call]
        outputs = tuple(e.output for e in results)
        inputs = tuple(dict.fromkeys(map(self.placement.behind_cuts, expr.inputs)))
        found = extract(self.fusion, outputs, set(expr.inputs), {})
        reads = self.graph.parts.footprint(outputs, set(expr.inputs))
        shapes = shapes_of(dict(zip(expr.parameters, expr.inputs, strict=True)))
        return Segment(
            index,
            "opaque",
            inputs,
            outputs,
            (expr.op,),
            found.fusion,
            found.values,
            self._layouts_of(found),
            bytes_read=sum(self.graph.bytes_wanted(t, f) for t, f in reads.items()),
            bytes_written=sum(t.bytes for t in outputs),
            sector_bytes=sum(self.graph.bytes_read(t, f) for t, f in reads.items()),
            flops=opaque.lookup(expr.op).flops(shapes, dict(expr.attributes)),
        )

    def _layouts_of(self, part: Extract) -> tuple[Layout, ...]:
        """Return the layouts of loaded tensors, then of stored ones."""
        tensors = (*part.fusion.tensor_inputs, *part.fusion.outputs)
        return tuple(self.layouts[v] for v in map(part.whole, tensors))

    def _memory_of(self, group: Group, loaded: Iterable[TensorView]) -> set[TensorView]:
        """Return the tensors whose memory a kernel reads. Views after cuts are replaced by their
        base, so that bytes shared by several views count once.
        """
        place = self.placement
        found: set[TensorView] = set()
        for tensor in loaded:
            is_shown = isinstance(place.get(place.behind_cuts(tensor)), ViewOf)
            owner = place.written(tensor) if is_shown else tensor
            found.add(owner if self.level.get(owner, group.level) < group.level else tensor)
        return found

    def _segment(
        self, group: Group, touching: Mapping[TensorView, list[tuple[int, Group]]], index: int
    ) -> Segment:
        outputs = tuple(group.outputs)
        computed, loaded = computed_and_loaded(self.graph, group)
        reads = self.graph.parts.footprint(outputs, self._memory_of(group, loaded))
        read = {t: f for t, f in reads.items() if not t.is_cpu}
        inputs = tuple(dict.fromkeys(map(self.placement.behind_cuts, read)))
        made = extract(
            self.fusion,
            outputs,
            self._ends(group, inputs),
            self._in_place,
            [fold.output for fold in group.kernel.folds],
        )
        return Segment(
            index,
            group.kernel.kind,
            inputs,
            outputs,
            tuple(e.op for e in self._in_order(computed) if e.op != "cast"),
            made.fusion,
            made.values,
            self._layouts_of(made),
            bytes_read=sum(self.graph.bytes_wanted(t, f) for t, f in read.items()),
            bytes_written=sum(t.bytes for t in outputs),
            sector_bytes=sum(self.graph.bytes_read(t, f) for t, f in read.items()),
            kernels=int(any(t.numel for t in outputs)),
            folds=group.kernel.folds,
            refusals=self._refusals(group, inputs, touching),
        )

    def _ends(self, group: Group, inputs: Sequence[TensorView]) -> AbstractSet[Val]:
        """Return the tensors at which the computation of a kernel's outputs stops. Values in front
        of a cut are recomputed; reductions of other kernels cannot be.
        """
        own = {fold.output for fold in group.kernel.folds}
        return (self.graph.stops | self._stored).union(inputs) - own

    def _in_order(self, computed: set[Val]) -> list[Expr]:
        return self.fusion.backward_slice(computed, self.fusion.definitions())

    def _refusals(
        self,
        group: Group,
        inputs: Sequence[TensorView],
        touching: Mapping[TensorView, list[tuple[int, Group]]],
    ) -> tuple[Refusal, ...]:
        """Return why a kernel is not fused with the last kernels that touch its inputs."""
        found = {k: g for t in inputs for k, g in touching.get(t, [])[-MAX_REFUSALS:]}
        near = [found[k] for k in sorted(found)[-MAX_REFUSALS:]]
        whys = (self.cost.refusal(group.anchors, g.anchors) for g in near)
        return tuple(dict.fromkeys(why for why in whys if why is not None))

    def _boundaries(self, segments: Sequence[Segment]) -> tuple[Boundary, ...]:
        owner = self.placement.written
        made = {t: s.index for s in segments if s.kind != "alias" for t in s.outputs}
        cut = map(owner, self.placement.of(SameAs))
        reasons = self.graph.reasons
        why: dict[TensorView, str] = {t: str(reasons.get(t, CUT)) for t in cut}
        for tensor, expr in self.graph.calls.items():
            why.setdefault(tensor, f"torch's {expr.op} makes it")
            for read in map(owner, expr.inputs):
                why.setdefault(read, str(reasons[read]) if read in reasons else "torch reads it")
        for group in self.groups:
            for tensor, candidate in group.reads.items():
                apart = candidate.reason or self.cost.apart(group.anchors, candidate.writer.anchors)
                why.setdefault(tensor, apart)
        readers_of: dict[TensorView, list[int]] = {}
        for s in segments:
            runs = s.kernels or s.kind == "opaque"
            for tensor in dict.fromkeys(map(owner, s.inputs)) if runs else ():
                readers_of.setdefault(tensor, []).append(s.index)
        found: list[Boundary] = []
        for tensor, reason in why.items():
            producer = made.get(tensor)
            readers = tuple(k for k in readers_of.get(tensor, ()) if k != producer)
            if producer is not None and readers:
                found.append(Boundary(tensor, producer, readers, tensor.bytes, reason))
        return tuple(found)

    def _ideal(self, called: int) -> int:
        """Return bytes moved if only inputs, results and operands of torch's calls were stored."""
        graph = self.graph
        wanted = (*self.fusion.results, *graph.called)
        owners = dict.fromkeys(map(self.placement.written, wanted))
        memory, pieces = graph.sliced.memory, graph.sliced.pieces
        stored = [t for owner in owners for t in (pieces[owner] if owner in memory else (owner,))]
        made = [t for t in stored if t in graph.definitions and t not in graph.calls]
        reads = footprint(self.fusion, made, {*self.fusion.tensor_inputs, *graph.calls})
        read = sum(graph.bytes_wanted(t, f) for t, f in reads.items() if not t.is_cpu)
        return read + sum(t.bytes for t in made) + called


def _firsts(calls: Iterable[OpaqueOp]) -> Iterable[OpaqueOp]:
    """Return the expression of the first result of each torch call."""
    found: dict[int, OpaqueOp] = {}
    for expr in calls:
        found.setdefault(expr.call, expr)
    return found.values()


def _by_level(leveled: Iterable[tuple[int, _T]]) -> dict[int, list[_T]]:
    found: dict[int, list[_T]] = {}
    for level, each in leveled:
        found.setdefault(level, []).append(each)
    return found
