"""Grad transform of `index_put`, which stays with torch.

Thunder's own gives the gradient of the values to the indices.
"""

from __future__ import annotations

from collections.abc import Sequence

import thunder.torch as ltorch
from thunder import clang
from thunder.core.prims import get_grad, put_grad
from thunder.core.proxies import TensorProxy
from thunder.extend import FusionExecutor

from thunder_fuser.frontends.thunder.autograd.rules import put_to


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
