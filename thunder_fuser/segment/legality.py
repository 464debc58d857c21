"""Legality: whether one kernel can compute a set of anchors, and which kind of kernel.

A pure function of the set, queried often and cached. A pointwise kernel computes any tensors
pointwise, next to each other; a reduction kernel computes reductions, and their consumers at points
where these are ready.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Literal

from thunder_fuser.errors import Refusal
from thunder_fuser.ir.domain import shape_text
from thunder_fuser.ir.fusion import FoldOp, ReductionOp, ScanOp, TensorView, Val
from thunder_fuser.lower.body import KernelBody
from thunder_fuser.lower.memory_order import traced_order
from thunder_fuser.lower.rows.legal_rows import has_strided_totals, legal_arrangement
from thunder_fuser.lower.rows.online_reductions import one_pass
from thunder_fuser.lower.rows.row_points import have_places
from thunder_fuser.lower.rows.row_space import Arrangement
from thunder_fuser.lower.rows.scan_program import refuse_scans
from thunder_fuser.segment.anchors.anchors import Anchors, members, union
from thunder_fuser.segment.anchors.graph import AnchorGraph
from thunder_fuser.segment.candidate_body import CommonOrders, Ends, Given, KnownOrders, Loadable
from thunder_fuser.segment.layouts.strided_accesses import MANY_BYTES

MAX_OUTPUTS = 128
"""Most outputs of one kernel: keeps parameter lists within what every GPU takes."""
MAX_POINTERS = 480
"""Most tensors of one kernel: with some scalars 4 KiB of parameters, which every GPU takes."""
CUT = Refusal("cut", "the definition cuts here (segment_set)")


@dataclass(frozen=True, slots=True)
class Legal:
    """A legal kernel: its kind, and its reductions and scans in the form in which it does them.

    is_strided  threads with column accumulators can only own columns that are strided in memory,
                since rows are adjacent there
    """

    kind: Literal["pointwise", "reduction", "scan"]
    folds: tuple[FoldOp, ...]
    is_strided: bool = False


@dataclass(frozen=True, slots=True)
class _Shape:
    """Sizes of the kernel of a set of anchors. Reductions of one kernel have equal points, or
    reduce the rows of others.

    pointers  upper bound of the tensors that it reads and writes
    stored    stored anchors
    points    numbers of elements that its reductions and scans read
    rows      numbers of elements of their results
    """

    pointers: int
    stored: int
    points: frozenset[int]
    rows: frozenset[int]


class Legality:
    """Cached legality of sets of anchors. `memory`: layouts of tensors that kernels may load."""

    def __init__(self, graph: AnchorGraph) -> None:
        self.graph = graph
        self._known: dict[Anchors, Legal | Refusal] = {}
        self._writable: dict[object, bool] = {}
        self._legal: dict[Hashable, bool] = {}
        folds = [a.tensor for a in graph.anchors if a.fold is not None]
        # Inputs, results of cuts, and reductions and scans of other kernels.
        self._ends = {t: graph.layouts[t] for t in graph.stops}
        self.memory = self._ends | {t: graph.layout_of(t) for t in folds}
        # Reduction kernels contain no scans: they load the results of all scans.
        scans = [a.tensor for a in graph.anchors if isinstance(a.fold, ScanOp)]
        self._ends |= {t: self.memory[t] for t in scans}
        self._orders = CommonOrders(graph, self.memory)
        self._waiting: dict[Val, bool] = {}
        self._shapes: dict[Anchors, _Shape] = {}
        self._singles: dict[int, ReductionOp | None] = {}

    def of(self, anchors: Anchors) -> Legal | Refusal:
        """Return the kernel that computes these anchors, or why there is none."""
        if anchors not in self._known:
            self._known[anchors] = self._decide(anchors)
        return self._known[anchors]

    def outputs(self, anchors: Anchors) -> list[TensorView]:
        """Return a kernel's outputs: stored anchors, and folds that other anchors read."""
        found = []
        for k in members(anchors):
            anchor = self.graph.anchors[k]
            if anchor.is_stored or self.graph.users[k] & ~anchors:
                found.append(anchor.tensor)
        return found

    def has_room(self, anchors: Anchors, more: Anchors) -> bool:
        """True if the kernel of two sets together keeps MAX_POINTERS and MAX_OUTPUTS."""
        ours, theirs = self._shape(anchors), self._shape(more)
        fits = ours.pointers + theirs.pointers <= MAX_POINTERS
        return ours.stored + theirs.stored <= MAX_OUTPUTS and (
            fits or self._shape(anchors | more).pointers <= MAX_POINTERS
        )

    def join(self, a: Anchors, b: Anchors) -> None:
        """Record an upper bound of the sizes of two sets as one, while that is within limits."""
        ours, theirs = self._shape(a), self._shape(b)
        if ours.pointers + theirs.pointers <= MAX_POINTERS:
            self._shapes[a | b] = _Shape(
                ours.pointers + theirs.pointers,
                ours.stored + theirs.stored,
                ours.points | theirs.points,
                ours.rows | theirs.rows,
            )

    def may_meet(self, a: Anchors, b: Anchors) -> bool:
        """True if a kernel of two unrelated sets is worth a legality test: a quick filter."""
        ours, theirs = self._shape(a), self._shape(b)
        if not self.has_room(a, b):
            return False
        if bool(ours.points) != bool(theirs.points):
            # A pointwise kernel joins one of reductions only if it reads nothing: a launch less.
            alone = theirs if ours.points else ours
            return alone.pointers == alone.stored
        return not ours.points or bool(
            ours.points & (theirs.points | theirs.rows) or ours.rows & theirs.points
        )

    def _shape(self, anchors: Anchors) -> _Shape:
        if anchors not in self._shapes:
            mine = [self.graph.anchors[k] for k in members(anchors)]
            reaches = [anchor.reach for anchor in mine]
            folds = union(reach.folds for reach in reaches) & ~anchors
            sources = set().union(*(reach.sources for reach in reaches))
            self._shapes[anchors] = _Shape(
                len(sources) + folds.bit_count() + len(self.outputs(anchors)),
                sum(anchor.is_stored for anchor in mine),
                frozenset(a.fold.input.numel for a in mine if a.fold is not None),
                frozenset(a.tensor.numel for a in mine if a.fold is not None),
            )
        return self._shapes[anchors]

    def singles(self, anchors: Anchors) -> Anchors:
        """Return reductions that depend on others of these, but can be done in the same pass."""
        folds = {
            k: fold
            for k in members(anchors)
            if isinstance(fold := self.graph.anchors[k].fold, ReductionOp)
        }
        together = list(folds.values())
        return union(1 << k for k, f in folds.items() if self._single(f, together) is not f)

    def may_write(self, anchors: Anchors, outputs: Sequence[TensorView], more: TensorView) -> bool:
        """True if the kernel of these anchors, which writes `outputs`, can write `more` as well."""
        kernel = self.of(anchors)
        if isinstance(kernel, Refusal) or len(outputs) >= MAX_OUTPUTS:
            return False
        if kernel.kind == "pointwise":
            return True
        key = anchors, more, frozenset(outputs)
        if key not in self._writable:
            found = self._is_strided((*outputs, more), kernel.folds)
            self._writable[key] = not isinstance(found, Refusal)
        return self._writable[key]

    def _decide(self, anchors: Anchors) -> Legal | Refusal:
        mine = [self.graph.anchors[k] for k in members(anchors)]
        behind = union(anchor.reach.awaited for anchor in mine)
        folds = [anchor.fold for anchor in mine if anchor.fold is not None]
        outputs = self.outputs(anchors)
        if len(outputs) > MAX_OUTPUTS:
            return Refusal("outputs", f"a kernel writes at most {MAX_OUTPUTS} tensors")
        if behind & anchors:
            first = self.graph.anchors[members(behind & anchors)[0]]
            return self.graph.reasons.get(first.tensor, CUT)
        if self._shape(anchors).pointers > MAX_POINTERS and len(mine) > 1:
            return Refusal("parameters", f"a kernel takes at most {MAX_POINTERS} tensors")
        if not folds:
            return Legal("pointwise", ())
        reductions = [fold for fold in folds if isinstance(fold, ReductionOp)]
        if len(reductions) < len(folds):
            return self._decide_scan(outputs, folds, reductions)
        found = self._is_strided(outputs, reductions)
        if not isinstance(found, Refusal):
            return Legal("reduction", tuple(reductions), found)
        # One kernel instead of two, if a dependent reduction can be done in the same pass.
        singles = [self._single(fold, reductions) for fold in reductions]
        if singles != reductions:
            found = self._is_strided(outputs, singles)
        if isinstance(found, Refusal):
            return found
        return Legal("reduction", tuple(singles), found)

    def _decide_scan(
        self,
        outputs: Sequence[TensorView],
        folds: Sequence[FoldOp],
        reductions: Sequence[ReductionOp],
    ) -> Legal | Refusal:
        """Decide on a kernel some of whose folds are scans."""
        if reductions:
            fold = reductions[0]
            scan = next(f for f in folds if isinstance(f, ScanOp))
            text = (
                f"it reduces {shape_text(fold.input.sizes)}, {scan.output.name} scans "
                f"{shape_text(scan.input.sizes)}: a kernel does one or the other, so that each "
                "needs its own"
            )
            return Refusal("space", text, fold.output.name)
        found = self._is_strided(outputs, folds)
        return found if isinstance(found, Refusal) else Legal("scan", tuple(folds))

    def _is_strided(self, outputs: Sequence[TensorView], folds: Sequence[FoldOp]) -> bool | Refusal:
        """Return `Legal.is_strided` of a kernel with these outputs, or why it is illegal."""
        # Its own folds it cannot load, even if other kernels compute them as well.
        own = union(1 << self.graph.number[fold.output] for fold in folds)
        memory = Loadable(self.graph, self.memory, own, frozenset(outputs))
        reductions = [fold for fold in folds if isinstance(fold, ReductionOp)]
        scans = [fold for fold in folds if isinstance(fold, ScanOp)]
        body = KernelBody(
            self.graph.definitions,
            memory,
            outputs,
            reductions,
            scans=scans,
            expected={t: self.graph.layout_of(t) for t in outputs if t.bytes >= MANY_BYTES},
            given=Given(self.graph, own),
        )
        # Legality holds for isomorphic kernels; refusals are not shared, since they name tensors.
        known = self._orders.within(body)
        key = self._likeness(body, folds, known)
        if key in self._legal:
            return self._legal[key]
        found: Arrangement | Refusal | None
        cluster = self.graph.prices.device.largest_cluster
        found = refuse_scans(body) if scans else legal_arrangement(body, cluster, known)
        if isinstance(found, Refusal):
            return found
        strided = found is not None and has_strided_totals(found, body)
        if key is not None:
            self._legal[key] = strided
        return strided

    def _likeness(self, body: KernelBody, folds: Sequence[FoldOp], known: KnownOrders) -> Hashable:
        """Return a key that isomorphic bodies share; None with open sizes. Outputs of other shapes
        than the kernel's are looked for through views, of given values, too.
        """
        parts = self.graph.parts
        if not parts.is_static:
            return None
        is_plain = have_places(body)
        ends = Ends(body) if is_plain else body.loads
        part = parts.of([*body.outputs, *(fold.input for fold in folds)], ends)
        made = tuple(
            (parts.kind(fold), part.numbers[fold.input], part.numbers.get(fold.output))
            for fold in folds
        )
        before = tuple(
            traced_order(v, body, known)
            for v in part.numbers
            if isinstance(v, TensorView) and v in ends
        )
        written = tuple(map(body.expected.get, body.outputs))
        return is_plain, part.key, made, before, written

    def _single(self, fold: ReductionOp, folds: Sequence[ReductionOp]) -> ReductionOp:
        """Return the one-pass form of a reduction, without the one that it depends on, if that is
        among `folds`; else the reduction itself.
        """
        number = self.graph.number[fold.output]
        if number not in self._singles:
            everything = KernelBody(self.graph.definitions, self._ends)
            self._singles[number] = one_pass(fold, everything, self._waiting)
        single = self._singles[number]
        if single is None or not any(f.input is single.input for f in folds):
            return fold
        return single
