"""Operators of other libraries than torch, made by `torch.library`: a call each, with gradients."""

from __future__ import annotations

from typing import Any

import pytest
import thunder
import torch
from torch import Tensor

import thunder_fuser

LIBRARY = "thunder_fuser_tests"


@torch.library.custom_op(f"{LIBRARY}::scaled_sine", mutates_args=())
def scaled_sine(x: Tensor, scale: float) -> Tensor:
    return torch.sin(x) * scale


@scaled_sine.register_fake
def _(x: Tensor, scale: float) -> Tensor:
    return torch.empty_like(x)


def _keep(ctx: Any, inputs: tuple[Tensor, float], output: Tensor) -> None:
    ctx.save_for_backward(inputs[0])
    ctx.scale = inputs[1]


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
    (x,) = ctx.saved_tensors
    return gradient * x.cos() * ctx.scale, None


scaled_sine.register_autograd(_backward, setup_context=_keep)


@torch.library.custom_op(f"{LIBRARY}::halves", mutates_args=())
def halves(parts: list[Tensor], at: int = 1) -> tuple[Tensor, Tensor]:
    whole = torch.cat(parts)
    return whole[:at].clone(), whole[at:].clone()


@halves.register_fake
def _(parts: list[Tensor], at: int = 1) -> tuple[Tensor, Tensor]:
    whole = torch.cat(parts)
    return whole[:at].clone(), whole[at:].clone()


@torch.library.custom_op(f"{LIBRARY}::increment", mutates_args=("x",))
def increment(x: Tensor) -> None:
    x.add_(1)


@torch.library.custom_op(f"{LIBRARY}::positive", mutates_args=())
def positive(x: Tensor) -> Tensor:
    return x[x > 0]


@positive.register_fake
def _(x: Tensor) -> Tensor:
    return x.new_empty(torch.library.get_ctx().new_dynamic_size())


@torch.library.custom_op(f"{LIBRARY}::unknown", mutates_args=())
def unknown(x: Tensor) -> Tensor:
    return x * 2


@torch.library.custom_op(
    f"{LIBRARY}::noise", mutates_args=(), tags=(torch.Tag.nondeterministic_seeded,)
)
def noise(x: Tensor) -> Tensor:
    return torch.randn_like(x)


@noise.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


OPERATORS = torch.ops.thunder_fuser_tests


@pytest.mark.parametrize(
    "operator", [scaled_sine, OPERATORS.scaled_sine, OPERATORS.scaled_sine.default], ids=str
)
def test_an_operator_is_one_call_with_its_gradient(operator: Any) -> None:
    def program(x: Tensor) -> Tensor:
        return operator(x * 2, 3.0) + operator(x, scale=0.5)

    compiled = thunder.jit(program, executors=[thunder_fuser.executor])
    for shape in ((4, 5), (3,)):
        x = torch.randn(shape, requires_grad=True)
        found, expected = compiled(x), program(x)
        torch.testing.assert_close(found, expected)
        gradients = [torch.autograd.grad(y.sum(), x) for y in (found, expected)]
        torch.testing.assert_close(*gradients)
    assert sum(len(report.kernels) for report in thunder_fuser.fusions(compiled)) >= 1


def test_lists_defaults_and_several_results() -> None:
    def program(x: Tensor, y: Tensor) -> list[Tensor]:
        return [part * 2 for part in (*halves([x + 1, y]), *halves([y], at=2))]

    compiled = thunder.jit(program, executors=[thunder_fuser.executor])
    inputs = torch.randn(3), torch.randn(4)
    torch.testing.assert_close(compiled(*inputs), program(*inputs))


@pytest.mark.parametrize(
    ("operator", "reason"),
    [
        (increment, "thunder_fuser_tests.increment: the operator updates its operands"),
        (noise, "thunder_fuser_tests.noise: the operator draws random numbers"),
        (positive, "the size of its result depends on the numbers in its operands"),
        (unknown, "register_fake"),
    ],
    ids=["updates", "draws", "size", "no fake"],
)
def test_other_operators_are_refused(operator: Any, reason: str) -> None:
    compiled = thunder.jit(lambda x: (operator(x), x + 1)[1], executors=[thunder_fuser.executor])
    x = torch.ones(3)
    with pytest.raises((NotImplementedError, RuntimeError), match=reason):
        compiled(x)
    assert x.eq(1).all()
