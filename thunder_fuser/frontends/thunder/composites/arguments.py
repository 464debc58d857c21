"""Checks and conversions of arguments for composites and grad transforms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import thunder.torch as ltorch
from thunder.clang import maybe_convert_to_dtype
from thunder.core import dtypes
from thunder.core.proxies import ProxyTag, TensorProxy
from thunder.core.utils import canonicalize_dims, get_computation_dtype

from thunder_fuser.frontends.thunder.claims.operands import is_static


class Unusual(Exception):
    """Raised for arguments that a composite leaves to torch, which has a kernel or an error."""


def floats(*tensors: Any) -> None:
    """Raise Unusual unless all are real floating-point tensors of static shape."""
    for x in tensors:
        if type(x) is not TensorProxy or not dtypes.is_float_dtype(x.dtype):
            raise Unusual
    known(*tensors)


def known(*tensors: Any) -> None:
    """Raise Unusual unless all are tensors of static shape."""
    if not all(isinstance(x, TensorProxy) and is_static(x.shape) for x in tensors):
        raise Unusual


def wide(x: TensorProxy) -> TensorProxy:
    """Convert to the dtype that torch's kernels compute in."""
    return maybe_convert_to_dtype(x, get_computation_dtype(x.dtype))


def rounded(x: TensorProxy, like: TensorProxy) -> TensorProxy:
    return maybe_convert_to_dtype(x, like.dtype)


def constant(x: TensorProxy) -> TensorProxy:
    """Return a copy through which no gradient goes."""
    copy: TensorProxy = ltorch.clone(x)
    copy.tags.add(ProxyTag.DETACHED_AUTOGRAD_GRAPH)
    return copy


def axes_of(x: TensorProxy, dim: Any) -> tuple[int, ...]:
    """Return the dimensions of an argument `dim`: all for None or an empty sequence."""
    if dim is None or (isinstance(dim, Sequence) and not dim):
        return tuple(range(x.ndim))
    dims = dim if isinstance(dim, Sequence) else (dim,)
    if not all(type(d) is int for d in dims):
        raise Unusual
    return tuple(canonicalize_dims(x.ndim, dims))


def places(x: TensorProxy, dim: int) -> TensorProxy:
    """Return 0, 1, 2, ... along a dimension of x, broadcastable to x."""
    shape = [-1 if k == dim else 1 for k in range(x.ndim)]
    return ltorch.reshape(ltorch.arange(x.shape[dim], device=x.device), shape)


def cut(x: TensorProxy, axis: int, start: int | None, end: int | None) -> TensorProxy:
    """Slice along one dimension."""
    return x[tuple([slice(None)] * axis + [slice(start, end)])]


def listed(x: TensorProxy, dim: Any) -> list[int]:
    """Return the reduced dimensions; raise Unusual if there are none."""
    axes = axes_of(x, dim)
    if not axes:
        raise Unusual
    return list(axes)
