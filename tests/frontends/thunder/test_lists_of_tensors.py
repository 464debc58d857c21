"""Torch's functions of lists of tensors, and copies of tensors, in a compiled function."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.frontends.thunder.programs import jit

Program = Callable[[list[Tensor], list[Tensor]], Any]


def arithmetic(xs: list[Tensor], ys: list[Tensor]) -> Any:
    return (
        *torch._foreach_add(xs, ys, alpha=2),
        *torch._foreach_mul(xs, 3.0),
        *torch._foreach_sub(xs, [1.0, 2.0]),
        *torch._foreach_div(xs, ys[0].detach().sum()),
        *torch._foreach_lerp(xs, ys, 0.25),
        *torch._foreach_addcmul(xs, ys, ys, 0.5),
        *torch._foreach_addcdiv(xs, ys, torch._foreach_exp(ys), [0.5, 2.0]),
        *torch._foreach_clamp_max(torch._foreach_neg(xs), ys),
    )


def powers_and_norms(xs: list[Tensor], ys: list[Tensor]) -> Any:
    positive = torch._foreach_exp(xs)
    return (
        *torch._foreach_pow(positive, 1.5),
        *torch._foreach_pow(positive, [2.0, 3.0]),
        *torch._foreach_pow(2.0, xs),
        *torch._foreach_norm(xs),
        *torch._foreach_norm(ys, 1),
        *torch._foreach_maximum(xs, ys),
        *torch._foreach_sqrt(positive),
    )


def a_moving_average(xs: list[Tensor], ys: list[Tensor]) -> Any:
    held = [x.detach().clone() for x in xs]
    torch._foreach_mul_(held, 0.9)
    torch._foreach_add_(held, [y.detach() for y in ys], alpha=0.1)
    more = torch._foreach_sin(held)
    torch._foreach_copy_(more, [h * 2 for h in held])
    torch._foreach_addcdiv_(more, held, held, value=3.0)
    torch._foreach_zero_(held[:1])
    return *held, *more, *[x * h for x, h in zip(xs, more, strict=True)]


def clipped(xs: list[Tensor], ys: list[Tensor]) -> Any:
    # torch's own backward raises for a factor that requires a gradient.
    total = torch.stack(torch._foreach_norm(xs)).norm().detach()
    scaled = torch._foreach_mul(ys, (1.0 / (total + 1e-6)).clamp(max=1.0))
    return *scaled, *torch._foreach_mul(xs, xs)


@pytest.mark.parametrize("program", [arithmetic, powers_and_norms, a_moving_average, clipped])
def test_results_and_gradients(program: Program) -> None:
    given = [torch.randn(n, dtype=torch.float64) for n in (3, 4, 3, 4)]
    results, gradients = [], []
    for run in (jit(program), program):
        leaves = [x.clone().requires_grad_() for x in given]
        found = run(leaves[:2], leaves[2:])
        results.append([*found])
        loss = torch.stack([y.sin().sum() for y in found if y.requires_grad]).sum()
        loss.backward()
        gradients.append([x.grad for x in leaves])
    torch.testing.assert_close(*results)
    torch.testing.assert_close(*gradients)


def test_arguments_are_updated() -> None:
    def program(xs: list[Tensor]) -> None:
        torch._foreach_mul_(xs, 0.5)
        torch._foreach_add_(xs, 1)

    ours, theirs = ([torch.arange(3.0), torch.ones(2)] for _ in range(2))
    run = jit(program)
    for _ in range(2):
        run(ours)
        program(theirs)
        torch.testing.assert_close(ours, theirs)


def test_a_copy_of_a_tensor_is_its_own() -> None:
    def program(x: Tensor) -> Any:
        held = copy.deepcopy({"x": x.detach(), "n": [1, 2]})
        held["x"] += 1
        same = copy.copy(x)
        return x * held["x"], held, same + 1, copy.copy([same, 1])

    run = jit(program)
    for k in range(2):
        x = torch.arange(3.0) + k
        torch.testing.assert_close(run(x), program(x.clone()))
        torch.testing.assert_close(x, torch.arange(3.0) + k)


def test_a_copy_of_what_has_a_history_is_refused() -> None:
    def program(x: Tensor) -> Any:
        return copy.deepcopy(x * 2)

    with pytest.raises(NotImplementedError, match="copies are no leaves"):
        jit(program)(torch.ones(3, requires_grad=True))


def test_gradients_are_clipped_by_their_total_norm() -> None:
    """torch groups the tensors by device and dtype first."""

    def program(xs: list[Tensor]) -> Any:
        total = torch.nn.utils.get_total_norm(xs)
        largest = torch.nn.utils.get_total_norm(xs, float("inf"), foreach=True)
        torch.nn.utils.clip_grads_with_norm_(xs, 1.0, total)
        return total, largest, *xs

    given = [torch.randn(3), torch.randn(2, dtype=torch.float64), torch.randn(4)]
    found, expected = (run([x.clone() for x in given]) for run in (jit(program), program))
    torch.testing.assert_close(found, expected)
