"""Helpers of grad transforms. A rule records a call, and puts the gradients of its operands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import thunder.torch as ltorch
from thunder.core import dtypes
from thunder.core.prims import get_grad, put_grad
from thunder.core.proxies import ProxyTag, TensorProxy

from thunder_fuser.frontends.thunder.composites.arguments import rounded, wide

Rule = Callable[..., Any]

ProxyTag.register_tag("GRADIENT_OF_PART")
PART = ProxyTag.GRADIENT_OF_PART


def gradient_of_part(result: TensorProxy) -> TensorProxy:
    """Return the gradient of one of several results of a call. If none reaches it, what the rule
    computes from that is left out (`patches/gradients/unreached_results.py`).
    """
    gradient: TensorProxy = get_grad(result)
    gradient.tags.add(PART)
    return gradient


def put(x: TensorProxy, gradient: TensorProxy) -> None:
    """Put the gradient of an operand, rounded to its dtype."""
    put_grad(x, rounded(gradient, x))


def put_to(x: TensorProxy, gradient: TensorProxy) -> None:
    """Put the gradient of an operand that may have been broadcast and converted, summed over
    broadcast dimensions.
    """
    missing = gradient.ndim - x.ndim
    shown = zip(gradient.shape, (1,) * missing + tuple(x.shape), strict=True)
    dims = tuple(k for k, (broad, own) in enumerate(shown) if broad != own or k < missing)
    if dims:
        gradient = ltorch.sum(wide(gradient), dims, keepdim=True)
    put(x, ltorch.reshape(gradient, x.shape) if missing else gradient)


def put_nothing(result: TensorProxy, *operands: TensorProxy | float) -> None:
    """Put gradients of zeros for the operands of a call whose result they do not move."""
    nothing = ltorch.zeros_like(get_grad(result))
    for x in operands:
        if isinstance(x, TensorProxy) and dtypes.is_inexact_dtype(x.dtype):
            put_to(x, nothing)
