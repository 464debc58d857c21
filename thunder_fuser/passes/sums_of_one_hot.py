"""sums_of_one_hot: a sum of elements that are 0 except at one index becomes the element there.

Requires: static sizes.
Result: no sum over a dimension of `where(iota == index, x, 0)`, possibly cast, where index and x
are constant along that dimension, unless x is complex.

The gradient of a loss that selects a class is such a tensor, and the gradient of log_softmax sums
it. The sum of one number and zeros is bitwise that number, or 0 where the index is out of range;
-0.0 becomes 0.0, as in any sum that starts from 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch

from thunder_fuser.ir.domain import Squeeze, static
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import (
    Expr,
    Fusion,
    IotaOp,
    PointwiseOp,
    ReductionOp,
    TensorView,
    Val,
    ViewOp,
)
from thunder_fuser.ir.tables.indexing import INDEX_DTYPES
from thunder_fuser.passes.facts.uniform_values import Uniform, is_negative_zero
from thunder_fuser.passes.rewrite import Precision, Rewrite, where


@dataclass(frozen=True, slots=True)
class _Positions:
    """A tensor that counts from `start` along `dim`, and is constant along the others."""

    dim: int
    start: int


@dataclass(frozen=True, slots=True)
class _Hit:
    """A Bool tensor: true where the position is `index`, if all of `also` are true."""

    at: _Positions
    index: Val
    also: tuple[Val, ...] = ()


@dataclass(frozen=True, slots=True)
class _OneHot:
    """A tensor that is `value`, cast to `casts` in turn, where there is a hit, else 0."""

    hit: _Hit
    value: Val
    casts: tuple[DataType, ...] = ()


_Known: TypeAlias = _Positions | _Hit | _OneHot


@where(lambda expr: isinstance(expr, IotaOp))
def sums_of_one_hot(fusion: Fusion, precision: Precision = "strict") -> Fusion:
    rewrite = Rewrite(fusion)
    uniform = Uniform(precision)
    known: dict[Val, _Known] = {}
    for expr in rewrite.walk():
        uniform.learn(expr)
        found = _learned(expr, known, uniform)
        if found is not None:
            known[expr.output] = found
        if not isinstance(expr, ReductionOp) or not _replaced(expr, known, rewrite):
            rewrite.copy(expr)
    return rewrite.result()


def _learned(expr: Expr, known: Mapping[Val, _Known], uniform: Uniform) -> _Known | None:
    out = expr.output
    if not isinstance(out, TensorView) or out.dtype.is_complex:
        return None
    match expr:
        case IotaOp():
            return _counted(expr, uniform)
        case ViewOp() if expr.op in ("broadcast", "broadcast_in_dim", "expand"):
            seen, kept = known.get(expr.input), _own(out)
            return replace(seen, dim=kept[0]) if isinstance(seen, _Positions) and kept else None
        case PointwiseOp("eq", (a, b)):
            return _hit(a, b, out, known) or _hit(b, a, out, known)
        case PointwiseOp("bitwise_and" | "logical_and", (a, b)):
            return _both(a, b, out, known) or _both(b, a, out, known)
        case PointwiseOp("where", (test, x, other)):
            seen = _of_rank(test, out, known)
            if isinstance(seen, _Hit) and _is_same_along(seen.at.dim, x, out):
                return _OneHot(seen, x, (out.dtype,)) if _is_zero(other, uniform) else None
        case PointwiseOp("cast", (x,)):
            seen = known.get(x)
            return (
                replace(seen, casts=(*seen.casts, out.dtype)) if isinstance(seen, _OneHot) else None
            )
    return None


def _counted(expr: IotaOp, uniform: Uniform) -> _Positions | None:
    out = expr.output
    if expr.start not in uniform or expr.step not in uniform or not out.dtype.is_integral:
        return None
    start, step = uniform.number(expr.start), uniform.number(expr.step)
    if not isinstance(start, int) or step != 1:
        return None
    # Where its dtype wraps around, it has a number twice.
    held = torch.iinfo(out.dtype.torch)
    fits = held.min <= start and start + static(out.domain.logical[0].size) - 1 <= held.max
    return _Positions(0, start) if fits else None


def _own(x: TensorView) -> tuple[int, ...]:
    """Dimensions along which elements may differ."""
    return tuple(k for k, dim in enumerate(x.domain.logical) if not dim.is_broadcast)


def _hit(positions: Val, index: Val, out: TensorView, known: Mapping[Val, _Known]) -> _Hit | None:
    seen = known.get(positions)
    if not isinstance(seen, _Positions) or index.dtype not in INDEX_DTYPES:
        return None
    at = replace(seen, dim=seen.dim + out.rank - positions.rank)
    return _Hit(at, index) if _is_same_along(at.dim, index, out) else None


def _both(one: Val, other: Val, out: TensorView, known: Mapping[Val, _Known]) -> _Hit | None:
    seen = _of_rank(one, out, known)
    if not isinstance(seen, _Hit) or not _is_same_along(seen.at.dim, other, out):
        return None
    return replace(seen, also=(*seen.also, other))


def _of_rank(value: Val, out: TensorView, known: Mapping[Val, _Known]) -> _Known | None:
    """The known structure of an operand that has the result's dimensions."""
    return known.get(value) if value.rank == out.rank else None


def _is_same_along(dim: int, x: Val, out: TensorView) -> bool:
    """True if an operand of `out` is constant along a dimension."""
    if not isinstance(x, TensorView) or not x.rank:
        return True
    return x.rank == out.rank and x.domain.logical[dim].is_broadcast


def _is_zero(value: Val, uniform: Uniform) -> bool:
    if value not in uniform:
        return False
    number = uniform.number(value)
    return number == 0 and not is_negative_zero(number)


def _replaced(expr: ReductionOp, known: Mapping[Val, _Known], rewrite: Rewrite) -> bool:
    seen = known.get(expr.input)
    if expr.op != "sum" or not isinstance(seen, _OneHot) or expr.accumulate.is_complex:
        return False
    dim, b = seen.hit.at.dim, rewrite.builder
    value = _chosen(seen, expr.input, rewrite) if dim in expr.dims else None
    if not isinstance(value, TensorView):
        return False
    left = [k - (k > dim) for k in expr.dims if k != dim]
    if left:
        made = b.fold("sum", value, left, expr.accumulate, expr.output.dtype)
    else:
        # A sum starts from 0: it is never -0.0.
        wide = b.cast_tensor(value, expr.accumulate)
        wide = b.apply("add", (wide, b.scalar(0, wide.dtype)), wide.dtype)
        made = b.cast_tensor(wide, expr.output.dtype)
    if not rewrite.may_become(expr.output, made):
        return False
    rewrite.replace(expr.output, made)
    return True


def _chosen(seen: _OneHot, spread: TensorView, rewrite: Rewrite) -> Val:
    """The value of `spread` at its hit, without the dimension that has no other."""
    b, at = rewrite.builder, seen.hit.at

    def flat(value: Val) -> Val:
        if not isinstance(value, TensorView) or not value.rank:
            return rewrite[value]
        return rewrite.view("squeeze", rewrite.tensor(value), [Squeeze(at.dim)])

    index = b.cast(flat(seen.hit.index), DataType.Int)
    end = at.start + static(spread.domain.logical[at.dim].size)
    test = b.pointwise(
        "bitwise_and", b.pointwise("ge", index, at.start), b.pointwise("lt", index, end)
    )
    for other in seen.hit.also:
        test = b.pointwise("bitwise_and", test, flat(other))
    value = b.pointwise("where", test, flat(seen.value), 0)
    for dtype in seen.casts:
        value = b.cast(value, dtype)
    return value
