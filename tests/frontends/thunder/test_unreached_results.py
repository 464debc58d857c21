"""Gradients of calls of which only some results are used: the others give none, and no NaN."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import thunder
import torch

import thunder_fuser

Function = Callable[[torch.Tensor], torch.Tensor]

ONE, EQUAL = torch.tensor([3.0]), torch.eye(3)
INFINITE = torch.tensor([3.0, torch.inf, 1.0])


def gradient(function: Function, x: torch.Tensor) -> torch.Tensor:
    given = x.clone().requires_grad_()
    function(given).sum().backward()
    assert given.grad is not None
    return given.grad


@pytest.mark.parametrize(
    ("function", "x"),
    [
        (lambda a: torch.var_mean(a)[1], ONE),
        (lambda a: torch.var_mean(a)[1] * 2, INFINITE),
        (lambda a: torch.var_mean(a.bfloat16())[1], INFINITE),
        (lambda a: torch.std_mean(a)[1], INFINITE),
        (lambda a: torch.std_mean(a, correction=3)[1], torch.tensor([3.0, 1.0, 2.0])),
        (lambda a: sum_beside_detached(*torch.var_mean(a)), INFINITE),
        (lambda a: torch.linalg.eigh(a)[0], EQUAL),
        (lambda a: torch.linalg.eigh(a * 2)[0] * a, EQUAL),
        (lambda a: torch.linalg.eig(a)[0].real, EQUAL),
        (lambda a: torch.linalg.svd(a)[1], EQUAL),
    ],
)
def test_no_nan_comes_from_results_that_are_not_used(function: Function, x: torch.Tensor) -> None:
    wanted = gradient(function, x)
    assert not wanted.isnan().any()
    compiled = thunder.jit(function, executors=[thunder_fuser.executor])
    torch.testing.assert_close(gradient(compiled, x), wanted)


def sum_beside_detached(variance: torch.Tensor, mean: torch.Tensor) -> torch.Tensor:
    """The variance is read, but no gradient goes there."""
    return torch.where(variance > 0, mean, 2 * mean) + variance.detach().isnan()


@pytest.mark.parametrize(
    "function",
    [
        lambda a: torch.var_mean(a, 1)[0],
        lambda a: torch.cat(torch.var_mean(a, 1)),
        lambda a: torch.linalg.svd(a)[0].abs() + torch.linalg.svd(a)[2].abs(),
        lambda a: torch.linalg.eigh(a + a.mT)[1].abs(),
    ],
)
def test_what_is_used_has_its_gradient(function: Function) -> None:
    x = torch.tensor([[1.0, 2.0, 0.5], [0.25, 3.0, 1.0], [2.0, 1.5, 4.0]], dtype=torch.float64)
    compiled = thunder.jit(function, executors=[thunder_fuser.executor])
    torch.testing.assert_close(gradient(compiled, x), gradient(function, x))


def test_the_backward_of_a_mean_reads_only_the_gradients_of_means() -> None:
    compiled = thunder.jit(lambda a: torch.var_mean(a, 1)[1], executors=[thunder_fuser.executor])
    compiled(torch.ones(4, 256, requires_grad=True))
    *_, backward = thunder_fuser.fusions(compiled)
    assert backward.plan.bytes == 2 * 4 * 4
