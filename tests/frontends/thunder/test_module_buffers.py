"""Buffers that a module assigns in its forward: averages over steps, also of submodules."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.frontends.thunder.programs import jit


class Average(torch.nn.Module):
    """Subtracts the running mean, and counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("count", torch.tensor(0))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.mean = self.mean.lerp(x.mean(0), 0.25)
            self.count = self.count + 1
        return (x - self.mean) * self.count


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("trains", [False, True])
def test_buffers_are_assigned(inside: bool, trains: bool) -> None:
    module, expected = [
        torch.nn.Sequential(torch.nn.Identity(), Average()) if inside else Average()
        for _ in range(2)
    ]
    compiled, x = jit(module), torch.arange(12.0).reshape(4, 3).requires_grad_(trains)
    for step in range(3):
        ours, theirs = compiled(x * step + 1), expected(x * step + 1)
        torch.testing.assert_close(ours, theirs)
        if trains and step:
            gradients = [torch.autograd.grad(y.sum(), x)[0] for y in (ours, theirs)]
            torch.testing.assert_close(*gradients)
    state = compiled.state_dict()
    for name, value in expected.state_dict().items():
        torch.testing.assert_close(state[name], value)
        assert not state[name].requires_grad
