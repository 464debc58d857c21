"""Size limits of one kernel: larger computations are cut and go through memory.

Compilers take seconds for some thousand operations, and much longer than twice as long for twice as
many; launches take few thousand bytes of parameters. So cuts (segment_set), as a definition may
have them, are inserted before a value that is computed with too many operations, from too many
tensors, or at too many places; and a cat of many tensors is written piece by piece into its memory.
Handwritten programs are far below all of these limits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from thunder_fuser.errors import Refusal
from thunder_fuser.ir.domain import tensor_domain
from thunder_fuser.ir.fusion import (
    CatOp,
    CutOp,
    Expr,
    FoldOp,
    Fusion,
    GatherOp,
    MoveOp,
    OpaqueOp,
    PointwiseOp,
    Scalar,
    TensorView,
    Val,
    with_values,
)
from thunder_fuser.segment.anchors.evaluation_points import MAX_POINTS, repeated
from thunder_fuser.segment.anchors.stencils import read_by_reductions

MAX_OPERATIONS = 1024
"""Most expressions between memory and a value."""
MAX_SOURCES = 256
"""Most tensors in memory that a value is computed from."""
MAX_STAGES = 16
"""Most reductions in a dependency chain: each pass over a row recomputes what earlier ones did."""
FEW_PIECES = 16
"""Most pieces of a cat that a kernel always selects from by the index, per element."""
MANY_PIECES = 64
"""Most pieces of a cat that a kernel may select from at all; a larger one is stored before it has
consumers, unless these are computed piece by piece.
"""
MAX_IN_PARTS = 2048
"""Most expressions that are duplicated for the pieces of one cat: expressions times pieces."""


@dataclass(frozen=True, slots=True)
class Limited:
    """A fusion within the limits.

    cuts    tensors that were cut, and why
    joined  tensors whose pieces are written directly into their memory
    """

    fusion: Fusion
    cuts: Mapping[TensorView, Refusal]
    joined: tuple[TensorView, ...] = ()


def limited(fusion: Fusion) -> Limited:
    """Cut a fusion where it is too large, and before reductions of stencils. It must be static; of
    open sizes, representative ones will do.
    """
    before = read_by_reductions(fusion)
    found = _within_limits(_with_cuts(fusion, before) if before else fusion)
    return replace(found, cuts={**before, **found.cuts}) if before else found


def _within_limits(fusion: Fusion) -> Limited:
    folds = sum(isinstance(e, FoldOp) for e in fusion.exprs)
    few = len(fusion.exprs) + len(fusion.inputs) <= MAX_SOURCES and folds <= MAX_STAGES
    if few and not any(isinstance(e, CatOp) for e in fusion.exprs):
        # Each view may double the points at which a value is evaluated.
        views = sum(isinstance(e, MoveOp | GatherOp) for e in fusion.exprs)
        if len(fusion.exprs) <= MAX_OPERATIONS and 2**views <= MAX_POINTS:
            return Limited(fusion, {})
    return _Limits(fusion).limited()


class _Limits:
    """Sizes of the computation of each value from memory, and the cuts that limit them.

    _operations  expressions that compute a value, as a bit set
    _sources     tensors in memory that it is computed from, as a bit set
    _stages      longest chain of dependent reductions and scans
    """

    def __init__(self, fusion: Fusion) -> None:
        self.fusion = fusion
        self.definitions = fusion.definitions()
        self._places = {expr.output: k for k, expr in enumerate(fusion.exprs)}
        self.cuts: dict[TensorView, Refusal] = {}
        self.joined: dict[TensorView, None] = {}
        self.settled: set[Val] = set()
        self._operations: dict[Val, int] = {}
        self._sources: dict[Val, int] = {}
        self._stages: dict[Val, int] = {}
        self._sizes: dict[Val, int] = {}
        self._numbers: dict[Val, int] = {}

    def limited(self) -> Limited:
        self._join_cats()
        for value in self.fusion.inputs:
            self._stored(value)
        for place, expr in enumerate(self.fusion.exprs):
            self._take(place, expr)
            if self._stages[expr.output] > MAX_STAGES:
                self._cut_stages(place, expr)
        apart = {*self.cuts, *self.settled}
        for tensor, count in repeated(self.fusion, apart, self._sizes, MAX_OPERATIONS).items():
            text = f"it is wanted at {count} places, and computed with {self._sizes[tensor]}"
            self.cuts[tensor] = Refusal("size", f"{text} operations at each", tensor.name)
        fusion = _with_cuts(self.fusion, self.cuts) if self.cuts else self.fusion
        tensors = (e.output for e in fusion.exprs if isinstance(e.output, TensorView))
        joined = tuple(t for t in tensors if t in self.joined)
        return Limited(fusion, self.cuts, joined)

    def _take(self, place: int, expr: Expr) -> None:
        output = expr.output
        if output in self.settled or isinstance(expr, CutOp | OpaqueOp):
            self._stored(output)
            return
        operands = dict.fromkeys(expr.inputs)
        while True:
            operations = 1 << place
            sources = 0
            for v in operands:
                operations |= self._operations.get(v, 0)
                sources |= self._sources.get(v, 0)
            too_long = operations.bit_count() > MAX_OPERATIONS
            if not too_long and sources.bit_count() <= MAX_SOURCES:
                break
            measured = self._operations if too_long else self._sources
            found = [v for v in operands if self._operations.get(v) and not isinstance(v, Scalar)]
            largest = max(found, key=lambda v: measured[v].bit_count(), default=None)
            if not isinstance(largest, TensorView):
                break
            self._cut(largest, too_long)
        self._operations[output], self._sources[output] = operations, sources
        self._sizes[output] = operations.bit_count()
        stages = max((self._stages.get(v, 0) for v in operands), default=0)
        self._stages[output] = stages + isinstance(expr, FoldOp)

    def _cut_stages(self, place: int, expr: Expr) -> None:
        """Cut right after the last reduction within MAX_STAGES."""
        (tensor,) = (v for v in expr.inputs if isinstance(v, TensorView))
        stages = self._stages[tensor]
        while True:
            below = [
                v
                for v in self.definitions[tensor].inputs
                if isinstance(v, TensorView)
                and v.sizes == tensor.sizes
                and self._stages[v] == stages
                and v in self.definitions
            ]
            if not below or isinstance(self.definitions[tensor], FoldOp):
                break
            tensor = below[0]
        text = f"what reads it would wait for more than {MAX_STAGES} reductions, one for another"
        self.cuts[tensor] = Refusal("size", text, tensor.name)
        self._stored(tensor)
        first = self._places[tensor] + 1
        for k, later in enumerate(self.fusion.exprs[first : place + 1], first):
            if later.output not in self.cuts:
                self._take(k, later)

    def _cut(self, tensor: TensorView, too_long: bool) -> None:
        count = (self._operations if too_long else self._sources)[tensor].bit_count()
        text = (
            f"what reads it would be computed with more than {MAX_OPERATIONS:,} operations, it "
            f"with {count:,}"
            if too_long
            else f"what reads it would be computed from more than {MAX_SOURCES} tensors, it from "
            f"{count:,}"
        )
        self.cuts[tensor] = Refusal("size", text, tensor.name)
        self._stored(tensor)

    def _stored(self, value: Val) -> None:
        self._operations[value] = 0
        self._stages[value] = 0
        self._sizes[value] = 0
        is_tensor = isinstance(value, TensorView)
        number = self._numbers.setdefault(value, len(self._numbers))
        self._sources[value] = 1 << number if is_tensor else 0

    # ---- cats of many pieces

    def _join_cats(self) -> None:
        """Choose cats that are written piece by piece, with their pointwise consumers."""
        cats = [e for e in self.fusion.exprs if isinstance(e, CatOp) and e.output.numel]
        many = [cat for cat in cats if len(cat.inputs) > FEW_PIECES]
        if not many:
            return
        uses, results = self.fusion.uses(), set(self.fusion.results)
        for cat in many:
            found = self._in_parts(cat, uses, results)
            if found is not None:
                self.settled.update(found)
                self.joined.update((t, None) for t in found if t in results)
            elif len(cat.inputs) > MANY_PIECES:
                text = f"it has {len(cat.inputs):,} pieces"
                self.cuts[cat.output] = Refusal("size", text, cat.output.name)
                self.settled.add(cat.output)
                self.joined[cat.output] = None

    def _in_parts(
        self, cat: CatOp, uses: Mapping[Val, Sequence[Expr]], results: set[TensorView]
    ) -> list[TensorView] | None:
        """Return the cat and its consumers, if all are pointwise and end in results; else None."""
        found: dict[TensorView, None] = {cat.output: None}
        stack: list[TensorView] = [cat.output]
        while stack:
            tensor = stack.pop()
            users = uses.get(tensor, [])
            if not users and tensor not in results:
                return None
            for user in users:
                output = user.output
                if not isinstance(user, PointwiseOp) or not isinstance(output, TensorView):
                    return None
                if output.sizes != tensor.sizes:
                    return None
                if output not in found:
                    found[output] = None
                    stack.append(output)
            if (len(found) - 1) * len(cat.inputs) > MAX_IN_PARTS:
                return None
        return list(found)


def _with_cuts(fusion: Fusion, cut: Iterable[TensorView]) -> Fusion:
    """Insert a segment_set after each of some tensors; their readers read its result."""
    cut = set(cut)
    following = max(v.id for v in fusion.values())
    behind: dict[Val, Val] = {}
    exprs: list[Expr] = []
    for expr in fusion.exprs:
        exprs.append(with_values(expr, behind))
        output = expr.output
        if output in cut and isinstance(output, TensorView):
            following += 1
            domain = tensor_domain(output.domain.logical)
            after = TensorView(following, output.dtype, domain)
            behind[output] = after
            exprs.append(CutOp(output, after, expr.origin))
    return replace(fusion, exprs=tuple(exprs))
