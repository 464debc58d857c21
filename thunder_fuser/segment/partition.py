"""Partition: which tensors go through memory, and which kernel writes each of them.

Reductions are placed in program order, each into the kernel that has its elements and the
reductions that these need, if a row kernel can hold them together; results follow the reductions
that they are computed from. Everything else is one map kernel a level, for a map kernel can hold
any number of pointwise regions side by side. Results that are views of memory that exists anyway
become alias segments. Only the user (`segment_set`) and legality cut so far; cuts by cost come in
this same place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from thunder_fuser.analysis.footprint import footprint
from thunder_fuser.analysis.layout import (
    View,
    declared_layout,
    dense_layout,
    memory_orders,
    view_of,
)
from thunder_fuser.analysis.one_pass import one_pass
from thunder_fuser.analysis.rows import refuse_rows
from thunder_fuser.errors import FuserValueError, Refusal
from thunder_fuser.ir.domain import Layout
from thunder_fuser.ir.fusion import (
    Expr,
    Fusion,
    PointwiseOp,
    ReductionOp,
    TensorView,
    Val,
    ViewOp,
)
from thunder_fuser.segment.boundaries import Work, choose_stored
from thunder_fuser.segment.in_place import updates_in_place
from thunder_fuser.segment.plan import Boundary, Kind, Segment, SegmentedFusion

MAX_OUTPUTS = 128
"""Outputs of one kernel: keeps parameter lists within what every GPU takes."""
CUT = "the definition cuts here (segment_set)"


def partition(fusion: Fusion, layouts: Sequence[Layout] | None = None) -> SegmentedFusion:
    """The plan of a static fusion. `layouts` of its tensor inputs (default: as they are
    declared).
    """
    return _Partition(fusion, layouts).plan()


@dataclass(slots=True, eq=False)
class _Group:
    """A kernel in the making. It reads only what groups of lower levels leave in memory."""

    kind: Kind
    level: int
    outputs: list[TensorView] = field(default_factory=list)
    folds: list[ReductionOp] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    reads: set[TensorView] = field(default_factory=set)
    """Values that it could compute and loads instead."""

    @property
    def folded(self) -> set[TensorView]:
        return {f.output for f in self.folds}


@dataclass(frozen=True, slots=True)
class _Frontier:
    """Where computing a value ends: reductions, cuts, and tensors in memory."""

    folds: tuple[ReductionOp, ...]
    cuts: tuple[TensorView, ...]
    sources: frozenset[TensorView]


class _Partition:
    def __init__(self, fusion: Fusion, layouts: Sequence[Layout] | None) -> None:
        self.fusion = fusion
        self.definitions: dict[Val, Expr] = fusion.definitions()
        tensors = fusion.tensor_inputs
        given = layouts or [declared_layout(t) for t in tensors]
        self.layouts: dict[TensorView, Layout] = dict(zip(tensors, given, strict=True))
        self.orders = memory_orders(fusion, self.layouts)
        # A segment_set result is its input, seen from behind the cut.
        self.storage: dict[TensorView, TensorView] = {}
        self.views: dict[TensorView, View] = {}
        self.level: dict[TensorView, int] = dict.fromkeys(tensors, -1)
        self.groups: list[_Group] = []
        self.home: dict[TensorView, _Group] = {}
        # Reductions that other kernels than their own read, and why.
        self.reasons: dict[TensorView, str] = {}
        # Values that kernels could compute and read instead, and why.
        self.stored: dict[TensorView, str] = {}

    def plan(self) -> SegmentedFusion:
        self._place_all()
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
            self._ideal(written),
        )

    # ---- what must exist in memory

    def _place_all(self) -> None:
        """Give every reduction, result and source of a cut its place, in program order."""
        results = set(self.fusion.results)
        # What an update overwrites cannot lend its memory to a result, nor to one side of a cut.
        overwritten = {u.target for u in self.fusion.updates}
        bases = set(self.layouts) - overwritten
        live = self._live()

        def settle(tensor: TensorView) -> None:
            """Decide how `tensor` comes to be in memory, unless that is decided."""
            if tensor in self.layouts:
                return
            view = view_of(tensor, self.definitions, bases, self.layouts)
            if view is None:
                self._place(tensor)
            else:
                self.views[tensor] = view
                self.layouts[tensor] = Layout(view.strides, self._alignment(view, tensor))
                self.level[tensor] = self.level[view.base]
            bases.add(tensor)

        for expr in self.fusion.exprs:
            if not isinstance(expr.output, TensorView) or expr.output not in live:
                continue
            if isinstance(expr, ReductionOp):
                self._place_fold(expr)
            is_cut = isinstance(expr, ViewOp) and expr.op == "segment_set"
            if is_cut and expr.inputs[0] not in overwritten:
                (source,) = expr.inputs
                assert isinstance(source, TensorView)
                settle(source)
                self.storage[expr.output] = self.storage.get(source, source)
                self.layouts[expr.output] = self._logical_layout(source)
                # Behind the cut: whatever reads this runs in a later kernel.
                self.level[expr.output] = self.level[source]
                bases.add(expr.output)
            elif expr.output in results:
                settle(expr.output)
        self._join_rows()
        self._join_siblings()
        if not self.fusion.updates:
            self._store_between()

    def _store_between(self) -> None:
        """Store what moves less if an earlier kernel writes it than if it is computed again."""

        def may_write(producer: int, tensor: TensorView) -> bool:
            group = self.groups[producer]
            if group.kind == "map":
                return len(group.outputs) < MAX_OUTPUTS
            return tensor in group.outputs or self._refuse(group, tensor) is None

        works = [
            Work(g.level, self._stops_of(g), list(g.outputs), [f.output for f in g.folds])
            for g in self.groups
        ]
        for found in choose_stored(works, self.definitions, may_write):
            tensor, group = found.tensor, self.groups[found.producer]
            reason = "it is in memory anyway"
            if tensor not in group.outputs:
                group.outputs.append(tensor)
                self.layouts[tensor] = dense_layout(tensor, self.orders[tensor])
                self.level[tensor] = group.level
                self.home[tensor] = group
                reason = "it moves fewer bytes than computing it again would"
            self.stored.setdefault(tensor, reason)
            self.groups[found.reader].reads.add(tensor)
        # Reductions that were only loaded to compute what is stored now.
        loaded = {t for g in self.groups for t in self._loaded(g)}
        for tensor in [t for t in self.reasons if t in self.level and t not in loaded]:
            del self.reasons[tensor]
            if tensor not in self.fusion.results:
                self.home[tensor].outputs.remove(tensor)

    def _loaded(self, group: _Group) -> Iterator[TensorView]:
        """What a kernel loads of other kernels' values."""
        stops = self._stops_of(group)
        seen: set[Val] = set()
        stack: list[Val] = [*group.outputs, *(f.input for f in group.folds)]
        while stack:
            value = stack.pop()
            if value in seen:
                continue
            seen.add(value)
            if isinstance(value, TensorView) and value in stops and value not in group.outputs:
                yield value
            elif value in self.definitions:
                stack.extend(self.definitions[value].inputs)

    def _join_siblings(self) -> None:
        """Results of map kernels move into row kernels that read the same tensors anyway."""
        for maps in [g for g in self.groups if g.kind == "map"]:
            for tensor in list(maps.outputs):
                frontier = self._frontier(tensor)
                group = self._row_group(frontier, tensor)
                if group is not None and group.level == maps.level:
                    maps.outputs.remove(tensor)
                    group.outputs.append(tensor)
                    self.home[tensor] = group
        self.groups = [g for g in self.groups if g.kind == "row" or g.outputs]

    def _live(self) -> set[Val]:
        """Values that a result needs."""
        live: set[Val] = set(self.fusion.results)
        for expr in reversed(self.fusion.exprs):
            if expr.output in live:
                live.update(expr.inputs)
        return live

    def _alignment(self, view: View, tensor: TensorView) -> int:
        """Bytes that the view's first element is aligned to."""
        shift = view.offset * tensor.dtype.itemsize
        base = self.layouts[view.base].alignment
        return base if shift == 0 else min(base, shift & -shift)

    def _logical_layout(self, tensor: TensorView) -> Layout:
        """What a tensor in memory looks like from behind a cut, where nobody knows of its root."""
        layout = self.layouts[tensor]
        if tensor in self.definitions or not tensor.domain.transforms:
            return layout
        view = view_of(tensor, self.definitions, {tensor}, self.layouts)
        if view is None or view.offset:
            raise FuserValueError(
                f"segment_set of {tensor}: the memory of an input that is {tensor.domain} has no "
                "strides for these dimensions; take the segment_set of what is computed from it"
            )
        return Layout(view.strides, layout.alignment)

    # ---- which kernel

    def _place_fold(self, fold: ReductionOp) -> None:
        """Put a reduction into a row kernel that can have it, or into one of its own."""
        frontier = self._frontier(fold.input)
        group = self._row_group(frontier, fold)
        if group is None:
            # A kernel less, where the reduction that it waits for can be done along with it.
            single = one_pass(fold, self.definitions, self._memory())
            beside = self._frontier(single.input) if single else frontier
            group = self._row_group(beside, single) if single else None
            if single and group:
                fold, frontier = single, beside
        if group is None:
            group = _Group("row", self._floor(frontier))
            self.groups.append(group)
        group.folds.append(fold)
        self.home[fold.output] = group
        self._store_foreign(fold.input, frontier, group)

    def _place(self, tensor: TensorView) -> None:
        """Put a result into the kernel that has what it is computed from, or into a map kernel."""
        self.layouts[tensor] = dense_layout(tensor, self.orders[tensor])
        group = self.home.get(tensor)
        if group is None:
            frontier = self._frontier(tensor)
            group = self._row_group(frontier, tensor) or self._map_group(self._floor(frontier))
            self._store_foreign(tensor, frontier, group)
        group.outputs.append(tensor)
        self.home[tensor] = group
        self.level[tensor] = group.level

    def _row_group(self, frontier: _Frontier, wanted: ReductionOp | TensorView) -> _Group | None:
        """The latest row kernel that shares data with `wanted` and can have it besides."""
        refusals: list[Refusal] = []
        needed = {f.output for f in frontier.folds}
        self._join_homes(frontier, wanted)
        for group in reversed(self.groups):
            if group.kind != "row" or not self._may_read(group, frontier):
                continue
            related = needed & group.folded
            if not related and not self._is_sibling(group, frontier, wanted):
                continue
            refusal = self._refuse(group, wanted)
            if refusal is None:
                return group
            refusals.append(refusal)
            for tensor in related:
                self.reasons.setdefault(tensor, str(refusal))
        return None

    def _join_homes(self, frontier: _Frontier, wanted: ReductionOp | TensorView) -> None:
        """Row kernels whose reductions meet in one value become one, if it can have them all."""
        homes = list(dict.fromkeys(self.home[f.output] for f in frontier.folds))
        if len(homes) > 1:
            self._join(homes, wanted)

    def _join_rows(self) -> None:
        """Row kernels that read the same tensors become one, where some reduction now makes legal
        what was not when the first of them were placed.
        """
        rows = [g for g in self.groups if g.kind == "row" and g.folds]
        sources = [self._sources(g) for g in rows]
        for i, first in enumerate(rows):
            for k in range(i + 1, len(rows)):
                there = first in self.groups and rows[k] in self.groups
                if there and sources[i] & sources[k] and self._join([first, rows[k]]):
                    sources[i] |= sources[k]

    def _sources(self, group: _Group) -> frozenset[TensorView]:
        """Tensors of more than one element that a kernel reads."""
        wanted = [*group.outputs, *(f.input for f in group.folds)]
        return frozenset(s for t in wanted for s in self._frontier(t).sources if s.numel > 1)

    def _join(self, groups: list[_Group], wanted: ReductionOp | TensorView | None = None) -> bool:
        """Make one of row kernels that have the same points, if that can do `wanted` besides."""
        first, *others = groups
        same = all(g.kind == "row" and g.level == first.level for g in groups)
        sizes = {g.folds[0].input.sizes for g in groups if g.folds}
        if not same or len(sizes) != 1:
            return False
        order = {fold: n for n, fold in enumerate(self.fusion.exprs)}
        folds = sorted((f for g in groups for f in g.folds), key=order.__getitem__)
        outputs = [t for g in groups for t in g.outputs]
        if self._refuse(_Group("row", first.level, outputs, folds), wanted) is not None:
            return False
        first.folds, first.outputs = folds, outputs
        for group in others:
            self.groups.remove(group)
        self.home.update(dict.fromkeys((*outputs, *first.folded), first))
        return True

    def _may_read(self, group: _Group, frontier: _Frontier) -> bool:
        """Whether all that a value needs is there when the group runs."""
        folds = (self.home[f.output] for f in frontier.folds)
        return all(home is group or home.level < group.level for home in folds) and all(
            self.level[cut] < group.level for cut in frontier.cuts
        )

    def _is_sibling(
        self, group: _Group, frontier: _Frontier, wanted: ReductionOp | TensorView
    ) -> bool:
        """Whether both read the same tensors at the same points, or a reduction of values of rows
        reads what the group computes of rows.
        """
        sizes = wanted.input.sizes if isinstance(wanted, ReductionOp) else wanted.sizes
        (first, *_) = group.folds
        read = [f.input for f in group.folds]
        if sizes != first.input.sizes:
            rows = [n for k, n in enumerate(first.input.sizes) if k not in first.dims]
            if not isinstance(wanted, ReductionOp) or _points(sizes) != _points(rows):
                return False
            read = [t for t in (*read, *group.outputs) if _points(t.sizes) == _points(rows)]
        shared = {s for t in read for s in self._frontier(t).sources if s.numel > 1}
        return bool(shared & frontier.sources)

    def _refuse(self, group: _Group, wanted: ReductionOp | TensorView | None) -> Refusal | None:
        """Why one row kernel cannot do the group's work and `wanted`."""
        folds, outputs = list(group.folds), list(group.outputs)
        if isinstance(wanted, ReductionOp):
            folds.append(wanted)
        elif wanted is not None:
            outputs.append(wanted)
        if len(outputs) > MAX_OUTPUTS:
            return Refusal("outputs", f"a kernel writes at most {MAX_OUTPUTS} tensors")
        mine = {f.output for f in folds}
        memory = {t: layout for t, layout in self._memory().items() if t not in mine}
        return refuse_rows(outputs, folds, self.definitions, memory)

    def _memory(self) -> dict[TensorView, Layout]:
        """Tensors that kernels read, as far as it is known."""
        stored = {t: self.layouts[t] for t in self.reasons if t in self.layouts}
        return {t: self.layouts[t] for t in self._stops()} | stored

    def _map_group(self, level: int) -> _Group:
        for group in self.groups:
            fits = len(group.outputs) < MAX_OUTPUTS
            if group.kind == "map" and group.level == level and fits:
                return group
        self.groups.append(_Group("map", level))
        return self.groups[-1]

    def _floor(self, frontier: _Frontier) -> int:
        """The lowest level at which all that a value needs is in memory."""
        levels = [self.home[f.output].level for f in frontier.folds]
        levels += [self.level[cut] for cut in frontier.cuts]
        return 1 + max(levels, default=-1)

    def _store_foreign(self, wanted: TensorView, frontier: _Frontier, group: _Group) -> None:
        """Reductions of other kernels that this one reads go through memory: what is computed from
        them if that is no larger, so that it is computed once, or else their results.
        """
        foreign = {
            f.output: self.home[f.output]
            for f in frontier.folds
            if self.home[f.output] is not group
        }
        cuts = self._no_larger(wanted, foreign)
        if sum(t.bytes for t in cuts) > sum(t.bytes for t in foreign):
            cuts = foreign
        for tensor, home in cuts.items():
            self.reasons.setdefault(tensor, self._reason(tensor))
            if tensor not in home.outputs:
                home.outputs.append(tensor)
                self.home[tensor] = home
                self.layouts[tensor] = dense_layout(tensor, self.orders[tensor])
                self.level[tensor] = home.level

    def _reason(self, tensor: TensorView) -> str:
        """Why nobody can go on with the reductions that a value is computed from."""
        known = (self.reasons.get(f.output) for f in self._frontier(tensor).folds)
        return next(filter(None, known), "no kernel can compute it where it is read")

    def _no_larger(
        self, wanted: TensorView, foreign: dict[TensorView, _Group]
    ) -> dict[TensorView, _Group]:
        """The last values on the way from reductions to `wanted` that are as small as these, and
        where they can be computed.
        """
        found: dict[TensorView, _Group] = {}
        seen: set[Val] = set()
        stack: list[Val] = [wanted]
        while stack:
            value = stack.pop()
            if value in seen or value in self.storage or not isinstance(value, TensorView):
                continue
            seen.add(value)
            expr = self.definitions.get(value)
            home = foreign.get(value)
            if home is None and isinstance(expr, PointwiseOp):
                home = self._kernel_of_row(value, foreign)
            if home is not None:
                found[value] = home
            elif expr is not None and not isinstance(expr, ReductionOp):
                stack.extend(expr.inputs)
        return found

    def _kernel_of_row(
        self, tensor: TensorView, foreign: dict[TensorView, _Group]
    ) -> _Group | None:
        """The kernel of some reductions, if it can compute a value from them that is as small."""
        frontier = self._frontier(tensor)
        outputs = [f.output for f in frontier.folds]
        if not outputs or any(t not in foreign for t in outputs):
            return None
        home = foreign[outputs[0]]
        if any(foreign[t] is not home for t in outputs) or not self._may_read(home, frontier):
            return None
        if tensor.bytes > max(t.bytes for t in outputs):
            return None
        is_there = tensor in home.outputs or self._refuse(home, tensor) is None
        return home if is_there else None

    def _frontier(self, tensor: TensorView) -> _Frontier:
        folds: list[ReductionOp] = []
        cuts: list[TensorView] = []
        sources: set[TensorView] = set()
        seen: set[int] = set()
        stack: list[Val] = [tensor]
        while stack:
            value = stack.pop()
            if value.id in seen or not isinstance(value, TensorView):
                continue
            seen.add(value.id)
            expr = self.definitions.get(value)
            if value in self.storage:
                cuts.append(value)
                sources.add(value)
            elif isinstance(expr, ReductionOp):
                folds.append(expr)
            elif expr is not None:
                stack.extend(expr.inputs)
            else:
                sources.add(value)
        return _Frontier(tuple(folds), tuple(cuts), frozenset(sources))

    # ---- segments

    def _stops(self) -> set[TensorView]:
        return {*self.fusion.tensor_inputs, *self.storage}

    def _stops_of(self, group: _Group) -> set[TensorView]:
        """Tensors that a kernel loads where it needs them."""
        foreign = {t for t in self.reasons if t in self.level and self.home[t] is not group}
        return self._stops() | foreign | group.reads

    def _segment(self, index: int, group: _Group) -> Segment:
        stops = self._stops_of(group)
        outputs = tuple(group.outputs)
        reads = footprint(self.fusion, outputs, stops)
        read = {t: f for t, f in reads.items() if not t.is_cpu}
        cone = self._cone(outputs, stops)
        return Segment(
            index,
            group.kind,
            tuple(dict.fromkeys(self.storage.get(t, t) for t in read)),
            outputs,
            tuple(e.op for e in self.fusion.exprs if e.output in cone and e.op != "cast"),
            bytes_read=sum(f.elements * t.dtype.itemsize for t, f in read.items()),
            bytes_written=sum(t.bytes for t in outputs),
            kernels=int(any(t.numel for t in outputs)),
            folds=tuple(group.folds),
            refusals=tuple(group.refusals),
        )

    def _cone(self, outputs: Sequence[TensorView], stops: set[TensorView]) -> set[Val]:
        """Everything that a segment computes."""
        seen: set[Val] = set()
        stack: list[Val] = list(outputs)
        while stack:
            value = stack.pop()
            if value not in seen and value not in stops and value in self.definitions:
                seen.add(value)
                stack.extend(self.definitions[value].inputs)
        return seen

    def _boundaries(
        self, segments: Sequence[Segment], made: dict[TensorView, int]
    ) -> tuple[Boundary, ...]:
        why = dict.fromkeys(self.storage.values(), CUT) | self.reasons | self.stored
        found: list[Boundary] = []
        for tensor, reason in why.items():
            producer = made.get(tensor)
            readers = tuple(
                s.index
                for s in segments
                if s.kernels and tensor in s.inputs and s.index != producer
            )
            if producer is not None and tensor not in self.views and readers:
                found.append(Boundary(tensor, producer, readers, tensor.bytes, reason))
        return tuple(found)

    def _ideal(self, written: Sequence[TensorView]) -> int:
        """Bytes if nothing but inputs and results touched memory."""
        results = [t for t in self.fusion.results if t in set(written)]
        reads = footprint(self.fusion, results, set(self.fusion.tensor_inputs))
        read = sum(f.elements * t.dtype.itemsize for t, f in reads.items() if not t.is_cpu)
        return read + sum(t.bytes for t in results)


def _points(sizes: Sequence[int]) -> list[int]:
    """Sizes of the dimensions that tell points apart."""
    return [n for n in sizes if n != 1]


def _alias_segment(index: int, tensor: TensorView, view: View) -> Segment:
    return Segment(index, "alias", (view.base,), (tensor,), (), views=(view,))
