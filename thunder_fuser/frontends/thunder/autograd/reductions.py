"""Grad transforms of reductions, softmax and normalisation by a p-norm."""

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
    restore_reduced_dims,
)
from thunder.core.utils import canonicalize_dim, canonicalize_dims

from thunder_fuser.frontends.thunder.autograd.rules import Rule, gradient_of_part, put, put_to
from thunder_fuser.frontends.thunder.composites.arguments import wide
from thunder_fuser.frontends.thunder.composites.reductions import EXTREME


def _prod(x: TensorProxy, dims: Sequence[int]) -> TensorProxy:
    """The gradient of a sole 0 is the product of the other factors; that of several zeros is 0. A
    tensor without dimensions is its own product, also where it is an infinity or NaN.
    """
    result = prims.prod(x, dims)
    if not x.ndim:
        put_grad(x, get_grad(result))
        return result
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


def _extreme(x: TensorProxy, is_largest: bool, axes: list[int], keepdim: bool) -> TensorProxy:
    return _shared(x, EXTREME(x, is_largest, axes, keepdim), axes, keepdim)


def _shared(x: TensorProxy, result: TensorProxy, axes: Sequence[int], keepdim: bool) -> TensorProxy:
    """Divide the gradient among the elements that are `result`, also among NaNs."""
    found, g = result, get_grad(result)
    if x.ndim and not keepdim:
        found, g = (restore_reduced_dims(t, axes, x.shape) for t in (found, g))
    chosen = ltorch.where(found != found, x != x, x == found)
    put_grad(x, ltorch.where(chosen, g / ltorch.sum(chosen, list(axes), True), 0.0))
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
        return _shared(x, ltorch.torch_max(x), range(x.ndim), False)
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
    g, of_mean = wide(gradient_of_part(variance)), wide(gradient_of_part(mean))
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
        return ltorch.to(ltorch.sum(x != 0, dim, True), sizes.dtype)
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
        return ltorch.sign(x) * chosen * (g / ltorch.sum(chosen, dim, True))
    if p == 2:
        return x * ltorch.where(norm == 0, 0.0, g / norm)
    powers = ltorch.where(x == 0, 0.0, ltorch.sign(x) * ltorch.abs(x) ** (p - 1))
    return powers * ltorch.where(norm == 0, 0.0, g / norm ** (p - 1))


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


RULES: Mapping[PrimIDs | str, Rule] = {
    "torch.max": _max,
    EXTREME.id: _extreme,
    "torch.softmax": _softmax,
    "torch.logsumexp": _logsumexp,
    "torch.nn.functional.normalize": _normalize,
    PrimIDs.PROD: _prod,
    PrimIDs.VAR: _var,
    PrimIDs.STD: _std,
    PrimIDs.VAR_MEAN: _var_mean,
}
