"""Pointwise steps of a random program: an operation, and operands that it can be tested on."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tests.support.generator_program import Program
from thunder_fuser.errors import FuserTypeError
from thunder_fuser.ir.dtypes import Category, DataType, Number
from thunder_fuser.ir.fusion import Scalar, TensorView, Val
from thunder_fuser.ir.tables import pointwise


@dataclass(frozen=True, slots=True)
class _Domain:
    """Where an operation is worth testing: real operands between the bounds.

    Complex operands go into the unit disc; around 2 instead of 0 if zero is not in the domain.
    """

    low: float
    high: float


_POSITIVE = _Domain(0.25, 8)
_UNIT = _Domain(-0.75, 0.75)
_MODEST = _Domain(-4, 4)
_DIVISOR = _Domain(0.5, 4)
_DOMAINS: dict[str, tuple[_Domain | None, ...]] = {
    **dict.fromkeys(
        ("log", "log2", "log10", "sqrt", "rsqrt", "reciprocal", "lgamma", "digamma"), (_POSITIVE,)
    ),
    **dict.fromkeys(("asin", "acos", "atan", "atanh", "asinh", "erfinv"), (_UNIT,)),
    **dict.fromkeys(("exp", "exp2", "expm1", "sinh", "cosh", "tanh"), (_MODEST,)),
    **dict.fromkeys(("sigmoid", "silu", "sin", "cos", "erf", "erfc"), (_MODEST,)),
    **dict.fromkeys(("div", "truediv", "mod", "fmod", "remainder"), (None, _DIVISOR)),
    "tan": (_Domain(-1.25, 1.25),),
    "acosh": (_Domain(1.5, 8),),
    "log1p": (_Domain(-0.75, 8),),
    "erfcinv": (_Domain(0.25, 1.75),),
    "atan2": (None, _POSITIVE),
    "pow": (_POSITIVE, _Domain(-3, 3)),
    "lerp": (None, None, _Domain(0, 1)),
}


def pointwise_step(p: Program) -> None:
    op = pointwise.lookup(p.rng.choice(p.operations))
    if op.name == "cast":
        p.keep(p.cast(p.recent(), p.rng.choice(p.dtypes)))
        return
    first = _first(p, op)
    if first is None:
        return
    operands: list[Val | Number] = [
        _condition(p, first) if k not in op.promoted else _partner(p, first, op)
        for k in range(op.arity)
    ]
    operands[op.promoted[0]] = first
    inside = first.dtype.is_complex or not p.chance(0.15)
    for k, domain in enumerate(_DOMAINS.get(op.name, ())):
        if inside and domain is not None:
            operands[k] = _within(p, operands[k], domain)
    try:
        made = p.builder.pointwise(op.name, *operands)
    except FuserTypeError:
        # No common type (uint64 with a signed one), or one that the operation does not take.
        return
    p.keep(made)


def scalar_step(p: Program) -> None:
    """Arithmetic between scalar inputs and numbers, done by the host or by every thread."""
    floats = [s for s in p.scalars if s.dtype.is_floating] or [p.number(DataType.Double)]
    op = p.rng.choice(("add", "mul", "maximum", "sub", "tanh", "lt"))
    operands: list[Val | Number] = [p.rng.choice(floats)]
    if pointwise.lookup(op).arity == 2:
        operands.append(p.constant(DataType.Double))
    p.keep(p.builder.pointwise(op, *operands))


def _first(p: Program, op: pointwise.Op) -> TensorView | None:
    """A first operand of a kind that the operation takes: each as likely, floats twice."""
    kinds = sorted(op.accepts)
    category = p.rng.choice([*kinds, *(c for c in kinds if c is Category.FLOAT)])
    fitting = [v for v in p.pool if v.dtype.category is category]
    if fitting and p.chance(0.7):
        return p.recent(fitting)
    dtypes = [d for d in p.dtypes if d.category is category]
    return p.cast(p.recent(), p.rng.choice(dtypes)) if dtypes else None


def _partner(p: Program, x: TensorView, op: pointwise.Op) -> Val | Number:
    """Another operand: a tensor that broadcasts with `x`, a new input, or a number."""
    drawn = p.rng.random()
    fits = _broadcastable if op.arity == 2 else _broadcasts_into
    fitting = [y for y in p.pool if fits(y, x) and y.dtype.category in op.accepts]
    if drawn < 0.6 and fitting:
        found = p.rng.choice(fitting)
        try:
            op.common_dtype(pointwise.operands_of([x, found] if op.arity > 1 else [x]))
        except FuserTypeError:
            return p.cast(found, x.dtype) or x
        return found
    if drawn < 0.7:
        return p.tensor([1 if p.chance(0.2) else size for size in x.sizes], x.dtype)
    scalars = [s for s in p.scalars if s.dtype.category <= x.dtype.category]
    if drawn < 0.8 and scalars:
        return p.rng.choice(scalars)
    return p.constant(x.dtype)


def _condition(p: Program, x: TensorView) -> Val:
    fitting = [y for y in p.pool if y.dtype is DataType.Bool and _broadcasts_into(y, x)]
    if fitting and p.chance(0.5):
        return p.rng.choice(fitting)
    return p.builder.pointwise("ne" if x.dtype.is_complex else "gt", x, p.constant(x.dtype))


def _within(p: Program, x: Val | Number, domain: _Domain) -> Val | Number:
    """The operand brought into the domain by other operations."""
    pointwise = p.builder.pointwise
    if not isinstance(x, TensorView):
        value = 1 if isinstance(x, (Scalar, bool)) else x
        return 1.5 if isinstance(value, complex) else min(max(value, domain.low), domain.high)
    if x.dtype.is_complex:
        disc = pointwise("truediv", x, pointwise("add", pointwise("abs", x), 1.0))
        return disc if domain.low <= 0 else pointwise("add", disc, 2.0)
    if x.dtype is DataType.Bool:
        one = domain.low <= 1 <= domain.high
        zero = domain.low <= 0 <= domain.high
        if not (one or zero):
            return p.builder.full(x.sizes, domain.low, DataType.Float)
        return x if one and zero else pointwise("logical_or" if one else "logical_and", x, one)
    low, high = domain.low, domain.high
    if x.dtype.is_integral:
        low, high = math.ceil(low), math.floor(high)
        if x.dtype.is_unsigned:
            low, high = max(low, 0), max(high, 0)
        elif domain is _DIVISOR and p.chance(0.3):
            low, high = -high, -2
    return pointwise("clamp", x, low, high)


def _broadcastable(x: TensorView, y: TensorView) -> bool:
    pairs = zip(reversed(x.sizes), reversed(y.sizes), strict=False)
    return all(a == b or a == 1 or b == 1 for a, b in pairs)


def _broadcasts_into(x: TensorView, y: TensorView) -> bool:
    pairs = zip(reversed(x.sizes), reversed(y.sizes), strict=False)
    return x.rank <= y.rank and all(a in (1, b) for a, b in pairs)
