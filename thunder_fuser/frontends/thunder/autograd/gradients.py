"""Grad transforms of calls that compute as torch's kernels do, where Thunder's lose accuracy.

Thunder differentiates the decomposition of a call. A select multiplies the gradient of the side not
taken with 0, so that an overflow there becomes NaN; the gradient of `expm1(x)` is its result plus
1, which absorbs small results. And a decomposed call can no longer be claimed as a whole.
A rule here records the call itself, and the operations of torch's backward kernel.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import thunder.torch as ltorch
from thunder.clang import maybe_convert_to_dtype
from thunder.core import prims
from thunder.core.dtypes import is_complex_dtype
from thunder.core.prims import PrimIDs, get_grad, put_grad
from thunder.core.proxies import TensorProxy
from thunder.core.transforms import (
    _pow_grad,
    restore_reduced_dims,
)
from thunder.core.utils import canonicalize_dim, canonicalize_dims

from thunder_fuser.frontends.thunder.autograd.rules import Rule, put, put_to
from thunder_fuser.frontends.thunder.claims.activations import SELU_ALPHA, SELU_SCALE
from thunder_fuser.frontends.thunder.composites.arguments import wide


def _relu(x: TensorProxy, inplace: bool = False) -> TensorProxy:
    result = ltorch.relu(x, inplace)
    put_grad(x, ltorch.where(result <= 0, 0.0, get_grad(result)))
    return result


def _relu6(x: TensorProxy, inplace: bool = False) -> TensorProxy:
    result = ltorch.relu6(x, inplace)
    _put_inside(x, get_grad(result), 0.0, 6.0)
    return result


def _hardtanh(
    x: TensorProxy, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False
) -> TensorProxy:
    result = ltorch.hardtanh(x, min_val, max_val, inplace)
    _put_inside(x, get_grad(result), min_val, max_val)
    return result


def _put_inside(x: TensorProxy, g: TensorProxy, low: float, high: float) -> None:
    """Pass the gradient where low < x < high, and where x is NaN."""
    put_grad(x, ltorch.where((x <= low) | (x >= high), 0.0, g))


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


def _sigmoid(x: TensorProxy) -> TensorProxy:
    result = ltorch.sigmoid(x)
    g, s = wide(get_grad(result)), wide(result)
    put(x, g * (1 - s) * s)
    return result


def _silu(x: TensorProxy, inplace: bool = False) -> TensorProxy:
    result = ltorch.silu(x, inplace)
    g, a = wide(get_grad(result)), wide(x)
    # The operations of the call's own decomposition, which the backward recomputes.
    s = ltorch.reciprocal(1 + ltorch.exp(-a))
    put(x, g * s * (1 + a * (1 - s)))
    return result


def _logsigmoid(x: TensorProxy) -> TensorProxy:
    result = ltorch.logsigmoid(x)
    g, a = wide(get_grad(result)), wide(x)
    z = ltorch.exp(-ltorch.abs(a))
    share = z / (1 + z)
    put(x, g * ltorch.where(a < 0, 1 - share, share))
    return result


def _exponential_unit(
    x: TensorProxy, result: TensorProxy, below: float, inner: float, above: float
) -> TensorProxy:
    """Put the gradient of `above * x` where x > 0, else of a multiple of expm1(inner * x) whose
    slope at 0 is `below`.
    """
    g, a = wide(get_grad(result)), wide(x)
    put(x, ltorch.where(a <= 0, g * below * ltorch.exp(a * inner), g * above))
    return result


def _elu(x: TensorProxy, alpha: float = 1.0, inplace: bool = False) -> TensorProxy:
    return _exponential_unit(x, ltorch.elu(x, alpha, inplace), alpha, 1.0, 1.0)


def _selu(x: TensorProxy, inplace: bool = False) -> TensorProxy:
    below = SELU_ALPHA * SELU_SCALE
    return _exponential_unit(x, ltorch.selu(x, inplace), below, 1.0, SELU_SCALE)


def _celu(x: TensorProxy, alpha: float = 1.0, inplace: bool = False) -> TensorProxy:
    return _exponential_unit(x, ltorch.celu(x, alpha, inplace), 1.0, 1.0 / alpha, 1.0)


def _mish(x: TensorProxy, inplace: bool = False) -> TensorProxy:
    result = ltorch.mish(x, inplace)
    g, a = wide(get_grad(result)), wide(x)
    t = ltorch.tanh(ltorch.softplus(a))
    put(x, g * (t + a * ltorch.sigmoid(a) * (1 - t * t)))
    return result


def _hardsigmoid(x: TensorProxy, inplace: bool = False) -> TensorProxy:
    result = ltorch.hardsigmoid(x, inplace)
    g = wide(get_grad(result))
    put(x, ltorch.where((x > -3) & (x < 3), g * (1.0 / 6.0), 0.0))
    return result


def _hardswish(x: TensorProxy, inplace: bool = False) -> TensorProxy:
    result = ltorch.hardswish(x, inplace)
    g, a = wide(get_grad(result)), wide(x)
    inside = ltorch.where(a < 3, g * (a / 3 + 0.5), g)
    put(x, ltorch.where(a <= -3, 0.0, inside))
    return result


def _hardshrink(x: TensorProxy, lambd: float = 0.5) -> TensorProxy:
    """Pass the gradient where |x| > lambd, and where x is NaN."""
    result = ltorch.hardshrink(x, lambd)
    put_grad(x, ltorch.where((x >= -lambd) & (x <= lambd), 0.0, get_grad(result)))
    return result


def _softshrink(x: TensorProxy, lambd: float = 0.5) -> TensorProxy:
    result = ltorch.softshrink(x, lambd)
    put_grad(x, ltorch.where((x >= -lambd) & (x <= lambd), 0.0, get_grad(result)))
    return result


def _softplus(x: TensorProxy, beta: float = 1.0, threshold: float = 20.0) -> TensorProxy:
    result = ltorch.softplus(x, beta, threshold)
    g, scaled = wide(get_grad(result)), wide(x) * beta
    z = ltorch.exp(scaled)
    put(x, ltorch.where(scaled > threshold, g, g * z / (z + 1)))
    return result


def _gelu(x: TensorProxy, *, approximate: str = "none") -> TensorProxy:
    result = ltorch.gelu(x, approximate=approximate)
    g, a = wide(get_grad(result)), wide(x)
    if approximate == "tanh":
        scale = math.sqrt(2 / math.pi)
        t = ltorch.tanh(scale * (a + 0.044715 * (a * a * a)))
        inner = scale * (1 + 3 * 0.044715 * (a * a))
        slope = 0.5 * (1 + t) + 0.5 * a * (1 - t * t) * inner
    else:
        density = ltorch.exp(a * a * -0.5) * (1 / math.sqrt(2 * math.pi))
        slope = 0.5 * (1 + ltorch.erf(a * math.sqrt(0.5))) + a * density
    put(x, g * slope)
    return result


def _prod(x: TensorProxy, dims: Sequence[int]) -> TensorProxy:
    """The gradient of a sole 0 is the product of the other factors; that of several zeros is 0."""
    result = prims.prod(x, dims)
    g = restore_reduced_dims(get_grad(result), dims, x.shape)
    is_zero = x == 0
    zeros = restore_reduced_dims(ltorch.sum(is_zero, list(dims)), dims, x.shape)
    others = prims.prod(ltorch.where(is_zero, 1.0, x), dims)
    others = restore_reduced_dims(others, dims, x.shape)
    whole = restore_reduced_dims(result, dims, x.shape)
    beside = 0.0 * ltorch.where(is_zero, others, others / x)  # NaN beside NaN
    alone = ltorch.where(is_zero & (zeros == 1), others, beside)
    put_grad(x, g * ltorch.where(zeros == 0, whole / x, alone))
    return result


def _maximum(x: TensorProxy, y: TensorProxy) -> TensorProxy:
    """Equal elements share the gradient; NaNs let it through to both."""
    result = ltorch.maximum(x, y)
    g = get_grad(result)
    shared = ltorch.where(x == y, g / 2, g)
    put_to(x, ltorch.where(x < y, 0.0, shared))
    put_to(y, ltorch.where(y < x, 0.0, shared))
    return result


def _max(
    x: TensorProxy, dim: TensorProxy | int | None = None, keepdim: bool = False
) -> TensorProxy | tuple[TensorProxy, TensorProxy]:
    """A maximum of all elements divides the gradient among equal ones, also among NaNs; along a
    dimension the first maximum gets it.
    """
    if isinstance(dim, TensorProxy):
        return _maximum(x, dim)
    if dim is None:
        result = ltorch.torch_max(x)
        chosen = ltorch.where(result != result, x != x, x == result)
        put_grad(x, ltorch.where(chosen, get_grad(result) / ltorch.sum(chosen), 0.0))
        return result
    values, indices = ltorch.torch_max(x, dim, keepdim)
    g, chosen = get_grad(values), indices
    if x.ndim == 0:
        put_grad(x, g)
        return values, indices
    axis = canonicalize_dim(x.ndim, dim)
    if not keepdim:
        g, chosen = ltorch.unsqueeze(g, axis), ltorch.unsqueeze(chosen, axis)
    shape = [-1 if k == axis else 1 for k in range(x.ndim)]
    places = ltorch.reshape(ltorch.arange(x.shape[axis], device=x.device), shape)
    put_grad(x, ltorch.where(places == chosen, g, 0.0))
    return values, indices


def _var(x: TensorProxy, dims: Sequence[int], *, correction: float) -> TensorProxy:
    result = prims.var(x, dims, correction=correction)
    put(x, _of_variance(x, dims, wide(get_grad(result)), correction))
    return result


def _std(x: TensorProxy, dims: Sequence[int], *, correction: float) -> TensorProxy:
    result = prims.std(x, dims, correction=correction)
    g, s = wide(get_grad(result)), wide(result)
    of_variance = ltorch.where(s == 0, 0.0, g / (s * 2))
    put(x, _of_variance(x, dims, of_variance, correction))
    return result


def _var_mean(
    x: TensorProxy, dims: Sequence[int], *, correction: float
) -> tuple[TensorProxy, TensorProxy]:
    variance, mean = prims.var_mean(x, dims, correction=correction)
    g, of_mean = wide(get_grad(variance)), wide(get_grad(mean))
    whole = _of_variance(x, dims, g, correction, wide(mean))
    count = max(_count(x, dims), 1)
    put(x, whole + restore_reduced_dims(of_mean * (1 / count), dims, x.shape))
    return variance, mean


def _of_variance(
    x: TensorProxy,
    dims: Sequence[int],
    g: TensorProxy,
    correction: float,
    mean: TensorProxy | None = None,
) -> TensorProxy:
    """Gradient through a variance. The factor per row is applied to `g`, the smaller tensor."""
    count, values = _count(x, dims), wide(x)
    if mean is None:
        mean = prims.sum(values, dims) / max(count, 1)
    freedom = count - correction
    scale = 2 / freedom if freedom else math.inf
    apart = values - restore_reduced_dims(mean, dims, x.shape)
    return restore_reduced_dims(g * scale, dims, x.shape) * apart


def _count(x: TensorProxy, dims: Sequence[int]) -> int:
    """Number of elements that are reduced to one result; 1 for a 0-dim tensor."""
    return math.prod(x.shape[k] for k in dims if x.ndim)


def _normalize(
    x: TensorProxy, p: float = 2.0, dim: Any = 1, eps: float = 1e-12, out: None = None
) -> TensorProxy:
    """A row of norm below `eps` is divided by `eps`: its norm gets no gradient, hence no NaN."""
    result = ltorch.normalize(x, p, dim, eps)
    g, a = wide(get_grad(result)), wide(x)
    norm = _norm(a, p, dim)
    divisor = ltorch.where(norm < eps, eps, norm)
    along = g * (a / divisor)
    if is_complex_dtype(a.dtype):
        along = ltorch.real(g) * ltorch.real(a / divisor) + ltorch.imag(g) * ltorch.imag(
            a / divisor
        )
    of_norm = -ltorch.sum(along, dim, True) / divisor
    of_norm = ltorch.where(norm >= eps, of_norm, 0.0)
    put(x, g / divisor + _through_norm(a, p, dim, norm, of_norm))
    return result


def _norm(x: TensorProxy, p: float, dim: Any) -> TensorProxy:
    sizes = ltorch.abs(x)
    if p == 0:
        return ltorch.to(ltorch.sum(x != 0, dim, True), x.dtype)
    if abs(p) == math.inf:
        return (ltorch.amax if p > 0 else ltorch.amin)(sizes, dim, True)
    if p == 2:
        return ltorch.sqrt(ltorch.sum(sizes * sizes, dim, True))
    return ltorch.sum(sizes**p, dim, True) ** (1 / p)


def _through_norm(
    x: TensorProxy, p: float, dim: Any, norm: TensorProxy, g: TensorProxy
) -> TensorProxy | float:
    if p == 0:
        return 0.0
    if abs(p) == math.inf:
        chosen = ltorch.abs(x) == norm
        return ltorch.where(chosen, ltorch.sign(x) * (g / ltorch.sum(chosen, dim, True)), 0.0)
    if p == 2:
        return x * ltorch.where(norm == 0, 0.0, g / norm)
    powers = ltorch.where(x == 0, 0.0, ltorch.sign(x) * ltorch.abs(x) ** (p - 1))
    return powers * ltorch.where(norm == 0, 0.0, g / norm ** (p - 1))


def _glu(x: TensorProxy, dim: int = -1) -> TensorProxy:
    result = ltorch.glu(x, dim)
    g = wide(get_grad(result))
    a, b = ltorch.chunk(wide(x), 2, dim)
    s = ltorch.sigmoid(b)
    put(x, ltorch.cat([s * g, (1 - s) * s * g * a], dim))
    return result


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


def _sign(x: TensorProxy) -> TensorProxy:
    result = prims.sign(x)
    put_grad(x, ltorch.zeros_like(get_grad(result)))
    return result


def _constant(primitive: Rule) -> Rule:
    """Rule of a prim with an integer or boolean result, which has no gradient."""

    def rule(*args: Any, **kwargs: Any) -> Any:
        return primitive(*args, **kwargs)

    return rule


def _steps(primitive: Rule) -> Rule:
    """Rule of a step function: a gradient of zeros."""

    def rule(x: TensorProxy) -> TensorProxy:
        result: TensorProxy = primitive(x)
        put_grad(x, ltorch.zeros_like(get_grad(result)))
        return result

    return rule


def _minimum(a: TensorProxy, b: TensorProxy) -> TensorProxy:
    """Equal operands halve the gradient; with a NaN both get all of it, as for a maximum."""
    result: TensorProxy = prims.minimum(a, b)
    g = get_grad(result)
    shared = ltorch.where(a == b, g / 2, g)
    put_grad(a, ltorch.where(a > b, 0.0, shared))
    put_grad(b, ltorch.where(b > a, 0.0, shared))
    return result


def _lerp(start: TensorProxy, end: TensorProxy, weight: TensorProxy | float) -> TensorProxy:
    result: TensorProxy = prims.lerp(start, end, weight)
    g = wide(get_grad(result))
    share = wide(weight) if isinstance(weight, TensorProxy) else weight
    put(start, g * (1 - share))
    put(end, g * share)
    if isinstance(weight, TensorProxy):
        put(weight, g * (wide(end) - wide(start)))
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


def _softmax(x: TensorProxy, dim: int, *, dtype: Any = None) -> TensorProxy:
    result = ltorch._softmax(x, dim, dtype=dtype)
    g, s = wide(get_grad(result)), wide(result)
    put(x, s * (g - ltorch.sum(g * s, dim, keepdim=True)))
    return result


def _logsumexp(x: TensorProxy, dim: Any, keepdim: bool = False) -> TensorProxy:
    result = ltorch.logsumexp(x, dim, keepdim)
    g, total = wide(get_grad(result)), wide(result)
    if not keepdim and x.ndim:
        axes = canonicalize_dims(x.ndim, dim if isinstance(dim, Sequence) else [dim])
        g, total = (restore_reduced_dims(t, axes, x.shape) for t in (g, total))
    put(x, g * ltorch.exp(wide(x) - total))
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
    return _pow_grad(base, exponent)


def _nll_loss(
    x: TensorProxy,
    target: TensorProxy,
    weight: TensorProxy | None = None,
    ignore_index: int | None = None,
    reduction: str = "mean",
) -> TensorProxy:
    ignored = -1 if ignore_index is None else ignore_index
    total = None
    if reduction == "mean":
        # Dividend and divisor as separate values: the backward reads the divisor.
        total = total_weight(target, weight, ignored)
        weights = weight if weight is None else wide(weight)
        summed = ltorch.nll_loss(wide(x), target, weights, ignored, "sum")
        result = maybe_convert_to_dtype(summed / total, x.dtype)
    else:
        result = ltorch.nll_loss(x, target, weight, ignored, reduction)
    g = get_grad(result)
    put_grad(x, ltorch.nll_loss_backward(g, x, target, weight, reduction, ignored, total))
    return result


def total_weight(target: TensorProxy, weight: TensorProxy | None, ignored: int) -> TensorProxy:
    """Sum of the weights of targets that are not ignored; without weights, their number."""
    counts = target != ignored
    if weight is None:
        return ltorch.sum(counts)
    classes = ltorch.flatten(ltorch.where(counts, target, 0))
    chosen = ltorch.index_select(wide(weight), 0, classes)
    return ltorch.sum(ltorch.where(ltorch.flatten(counts), chosen, 0))


def _flip(x: TensorProxy, dims: Sequence[int]) -> TensorProxy:
    result: TensorProxy = prims.flip(x, dims)
    put_grad(x, prims.flip(get_grad(result), dims))
    return result


RULES: Mapping[PrimIDs | str, Rule] = {
    "torch.relu": _relu,
    "torch.relu6": _relu6,
    "torch.nn.functional.hardtanh": _hardtanh,
    "torch.clamp": _clamp,
    "torch.sigmoid": _sigmoid,
    "torch.nn.functional.silu": _silu,
    "torch.nn.functional.logsigmoid": _logsigmoid,
    "torch.nn.functional.elu": _elu,
    "torch.selu": _selu,
    "torch.celu": _celu,
    "torch.nn.functional.mish": _mish,
    "torch.nn.functional.hardsigmoid": _hardsigmoid,
    "torch.hardswish": _hardswish,
    "torch.hardshrink": _hardshrink,
    "torch.nn.functional.softshrink": _softshrink,
    "torch.nn.functional.nll_loss": _nll_loss,
    "torch.nn.functional.softplus": _softplus,
    "torch.nn.functional.gelu": _gelu,
    "torch.max": _max,
    "torch.softmax": _softmax,
    "torch.logsumexp": _logsumexp,
    "torch.nn.functional.normalize": _normalize,
    "torch.nn.functional.glu": _glu,
    "torch.nan_to_num": _nan_to_num,
    PrimIDs.FLIP: _flip,
    PrimIDs.PROD: _prod,
    PrimIDs.SIGN: _sign,
    PrimIDs.ROUND: _steps(prims.round),
    PrimIDs.TRUNC: _steps(prims.trunc),
    PrimIDs.ISFINITE: _constant(prims.isfinite),
    PrimIDs.ARGMIN: _constant(prims.argmin),
    PrimIDs.BITWISE_LEFT_SHIFT: _constant(prims.bitwise_left_shift),
    PrimIDs.BITWISE_RIGHT_SHIFT: _constant(prims.bitwise_right_shift),
    PrimIDs.MINIMUM: _minimum,
    PrimIDs.LERP: _lerp,
    PrimIDs.REMAINDER: _remainder,
    PrimIDs.VAR: _var,
    PrimIDs.STD: _std,
    PrimIDs.VAR_MEAN: _var_mean,
    PrimIDs.POW: _pow,
}
"""Grad transforms by symbol id, which the executor registers."""
