"""Batch norm with `momentum=None`: results, gradients and running statistics of eager torch."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.frontends.thunder.programs import jit

MODULES: dict[str, Callable[[], nn.Module]] = {
    "1d": lambda: nn.BatchNorm1d(3, momentum=None),
    "2d": lambda: nn.Sequential(nn.Conv2d(2, 3, 1), nn.BatchNorm2d(3, momentum=None)),
    "not affine": lambda: nn.BatchNorm1d(3, momentum=None, affine=False),
    "not tracked": lambda: nn.BatchNorm1d(3, momentum=None, track_running_stats=False),
}


@pytest.mark.parametrize("name", MODULES)
def test_statistics_are_averages_of_all_batches(name: str) -> None:
    module = MODULES[name]().double()
    eager = copy.deepcopy(module)
    compiled = jit(module)
    for k in range(4):
        if k == 3:
            module.eval()
            eager.eval()
        x = torch.randn(
            (5, 2, 4, 4) if name == "2d" else (5, 3), requires_grad=True, dtype=torch.float64
        )
        found, expected = (
            outcome(call, held, x) for call, held in ((compiled, module), (eager, eager))
        )
        torch.testing.assert_close(found, expected)


def outcome(call: Callable[[Tensor], Tensor], module: nn.Module, x: Tensor) -> list[Any]:
    y = call(x)
    gradients = torch.autograd.grad(y.pow(3).sum(), [x, *module.parameters()])
    return [y, *gradients, dict(module.named_buffers())]


def test_a_momentum_that_is_set_later_is_used() -> None:
    module = nn.BatchNorm1d(3, momentum=None)
    eager = copy.deepcopy(module)
    compiled, x = jit(module), torch.randn(5, 3)
    for momentum in (None, 0.25, None):
        module.momentum = eager.momentum = momentum
        torch.testing.assert_close(compiled(x), eager(x))
        torch.testing.assert_close(dict(module.named_buffers()), dict(eager.named_buffers()))
