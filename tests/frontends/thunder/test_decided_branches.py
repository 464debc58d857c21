"""Branches on comparisons of random numbers: one result for all draws, or an error."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from tests.frontends.thunder.programs import Program, jit

DECIDED: dict[str, Program] = {
    "less than 0": lambda x: torch.rand([]) < 0.0,
    "one element": lambda x: torch.rand(1) < 0,
    "at least 0": lambda x: torch.rand_like(x[:1]) >= 0,
    "at most 1": lambda x: torch.rand(()) <= 1,
    "at least 1": lambda x: torch.rand([]) >= 1.0,
    "more than -1": lambda x: torch.rand([]) > -1,
}
OPEN: dict[str, Program] = {
    "less than .5": lambda x: torch.rand([]) < 0.5,
    "more than 0": lambda x: torch.rand([]) > 0,
    "normal": lambda x: torch.randn([]) < 0,
    "two elements": lambda x: torch.rand(2) < 0,
    "an argument": lambda x: x[0] < 0,
}


@pytest.mark.parametrize("name", DECIDED)
def test_comparisons_that_no_draw_changes(name: str) -> None:
    def program(x: Tensor) -> Tensor:
        return x * 2 if DECIDED[name](x) else x * 3

    x = torch.ones(3)
    assert torch.equal(jit(program)(x), program(x))


@pytest.mark.parametrize("name", OPEN)
def test_comparisons_that_numbers_decide(name: str) -> None:
    with pytest.raises(NotImplementedError, match="data dependency"):
        jit(lambda x: x * 2 if OPEN[name](x) else x * 3)(torch.ones(3))


class Layers(nn.Module):
    """Layers of which some are left out in training."""

    def __init__(self, layerdrop: float) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
        self.layerdrop = layerdrop

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            if self.training and torch.rand([]) < self.layerdrop:
                continue
            x = x + layer(x).relu()
        return x


def test_layers_that_are_never_left_out() -> None:
    module, x = Layers(0.0), torch.randn(2, 4)
    compiled = jit(module)
    torch.testing.assert_close(compiled(x), module(x))
    module.layerdrop = 0.5
    with pytest.raises(NotImplementedError, match="data dependency"):
        compiled(x)
    compiled.eval()
    torch.testing.assert_close(compiled(x), module(x))
