"""Cross-entropy as definitions, forward and backward, against what torch computes.

Logits are [rows, classes], targets Int [rows]. A row whose target is IGNORED has no loss and no
gradient. The forward leaves what the backward needs of a row: the logarithm of its sum of
exponentials.
"""

from __future__ import annotations

import torch

from thunder_fuser.frontends.definition import DataType, FusionDefinition, Tensor
from thunder_fuser.frontends.definition.operations.ops import Ops

Float, Int = DataType.Float, DataType.Int
IGNORED = -100


def cross_entropy(
    rows: int, classes: int, dtype: DataType, *, mean: bool = False
) -> FusionDefinition:
    """(logits, target) -> loss and logsumexp of each row, [rows]; with `mean` the mean loss [] as
    well, over the rows that are not ignored.
    """
    with FusionDefinition() as fd:
        logits = fd.define_tensor([rows, classes], True, dtype)
        target = fd.define_tensor([rows], True, Int)
        losses, logsumexp, counted = _forward(fd.ops, logits, target)
        fd.add_output(losses)
        fd.add_output(logsumexp)
        if mean:
            total, count = fd.ops.sum(losses), fd.ops.sum(counted)
            fd.add_output(fd.ops.div(total, fd.ops.cast(count, Float)))
    return fd


def _forward(o: Ops, logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    x = o.cast(logits, Float)
    largest = o.max(x, [1])
    shifted = o.sub(x, o.broadcast(largest, [False, True]))
    logsumexp = o.add(largest, o.log(o.sum(o.exp(shifted), [1])))
    counted = o.ne(target, IGNORED)
    chosen = o.broadcast(o.where(counted, target, 0), [False, True])
    picked = o.squeeze(o.take_along_axis(logits, chosen, 1), [1])
    losses = o.where(counted, o.sub(logsumexp, o.cast(picked, Float)), 0.0)
    return losses, logsumexp, counted


def cross_entropy_backward(rows: int, classes: int, dtype: DataType) -> FusionDefinition:
    """(logits, target, logsumexp, gradient) -> gradient of the logits. `gradient` is that of each
    counted row's loss, one number for all: for a mean it is divided by how many they are.
    """
    with FusionDefinition() as fd:
        o = fd.ops
        logits = fd.define_tensor([rows, classes], True, dtype)
        target = fd.define_tensor([rows], True, Int)
        logsumexp = fd.define_tensor([rows], True, Float)
        gradient = fd.define_tensor([], True, Float)
        column = o.broadcast(target, [False, True])
        softmax = o.exp(o.sub(o.cast(logits, Float), o.broadcast(logsumexp, [False, True])))
        is_target = o.eq(o.broadcast(o.iota(classes), [True, False]), column)
        slope = o.sub(softmax, o.cast(is_target, Float))
        found = o.mul(slope, o.where(o.ne(column, IGNORED), gradient, 0.0))
        fd.add_output(o.cast(found, dtype))
    return fd


def inputs(rows: int, classes: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits and targets, every fifth of which is ignored (but not the first)."""
    generator = torch.Generator().manual_seed(classes)
    logits = torch.randn(rows, classes, generator=generator).mul_(3).to(dtype)
    target = torch.randint(classes, (rows,), generator=generator)
    target[4::5] = IGNORED
    return logits, target


def eager(
    logits: torch.Tensor, target: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Losses, logsumexp, mean loss, and the mean's gradient."""
    x = logits.detach().requires_grad_()
    losses = torch.nn.functional.cross_entropy(x, target, reduction="none", ignore_index=IGNORED)
    mean = losses.sum() / (target != IGNORED).sum()
    (gradient,) = torch.autograd.grad(mean, x)
    return losses.detach(), torch.logsumexp(x.detach(), 1), mean.detach(), gradient
