"""Gradients of values that are overwritten as a whole, or repeated no times: torch gives zeros, not
None.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.frontends.thunder.programs import flat, jit


def _filled(x: Tensor, y: Tensor) -> Tensor:
    z = x * 2
    z.fill_(3.0)
    return z


def _copied(x: Tensor, y: Tensor) -> Tensor:
    z = x * 2
    z.copy_(y)
    return z * y


def _through_view(x: Tensor, y: Tensor) -> Tensor:
    z = x * 2
    z.view(-1).zero_()
    return z + y


def _of_two(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    z = x * 2
    before = z * 1
    z.zero_()
    return z, before


def _unseen(x: Tensor, y: Tensor) -> Tensor:
    z = x * 2
    with torch.no_grad():
        z.copy_(y)
    return z


def _not_read(x: Tensor, y: Tensor) -> Tensor:
    z = x * 2
    z.copy_(y)
    return y * 2


PROGRAMS: dict[str, Callable[[Tensor, Tensor], object]] = {
    "filled": _filled,
    "copied": _copied,
    "through a view": _through_view,
    "of two results": _of_two,
    "without autograd": _unseen,
    "not read": _not_read,
    "repeated no times": lambda x, y: (x.repeat(0, 2), y.repeat(2, 1)),
    "slice_scatter": lambda x, y: torch.slice_scatter(x, y),
    "slice_scatter of what is computed": lambda x, y: torch.slice_scatter(x * 2, y, 1, 0, 9) * 2,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients(name: str) -> None:
    """Which are None, which are zeros, and which results require gradients."""
    program = PROGRAMS[name]

    def ran(function: Callable[..., object]) -> list[Tensor | None]:
        torch.manual_seed(0)
        x, y = torch.randn(3, 4, requires_grad=True), torch.randn(3, 4, requires_grad=True)
        results = flat(function(x, y))
        torch.autograd.backward([r.sum() for r in results if r.requires_grad])
        return [*results, x.grad, y.grad]

    for ours, eager in zip(ran(jit(program)), ran(program), strict=True):
        assert (ours is None) == (eager is None)
        if ours is not None and eager is not None:
            assert ours.requires_grad == eager.requires_grad
            torch.testing.assert_close(ours, eager)
