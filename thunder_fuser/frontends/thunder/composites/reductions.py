"""Composites: reductions (norms, distances, extremes, sums without NaN), addmm and diff."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import thunder.torch as ltorch
from thunder.core import dtypes
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import Symbol
from thunder.core.utils import canonicalize_dim

from thunder_fuser.frontends.thunder.composites.arguments import (
    Unusual,
    axes_of,
    constant,
    cut,
    floats,
    known,
    listed,
    rounded,
    wide,
)


def _extreme(x: TensorProxy, is_largest: bool, axes: list[int], keepdim: bool) -> TensorProxy:
    found: TensorProxy = (ltorch.amax if is_largest else ltorch.amin)(x, axes, keepdim)
    return found


EXTREME = Symbol("extreme", meta=_extreme, id="extreme")
"""The largest or least element, as one call: its gradient goes to NaNs alone, that of `amax` to all
elements of a row that has one.
"""


def norm_of(x: TensorProxy, p: Any, dim: Any, keepdim: bool) -> TensorProxy:
    """p-norm over `dim`; for finite p >= 0 its gradient is 0 where the norm is 0. That of one
    element is its absolute value, whatever its power would round to.
    """
    known(x)
    axes = list(axes_of(x, dim))
    if not x.numel and dtypes.is_inexact_dtype(x.dtype) and all(x.shape[k] for k in axes):
        # Torch's shape rule takes negative dimensions for empty ones, which have no such norm.
        nothing: TensorProxy = ltorch.sum(ltorch.abs(x), axes, keepdim)
        return nothing
    floats(x)
    if type(p) not in (int, float) or not axes or not x.numel:
        raise Unusual
    sizes = ltorch.abs(wide(x))
    if abs(p) == math.inf:
        return rounded(EXTREME(sizes, p > 0, axes, keepdim), x)
    if p == 0:
        return ltorch.to(ltorch.sum(x != 0, axes, keepdim), x.dtype)
    if p == 1:
        return rounded(ltorch.sum(sizes, axes, keepdim), x)
    if math.prod(x.shape[k] for k in axes if x.ndim) == 1:
        # NaN times itself, as its absolute value has a gradient of 0.
        is_nan = sizes != sizes
        nan = ltorch.where(is_nan, sizes, 0.0)
        return rounded(ltorch.sum(ltorch.where(is_nan, nan * nan, sizes), axes, keepdim), x)
    if p == 2:
        total = ltorch.sum(sizes * sizes, axes, keepdim)
        is_zero = total == 0
        root = ltorch.sqrt(ltorch.where(is_zero, 1.0, total))
        # A product with 0, which hands on an infinite gradient as NaN.
        return rounded(ltorch.where(is_zero, 0.0 * total, root), x)
    if p < 0:
        raise Unusual
    none = sizes == 0
    # A size of 0 stands for its power: its gradient is a product with 0, too, but never infinite.
    powers = ltorch.where(none, sizes, ltorch.where(none, 1.0, sizes) ** p)
    total = ltorch.sum(powers, axes, keepdim)
    is_zero = total == 0
    root = ltorch.where(is_zero, 1.0, total) ** (1 / p)
    return rounded(ltorch.where(is_zero, 0.0, root), x)


def _norm(
    x: TensorProxy,
    p: Any = "fro",
    dim: Any = None,
    keepdim: bool = False,
    out: None = None,
    dtype: None = None,
) -> TensorProxy:
    is_of_matrix = p == "fro" and isinstance(dim, Sequence) and len(dim) > 2  # torch's error
    if out is not None or dtype is not None or is_of_matrix:
        raise Unusual
    return norm_of(x, 2.0 if p in ("fro", None) else p, dim, keepdim)


def _vector_norm(
    x: TensorProxy, ord: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: None = None
) -> TensorProxy:
    if dtype is not None:
        raise Unusual
    return norm_of(x, ord, dim, keepdim)


def _linalg_norm(
    x: TensorProxy, ord: Any = None, dim: Any = None, keepdim: bool = False, *, dtype: None = None
) -> TensorProxy:
    """Vector norm, also of a matrix's elements if `ord` is None; Unusual for other matrix norms,
    and for more dimensions, which torch refuses.
    """
    rank = len(dim) if isinstance(dim, Sequence) else 1 if dim is not None else x.ndim
    if dtype is not None or not (rank == 1 or (ord is None and (dim is None or rank == 2))):
        raise Unusual
    return norm_of(x, 2.0 if ord is None else ord, dim, keepdim)


def _dist(x: TensorProxy, other: TensorProxy, p: float = 2) -> TensorProxy:
    floats(x, other)
    return norm_of(x - other, p, None, False)


def pairwise_distance(
    x1: TensorProxy, x2: TensorProxy, p: float = 2.0, eps: float = 1e-06, keepdim: bool = False
) -> TensorProxy:
    floats(x1, x2)
    return norm_of(x1 - x2 + eps, p, -1, keepdim)


def _cosine_similarity(
    x1: TensorProxy, x2: TensorProxy, dim: int = 1, eps: float = 1e-08
) -> TensorProxy:
    """Cosine similarity. A norm below `eps` is replaced by `eps`, through which torch's gradient
    goes on to the norm.
    """
    floats(x1, x2)
    if x1.shape != x2.shape or x1.dtype != x2.dtype or not x1.ndim:
        raise Unusual
    units = []
    for x in (wide(x1), wide(x2)):
        norm = norm_of(x, 2, dim, True)
        raised = eps + (norm - constant(norm))
        units.append(x / ltorch.where(norm < eps, raised, norm))
    return rounded(ltorch.sum(units[0] * units[1], dim), x1)


def _min(x: TensorProxy, other: Any = None) -> TensorProxy:
    """The least of two tensors, or of one; with `dim` torch also returns where it is."""
    if isinstance(other, TensorProxy):
        less: TensorProxy = ltorch.minimum(x, other)
        return less
    floats(x)
    if other is not None:
        raise Unusual
    least: TensorProxy = EXTREME(x, False, list(range(x.ndim)), False)
    return least


def total(
    symbol: Symbol, x: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> TensorProxy:
    """Sum over all dimensions if none is given, also as an empty sequence of them, which Thunder's
    gradient takes for no dimension.
    """
    every = isinstance(dim, Sequence) and not dim
    found: TensorProxy = symbol(x, None if every else dim, keepdim, dtype=dtype)
    return found


def _nansum(x: TensorProxy, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    floats(x)
    if dtype is not None and not dtype.is_floating_point:
        raise Unusual
    return ltorch.sum(ltorch.where(x != x, 0.0, x), listed(x, dim), keepdim, dtype=dtype)


def _nanmean(x: TensorProxy, dim: Any = None, keepdim: bool = False, *, dtype: None = None) -> Any:
    floats(x)
    if dtype is not None:
        raise Unusual
    axes = listed(x, dim)
    total = ltorch.sum(wide(ltorch.where(x != x, 0.0, x)), axes, keepdim)
    return rounded(total / ltorch.sum(x == x, axes, keepdim), x)


def _count_nonzero(x: TensorProxy, dim: Any = None) -> TensorProxy:
    known(x)
    return ltorch.sum(x != 0, listed(x, dim))


def _std_mean(
    x: TensorProxy, dim: Any = None, *, correction: Any = 1, keepdim: bool = False
) -> tuple[TensorProxy, TensorProxy]:
    floats(x)
    if isinstance(dim, bool):
        raise Unusual
    axes = listed(x, dim)
    correction = 1 if correction is None else correction
    deviation = ltorch.std(x, axes, keepdim=keepdim, correction=correction)
    return deviation, ltorch.mean(x, axes, keepdim)


def _dot(x: TensorProxy, other: TensorProxy) -> TensorProxy:
    floats(x, other)
    if x.ndim != 1 or x.shape != other.shape or x.dtype != other.dtype:
        raise Unusual
    return rounded(ltorch.sum(wide(x) * wide(other)), x)


def _addmm(
    input: TensorProxy, mat1: TensorProxy, mat2: TensorProxy, *, beta: Any = 1, alpha: Any = 1
) -> TensorProxy:
    """A matrix product plus a bias, recorded as `linear`, which rounds once, as torch's addmm."""
    floats(input, mat1, mat2)
    columns = mat2.shape[-1]
    if (beta, alpha) != (1, 1) or tuple(input.shape) != (columns,) or mat1.ndim != 2:
        raise Unusual
    if mat2.ndim != 2 or not input.dtype == mat1.dtype == mat2.dtype:
        raise Unusual
    return ltorch.linear(mat1, ltorch.permute(mat2, (1, 0)), input)


def _addr(
    x: TensorProxy, vec1: TensorProxy, vec2: TensorProxy, *, beta: Any = 1, alpha: Any = 1
) -> TensorProxy:
    floats(x, vec1, vec2)
    if beta == 0:
        raise Unusual  # x must not be read, as it may hold NaN
    outer = ltorch.unsqueeze(vec1, 1) * vec2
    outer = outer if alpha == 1 else outer * alpha
    return (x if beta == 1 else x * beta) + outer


def _diff(
    x: TensorProxy, n: int = 1, dim: int = -1, prepend: Any = None, append: Any = None
) -> Any:
    floats(x)
    if n != 1 or prepend is not None or append is not None or not x.ndim:
        raise Unusual
    axis = canonicalize_dim(x.ndim, dim)
    if x.shape[axis] < 2:
        raise Unusual
    return cut(x, axis, 1, None) - cut(x, axis, 0, -1)


PARTS: Mapping[str, Callable[..., Any]] = {
    "norm": _norm,
    "linalg.vector_norm": _vector_norm,
    "linalg.norm": _linalg_norm,
    "dist": _dist,
    "min": _min,
    "nansum": _nansum,
    "nanmean": _nanmean,
    "count_nonzero": _count_nonzero,
    "std_mean": _std_mean,
    "dot": _dot,
    "addmm": _addmm,
    "addr": _addr,
    "diff": _diff,
    "nn.functional.pairwise_distance": pairwise_distance,
    "nn.functional.cosine_similarity": _cosine_similarity,
}
