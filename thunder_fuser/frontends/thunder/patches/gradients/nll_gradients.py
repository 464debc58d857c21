"""The gradient of `nll_loss` where torch computes it, outside of any region.

Thunder passes an input of three dimensions, or of more than four, to torch as one of four, and
returned a gradient with other dimensions than the input. For a sum over an image it passed the
weight of the targets in fp64. Both raised an error. Mended for all functions that Thunder compiles.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import thunder.torch as ltorch
import torch
from thunder.executors import torchex

_original: Callable[..., torch.Tensor] = torchex._nll_loss_backward_impl


def _backward(
    g: torch.Tensor,
    a: torch.Tensor,
    /,
    target: torch.Tensor,
    weight: torch.Tensor | None,
    reduction: str,
    ignored: int,
    total: torch.Tensor | None,
) -> torch.Tensor:
    """Return the gradient of `a` [batch, classes, ...]. `g`: of the loss, like `target` if
    `reduction` is "none".
    """
    options = weight, reduction, ignored, a.new_zeros(()) if total is None else total
    if a.ndim in (1, 2, 4):
        return _original(g, a, target, *options)
    batch, classes, *sizes = a.shape
    flat = (batch, 1, math.prod(sizes))
    g = g.reshape(flat) if reduction == "none" else g
    image = a.reshape(batch, classes, *flat[1:])
    found = _original(g, image, target.reshape(flat), *options)
    return found.reshape(a.shape)


def register() -> None:
    """Register the replacement with Thunder's executor of torch's functions."""
    call = torchex.ex.register_operator(
        "nll_loss_backward_as_input", meta=ltorch.nll_loss_backward, fn=_backward
    )
    torchex.ex.register_implementation(
        ltorch.nll_loss_backward, call, checker=torchex._always_executable
    )
