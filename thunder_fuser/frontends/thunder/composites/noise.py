"""Composites: calls that draw random numbers, and dropout in place.

Thunder differentiates an auto-registered call by running it once more, with other random numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import thunder.torch as ltorch
import torch
from thunder.core.proxies import TensorProxy
from thunder.core.utils import canonicalize_dim

from thunder_fuser.frontends.thunder.composites.arguments import (
    Unusual,
    constant,
    floats,
    places,
    rounded,
    wide,
)

_ALPHA = 1.7580993408473766
"""What SELU tends to, negated: alpha dropout gives this value to what it drops."""


def _gumbel_softmax(
    logits: TensorProxy, tau: float = 1, hard: bool = False, eps: float = 1e-10, dim: int = -1
) -> TensorProxy:
    floats(logits)
    if not logits.ndim or isinstance(tau, TensorProxy):
        raise Unusual
    axis = canonicalize_dim(logits.ndim, dim)
    uniform = ltorch.rand(logits.shape, device=logits.device, dtype=wide(logits).dtype)
    # As in torch no exponential is 0, whose Gumbel number would be infinite.
    least = torch.finfo(torch.float32).eps / 2
    exponential = ltorch.clamp(-ltorch.log1p(-uniform), least, None)
    soft = ltorch.softmax((wide(logits) - ltorch.log(exponential)) / tau, axis)
    if not hard:
        return rounded(soft, logits)
    chosen = ltorch.argmax(soft, axis, keepdim=True)
    one_hot = ltorch.to(places(soft, axis) == chosen, soft.dtype)
    return rounded(one_hot - constant(soft) + soft, logits)


def _alpha_dropout(of_channels: bool) -> Callable[..., TensorProxy]:
    def function(
        input: TensorProxy, p: float = 0.5, training: bool = False, inplace: bool = False
    ) -> TensorProxy:
        floats(input)
        if inplace or not 0 <= p < 1 or (of_channels and input.ndim < 2):
            raise Unusual
        if not training or p == 0:
            return input
        shape = (*input.shape[:2], *(1,) * (input.ndim - 2)) if of_channels else input.shape
        x = wide(input)
        is_kept = ltorch.rand(shape, device=input.device, dtype=x.dtype) < 1 - p
        scale = 1 / math.sqrt((_ALPHA**2 * p + 1) * (1 - p))
        return rounded((ltorch.where(is_kept, x, -_ALPHA) + _ALPHA * p) * scale, input)

    return function


def _dropout(
    input: TensorProxy, p: float = 0.5, training: bool = True, inplace: bool = False
) -> TensorProxy:
    """Dropout that drops nothing is its operand, and dropout in place, which Thunder lacks,
    is a product; all other dropout is Thunder's.
    """
    floats(input)
    if not training or p == 0:
        return input
    if not inplace:
        raise Unusual
    return ltorch.mul_(input, ltorch.dropout(ltorch.ones_like(input), p))


def _bernoulli(input: TensorProxy, p: Any) -> TensorProxy:
    """Draw with one probability for all elements of a tensor, whose own numbers do not matter."""
    is_drawn = ltorch.rand(input.shape, device=input.device) < p
    return ltorch.to(is_drawn, input.dtype)


PARTS: Mapping[str, Callable[..., Any]] = {
    "bernoulli": _bernoulli,
    "nn.functional.gumbel_softmax": _gumbel_softmax,
    "nn.functional.dropout": _dropout,
    "nn.functional.alpha_dropout": _alpha_dropout(of_channels=False),
    "nn.functional.feature_alpha_dropout": _alpha_dropout(of_channels=True),
}
