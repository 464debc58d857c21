"""Calls claimed whole: special values, errors and gradients are those of torch's kernels."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.frontends.thunder.programs import check, jit
from tests.support.shares import each_value
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


@each_value(bounds=[(-1.0, 2.0), (None, 2.0), (-1.0, None), (2.0, -1.0)], tensors=[False, True])
def test_gradients_of_clamp(bounds: tuple[float | None, float | None], tensors: bool) -> None:
    """The tensor's at a bound, as torch has it; of NaN nobody's."""
    if tensors:
        given = [None if b is None else torch.tensor([[b], [0.5]]) for b in bounds]
    else:
        given = list(bounds)

    def program(x: Any, low: Any, high: Any) -> Any:
        return torch.clamp(x * 1, low, high) * 3

    x = torch.tensor([[math.nan, 0.5, -1, 2, 5, -7], [-2, 1, 0.5, 3, math.inf, -math.inf]])
    gradients = []
    for function in (jit(program), program):
        leaves = [t.clone().requires_grad_() for t in (x, *given) if isinstance(t, torch.Tensor)]
        inputs = iter(leaves[1:])
        rest = [next(inputs) if isinstance(t, torch.Tensor) else t for t in given]
        gradients.append(torch.autograd.grad(function(leaves[0], *rest).sum(), leaves))
    torch.testing.assert_close(*gradients)


@each_value(reduction=["mean", "sum", "none"], ignored=[-100, 2], weighted=[False, True])
def test_smoothed_labels_of_ignored_classes(reduction: str, ignored: int, weighted: bool) -> None:
    """Thunder alone counts them in the mean, or reads the weight of a class that is none."""
    target = torch.tensor([[0, ignored, 1], [1, 0, ignored]])
    weight = torch.rand(CLASSES, dtype=torch.float64) + 0.5 if weighted else None

    def loss(x: torch.Tensor, target: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
        return F.cross_entropy(
            x, target, weight, ignore_index=ignored, reduction=reduction, label_smoothing=0.1
        )

    logits, results = torch.randn(2, CLASSES, 3, dtype=torch.float64), []
    for run in (loss, jit(loss)):
        x = logits.clone().requires_grad_()
        with options(strict=True):
            found = run(x, target, weight)
            results.append([found, *torch.autograd.grad(found.sum(), [x])])
    torch.testing.assert_close(*results)


def test_remainders_by_their_operator() -> None:
    """Thunder looks for methods that it has not."""

    def program(x: Any, y: Any) -> Any:
        z = x * 1
        z %= 3
        return x % 3, 7 % y, x % y, z, y % torch.arange(1, 7)

    check(program, torch.arange(6.0) - 2.5, torch.arange(1.0, 7.0))
    check(program, torch.arange(-3, 3), torch.arange(1, 7))
    check(lambda x, y: (x % 1.5) * (x % y), *(torch.rand(6).requires_grad_() for _ in range(2)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int64])
def test_floor_division_by_a_number_that_rounds_to_zero(dtype: torch.dtype) -> None:
    """1e-46 is 0 beside anything but float64."""

    def program(x: Any) -> Any:
        y = x * 1.0
        y.floor_divide_(-1e-46)
        quotients = x // 1e-46, torch.floor_divide(x, 1e-46), x.div(1e-46, rounding_mode="floor")
        return *quotients, y, x // 0.3

    numbers = [0.0, 1.5, -2.5, 3.0]
    if dtype.is_floating_point:
        numbers += [-0.0, math.inf, -math.inf, math.nan]
    x = torch.tensor(numbers).to(dtype)
    for ours, eager in zip(jit(program)(x), program(x), strict=True):
        torch.testing.assert_close(ours, eager, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(
    ("left", "right"), [((7, 1, 4), (1, 5, 4)), ((7, 4), (4,)), ((1, 4), (7, 4)), ((3,), ())]
)
def test_gradients_of_the_larger_of_two_that_are_broadcast(
    left: tuple[int, ...], right: tuple[int, ...]
) -> None:
    """Among them equal ones, which share the gradient."""
    torch.manual_seed(0)
    operands = [torch.randn(sizes).round().requires_grad_() for sizes in (left, right)]

    def larger(x: Tensor, y: Tensor) -> Tensor:
        return torch.max(x, y) * x.max(y)

    seed = torch.randn(larger(*operands).shape)
    results = [
        [found := function(*operands), *torch.autograd.grad(found, operands, seed)]
        for function in (jit(larger), larger)
    ]
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs)
