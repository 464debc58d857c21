"""Grad transforms of flips, and of pointwise calls and primitives other than activations."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import thunder.torch as ltorch
from thunder.core import prims
from thunder.core.dtypes import is_complex_dtype
from thunder.core.prims import PrimIDs, get_grad, put_grad
from thunder.core.proxies import TensorProxy
from thunder.core.transforms import (
    _pow_grad,
)

from thunder_fuser.frontends.thunder.autograd.rules import Rule, put, put_nothing, put_to
from thunder_fuser.frontends.thunder.autograd.underived import put_underived
from thunder_fuser.frontends.thunder.composites.arguments import wide
from thunder_fuser.frontends.thunder.composites.pointwise import LOGADDEXP, SINC, TRUNC_DIVIDE


def _clamp(
    x: TensorProxy,
    min: TensorProxy | float | None = None,
    max: TensorProxy | float | None = None,
) -> TensorProxy:
    """At a bound the gradient goes to x. Where x is NaN, which is within no bounds, all are 0."""
    result = ltorch.clamp(x, min, max)
    g = get_grad(result)
    above = min is None or x >= min
    below = max is None or x <= max
    put_to(x, ltorch.where(_both(above, below), g, 0.0))
    if isinstance(min, TensorProxy):
        below = x < min
        put_to(min, ltorch.where(below if max is None else below & (min < max), g, 0.0))
    if isinstance(max, TensorProxy):
        above = x > max
        put_to(max, ltorch.where(above if min is None else above | (max < min), g, 0.0))
    return result


def _both(a: TensorProxy | bool, b: TensorProxy | bool) -> TensorProxy | bool:
    if a is True or b is True:
        return b if a is True else a
    return a & b


def _nan_to_num(
    x: TensorProxy,
    nan: float | None = 0.0,
    posinf: float | None = None,
    neginf: float | None = None,
    out: None = None,
) -> TensorProxy:
    result = ltorch.nan_to_num(x, nan, posinf, neginf)
    put_grad(x, get_grad(result) * ltorch.isfinite(x))
    return result


def _constant(call: Rule) -> Rule:
    """Rule of a call whose result has no gradient: integers, booleans, numbers that fill it, what
    is detached. It stays one call, whose result lies as its operand does.
    """

    def rule(*args: Any, **kwargs: Any) -> Any:
        return call(*args, **kwargs)

    return rule


def _steps(call: Rule) -> Rule:
    """Rule of a step function: gradients of zeros, also where what it rounds has none, such as a
    quotient by 0.
    """

    def rule(*operands: TensorProxy | float) -> TensorProxy:
        result: TensorProxy = call(*operands)
        put_nothing(result, *operands)
        return result

    return rule


def _copysign(x: TensorProxy | float, sign: TensorProxy | float) -> TensorProxy:
    result: TensorProxy = ltorch.copysign(x, sign)
    if isinstance(x, TensorProxy):
        put_to(x, ltorch.where(x == 0, 0.0, get_grad(result) * (result / x)))
    put_nothing(result, sign)
    return result


def _minimum(a: TensorProxy, b: TensorProxy) -> TensorProxy:
    """Equal operands halve the gradient; with a NaN both get all of it, as for a maximum."""
    result: TensorProxy = prims.minimum(a, b)
    g = get_grad(result)
    shared = ltorch.where(a == b, g / 2, g)
    put_grad(a, ltorch.where(a > b, 0.0, shared))
    put_grad(b, ltorch.where(b > a, 0.0, shared))
    return result


def _atan2(y: TensorProxy, x: TensorProxy) -> TensorProxy:
    """The gradient is 0 where the squares add up to 0, as in torch."""
    result: TensorProxy = prims.atan2(y, x)
    g, a, b = wide(get_grad(result)), wide(y), wide(x)
    squares = a * a + b * b
    factor = ltorch.where(squares == 0, 0.0, ltorch.reciprocal(squares))
    put(y, g * b * factor)
    put(x, g * -a * factor)
    return result


def _lerp(start: TensorProxy, end: TensorProxy, weight: TensorProxy | float) -> TensorProxy:
    # The call: torch executes no primitive of it, where it is not fused.
    result: TensorProxy = ltorch.lerp(start, end, weight)
    g = wide(get_grad(result))
    share = wide(weight) if isinstance(weight, TensorProxy) else weight
    put(start, g * (1 - share))
    put(end, g * share)
    if isinstance(weight, TensorProxy):
        put(weight, g * (wide(end) - wide(start)))
    return result


def _logaddexp(x: TensorProxy, other: TensorProxy) -> TensorProxy:
    """At two equal infinities the gradients are NaN, as in torch."""
    result: TensorProxy = LOGADDEXP(x, other)
    g, a, b = wide(get_grad(result)), wide(x), wide(other)
    put_to(x, g / (1 + ltorch.exp(b - a)))
    put_to(other, g / (1 + ltorch.exp(a - b)))
    return result


_SERIES = (1 / 3, -1 / 30, 1 / 840, -1 / 45360, 1 / 3991680, -1 / 518918400)
"""Of (sin(t) / t - cos(t)) / t, in powers of t^2."""
_NEAR = 0.3
"""Angle below which the difference of sin(t) / t and cos(t) loses more digits than the series."""


def _sinc(x: TensorProxy) -> TensorProxy:
    result: TensorProxy = SINC(x)
    g, t = wide(get_grad(result)), wide(x) * math.pi
    square = t * t
    series: Any = 0.0
    for term in reversed(_SERIES):
        series = series * square + term
    is_near = ltorch.abs(t) < _NEAR
    angle = ltorch.where(is_near, 1.0, t)
    far = (ltorch.sin(angle) / angle - ltorch.cos(angle)) / angle
    slope = ltorch.where(is_near, series * t, far) * math.pi
    put(x, ltorch.where(x == 0, 0.0, g * -slope))
    return result


def _remainder(a: TensorProxy | float, b: TensorProxy | float) -> TensorProxy:
    result: TensorProxy = prims.remainder(a, b)
    g = get_grad(result)
    if isinstance(a, TensorProxy):
        put_grad(a, g)
    if isinstance(b, TensorProxy):
        dividend = wide(a) if isinstance(a, TensorProxy) else a
        put(b, -wide(g) * ltorch.div(dividend, wide(b), rounding_mode="floor"))
    return result


def _pow(base: TensorProxy | float, exponent: TensorProxy | float) -> TensorProxy:
    if isinstance(exponent, (int, float)) and exponent == 0:
        assert isinstance(base, TensorProxy)
        result = prims.pow(base, exponent)
        put_grad(base, ltorch.zeros_like(get_grad(result)))
        return result
    if isinstance(base, (int, float)) and base <= 0:
        assert isinstance(exponent, TensorProxy)
        result = prims.pow(base, exponent)
        slope = wide(result) * (math.nan if base else -math.inf)
        slope = slope if base else ltorch.where(exponent >= 0, 0.0, slope)
        put(exponent, wide(get_grad(result)) * slope)
        return result
    if not isinstance(exponent, TensorProxy):
        return _pow_grad(base, exponent)
    result = prims.pow(base, exponent)
    g, power = wide(get_grad(result)), wide(exponent)
    if isinstance(base, TensorProxy):
        slope = ltorch.where(exponent == 0, 0.0, power * wide(base) ** (power - 1))
        put(base, g * slope)
        of_exponent = g * (wide(result) * ltorch.log(wide(base)))
        # Powers of 0 do not move, where the logarithm of 0 is infinite.
        real = ltorch.real(exponent) if is_complex_dtype(exponent.dtype) else exponent
        is_still = ltorch.logical_and(base == 0, real >= 0)
        put(exponent, ltorch.where(is_still, 0.0, of_exponent))
    else:
        put(exponent, g * (wide(result) * ltorch.log(ltorch.full_like(power, base))))
    return result


def _frexp(x: TensorProxy) -> tuple[TensorProxy, TensorProxy]:
    mantissa, exponent = prims.frexp(x)
    gradient = wide(get_grad(mantissa)) / ltorch.exp2(exponent)
    put(x, ltorch.where(ltorch.isfinite(gradient), gradient, 0.0))
    return mantissa, exponent


def _nextafter(x: TensorProxy, towards: TensorProxy) -> TensorProxy:
    result: TensorProxy = prims.nextafter(x, towards)
    put_underived(result, "nextafter", x, towards)
    return result


def _zeta(x: TensorProxy, q: TensorProxy) -> TensorProxy:
    result: TensorProxy = prims.zeta(x, q)
    put_underived(result, "zeta", x)
    put(q, get_grad(result) * -x * prims.zeta(x + 1.0, q))
    return result


def _flip(x: TensorProxy, dims: Sequence[int]) -> TensorProxy:
    result: TensorProxy = prims.flip(x, dims)
    put_grad(x, prims.flip(get_grad(result), dims))
    return result


RULES: Mapping[PrimIDs | str, Rule] = {
    "torch.clamp": _clamp,
    "torch.nan_to_num": _nan_to_num,
    "torch.detach": _constant(ltorch.detach),
    "torch.zeros_like": _constant(ltorch.zeros_like),
    "torch.ones_like": _constant(ltorch.ones_like),
    "torch.full_like": _constant(ltorch.full_like),
    PrimIDs.FLIP: _flip,
    PrimIDs.FREXP: _frexp,
    "torch.copysign": _copysign,
    # Thunder takes the primitives of the first two for constants.
    "torch.floor": _steps(ltorch.floor),
    "torch.ceil": _steps(ltorch.ceil),
    "torch.floor_divide": _steps(ltorch.floor_divide),
    SINC.id: _sinc,
    LOGADDEXP.id: _logaddexp,
    TRUNC_DIVIDE.id: _steps(TRUNC_DIVIDE),
    PrimIDs.SIGN: _steps(prims.sign),
    PrimIDs.ROUND: _steps(prims.round),
    PrimIDs.TRUNC: _steps(prims.trunc),
    PrimIDs.ISFINITE: _constant(prims.isfinite),
    PrimIDs.ARGMIN: _constant(prims.argmin),
    PrimIDs.BITWISE_LEFT_SHIFT: _constant(prims.bitwise_left_shift),
    PrimIDs.BITWISE_RIGHT_SHIFT: _constant(prims.bitwise_right_shift),
    PrimIDs.MINIMUM: _minimum,
    PrimIDs.LERP: _lerp,
    PrimIDs.ATAN2: _atan2,
    PrimIDs.REMAINDER: _remainder,
    PrimIDs.POW: _pow,
    PrimIDs.MULTINOMIAL: _constant(prims.multinomial),
    PrimIDs.NEXTAFTER: _nextafter,
    PrimIDs.ZETA: _zeta,
}
