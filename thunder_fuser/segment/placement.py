"""Placement: which tensors go through memory, and which kernel writes each of them.

Reductions are placed in program order, each into the kernel that has its elements and the
reductions that these need, if a row kernel can hold them together; results follow the reductions
that they are computed from. Everything else is one map kernel a level, for a map kernel can hold
any number of pointwise regions side by side. Then kernels that read the same tensors are joined
where they can be, and what moves less if it is stored is stored.
"""

from __future__ import annotations

from thunder_fuser.analysis.layout import aligned_layout, dense_layout, view_of
from thunder_fuser.analysis.one_pass import one_pass
from thunder_fuser.errors import FuserValueError, Refusal
from thunder_fuser.ir.domain import Layout
from thunder_fuser.ir.fusion import PointwiseOp, ReductionOp, TensorView, Val, ViewOp
from thunder_fuser.segment.boundaries import Work, choose_stored
from thunder_fuser.segment.kernels import MAX_OUTPUTS, Frontier, Group, Kernels


class Placement(Kernels):
    """Kernels, as they are decided: `place_all` is what there is to call."""

    def place_all(self) -> None:
        """Give every reduction, result and source of a cut its place, in program order."""
        pieces, written = self.destinations.pieces, self.destinations.written
        wanted = {*self.fusion.results, *written}
        # What an update overwrites cannot lend its memory to a result, nor to one side of a cut.
        overwritten = {u.target for u in self.fusion.updates}
        bases = set(self.layouts) - overwritten
        live = self._live()

        def settle(tensor: TensorView) -> None:
            """Decide how `tensor` comes to be in memory, unless that is decided."""
            if tensor in self.layouts:
                return
            is_piece = tensor in written
            view = None if is_piece else view_of(tensor, self.definitions, bases, self.layouts)
            if tensor in pieces:
                # They come before it, and are where it has them.
                self.layouts[tensor] = self.layout_of(tensor)
                self.level[tensor] = max(self.level[piece] for piece in pieces[tensor])
            elif view is None:
                self._place(tensor)
            else:
                self.views[tensor] = view
                base = self.layouts[view.base].alignment
                self.layouts[tensor] = aligned_layout(view, tensor.dtype.itemsize, base)
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
            elif expr.output in wanted:
                settle(expr.output)
        self._join_rows()
        self._join_siblings()
        if not self.fusion.updates:
            self._store_between()
        self._forget_unread()

    def _store_between(self) -> None:
        """Store what moves less if an earlier kernel writes it than if it is computed again."""

        def may_write(producer: int, tensor: TensorView) -> bool:
            group = self.groups[producer]
            if group.kind == "map":
                return len(group.outputs) < MAX_OUTPUTS
            return tensor in group.outputs or self.refuse(group, tensor) is None

        works = [
            Work(g.level, self.stops_of(g), list(g.outputs), [f.output for f in g.folds])
            for g in self.groups
        ]
        for found in choose_stored(works, self.definitions, may_write):
            tensor, group = found.tensor, self.groups[found.producer]
            reason = "it is in memory anyway"
            if tensor not in group.outputs:
                group.outputs.append(tensor)
                self.layouts[tensor] = self.layout_of(tensor)
                self.level[tensor] = group.level
                self.home[tensor] = group
                reason = "it moves fewer bytes than computing it again would"
            self.stored.setdefault(tensor, reason)
            self.groups[found.reader].reads.add(tensor)

    def _forget_unread(self) -> None:
        """What is in memory for other kernels' sake, and is not read any more since kernels joined
        or other values were stored, stays inside its kernel.
        """
        loaded = set().union(*(self.cone(group)[1] for group in self.groups))
        for tensor in [t for t in self.reasons if t in self.level and t not in loaded]:
            del self.reasons[tensor]
            if tensor not in self.fusion.results and tensor not in self.destinations.slices:
                self.home[tensor].outputs.remove(tensor)

    def _join_siblings(self) -> None:
        """Results of map kernels move into row kernels that read the same tensors anyway."""
        for maps in [g for g in self.groups if g.kind == "map"]:
            for tensor in list(maps.outputs):
                frontier = self.frontier(tensor)
                group = self._row_group(frontier, tensor)
                if group is not None and group.level == maps.level:
                    maps.outputs.remove(tensor)
                    group.outputs.append(tensor)
                    self.home[tensor] = group
        self.groups = [g for g in self.groups if g.kind == "row" or g.outputs]

    def _live(self) -> set[Val]:
        """Values that a result needs, or is made of."""
        live: set[Val] = {*self.fusion.results, *self.destinations.written}
        for expr in reversed(self.fusion.exprs):
            if expr.output in live:
                live.update(expr.inputs)
        return live

    def _logical_layout(self, tensor: TensorView) -> Layout:
        """What a tensor in memory looks like from behind a cut, where nobody knows of its root."""
        layout = self.layouts[tensor]
        if tensor in self.definitions or not tensor.domain.transforms:
            return layout
        if not tensor.numel:
            return dense_layout(tensor, range(tensor.rank))
        view = view_of(tensor, self.definitions, {tensor}, self.layouts)
        if view is None or view.offset:
            raise FuserValueError(
                f"segment_set of {tensor}: the memory of an input that is {tensor.domain} has no "
                "strides for these dimensions; take the segment_set of what is computed from it"
            )
        return Layout(view.strides, layout.alignment)

    def _place_fold(self, fold: ReductionOp) -> None:
        """Put a reduction into a row kernel that can have it, or into one of its own."""
        frontier = self.frontier(fold.input)
        group = self._row_group(frontier, fold)
        if group is None:
            # A kernel less, where the reduction that it waits for can be done along with it.
            single = one_pass(fold, self.definitions, self.memory())
            beside = self.frontier(single.input) if single else frontier
            group = self._row_group(beside, single) if single else None
            if single and group:
                fold, frontier = single, beside
        if group is None:
            group = Group("row", self.floor(frontier))
            self.groups.append(group)
        group.folds.append(fold)
        self.home[fold.output] = group
        self._store_foreign(fold.input, frontier, group)

    def _place(self, tensor: TensorView) -> None:
        """Put a result into the kernel that has what it is computed from, or into a map kernel."""
        self.layouts[tensor] = self.layout_of(tensor)
        group = self.home.get(tensor)
        if group is None:
            frontier = self.frontier(tensor)
            group = self._row_group(frontier, tensor) or self._map_group(self.floor(frontier))
            self._store_foreign(tensor, frontier, group)
        group.outputs.append(tensor)
        self.home[tensor] = group
        self.level[tensor] = group.level

    def _row_group(self, frontier: Frontier, wanted: ReductionOp | TensorView) -> Group | None:
        """The latest row kernel that shares data with `wanted` and can have it besides."""
        refusals: list[Refusal] = []
        needed = {f.output for f in frontier.folds}
        self._join_homes(frontier, wanted)
        for group in reversed(self.groups):
            if group.kind != "row" or not self.may_read(group, frontier):
                continue
            related = needed & group.folded
            if not related and not self.is_sibling(group, frontier, wanted):
                continue
            refusal = self.refuse(group, wanted)
            if refusal is None:
                return group
            refusals.append(refusal)
            for tensor in related:
                self.reasons.setdefault(tensor, str(refusal))
        return None

    def _join_homes(self, frontier: Frontier, wanted: ReductionOp | TensorView) -> None:
        """Row kernels whose reductions meet in one value become one, if it can have them all."""
        homes = list(dict.fromkeys(self.home[f.output] for f in frontier.folds))
        if len(homes) > 1:
            self._join(homes, wanted)

    def _join_rows(self) -> None:
        """Row kernels that read the same tensors become one, where some reduction now makes legal
        what was not when the first of them were placed.
        """
        rows = [g for g in self.groups if g.kind == "row" and g.folds]
        sources = [self.sources(g) for g in rows]
        for i, first in enumerate(rows):
            for k in range(i + 1, len(rows)):
                there = first in self.groups and rows[k] in self.groups
                if there and sources[i] & sources[k] and self._join([first, rows[k]]):
                    sources[i] |= sources[k]

    def _join(self, groups: list[Group], wanted: ReductionOp | TensorView | None = None) -> bool:
        """Make one of row kernels that have the same points, if that can do `wanted` besides."""
        first, *others = groups
        same = all(g.kind == "row" and g.level == first.level for g in groups)
        sizes = {g.folds[0].input.sizes for g in groups if g.folds}
        if not same or len(sizes) != 1:
            return False
        order = {fold: n for n, fold in enumerate(self.fusion.exprs)}
        folds = sorted((f for g in groups for f in g.folds), key=order.__getitem__)
        outputs = [t for g in groups for t in g.outputs]
        if self.refuse(Group("row", first.level, outputs, folds), wanted) is not None:
            return False
        first.folds, first.outputs = folds, outputs
        for group in others:
            self.groups.remove(group)
        self.home.update(dict.fromkeys((*outputs, *first.folded), first))
        return True

    def _map_group(self, level: int) -> Group:
        for group in self.groups:
            fits = len(group.outputs) < MAX_OUTPUTS
            if group.kind == "map" and group.level == level and fits:
                return group
        self.groups.append(Group("map", level))
        return self.groups[-1]

    def _store_foreign(self, wanted: TensorView, frontier: Frontier, group: Group) -> None:
        """Reductions of other kernels that this one reads go through memory: what is computed from
        them if that is no larger, so that it is computed once, or else their results.
        """
        foreign = {
            f.output: self.home[f.output]
            for f in frontier.folds
            if self.home[f.output] is not group
        }
        if not foreign:
            return
        cuts = self._no_larger(wanted, foreign)
        if sum(t.bytes for t in cuts) > sum(t.bytes for t in foreign):
            cuts = foreign
        for tensor, home in cuts.items():
            self.reasons.setdefault(tensor, self._reason(tensor))
            if tensor not in home.outputs:
                home.outputs.append(tensor)
                self.home[tensor] = home
                self.layouts[tensor] = self.layout_of(tensor)
                self.level[tensor] = home.level

    def _reason(self, tensor: TensorView) -> str:
        """Why nobody can go on with the reductions that a value is computed from."""
        known = (self.reasons.get(f.output) for f in self.frontier(tensor).folds)
        return next(filter(None, known), "no kernel can compute it where it is read")

    def _no_larger(
        self, wanted: TensorView, foreign: dict[TensorView, Group]
    ) -> dict[TensorView, Group]:
        """The last values on the way from reductions to `wanted` that are as small as these, and
        where they can be computed.
        """
        found: dict[TensorView, Group] = {}
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

    def _kernel_of_row(self, tensor: TensorView, foreign: dict[TensorView, Group]) -> Group | None:
        """The kernel of some reductions, if it can compute a value from them that is as small."""
        frontier = self.frontier(tensor)
        outputs = [f.output for f in frontier.folds]
        if not outputs or any(t not in foreign for t in outputs):
            return None
        home = foreign[outputs[0]]
        if any(foreign[t] is not home for t in outputs) or not self.may_read(home, frontier):
            return None
        if tensor.bytes > max(t.bytes for t in outputs):
            return None
        is_there = tensor in home.outputs or self.refuse(home, tensor) is None
        return home if is_there else None
