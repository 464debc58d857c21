"""Errors of torch's calls that the program catches: what it does next is recorded as ever."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.frontends.thunder.aliasing import interpreted
from tests.frontends.thunder.programs import jit

CALLS: dict[str, Callable[[Tensor], Any]] = {
    "product": lambda x: x @ torch.ones(9, 9),
    "view": lambda x: x.unsqueeze(9),
    "cat": lambda x: torch.cat([x, x.sum()], 0),
    "norm": lambda x: F.layer_norm(x, (17,)),
    "convolution": lambda x: F.conv1d(x[None], torch.ones(2, 9, 3)),
    "reshape": lambda x: x.mul(2).reshape(5, 7),
    "change of a shape": lambda x: x.mul(2).unsqueeze_(9),
}


@pytest.mark.parametrize("differentiated", [False, True])
@pytest.mark.parametrize("name", CALLS)
def test_the_program_goes_on(name: str, differentiated: bool) -> None:
    def program(x: Tensor) -> Any:
        y = x * 3
        try:
            y = CALLS[name](y)
        except (RuntimeError, IndexError, ValueError):
            y.mul_(2)
        return y.sin() + 1

    x = torch.randn(3, 4, requires_grad=differentiated)
    with interpreted():
        ours, eager = jit(program)(x), program(x)
    torch.testing.assert_close(ours, eager)
    if differentiated:
        found, expected = (torch.autograd.grad(t.sum(), x)[0] for t in (ours, eager))
        torch.testing.assert_close(found, expected)
