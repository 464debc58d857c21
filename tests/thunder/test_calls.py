"""Calls claimed whole: special values, errors and gradients are those of torch's kernels."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.thunder.programs import jit
from thunder_fuser import options
from thunder_fuser.errors import FuserIndexError

CLASSES = 3


def losses(x: Tensor, target: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    """Every reduction, with weights and without, an ignored class that exists and one that does
    not.
    """
    found = []
    for reduction in ("mean", "sum", "none"):
        for ignored in (-100, 1):
            for w in (None, weight):
                kept = {"ignore_index": ignored, "reduction": reduction}
                found.append(F.cross_entropy(x, target, w, **kept))
                found.append(F.nll_loss(x, target, w, **kept))
    return tuple(found)


def test_losses_and_their_gradients() -> None:
    torch.manual_seed(0)
    weight, target = torch.rand(CLASSES) + 0.1, torch.tensor([0, 1, 2, 0])
    x = torch.randn(4, CLASSES, requires_grad=True)
    results = []
    for function in (jit(losses), losses):
        with options(strict=True):
            found = function(x, target, weight)
            results.append([*found, *torch.autograd.grad(sum(t.sum() for t in found), x)])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("wrong", [-1, CLASSES, 10**6])
@pytest.mark.parametrize("needs_gradient", [False, True])
def test_a_class_that_does_not_exist(wrong: int, needs_gradient: bool) -> None:
    x = torch.randn(4, CLASSES, requires_grad=needs_gradient)
    with pytest.raises(FuserIndexError, match=f"index {wrong} .* size {CLASSES}\\b.*nll_loss"):
        LOSS[needs_gradient](x, torch.tensor([0, 1, wrong, -100]))


LOSS = {flag: jit(lambda x, target: F.cross_entropy(x, target)) for flag in (False, True)}


def test_smoothed_and_without_dimensions() -> None:
    x, target = torch.randn(CLASSES), torch.tensor(2)
    compiled = jit(lambda x, t: (F.cross_entropy(x, t), F.cross_entropy(x, t, label_smoothing=0.1)))
    for ours, theirs in zip(
        compiled(x, target),
        (F.cross_entropy(x, target), F.cross_entropy(x, target, label_smoothing=0.1)),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs)
    with pytest.raises(FuserIndexError):
        compiled(x, torch.tensor(-1))
