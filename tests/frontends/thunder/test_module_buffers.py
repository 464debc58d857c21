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


class Positions(torch.nn.Module):
    """Makes its positions when they are first needed."""

    def __init__(self, is_declared: bool, is_registered: bool) -> None:
        super().__init__()
        self.is_registered = is_registered
        self.scale = torch.nn.Parameter(torch.ones(()))
        if is_declared:
            self.register_buffer("positions", None, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        held = getattr(self, "positions", None)
        if held is None or held.shape[0] < x.shape[0]:
            made = torch.arange(x.shape[0]) * 2.0
            if self.is_registered:
                self.register_buffer("positions", made, persistent=False)
            else:
                self.positions = made
        return x * self.scale + self.positions[: x.shape[0]]


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize(
    ("is_declared", "is_registered"), [(True, True), (True, False), (False, True)]
)
def test_a_buffer_that_is_none_or_absent_is_made_by_the_first_call(
    is_declared: bool, is_registered: bool, inside: bool
) -> None:
    """It raised an AttributeError or a KeyError."""
    models = [Positions(is_declared, is_registered) for _ in range(2)]
    module, expected = [torch.nn.Sequential(m) if inside else m for m in models]
    compiled = jit(module)
    for size in (3, 3, 2, 4):
        for function in (compiled, expected):
            function(torch.ones(size)).sum().backward()
        torch.testing.assert_close(compiled(torch.ones(size)), expected(torch.ones(size)))
    ours, theirs = models
    assert torch.equal(ours.positions, theirs.positions)
    assert not ours.positions.requires_grad
    assert torch.equal(ours.scale.grad, theirs.scale.grad)  # type: ignore[arg-type]
    assert module.state_dict().keys() == expected.state_dict().keys()
