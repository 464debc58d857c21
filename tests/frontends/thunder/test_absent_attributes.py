"""Attributes that a compiled function looks for, and members of a module that it lists."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import thunder
import torch
from torch import Tensor, nn

from tests.frontends.thunder.programs import jit


class Model(nn.Module):
    """Three parameters and a buffer, and what the programs below look for."""

    def __init__(self, program: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.program, self.options = program, SimpleNamespace()
        for k in range(3):
            self.register_parameter(f"p{2 - k}", nn.Parameter(torch.full((3,), k + 2.0)))
        self.register_buffer("mean", torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.program(self, x)


def has(self: Any, x: Tensor) -> Tensor:
    return x * 2 if hasattr(self, "scale") else x * 3


def get(self: Any, x: Tensor) -> Tensor:
    found: Tensor = x * getattr(self, "scale", 3)
    return found


def caught(self: Any, x: Tensor) -> Tensor:
    try:
        found: Tensor = x * self.scale
    except AttributeError:
        return x * 3
    return found


def of_options(self: Any, x: Tensor) -> Tensor:
    y: Tensor = x * getattr(self.options, "scale", 3)
    return y if hasattr(self.options, "other") else y + 1


def made_once(self: Any, x: Tensor) -> Tensor:
    if hasattr(self, "last"):
        return x * self.last
    self.last = x.detach() + 2
    return x if hasattr(self, "last") else x * 7


def made_and_deleted(self: Any, x: Tensor) -> Tensor:
    self.last = x * 2
    y: Tensor = self.last + 1
    del self.last
    return y * 5 if hasattr(self, "last") else y


def deleted(self: Any, x: Tensor) -> Tensor:
    if not hasattr(self, "scale"):
        return x * 3
    y: Tensor = x * self.scale
    del self.scale
    return y


def horner(self: Any, x: Tensor) -> Tensor:
    """Its value depends on the order."""
    y = x
    for parameter in self.parameters():
        y = y * x + parameter
    for _, buffer in self.named_buffers(prefix="of"):
        y = y * x + buffer
    return y


PROGRAMS = [has, get, caught, of_options, made_once, made_and_deleted, deleted, horner]


def given(self: Any) -> None:
    self.scale = self.options.scale = 5


def taken(self: Any) -> None:
    for held in (self, self.options):
        if hasattr(held, "scale"):
            del held.scale


def extended(self: Any) -> None:
    self.more = nn.Parameter(torch.full((3,), 9.0))
    self.register_buffer("another", torch.full((3,), 4.0))


def reduced(self: Any) -> None:
    del self.p1


CHANGES = [lambda self: None, given, lambda self: None, taken, extended, reduced]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_answers_are_those_of_each_call(program: Callable[[Any, Tensor], Tensor]) -> None:
    model, eager = Model(program), Model(program)
    compiled = jit(model)
    for k, change in enumerate(CHANGES):
        results = []
        for module, call in ((model, compiled), (eager, eager)):
            change(module)
            x = torch.arange(3.0).add(k).requires_grad_()
            y = call(x)
            results.append([y, *torch.autograd.grad(y.sum(), x)])
        torch.testing.assert_close(*results)
        assert vars(model).keys() == vars(eager).keys()
    assert thunder.cache_misses(compiled) <= 4


def test_a_deleted_parameter_is_refused() -> None:
    def run(self: Any, x: Tensor) -> Tensor:
        del self.p0
        return x

    model = Model(run)
    with pytest.raises(NotImplementedError, match="deletes p0, a parameter"):
        jit(model)(torch.randn(3))
    assert "p0" in model._parameters
