"""Cat as slices: kernels write pieces directly into the memory of a cat, or of a view, so that the
cat costs nothing.

By default a cat is pulled: one kernel selects and computes the piece of each element by its index,
which is best where one kernel can. Where the pieces come from several kernels, these can instead
write them into slices of the cat's memory, and the cat itself launches nothing. `planner.py`
plans both ways and takes the better one.

The memory of a piece follows from the strides of the cat: a slice is an offset, a permutation
reorders strides, a reshape of a dense tensor multiplies them. So pieces are found through views, in
cats of cats, and before pointwise consumers of a cat; and a tensor that is just a view of a
kernel's value has one piece. Where no kernel could write a piece alone (it is an input, it occurs
twice, or a caller sees its memory through another result) a copy of it is the piece.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

from thunder_fuser.analysis.aliases import View, aligned_layout, sole_results
from thunder_fuser.analysis.layout import dense_layout
from thunder_fuser.ir.domain import (
    Expand,
    IterDomain,
    Layout,
    Merge,
    NewBroadcast,
    Reorder,
    Resize,
    Split,
    Squeeze,
    Transform,
    iteration,
    replay,
    static,
    tensor_domain,
)
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import (
    CatOp,
    CopyOp,
    CutOp,
    Expr,
    FoldOp,
    FullOp,
    Fusion,
    MoveOp,
    OpaqueOp,
    PadOp,
    PointwiseOp,
    TensorView,
    Val,
    ViewOp,
)
from thunder_fuser.segment.anchors.cat_pieces import Collections, Parts, widths
from thunder_fuser.segment.anchors.limits import FEW_PIECES


@dataclass(frozen=True, slots=True)
class Sliced:
    """A fusion some of whose tensors are joined from pieces that kernels write into their memory.

    fusion  rewritten: with copies of pieces that cannot lie there, constants around padded tensors,
            and pointwise consumers of cats split into parts
    pieces  of each tensor that needs no kernel: together they are all of it
    slices  views of pieces, and of cats among them, in the memory of such a tensor
    orders  dimension orders of tensors in memory, as they were before
    memory  layouts of such tensors that lie in the memory of an updated input
    late    pieces of such memory that are written after all readers of the input: piece -> input
    """

    fusion: Fusion
    pieces: Mapping[TensorView, tuple[TensorView, ...]]
    slices: Mapping[TensorView, View]
    orders: Mapping[TensorView, Sequence[int]]
    memory: Mapping[TensorView, Layout] = field(default_factory=dict)
    late: Mapping[TensorView, TensorView] = field(default_factory=dict)

    @property
    def written(self) -> set[TensorView]:
        """Pieces that kernels write."""
        return self.slices.keys() - self.pieces.keys()

    def layout(self, tensor: TensorView) -> Layout | None:
        """Return the layout of a piece, or of a tensor, in another tensor's memory, or None."""
        view = self.slices.get(tensor)
        if view is None:
            return self.memory.get(tensor)
        itemsize, given = tensor.dtype.itemsize, self.memory.get(view.base)
        if given is None:
            return aligned_layout(view, itemsize)
        return aligned_layout(view, itemsize, given.alignment)


def joined_tensors(
    fusion: Fusion, layouts: Mapping[TensorView, Layout], shared: Iterable[TensorView] = ()
) -> list[TensorView]:
    """Return the stored tensors, among `layouts`, that are cats, pads or views of values that need
    more than one kernel: of reductions, and of values after cuts; or of `shared` pieces.
    """
    if fusion.updates:
        return []
    late = _late(fusion).union(shared)
    from_cats = _from_cats(fusion, late)
    collections = Collections(fusion.definitions(), late)
    return [
        expr.output
        for expr in fusion.exprs
        if expr.output in layouts
        and isinstance(expr.output, TensorView)
        and expr.output.numel
        and (isinstance(expr, MoveOp) or expr.output in from_cats)
        and _is_joined(expr, layouts[expr.output], collections)
    ]


def _from_cats(fusion: Fusion, late: AbstractSet[Val]) -> set[Val]:
    """Return cats of `late` values, and pointwise values that depend on them: a search per value
    would take quadratic time on a long chain.
    """
    found: set[Val] = set()
    for expr in fusion.exprs:
        is_cat = isinstance(expr, CatOp) and not late.isdisjoint(expr.inputs)
        if is_cat or (isinstance(expr, PointwiseOp) and not found.isdisjoint(expr.inputs)):
            found.add(expr.output)
    return found


def _is_joined(expr: Expr, layout: Layout, collections: Collections) -> bool:
    if collections.has(expr):
        return True
    if not isinstance(expr, ViewOp | CopyOp | PadOp) or expr.input not in collections.late:
        return False
    return _source_strides(expr, layout.strides) is not None


def cat_as_slices(
    fusion: Fusion,
    tensors: Sequence[TensorView],
    orders: Mapping[TensorView, Sequence[int]],
    shared: Iterable[TensorView] = (),
) -> Sliced:
    """Rewrite a fusion so that `tensors`, some of `joined_tensors`, are joined from slices of their
    memory, which is dense in `orders`.
    """
    found = _Finder(fusion, shared)
    # The last ones first: a tensor within another's memory needs no memory of its own.
    for tensor in reversed(tensors):
        if tensor not in found.slices:
            found.join(tensor, dense_layout(tensor, orders[tensor]).strides)
    return Sliced(found.rewritten(), found.pieces, found.slices, orders)


def _late(fusion: Fusion) -> set[Val]:
    """Return values that cannot all be in the first pointwise kernel, or need not: a kernel that
    reduces their operands can compute them as well.
    """
    folded: set[Val] = set()
    many: set[Val] = set()
    for expr in reversed(fusion.exprs):
        if isinstance(expr, CatOp) and len(expr.inputs) > FEW_PIECES:
            many.update(expr.inputs)
        if isinstance(expr, FoldOp) or expr.output in folded:
            folded.update(v for v in expr.inputs if isinstance(v, TensorView))
    found = folded & set(fusion.inputs)
    for expr in fusion.exprs:
        first = isinstance(expr, FoldOp | CutOp | OpaqueOp)
        if first or not found.isdisjoint(expr.inputs):
            found.add(expr.output)
    return found | many


class _Finder:
    """Search from cats to the pieces that kernels can write."""

    def __init__(self, fusion: Fusion, shared: Iterable[TensorView]) -> None:
        self.fusion = fusion
        self.definitions = dict(fusion.definitions())
        self.slices: dict[TensorView, View] = {}
        self.pieces: dict[TensorView, tuple[TensorView, ...]] = {}
        self._collections = Collections(self.definitions, _late(fusion).union(shared))
        self._results = sole_results(fusion)
        self._added: dict[Val, list[Expr]] = {}
        self._collecting: dict[Val, Expr] = {}
        self._next = max(v.id for v in fusion.values())

    def join(self, tensor: TensorView, strides: tuple[int, ...]) -> None:
        """Join a tensor from pieces that kernels write, if possible."""
        place = View(tensor, tensor.sizes, strides, 0)
        expr = self.definitions[tensor]
        if self._collections.has(expr):
            self.placed(tensor, place)
            return
        assert isinstance(expr, MoveOp)
        inner = _source_strides(expr, strides)
        source, strides = self._source(expr.input, inner, tensor) if inner else (None, strides)
        if source is not None:
            self.pieces[tensor] = self.placed(source, View(tensor, source.sizes, strides, 0))

    def placed(self, tensor: TensorView, place: View) -> tuple[TensorView, ...]:
        """Place a tensor at `place`, and return what kernels write of it: itself, or its pieces."""
        if tensor is not place.base:
            self.slices[tensor] = place
        expr = self.definitions.get(tensor)
        parts = self._parts(expr, place) if expr is not None else None
        if expr is None or parts is None:
            return (tensor,)
        self.pieces[tensor] = ()
        found: list[TensorView] = []
        collected: list[TensorView] = []
        for part, at in parts:
            own = self._own(expr, part, at) if part.numel else (part, ())
            collected.append(own[0])
            found += own[1]
        self._collecting[tensor] = self._collection(expr, collected)
        self.pieces[tensor] = tuple(found)
        return self.pieces[tensor]

    def _collection(self, expr: Expr, parts: Sequence[TensorView]) -> Expr:
        """Return the expression that joins the result of `expr` from its parts."""
        out = expr.output
        assert isinstance(out, TensorView)
        if isinstance(expr, PadOp):
            return PadOp(parts[-1], expr.fill, out, expr.origin)
        cat = self._collections.cat_below(expr)
        assert cat is not None
        return CatOp(tuple(t for t in parts if t.numel), cat.dim, out, expr.origin)

    def _parts(self, expr: Expr, place: View) -> Iterator[tuple[TensorView, View]] | None:
        """Return parts of an expression's result, with their places; None if it is not joined."""
        if not self._collections.has(expr):
            return None
        match expr:
            case CatOp():
                return self._cat(expr.inputs, expr.dim, place)
            case ViewOp() | CopyOp() | CutOp() | PadOp():
                inside = _inside(expr, place)
                return None if inside is None else self._padded(expr, *inside)
            case _:
                return self._computed(expr, place)

    def _cat(
        self, pieces: Sequence[TensorView], dim: int, place: View
    ) -> Iterator[tuple[TensorView, View]]:
        offset = place.offset
        for piece in pieces:
            yield piece, View(place.base, piece.sizes, place.strides, offset)
            offset += piece.sizes[dim] * place.strides[dim]

    def _computed(self, expr: Expr, place: View) -> Iterator[tuple[TensorView, View]]:
        """Split a pointwise consumer of a cat into parts that are computed from its pieces."""
        cat = self._collections.cat_below(expr)
        assert cat is not None
        assert isinstance(expr.output, TensorView)
        parts = Parts(cat, self._collections, self._next)
        found = parts.of(expr.output)
        self._next = parts.next_id
        for made in parts.added:
            self._add(expr, made)
        return self._cat(found, cat.dim, place)

    def _padded(
        self, pad: MoveOp, inner: View, around: Sequence[View]
    ) -> Iterator[tuple[TensorView, View]]:
        """Yield constants for the padding, then the padded tensor."""
        assert isinstance(pad, PadOp)
        for at in around:
            made = self._new(pad.output.dtype, [iteration(n) for n in at.sizes])
            self._add(pad, FullOp(pad.fill, made, pad.origin))
            yield made, at
        yield pad.input, inner

    def _own(
        self, owner: Expr, part: TensorView, place: View
    ) -> tuple[TensorView, tuple[TensorView, ...]]:
        """Return a part that may lie at `place`, or its copy, and what kernels write of it."""
        tensor, strides = self._source(part, place.strides, place.base)
        if tensor is None:
            tensor, strides = self._new(part.dtype, part.domain.logical), place.strides
            self._add(owner, CopyOp(part, tensor, owner.origin))
            part = tensor
        at = View(place.base, tensor.sizes, strides, place.offset)
        return part, self.placed(tensor, at)

    def _source(
        self, tensor: TensorView, strides: tuple[int, ...], base: TensorView
    ) -> tuple[TensorView | None, tuple[int, ...]]:
        """Return the tensor that a kernel writes so that `tensor` has these strides in the memory
        of `base`: itself, or its view's source, with strides. None if it cannot lie there.
        """
        best: TensorView | None = None
        found = strides
        while self._is_free(tensor, base):
            expr = self.definitions.get(tensor)
            # Results of torch's calls have memory of their own.
            if expr is None or isinstance(expr, OpaqueOp):
                break
            if not isinstance(expr, CutOp):
                best, found = tensor, strides
            inner = _source_strides(expr, strides) if isinstance(expr, MoveOp) else None
            if inner is None:
                break
            assert isinstance(expr, MoveOp)
            tensor, strides = expr.input, inner
        return best, found

    def _is_free(self, tensor: TensorView, base: TensorView) -> bool:
        taken = tensor in self.slices or tensor in self.pieces
        return not taken and self._results.get(tensor, base) is base

    def _new(self, dtype: DataType, dims: Sequence[IterDomain]) -> TensorView:
        self._next += 1
        return TensorView(self._next, dtype, tensor_domain(dims))

    def _add(self, owner: Expr, expr: Expr) -> None:
        self.definitions[expr.output] = expr
        self._added.setdefault(owner.output, []).append(expr)

    def rewritten(self) -> Fusion:
        """Return the fusion in which joined tensors read their parts."""
        exprs = tuple(e for expr in self.fusion.exprs for e in self._in_order(expr))
        same = exprs == self.fusion.exprs
        return self.fusion if same else replace(self.fusion, exprs=exprs)

    def _in_order(self, expr: Expr) -> Iterator[Expr]:
        """Yield the expressions that were added for an expression, then itself."""
        for added in self._added.get(expr.output, ()):
            yield from self._in_order(added)
        yield self._collecting.get(expr.output, expr)


def _source_strides(expr: MoveOp, strides: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return strides of a view's input such that the view has `strides` and the same start.

    None where the view adds elements or leaves some out, repeats some, or has no such strides.
    """
    found = _inside(expr, View(expr.output, expr.output.sizes, strides, 0))
    return None if found is None or found[1] else found[0].strides


def _inside(expr: MoveOp, place: View) -> tuple[View, list[View]] | None:
    """Return the place of the input of a view that lies at `place`, and the places of its padding.

    None where the view leaves elements out, repeats some, or has no such strides.
    """
    domain = expr.output.domain
    stages: list[Sequence[IterDomain]] = [domain.root]
    for step in domain.transforms:
        stages.append(replay(stages[-1], (step,)))
    sizes, strides, offset = list(place.sizes), list(place.strides), place.offset
    around: list[View] = []
    for step, dims in zip(reversed(domain.transforms), reversed(stages[:-1]), strict=True):
        before = [static(d.size) for d in dims]
        if isinstance(step, Resize):
            axis, (left, right) = step.axis, widths(step)
            if min(left, right) < 0:
                return None
            for width, begin in ((left, 0), (right, left + before[axis])):
                at = (*sizes[:axis], width, *sizes[axis + 1 :])
                if math.prod(at):
                    start = offset + begin * strides[axis]
                    around.append(View(place.base, at, tuple(strides), start))
            offset += left * strides[axis]
        elif (found := _before(step, before, strides)) is not None:
            strides = found
        else:
            return None
        sizes = before
    return View(place.base, tuple(sizes), tuple(strides), offset), around


def _before(step: Transform, sizes: Sequence[int], strides: list[int]) -> list[int] | None:
    """Return the strides of the dimensions before a transform, which have `sizes`."""
    match step:
        case Split(axis, outer, inner):
            above, below = strides[axis : axis + 2]
            count = static(outer), static(inner)
            if count[0] * count[1] != sizes[axis]:
                return None
            if 1 not in count and above != below * count[1]:
                return None
            strides[axis : axis + 2] = [above if count[1] == 1 else below]
        case Merge(axis):
            strides[axis : axis + 1] = [strides[axis] * sizes[axis + 1], strides[axis]]
        case Reorder(order):
            return [strides[order.index(k)] for k in range(len(order))]
        case NewBroadcast(axis):
            del strides[axis]
        case Squeeze(axis) if sizes[axis] == 1:
            strides.insert(axis, 0)
        case Expand(axis, size) if static(size) == sizes[axis]:
            pass
        case _:
            return None
    return strides
