"""Conversions of modules in a traced function: of those that are converted, and of others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import thunder
import torch
from torch import Tensor, nn

from tests.frontends.thunder.programs import jit


class Converting(nn.Module):
    """A layer that is converted at each call and assigned again, as NLLB-MoE's classifier is."""

    def __init__(self, convert: Callable[[nn.Module, Tensor], Any]) -> None:
        super().__init__()
        self.convert, self.layer = convert, nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))

    def forward(self, x: Tensor) -> Tensor:
        self.layer = self.convert(self.layer, x)
        return self.layer(x) * 2


NOTHING: dict[str, Callable[[nn.Module, Tensor], Any]] = {
    "a dtype": lambda m, x: m.to(x.dtype),
    "its dtype": lambda m, x: m.to(m[0].weight.dtype),
    "a device": lambda m, x: m.to(x.device),
    "a tensor": lambda m, x: m.to(x),
    "both": lambda m, x: m.to(device="cpu", dtype=torch.float32),
    "a name": lambda m, x: m.to("cpu"),
    "float": lambda m, x: m.float(),
}
SOMETHING: dict[str, Callable[[nn.Module, Tensor], Any]] = {
    "to": lambda m, x: m.to(torch.float64),
    "double": lambda m, x: m.double(),
    "bfloat16": lambda m, x: m.bfloat16(),
}


@pytest.mark.parametrize("name", NOTHING)
def test_a_conversion_that_changes_nothing(name: str) -> None:
    model, x = Converting(NOTHING[name]), torch.randn(4, 3)
    compiled, layer = jit(model), model.layer
    for _ in range(2):
        found = compiled(x)
    assert model.layer is layer
    assert thunder.cache_misses(compiled) == 1
    found.sum().backward()
    assert model.layer[0].weight.grad is not None
    torch.testing.assert_close(found, model(x))


def test_another_dtype_is_compiled_again() -> None:
    model, x = Converting(NOTHING["its dtype"]), torch.randn(4, 3)
    compiled = jit(model)
    compiled(x)
    model.double()
    torch.testing.assert_close(compiled(x.double()), model(x.double()))


@pytest.mark.parametrize("name", SOMETHING)
def test_a_conversion_of_the_caller_s_tensors_is_refused(name: str) -> None:
    model = Converting(SOMETHING[name])
    with pytest.raises(NotImplementedError, match=rf"Sequential\.{name} in a compiled function"):
        jit(model)(torch.randn(4, 3))
    assert model.layer[0].weight.dtype == torch.float32


def test_another_submodule_is_not_left_out() -> None:
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    model = Converting(lambda m, x: second)
    model.layer = first
    with pytest.raises(NotImplementedError, match="_modules"):
        jit(model)(torch.randn(4, 3))
