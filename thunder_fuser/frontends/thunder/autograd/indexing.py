"""Grad transforms of writes at indices, which stay with torch, and of diagonals.

Thunder's rule for `index_put` gives the gradient of the values to the indices; it has no rule for
`index_add`, and its rule for `take_along_dim` adds at the places as given, which `scatter_add`
takes only from 0 up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import thunder.torch as ltorch
from thunder import clang
from thunder.core import prims
from thunder.core.prims import PrimIDs, get_grad, put_grad
from thunder.core.proxies import TensorProxy
from thunder.core.utils import canonicalize_dims
from thunder.extend import FusionExecutor

from thunder_fuser.frontends.thunder.autograd.rules import Rule, put_to
from thunder_fuser.frontends.thunder.composites.arguments import places


def register(executor: FusionExecutor) -> None:
    """Claim `index_put` of tensors, as Thunder's primitive, with a grad transform."""
    executor.register_supported(
        ltorch.index_put.id, _is_claimed, execution_transform=_written, grad_transform=_gradient
    )


def _is_claimed(a: object, indices: object, values: object, accumulate: object = False) -> bool:
    return isinstance(a, TensorProxy) and isinstance(values, TensorProxy)


def _written(
    a: TensorProxy, /, indices: Sequence[TensorProxy], values: TensorProxy, accumulate: bool = False
) -> TensorProxy:
    result: TensorProxy = clang.index_put(a, indices, values, accumulate)
    return result


def _gradient(
    a: TensorProxy, /, indices: Sequence[TensorProxy], values: TensorProxy, accumulate: bool = False
) -> TensorProxy:
    result: TensorProxy = ltorch.index_put(a, indices, values, accumulate)
    g = get_grad(result)
    nothing = ltorch.zeros_like(values)
    put_grad(a, g if accumulate else ltorch.index_put(g, indices, nothing, False))
    put_to(values, g[tuple(indices)])
    return result


def _index_add(a: TensorProxy, index: TensorProxy, value: TensorProxy, dim: int) -> TensorProxy:
    result: TensorProxy = prims.index_add(a, index, value, dim)
    g = get_grad(result)
    put_grad(a, g)
    put_grad(value, ltorch.reshape(ltorch.index_select(g, dim, index), value.shape))
    return result


def _take_along_axis(a: TensorProxy, index: TensorProxy, dim: int) -> TensorProxy:
    """torch takes any place modulo the size, and so negative ones."""
    result: TensorProxy = prims.take_along_axis(a, index, dim)
    nothing = ltorch.zeros(a.shape, device=a.device, dtype=a.dtype)
    wrapped = ltorch.remainder(index, a.shape[dim]) if a.shape[dim] else index
    put_grad(a, prims.scatter_add(nothing, wrapped, get_grad(result), dim))
    return result


def _diagonal(a: TensorProxy, /, offset: int = 0, dim1: int = 0, dim2: int = 1) -> TensorProxy:
    """Each element finds its gradient; Thunder's own adds the diagonal's to zeros, at indices."""
    result: TensorProxy = ltorch.diagonal(a, offset, dim1, dim2)
    g = get_grad(result)
    axes = canonicalize_dims(a.ndim, (dim1, dim2))
    before = max(-offset, 0)
    g = ltorch.unsqueeze(ltorch.pad(g, (before, a.shape[axes[0]] - before - g.shape[-1])), -1)
    g = ltorch.movedim(g, (-2, -1), tuple(axes))
    is_diagonal = places(a, axes[1]) - places(a, axes[0]) == offset
    put_grad(a, ltorch.where(is_diagonal, g, 0.0))
    return result


RULES: Mapping[PrimIDs | str, Rule] = {
    PrimIDs.INDEX_ADD: _index_add,
    PrimIDs.TAKE_ALONG_AXIS: _take_along_axis,
    ltorch.diagonal.id: _diagonal,
}
