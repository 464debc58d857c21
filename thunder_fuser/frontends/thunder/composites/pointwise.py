"""Composites: pointwise operations."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import thunder.torch as ltorch
from thunder import clang
from thunder.clang import maybe_convert_to_dtype
from thunder.core import dtypes
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import Symbol

from thunder_fuser.frontends.thunder.claims.operands import rounded_number
from thunder_fuser.frontends.thunder.composites.arguments import (
    Unusual,
    floats,
    rounded,
    wide,
)


def _clamp_min(x: TensorProxy, min: Any) -> TensorProxy:
    if _are_bools(x, min):
        return ltorch.logical_or(x, min)
    return ltorch.clamp(x, min, None)


def _clamp_max(x: TensorProxy, max: Any) -> TensorProxy:
    if _are_bools(x, max):
        return ltorch.logical_and(x, max)
    return ltorch.clamp(x, None, max)


def _are_bools(*operands: Any) -> bool:
    return all(isinstance(x, TensorProxy) and dtypes.is_boolean_dtype(x.dtype) for x in operands)


def _frac(x: TensorProxy) -> TensorProxy:
    floats(x)
    return x - ltorch.trunc(x)


def _fmax(x: TensorProxy, other: TensorProxy) -> TensorProxy:
    floats(x, other)
    return ltorch.where((x >= other) | (other != other), x, other)


def _fmin(x: TensorProxy, other: TensorProxy) -> TensorProxy:
    floats(x, other)
    return ltorch.where((x <= other) | (other != other), x, other)


def _logaddexp(x: TensorProxy, other: TensorProxy) -> TensorProxy:
    floats(x, other)
    result: TensorProxy = LOGADDEXP(x, other)
    return result


def _larger_and_rest(x: TensorProxy, other: TensorProxy) -> TensorProxy:
    a, b = wide(x), wide(other)
    same = (a == b) & ~ltorch.isfinite(a)
    apart = ltorch.where(same, 0.0, a - b)
    result = ltorch.maximum(a, b) + ltorch.log1p(ltorch.exp(-ltorch.abs(apart)))
    return maybe_convert_to_dtype(ltorch.where(same, a, result), ltorch.add(x, other).dtype)


LOGADDEXP = Symbol("logaddexp", meta=_larger_and_rest, id="logaddexp_in_parts")
"""As one call: at equal infinities its parts are chosen, and their gradients are not torch's."""


def _sinc(x: TensorProxy) -> TensorProxy:
    floats(x)
    result: TensorProxy = SINC(x)
    return result


def _sine_over_angle(x: TensorProxy) -> TensorProxy:
    angle = ltorch.where(x == 0, 1.0, wide(x)) * math.pi
    return rounded(ltorch.where(x == 0, 1.0, ltorch.sin(angle) / angle), x)


SINC = Symbol("sinc", meta=_sine_over_angle, id="sinc_in_parts")
"""As one call: near 0 the gradient of its parts has no digit that is right."""


def _isclose(
    x: TensorProxy,
    other: TensorProxy,
    rtol: float = 1e-05,
    atol: float = 1e-08,
    equal_nan: bool = False,
) -> TensorProxy:
    floats(x, other)
    if x.dtype != other.dtype or rtol < 0 or atol < 0:
        raise Unusual
    close = x == other
    if equal_nan:
        close = close | ((x != x) & (other != other))
    if rtol == 0 and atol == 0:
        return close
    apart = ltorch.abs(x - other)
    allowed = ltorch.abs(other * rtol) + atol
    return close | (ltorch.isfinite(apart) & (apart <= allowed))


def _one_infinity(infinity: float) -> Callable[[TensorProxy], TensorProxy]:
    def function(x: TensorProxy) -> TensorProxy:
        floats(x)
        return x == infinity

    return function


def _scaled(factor: float) -> Callable[[TensorProxy], TensorProxy]:
    def function(x: TensorProxy) -> TensorProxy:
        floats(x)
        return x * factor

    return function


def _rsub(x: TensorProxy, other: Any, *, alpha: Any = 1) -> TensorProxy:
    floats(x)
    if dtypes.is_boolean_dtype(dtypes.to_dtype(other)):
        raise Unusual  # torch raises the error
    return ltorch.sub(other, x, alpha=alpha)


def _sgn(x: TensorProxy) -> TensorProxy:
    floats(x)
    return ltorch.sign(x)


def _rrelu(
    x: TensorProxy,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    training: bool = False,
    inplace: bool = False,
) -> TensorProxy:
    """Without noise: the slope between, and a result that torch makes contiguous."""
    floats(x)
    if not -math.inf < lower <= upper < math.inf:
        raise RuntimeError(
            f"rrelu: expected finite bounds of which the lower one is less than or equal to the "
            f"upper one, got {lower} and {upper}"
        )
    if training or inplace:
        raise Unusual
    return ltorch.contiguous(ltorch.leaky_relu(x, (lower + upper) / 2))


TRUNC_DIVIDE = Symbol("trunc_divide", meta=clang.trunc_divide, id="trunc_divide")
"""The quotient rounded towards 0, as one call: its gradient is not that of its parts."""


def rounded_to(x: TensorProxy, *, decimals: int = 0) -> TensorProxy:
    if decimals == 0:
        return ltorch.round(x)
    floats(x)
    power = rounded_number(10.0 ** abs(decimals), dtypes.to_torch_dtype(x.dtype))
    if decimals < 0:
        return ltorch.round(x / power) * power
    return ltorch.round(x * power) / power


PARTS: Mapping[str, Callable[..., Any]] = {
    "clamp_min": _clamp_min,
    "clamp_max": _clamp_max,
    "frac": _frac,
    "fmax": _fmax,
    "fmin": _fmin,
    "logaddexp": _logaddexp,
    "sinc": _sinc,
    "special.sinc": _sinc,
    "isclose": _isclose,
    "isposinf": _one_infinity(math.inf),
    "isneginf": _one_infinity(-math.inf),
    "deg2rad": _scaled(math.pi / 180),
    "rad2deg": _scaled(180 / math.pi),
    "rsub": _rsub,
    "sgn": _sgn,
    "round": rounded_to,
    "rrelu": _rrelu,
    "nn.functional.rrelu": _rrelu,
}
