"""Composites: loss functions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import thunder.torch as ltorch
import torch
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import Symbol

from thunder_fuser.frontends.thunder.composites.arguments import (
    Unusual,
    constant,
    floats,
    rounded,
    wide,
)
from thunder_fuser.frontends.thunder.composites.reductions import pairwise_distance


def _reduced(losses: TensorProxy, reduction: str, size_average: Any, reduce: Any) -> TensorProxy:
    if size_average is not None or reduce is not None or reduction not in ("none", "mean", "sum"):
        raise Unusual
    if reduction == "none":
        return losses
    return ltorch.mean(losses) if reduction == "mean" else ltorch.sum(losses)


def _pair(x: TensorProxy, target: TensorProxy) -> None:
    floats(x, target)
    if x.shape != target.shape or x.dtype != target.dtype:
        raise Unusual  # torch warns or raises an error


def _l1_loss(
    input: TensorProxy,
    target: TensorProxy,
    size_average: Any = None,
    reduce: Any = None,
    reduction: str = "mean",
    weight: None = None,
) -> TensorProxy:
    _pair(input, target)
    if weight is not None:
        raise Unusual
    return _reduced(ltorch.abs(input - target), reduction, size_average, reduce)


# The square of a large difference, which a loss does not use, may be infinite: its gradient of 0
# would be NaN. So only small ones are squared.


def _smooth_l1_loss(
    input: TensorProxy,
    target: TensorProxy,
    size_average: Any = None,
    reduce: Any = None,
    reduction: str = "mean",
    beta: float = 1.0,
) -> TensorProxy:
    if beta == 0:
        return _l1_loss(input, target, size_average, reduce, reduction)
    _pair(input, target)
    if beta < 0:
        raise Unusual
    z = ltorch.abs(wide(input) - wide(target))
    near = ltorch.where(z >= beta, beta, z)
    losses = ltorch.where(z >= beta, z - 0.5 * beta, 0.5 * near * near / beta)
    return _reduced(rounded(losses, input), reduction, size_average, reduce)


def _huber_loss(
    input: TensorProxy,
    target: TensorProxy,
    reduction: str = "mean",
    delta: float = 1.0,
    weight: None = None,
) -> TensorProxy:
    _pair(input, target)
    if delta <= 0 or weight is not None:
        raise Unusual
    z = ltorch.abs(wide(input) - wide(target))
    near = ltorch.where(z > delta, delta, z)
    losses = ltorch.where(z > delta, delta * (z - 0.5 * delta), 0.5 * near * near)
    return _reduced(rounded(losses, input), reduction, None, None)


def _of_probabilities(
    x: TensorProxy, t: TensorProxy, weight: TensorProxy | None = None
) -> TensorProxy:
    # In the memory order of x.
    losses = _bounded(ltorch.log1p(-x)) * (t - 1) - _bounded(ltorch.log(x)) * t
    return losses if weight is None else losses * weight


def _bounded(x: TensorProxy) -> TensorProxy:
    """A logarithm, bounded as in torch, which has a finite loss of probabilities of 0 and 1."""
    return ltorch.where(x < -100.0, -100.0, x)


BINARY_CROSS_ENTROPY = Symbol(
    "binary_cross_entropy", meta=_of_probabilities, id="binary_cross_entropy_in_parts"
)
"""Losses of probabilities, targets and weights of one shape, as a call: its gradient is not that of
its parts, which have none where a logarithm is bounded.
"""


def _binary_cross_entropy(
    input: TensorProxy,
    target: TensorProxy,
    weight: TensorProxy | None = None,
    size_average: Any = None,
    reduce: Any = None,
    reduction: str = "mean",
) -> TensorProxy:
    _pair(input, target)
    given = [wide(input), wide(target)]
    if weight is not None:
        floats(weight)
        given.append(ltorch.expand(wide(weight), input.shape))
    losses = BINARY_CROSS_ENTROPY(*given)
    return _reduced(rounded(losses, input), reduction, size_average, reduce)


def _binary_cross_entropy_with_logits(
    input: TensorProxy,
    target: TensorProxy,
    weight: TensorProxy | None = None,
    size_average: Any = None,
    reduce: Any = None,
    reduction: str = "mean",
    pos_weight: TensorProxy | None = None,
) -> TensorProxy:
    _pair(input, target)
    x, t = wide(input), wide(target)
    logarithm = ltorch.logsigmoid(x)
    if pos_weight is not None:
        logarithm = ((wide(pos_weight) - 1) * t + 1) * logarithm
    losses = (1 - t) * x - logarithm
    losses = losses if weight is None else losses * wide(weight)
    return _reduced(rounded(losses, input), reduction, size_average, reduce)


def cross_entropy_of_probabilities(
    input: TensorProxy,
    target: TensorProxy,
    weight: TensorProxy | None,
    reduction: str,
    label_smoothing: float,
) -> TensorProxy:
    """Cross-entropy with a probability for each class. Thunder adds up negated terms, whose sum is
    0 where torch's is -0.
    """
    axis = 1 if input.ndim > 1 else 0
    classes = input.shape[axis]
    if label_smoothing > 0:
        target = target * (1 - label_smoothing) + label_smoothing / classes
    terms = ltorch.log_softmax(input, axis) * target
    if weight is not None:
        terms = terms * ltorch.reshape(weight, [-1] + [1] * (input.ndim - 2))
    if reduction == "none":
        return -ltorch.sum(terms, axis)
    loss = -ltorch.sum(terms)
    return loss / (input.numel // classes) if reduction == "mean" else loss


def _negative_entropy(t: TensorProxy) -> TensorProxy:
    return ltorch.where(t == 0, 0.0, t * ltorch.log(t))


NEGATIVE_ENTROPY = Symbol(
    "negative_entropy", meta=_negative_entropy, id="thunder_fuser.negative_entropy"
)
"""xlogy of equal operands, with a grad transform of its own."""


def _kl_div(
    input: TensorProxy,
    target: TensorProxy,
    size_average: Any = None,
    reduce: Any = None,
    reduction: str = "mean",
    log_target: bool = False,
) -> TensorProxy:
    _pair(input, target)
    x, t = wide(input), wide(target)
    if log_target:
        losses = ltorch.exp(t) * (t - x)
    else:
        losses = NEGATIVE_ENTROPY(t) - t * x
    losses = rounded(losses, input)
    if reduction == "batchmean" and input.ndim:
        return _reduced(losses, "sum", size_average, reduce) / input.shape[0]
    return _reduced(losses, reduction, size_average, reduce)


def _poisson_nll_loss(
    input: TensorProxy,
    target: TensorProxy,
    log_input: bool = True,
    full: bool = False,
    size_average: Any = None,
    eps: float = 1e-08,
    reduce: Any = None,
    reduction: str = "mean",
) -> TensorProxy:
    _pair(input, target)
    if full:
        raise Unusual
    x, t = wide(input), wide(target)
    losses = ltorch.exp(x) - t * x if log_input else x - t * ltorch.log(x + eps)
    return _reduced(rounded(losses, input), reduction, size_average, reduce)


def _soft_margin_loss(
    input: TensorProxy,
    target: TensorProxy,
    size_average: Any = None,
    reduce: Any = None,
    reduction: str = "mean",
) -> TensorProxy:
    _pair(input, target)
    if target.requires_grad:
        raise Unusual  # of which torch has no gradient
    losses = ltorch.log1p(ltorch.exp(-wide(target) * wide(input)))
    return _reduced(rounded(losses, input), reduction, size_average, reduce)


def _margin_ranking_loss(
    input1: TensorProxy,
    input2: TensorProxy,
    target: TensorProxy,
    margin: float = 0,
    size_average: Any = None,
    reduce: Any = None,
    reduction: str = "mean",
) -> TensorProxy:
    _pair(input1, input2)
    _pair(input1, target)
    losses = ltorch.clamp(-target * (input1 - input2) + margin, 0.0, None)
    return _reduced(losses, reduction, size_average, reduce)


def _hinge_embedding_loss(
    input: TensorProxy,
    target: TensorProxy,
    margin: float = 1.0,
    size_average: Any = None,
    reduce: Any = None,
    reduction: str = "mean",
) -> TensorProxy:
    _pair(input, target)
    apart = ltorch.where(target != 1, ltorch.clamp(margin - input, 0.0, None), 0.0)
    losses = apart + ltorch.where(target != -1, input, 0.0)
    return _reduced(losses, reduction, size_average, reduce)


def _gaussian_nll_loss(
    input: TensorProxy,
    target: TensorProxy,
    var: TensorProxy | float,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> TensorProxy:
    """Thunder cannot trace the call, which looks for negative variances. These count as `eps`."""
    if not isinstance(var, TensorProxy):
        var = ltorch.full_like(input, var)
    floats(input, target, var)
    if not input.dtype == target.dtype == var.dtype:
        raise Unusual
    if var.shape == input.shape[:-1] != input.shape:
        var = ltorch.unsqueeze(var, -1)
    pairs = zip(var.shape, input.shape, strict=False)
    if var.ndim != input.ndim or [n for n, m in pairs if n != m] not in ([], [1]):
        raise ValueError(
            f"var has size {tuple(var.shape)}: expected that of the input, "
            f"{tuple(input.shape)}, without its last dimension, or with 1 in place of one size"
        )
    # The bound has no part in the gradient.
    variance = var + constant(ltorch.where(var < eps, eps - var, 0.0))
    losses = 0.5 * (ltorch.log(variance) + (input - target) ** 2 / variance)
    losses = losses + 0.5 * math.log(2 * math.pi) if full else losses
    return _reduced(losses, reduction, None, None)


_COSINE_EPS = torch.tensor(1e-12, dtype=torch.float32).item()
"""Torch has this number in fp32, for all dtypes."""


def _cosine_embedding_loss(
    input1: TensorProxy,
    input2: TensorProxy,
    target: TensorProxy,
    margin: float = 0,
    size_average: Any = None,
    reduce: Any = None,
    reduction: str = "mean",
) -> TensorProxy:
    _pair(input1, input2)
    if target.ndim not in (0, 1) or input1.ndim != target.ndim + 1:
        raise Unusual  # torch raises the error
    x, y = wide(input1), wide(input2)
    eps = _COSINE_EPS
    along, ours, theirs = (ltorch.sum(t, -1) for t in (x * y, x * x, y * y))
    cosine = along / ltorch.sqrt((ours + eps) * (theirs + eps))
    losses = ltorch.where(target == 1, 1 - cosine, 0.0)
    losses = ltorch.where(target == -1, ltorch.clamp(cosine - margin, 0.0, None), losses)
    return _reduced(rounded(losses, input1), reduction, size_average, reduce)


def _triplet_margin_loss(
    anchor: TensorProxy,
    positive: TensorProxy,
    negative: TensorProxy,
    margin: float = 1.0,
    p: float = 2,
    eps: float = 1e-6,
    swap: bool = False,
    size_average: Any = None,
    reduce: Any = None,
    reduction: str = "mean",
) -> TensorProxy:
    _pair(anchor, positive)
    _pair(anchor, negative)
    near = pairwise_distance(anchor, positive, p, eps)
    far = pairwise_distance(anchor, negative, p, eps)
    if swap:
        far = ltorch.minimum(far, pairwise_distance(positive, negative, p, eps))
    losses = ltorch.clamp(margin + near - far, 0.0, None)
    return _reduced(losses, reduction, size_average, reduce)


PARTS: Mapping[str, Callable[..., Any]] = {
    "nn.functional.l1_loss": _l1_loss,
    "nn.functional.smooth_l1_loss": _smooth_l1_loss,
    "nn.functional.huber_loss": _huber_loss,
    "nn.functional.binary_cross_entropy_with_logits": _binary_cross_entropy_with_logits,
    "nn.functional.binary_cross_entropy": _binary_cross_entropy,
    "nn.functional.kl_div": _kl_div,
    "nn.functional.poisson_nll_loss": _poisson_nll_loss,
    "nn.functional.soft_margin_loss": _soft_margin_loss,
    "nn.functional.cosine_embedding_loss": _cosine_embedding_loss,
    "nn.functional.margin_ranking_loss": _margin_ranking_loss,
    "nn.functional.hinge_embedding_loss": _hinge_embedding_loss,
    "nn.functional.gaussian_nll_loss": _gaussian_nll_loss,
    "nn.functional.triplet_margin_loss": _triplet_margin_loss,
}
