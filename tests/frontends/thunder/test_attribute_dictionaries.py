"""Names that a program looks for in dictionaries of attributes and of a module's members."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import thunder
import torch
from torch import Tensor, nn

from tests.frontends.thunder.programs import jit

Program = Callable[[Any, Tensor], Tensor]


class Model(nn.Module):
    def __init__(self, program: Program) -> None:
        super().__init__()
        self.program, self.options, self.inner = program, SimpleNamespace(scale=2), nn.Linear(3, 3)
        self.register_buffer("mean", torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.program(self, x)


def names(self: Any, x: Tensor) -> Tensor:
    for k, (name, value) in enumerate(vars(self.options).items()):
        x = x * (k + len(name)) + value
    return x


def members(self: Any, x: Tensor) -> Tensor:
    for buffer in self._buffers.values():
        x = x * 2 + buffer
    return x


def set_and_looked_for(self: Any, x: Tensor) -> Tensor:
    found = "last" in self.__dict__
    self.last = 4
    return x * 2 if "last" in self.__dict__ and not found else x


PROGRAMS: dict[str, Program] = {
    "in __dict__": lambda self, x: x * 2 if "extra" in self.__dict__ else x * 3,
    "not in vars": lambda self, x: x * 2 if "extra" not in vars(self.options) else x * 3,
    "get of __dict__": lambda self, x: x * self.options.__dict__.get("extra", 3),
    "get of vars": lambda self, x: x * vars(self).get("extra", 3),
    "length": lambda self, x: x * len(vars(self.options)),
    "in parameters": lambda self, x: x * 2 if "weight" in self._parameters else x * 3,
    "in submodules": lambda self, x: self.inner(x) if "other" in self._modules else x * 3,
    "all names": names,
    "all members": members,
    "set by the program": set_and_looked_for,
}


def extend(self: Any) -> None:
    self.extra = self.options.extra = 5
    self.weight, self.other = nn.Parameter(torch.ones(3)), nn.Tanh()
    self.register_buffer("another", torch.full((3,), 4.0))


def change(self: Any) -> None:
    self.extra = self.options.extra = 7


def reduce(self: Any) -> None:
    del self.extra, self.options.extra, self.weight, self.other, self.another


@pytest.mark.parametrize("name", PROGRAMS)
def test_answers_are_those_of_each_call(name: str) -> None:
    model = Model(PROGRAMS[name])
    compiled = jit(model)
    for k, step in enumerate((None, extend, change, reduce, None)):
        if step is not None:
            step(model)
        x, held = torch.arange(3.0) + k, dict(vars(model))
        found = compiled(x)
        vars(model).clear()
        vars(model).update(held)
        assert torch.equal(found, model(x)), step
    # `reduce` leaves what there was, but for what the program itself sets.
    assert thunder.cache_misses(compiled) <= 4


def test_torch_looks_for_members_without_guards() -> None:
    model = nn.Sequential(*(nn.Linear(3, 3) for _ in range(3)))
    compiled = jit(model)
    compiled(torch.ones(3))
    assert " in _" not in str(thunder.last_prologue_traces(compiled)[-1])
