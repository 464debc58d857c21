"""Attributes of objects whose class looks them up by a `__getattribute__` of its own."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import pytest
import thunder
import torch
from torch import Tensor

from tests.frontends.thunder.programs import jit


class Config:
    """A configuration that has two names for some attributes, as in the transformers library."""

    attribute_map: ClassVar[dict[str, str]] = {"num_hidden_layers": "n_layers"}

    def __init__(self) -> None:
        self.n_layers = 3
        self.scale = 2.0

    def __getattribute__(self, key: str) -> Any:
        renamed = super().__getattribute__("attribute_map")
        if key != "attribute_map" and key in renamed:
            key = renamed[key]
        return super().__getattribute__(key)


class Falling(Config):
    """A configuration that makes up what it does not find."""

    def __getattr__(self, key: str) -> Any:
        if key == "eps":
            return 1e-5
        raise AttributeError(key)


class Stack(torch.nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.weight = torch.nn.Parameter(torch.linspace(0.5, 1.5, 3))

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(self.config.num_hidden_layers):
            x = torch.sin(x * self.weight) * self.config.scale
        if hasattr(self.config, "num_hidden_layers") and not hasattr(self.config, "missing"):
            x = x + getattr(self.config, "eps", 1)
        return x


def test_renamed_attributes_are_read_and_guarded() -> None:
    for kind in (Config, Falling):
        net = Stack(kind())
        compiled, x = jit(net), torch.randn(3)
        for name, value in (("n_layers", 3), ("n_layers", 2), ("scale", 0.5), ("n_layers", 2)):
            setattr(net.config, name, value)
            torch.testing.assert_close(compiled(x), net(x))
        assert thunder.cache_misses(compiled) == 3


class Plain:
    pass


class Making:
    def __getattr__(self, key: str) -> Any:
        raise AttributeError(key)


ABSENT: dict[str, Any] = {
    "an object": Plain(),
    "None": None,
    "a class": Plain,
    "a module": math,
    "an object that makes attributes": Making(),
}


@pytest.mark.parametrize("name", ABSENT)
def test_an_attribute_that_is_not_there_raises_in_the_words_of_python(name: str) -> None:
    held = ABSENT[name]

    def program(x: Tensor) -> Tensor:
        return x * held.scale

    with pytest.raises(AttributeError) as expected:
        program(torch.ones(3))
    with pytest.raises(AttributeError) as found:
        jit(program)(torch.ones(3))
    assert str(found.value) == str(expected.value)
