"""Results without a gradient beside others that have one: as in eager code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import thunder
import torch
from torch import Tensor, nn

import thunder_fuser

Program = Callable[[Tensor, Tensor], Sequence[Tensor]]


def detached(x: Tensor, w: Tensor) -> Sequence[Tensor]:
    y = x @ w
    return y.sum(), y.detach(), y.detach().view(2, 8), w.detach(), w.sum(0).detach() * 2


def of_other_arguments(x: Tensor, w: Tensor) -> Sequence[Tensor]:
    return x * 2, (x @ w).relu(), x, w, x[0], torch.ones(3)


def without_grad(x: Tensor, w: Tensor) -> Sequence[Tensor]:
    y = x @ w
    with torch.no_grad():
        mean = y.mean(0)
        twice = mean * 2
    return y.sum(), mean, twice, (y * twice).sum()


def of_comparisons_and_numbers(x: Tensor, w: Tensor) -> Sequence[Tensor]:
    return torch.where(w > 0, w, x), (w > 0).float(), w.sign(), w.argmax(-1), x * w.sum().item()


def beside_updates(x: Tensor, w: Tensor) -> Sequence[Tensor]:
    b, c, rows, others = x * 2, x * 3, torch.zeros(4, 4), torch.zeros(4, 4)
    b += w
    c += w.detach()
    rows[1] = w[0]
    others[1] = x[0]
    x.mul_(2)
    return b, c, rows, others, x


def of_names_before_an_update(x: Tensor, w: Tensor) -> Sequence[Tensor]:
    """All names of what an update gives a history have it: earlier results in place, and views."""
    other, row, held = x * 3, x[0], x.detach()
    same = x.mul_(0.5)
    before = same * 2
    x.add_(w)
    with torch.no_grad():
        other.add_(w)
    return same.prod(), row * 2, held * 2, before, other, row


def of_branches(x: Tensor, w: Tensor) -> Sequence[Tensor]:
    """What the program itself is told."""
    same = torch.zeros(4, 4)
    same.add_(w)
    told = (same.requires_grad, x.requires_grad, same.detach().requires_grad)
    return [same * 2 if flag else same * 3 for flag in told]


def of_zero_derivative(x: Tensor, w: Tensor) -> Sequence[Tensor]:
    return (x @ w).floor(), x.floor()


def of_places(x: Tensor, w: Tensor) -> Sequence[Tensor]:
    """Values and their places from one call, whose gradient takes those of both."""
    return *torch.min(w, 1), *w.cummax(0), *w.kthvalue(2), *w.median(0), *(x @ w).topk(2)


PROGRAMS = [
    detached,
    of_other_arguments,
    without_grad,
    of_comparisons_and_numbers,
    beside_updates,
    of_names_before_an_update,
    of_branches,
    of_zero_derivative,
    of_places,
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_results_require_gradients_as_in_torch(program: Program) -> None:
    torch.manual_seed(0)
    x, w = torch.randn(4, 4), torch.randn(4, 4)
    gradients = []
    results: list[Sequence[Tensor]] = []
    for run in (thunder.jit(program, executors=[thunder_fuser.executor]), program):
        leaf = w.clone().requires_grad_()
        found = run(x.clone(), leaf)
        (gradient,) = torch.autograd.grad(sum(t.sum() for t in found if t.requires_grad), [leaf])
        gradients.append(gradient)
        results.append(found)
    torch.testing.assert_close(*gradients)
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs)
        assert ours.requires_grad == theirs.requires_grad


def test_a_running_mean_has_no_history() -> None:
    class Running(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.mean = nn.Linear(8, 8), torch.zeros(8)

        def forward(self, x: Tensor) -> Any:
            y = self.linear(x)
            self.mean = 0.9 * self.mean + 0.1 * y.detach().mean(0)
            return (y * self.mean).sum()

    model = Running()
    compiled = thunder.jit(model, executors=[thunder_fuser.executor])
    mean = torch.zeros(8)
    for _ in range(3):
        x = torch.randn(5, 8)
        mean = 0.9 * mean + 0.1 * model.linear(x).detach().mean(0)
        loss = compiled(x)
        torch.testing.assert_close(loss, (model.linear(x) * mean).sum())
        loss.backward()
        torch.testing.assert_close(model.mean, mean)
        assert not model.mean.requires_grad
    assert thunder.cache_misses(compiled) == 1


def test_results_of_an_evaluation_that_updates_parameters_have_no_history() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                self.linear.weight.mul_(0.5)
            y, z = self.linear(x), torch.zeros(2, 3)
            z[:, 0] = y[:, 0]
            return z

    compiled = thunder.jit(Scaled(), executors=[thunder_fuser.executor])
    with torch.no_grad():
        assert not compiled(torch.ones(2, 3)).requires_grad
    assert compiled(torch.ones(2, 3)).requires_grad
