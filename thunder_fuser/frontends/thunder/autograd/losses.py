"""Grad transforms of losses."""

from __future__ import annotations

from collections.abc import Mapping

import thunder.torch as ltorch
from thunder.clang import maybe_convert_to_dtype
from thunder.core.prims import PrimIDs, get_grad, put_grad
from thunder.core.proxies import TensorProxy

from thunder_fuser.frontends.thunder.autograd.rules import Rule
from thunder_fuser.frontends.thunder.composites.arguments import wide
from thunder_fuser.frontends.thunder.composites.losses import (
    BINARY_CROSS_ENTROPY,
    NEGATIVE_ENTROPY,
)

_LEAST = 1e-12
"""Torch divides by no smaller variance of a probability."""


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


def _binary_cross_entropy(
    x: TensorProxy, t: TensorProxy, weight: TensorProxy | None = None
) -> TensorProxy:
    result: TensorProxy = BINARY_CROSS_ENTROPY(x, t, weight)
    g = get_grad(result)
    g = g if weight is None else g * weight
    variance = (1 - x) * x
    put_grad(x, g * (x - t) / ltorch.where(variance < _LEAST, _LEAST, variance))
    # Not bounded, unlike those of the loss.
    put_grad(t, g * (ltorch.log1p(-x) - ltorch.log(x)))
    return result


def _negative_entropy(t: TensorProxy) -> TensorProxy:
    """The gradient of torch's xlogy(t, t): NaN at 0, and 0 times a logarithm of NaN is 0."""
    result: TensorProxy = NEGATIVE_ENTROPY(t)
    g = get_grad(result)
    put_grad(t, ltorch.where((g == 0) & (t == t), 0.0, g * ltorch.log(t)) + g * t / t)
    return result


RULES: Mapping[PrimIDs | str, Rule] = {
    "torch.nn.functional.nll_loss": _nll_loss,
    BINARY_CROSS_ENTROPY.id: _binary_cross_entropy,
    NEGATIVE_ENTROPY.id: _negative_entropy,
}
