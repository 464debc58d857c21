"""Operations without a derivative raise where a gradient reaches them, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.frontends.thunder.programs import jit

CALLS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "nextafter": torch.nextafter,
    "heaviside": torch.heaviside,
    "igamma": lambda x, y: torch.igamma(x.abs(), y.abs()),
    "zeta": lambda x, y: torch.special.zeta(x.abs() + 2, y.abs() + 1),
}


@pytest.mark.parametrize("name", CALLS)
def test_the_error_is_raised_in_backward(name: str) -> None:
    x, y = (torch.randn(5, requires_grad=True) for _ in range(2))
    result = jit(CALLS[name])(x, y)
    assert torch.equal(result, CALLS[name](x, y))
    with pytest.raises(RuntimeError, match=f"{name}.* is not implemented"):
        result.sum().backward()


@pytest.mark.parametrize("name", CALLS)
def test_others_have_gradients(name: str) -> None:
    def program(x: Tensor, y: Tensor) -> Tensor:
        return torch.where(CALLS[name](x, y) > 0.5, x, y) + CALLS[name](x, y).detach()

    x, y = (torch.randn(5, requires_grad=True) for _ in range(2))
    gradients = [torch.autograd.grad(f(x, y).sum(), (x, y)) for f in (jit(program), program)]
    torch.testing.assert_close(*gradients, rtol=0, atol=0)


def test_zeta_has_a_derivative_by_its_second_operand() -> None:
    x, y = torch.rand(5) + 2, (torch.rand(5) + 1).requires_grad_()
    found, expected = (f(x, y) for f in (jit(torch.special.zeta), torch.special.zeta))
    gradients = [torch.autograd.grad(r.sum(), y) for r in (found, expected)]
    torch.testing.assert_close(*gradients)
