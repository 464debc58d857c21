"""Destinations: values that their own kernels write where a cat, or a view, of them is wanted.

A cat is pulled, like everything else: one kernel computes whatever its pieces are, by the index.
That is best where one kernel can. Where the pieces come from several kernels, these can as well
write them into slices of the cat's memory, and the cat itself launches nothing. `partition.py`
plans both ways and takes the better one.

Which memory a piece has follows from the strides of the cat: a slice is an offset, a permutation
reorders strides, a reshape of something dense multiplies them. So pieces are found behind views,
and in cats of cats; and a tensor that is just a view of what a kernel computes has one piece. Where
no kernel could write a piece alone (it is an input, it is there twice, or a caller sees its memory
through another result) a copy of it is the piece.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from thunder_fuser.analysis.layout import View, aligned_layout, dense_layout
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
    replay,
    static,
    tensor_domain,
)
from thunder_fuser.ir.fusion import CatOp, Expr, Fusion, ReductionOp, TensorView, Val, ViewOp


@dataclass(frozen=True, slots=True)
class Destinations:
    """What kernels write into slices.

    fusion  with copies of the pieces that nobody could write otherwise
    pieces  of each tensor that needs no kernel: together they are all of it
    slices  where pieces, and cats among them, lie in the memory of such a tensor
    """

    fusion: Fusion
    pieces: Mapping[TensorView, tuple[TensorView, ...]]
    slices: Mapping[TensorView, View]

    @property
    def written(self) -> set[TensorView]:
        """Pieces that a kernel has to write."""
        return self.slices.keys() - self.pieces.keys()

    def layout(self, piece: TensorView) -> Layout | None:
        """Of what lies in another tensor's memory."""
        view = self.slices.get(piece)
        return aligned_layout(view, piece.dtype.itemsize) if view else None


def joined_tensors(fusion: Fusion) -> list[TensorView]:
    """Tensors in memory that are cats, or views, of values that need more than one kernel: of
    reductions, and of what lies behind cuts.
    """
    if fusion.updates:
        return []
    definitions = fusion.definitions()
    late = _late(fusion)
    return [t for t in _in_memory(fusion) if t.numel and _is_joined(t, definitions, late)]


def _is_joined(tensor: TensorView, definitions: Mapping[Val, Expr], late: set[Val]) -> bool:
    expr = definitions[tensor]
    if isinstance(expr, ViewOp):
        dense = dense_layout(tensor, range(tensor.rank)).strides
        is_all = expr.op != "segment_set" and _source_strides(expr, dense) is not None
        return is_all and expr.input in late
    return isinstance(expr, CatOp) and not late.isdisjoint(expr.inputs)


def destinations(
    fusion: Fusion,
    tensors: Sequence[TensorView],
    orders: Mapping[TensorView, Sequence[int]],
) -> Destinations:
    """The slices of `tensors`, some of `joined_tensors`."""
    found = _Finder(fusion)
    # The last ones first: what lies in another's memory needs no memory of its own.
    for tensor in reversed(tensors):
        if tensor not in found.slices:
            found.join(tensor, dense_layout(tensor, orders[tensor]).strides)
    return Destinations(found.with_copies(), found.pieces, found.slices)


def _in_memory(fusion: Fusion) -> list[TensorView]:
    """What a plan stores whatever it does: results and what is cut, in program order."""
    results = set(fusion.results)
    cut = {e.inputs[0] for e in fusion.exprs if e.op == "segment_set"}
    made = (e.output for e in fusion.exprs)
    return [t for t in made if isinstance(t, TensorView) and (t in results or t in cut)]


def _late(fusion: Fusion) -> set[Val]:
    """Values that cannot all be in the first map kernel."""
    found: set[Val] = set()
    for expr in fusion.exprs:
        first = isinstance(expr, ReductionOp) or expr.op == "segment_set"
        if first or not found.isdisjoint(expr.inputs):
            found.add(expr.output)
    return found


class _Finder:
    """Walks from cats to the pieces that kernels can write."""

    def __init__(self, fusion: Fusion) -> None:
        self.fusion = fusion
        self.definitions = fusion.definitions()
        self.slices: dict[TensorView, View] = {}
        self.pieces: dict[TensorView, tuple[TensorView, ...]] = {}
        self._seen = _memory_of_results(fusion)
        self._copies: dict[tuple[TensorView, int], ViewOp] = {}
        self._next = 1 + max(v.id for v in fusion.values())

    def join(self, tensor: TensorView, strides: tuple[int, ...]) -> None:
        """Have pieces of a tensor written, if that can be."""
        source: TensorView | None = tensor
        expr = self.definitions[tensor]
        if isinstance(expr, ViewOp):
            inner = _source_strides(expr, strides)
            source, strides = self._source(expr.input, inner, tensor) if inner else (None, strides)
        if source is not None:
            place = View(tensor, source.sizes, strides, 0)
            self.pieces[tensor] = self.placed(source, place)

    def placed(self, tensor: TensorView, place: View) -> tuple[TensorView, ...]:
        """What kernels write of a tensor that lies at `place`: it, or the pieces of a cat."""
        if tensor is not place.base:
            self.slices[tensor] = place
        cat = self.definitions.get(tensor)
        if not isinstance(cat, CatOp):
            return (tensor,)
        self.pieces[tensor] = ()
        found: list[TensorView] = []
        begin = 0
        for number, piece in enumerate(cat.inputs):
            offset = place.offset + begin * place.strides[cat.dim]
            begin += piece.sizes[cat.dim]
            if piece.numel:
                at = View(place.base, piece.sizes, place.strides, offset)
                found += self._piece(cat, number, at)
        self.pieces[tensor] = tuple(found)
        return tuple(found)

    def _piece(self, cat: CatOp, number: int, place: View) -> tuple[TensorView, ...]:
        tensor, strides = self._source(cat.inputs[number], place.strides, place.base)
        if tensor is None:
            tensor, strides = self._copy(cat, number), place.strides
        return self.placed(tensor, View(place.base, tensor.sizes, strides, place.offset))

    def _source(
        self, tensor: TensorView, strides: tuple[int, ...], base: TensorView
    ) -> tuple[TensorView | None, tuple[int, ...]]:
        """What a kernel writes such that `tensor` has these strides in the memory of `base`: the
        tensor, or what it is a view of. None where that is not free to lie there.
        """
        best: TensorView | None = None
        found = strides
        while self._is_free(tensor, base):
            expr = self.definitions.get(tensor)
            if expr is None:
                break
            if expr.op != "segment_set":
                best, found = tensor, strides
            inner = _source_strides(expr, strides) if isinstance(expr, ViewOp) else None
            if inner is None:
                break
            assert isinstance(expr, ViewOp)
            tensor, strides = expr.input, inner
        return best, found

    def _is_free(self, tensor: TensorView, base: TensorView) -> bool:
        taken = tensor in self.slices or tensor in self.pieces
        return not taken and self._seen.get(tensor, base) is base

    def _copy(self, cat: CatOp, number: int) -> TensorView:
        piece = cat.inputs[number]
        copy = TensorView(self._next, piece.dtype, tensor_domain(piece.domain.logical))
        self._next += 1
        self._copies[cat.output, number] = ViewOp("set", piece, copy, origin=cat.origin)
        return copy

    def with_copies(self) -> Fusion:
        exprs: list[Expr] = []
        for expr in self.fusion.exprs:
            if isinstance(expr, CatOp):
                made = {
                    k: self._copies[expr.output, k]
                    for k in range(len(expr.inputs))
                    if (expr.output, k) in self._copies
                }
                exprs += made.values()
                inputs = [made[k].output if k in made else t for k, t in enumerate(expr.inputs)]
                expr = replace(expr, inputs=tuple(inputs))
            exprs.append(expr)
        return replace(self.fusion, exprs=tuple(exprs)) if self._copies else self.fusion


def _memory_of_results(fusion: Fusion) -> dict[TensorView, TensorView | None]:
    """Tensors whose memory callers see, who may write into it: no other result may change then.
    The result that shows each, or None where several do.
    """
    definitions = fusion.definitions()
    found: dict[TensorView, TensorView | None] = {}
    for result in fusion.results:
        tensor = result
        found[tensor] = None if tensor in found else result
        while isinstance(expr := definitions.get(tensor), ViewOp) and _is_window(expr):
            tensor = expr.input
            found[tensor] = None if tensor in found else result
    return found


def _is_window(expr: ViewOp) -> bool:
    return expr.op != "set" and expr.fill is None


def _source_strides(expr: ViewOp, strides: tuple[int, ...]) -> tuple[int, ...] | None:
    """Strides of a view's input such that the view has `strides`, from the same first element.

    None where the view leaves elements out, repeats some, or would have no such strides.
    """
    if expr.fill is not None:
        return None
    domain = expr.output.domain
    stages: list[Sequence[IterDomain]] = [domain.root]
    for step in domain.transforms:
        stages.append(replay(stages[-1], (step,)))
    found: list[int] | None = list(strides)
    for step, before in zip(reversed(domain.transforms), reversed(stages[:-1]), strict=True):
        if found is None:
            return None
        found = _before(step, [static(d.size) for d in before], found)
    return None if found is None else tuple(found)


def _before(step: Transform, sizes: Sequence[int], strides: list[int]) -> list[int] | None:
    """Strides of the dimensions in front of a step, which have `sizes`."""
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
        case Resize(left=left, right=right) if static(left) == static(right) == 0:
            pass
        case Expand(axis, size) if static(size) == sizes[axis]:
            pass
        case _:
            return None
    return strides
