"""Modules with symbolic values: sizes of parameters are constants, those of inputs are not."""

from __future__ import annotations

import copy

import pytest
import thunder
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.frontends.thunder.programs import as_double, assert_as_good_as_eager, jit


class Norm(nn.Module):
    """Parameters, a buffer, a number and a string."""

    def __init__(self, width: int = 6, mode: str = "mean") -> None:
        super().__init__()
        self.linear, self.mode, self.eps = nn.Linear(width, width), mode, 0.25
        self.weight = nn.Parameter(torch.rand(width))
        self.register_buffer("shift", torch.randn(width))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.linear(x)) / (self.weight + self.eps) + self.shift
        return x.sum(0) if self.mode != "mean" else x.mean(0)


@pytest.mark.filterwarnings("ignore:The 'symbolic values' cache option")
@pytest.mark.parametrize("mode", ["mean", "sum"])
def test_batches_of_two_sizes_run_one_program(mode: str) -> None:
    module = Norm(mode=mode)
    eager, exact = copy.deepcopy(module), copy.deepcopy(module).double()
    compiled = jit(module, cache="symbolic values")
    for batch in (4, 7):
        x = torch.randn(batch, 6)
        results = [net(y) for net, y in ((compiled, x), (eager, x), (exact, as_double(x)))]
        assert_as_good_as_eager(*results, f"result of {batch}")
        for result in results:
            result.sum().backward()
    assert thunder.cache_misses(compiled) == 1
    named = [dict(net.named_parameters()) for net in (module, eager, exact)]
    for name in named[0]:
        assert_as_good_as_eager(*(p[name].grad for p in named), f"gradient of {name}")


@pytest.mark.filterwarnings("ignore:The 'symbolic values' cache option")
def test_a_parameter_of_another_size_is_another_program() -> None:
    module = Norm()
    compiled = jit(module, cache="symbolic values")
    x = torch.randn(4, 6)
    torch.testing.assert_close(compiled(x), module(x))
    with torch.no_grad():
        compiled.get_parameter("weight").data = torch.rand(1)
    torch.testing.assert_close(compiled(x), Norm.forward(compiled, x))


@pytest.mark.filterwarnings("ignore:The 'symbolic values' cache option")
def test_a_convolution() -> None:
    """It compares its padding mode with a string."""
    module = nn.Conv2d(3, 2, 3, padding=1)
    compiled = jit(module, cache="symbolic values")
    for batch in (2, 3):
        x = torch.randn(batch, 3, 5, 5)
        torch.testing.assert_close(compiled(x), F.conv2d(x, module.weight, module.bias, padding=1))
