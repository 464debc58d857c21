"""Functions of torch that are interpreted: interpolations of other modes, profiler ranges."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.frontends.thunder.programs import jit

OPTIONS: dict[str, dict[str, Any]] = {
    "area": {"size": (5, 7), "mode": "area"},
    "area, a factor": {"scale_factor": 2, "mode": "area"},
    "bicubic": {"size": (5, 7), "mode": "bicubic"},
    "bicubic, factors": {"scale_factor": (1.5, 2.0), "mode": "bicubic", "align_corners": True},
    "bicubic, antialiased": {"size": (3, 4), "mode": "bicubic", "antialias": True},
    "bilinear, antialiased": {"size": (3, 4), "mode": "bilinear", "antialias": True},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_interpolations(name: str) -> None:
    def run(x: Tensor) -> Tensor:
        return F.interpolate(x.sin(), **OPTIONS[name]) * 2

    results = []
    for function in (jit(run), run):
        x = torch.arange(96.0).reshape(1, 2, 8, 6).requires_grad_()
        y = function(x)
        results.append([y, *torch.autograd.grad(y.square().sum(), x)])
    torch.testing.assert_close(*results)


def test_ranges_of_the_profiler() -> None:
    def run(x: Tensor) -> Tensor:
        with torch.profiler.record_function("first"):
            y = x * 2
        with torch.autograd.profiler.record_function("second"):
            return y.sin()

    x = torch.randn(5)
    compiled: Callable[[Tensor], Tensor] = jit(run)
    torch.testing.assert_close(compiled(x), run(x))
