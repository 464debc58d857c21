"""sums_of_pads: a sum of zero-padded tensors that do not overlap becomes a cat.

Requires: static sizes; pads that are one view each (view_chains).
Result: no sum of pads along one dimension that cover it and do not overlap, with casts in between.

Gradients of what was split (chunks of a projection, rotary halves) come as such sums. A cat gives
the source of each element: kernels can write its pieces in place.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

from thunder_fuser.ir.domain import Resize, static
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import Expr, Fusion, PadOp, PointwiseOp, TensorView, Val
from thunder_fuser.passes.facts.uniform_values import Uniform, is_negative_zero
from thunder_fuser.passes.rewrite import Precision, Rewrite, where


@dataclass(frozen=True, slots=True)
class _Piece:
    """Elements begin..end of a sum: those of `source` after some steps, each a cast to a dtype or,
    if None, the addition of the other operands' zeros there, which turns -0.0 into 0.0.
    """

    begin: int
    end: int
    source: TensorView
    steps: tuple[DataType | None, ...] = ()

    def then(self, step: DataType | None) -> _Piece:
        """The piece after one more step."""
        return replace(self, steps=(*self.steps, step))


@dataclass(frozen=True, slots=True)
class _Spread:
    """A tensor that is 0 along `dim` outside its pieces, which are in order."""

    dim: int
    pieces: tuple[_Piece, ...]

    def then(self, step: DataType | None) -> _Spread:
        return _Spread(self.dim, tuple(piece.then(step) for piece in self.pieces))

    def covers(self, size: int) -> bool:
        """True if the pieces cover a dimension of that size without gaps."""
        ends = [0, *(piece.end for piece in self.pieces)]
        begins = [*(piece.begin for piece in self.pieces), size]
        return ends == begins


@where(lambda expr: isinstance(expr, PadOp))
def sums_of_pads(fusion: Fusion, precision: Precision = "strict") -> Fusion:
    rewrite = Rewrite(fusion)
    uniform = Uniform(precision)
    spreads: dict[Val, _Spread] = {}
    for expr in rewrite.walk():
        uniform.learn(expr)
        spread = _spread(expr, spreads, uniform)
        if spread is not None:
            spreads[expr.output] = spread
        if spread is None or not _replaced(expr, spread, rewrite):
            rewrite.copy(expr)
    return rewrite.result()


def _spread(expr: Expr, known: dict[Val, _Spread], uniform: Uniform) -> _Spread | None:
    match expr:
        case PadOp():
            return _padded(expr, uniform)
        case PointwiseOp("cast", (x,)) if x in known and _is_real(expr.output):
            return known[x].then(expr.output.dtype)
        case PointwiseOp("add", (x, y)) if x in known and y in known:
            if x.dtype is y.dtype is expr.output.dtype:
                return _sum(known[x], known[y])
    return None


def _padded(expr: PadOp, uniform: Uniform) -> _Spread | None:
    match expr.output.domain.transforms:
        case (Resize(axis, left, right),) if static(left) >= 0 and static(right) >= 0:
            pass
        case _:
            return None
    if expr.fill not in uniform or not _is_real(expr.output):
        return None
    number = uniform.number(expr.fill)
    if number != 0 or is_negative_zero(number):
        return None
    begin = static(left)
    piece = _Piece(begin, begin + static(expr.input.domain.logical[axis].size), expr.input)
    return _Spread(axis, (piece,))


def _is_real(value: Val) -> bool:
    return not value.dtype.is_complex


def _sum(a: _Spread, b: _Spread) -> _Spread | None:
    pieces = sorted((*a.pieces, *b.pieces), key=lambda piece: piece.begin)
    if a.dim != b.dim or any(one.end > other.begin for one, other in pairwise(pieces)):
        return None
    return _Spread(a.dim, tuple(piece.then(None) for piece in pieces))


def _replaced(expr: Expr, spread: _Spread, rewrite: Rewrite) -> bool:
    """Replace a sum whose pieces cover the whole dimension by a cat; True if done."""
    out = expr.output
    assert isinstance(out, TensorView)
    if (
        not isinstance(expr, PointwiseOp)
        or expr.op != "add"
        or not spread.covers(static(out.domain.logical[spread.dim].size))
    ):
        return False
    made = rewrite.builder.cat([_made(piece, rewrite) for piece in spread.pieces], spread.dim)
    if not rewrite.may_become(out, made):
        return False
    rewrite.replace(out, made)
    return True


def _made(piece: _Piece, rewrite: Rewrite) -> TensorView:
    b, value = rewrite.builder, rewrite.tensor(piece.source)
    for step in piece.steps:
        if step is not None:
            value = b.cast_tensor(value, step)
        else:
            value = b.apply("add", (value, b.scalar(0, value.dtype)), value.dtype)
    return value
