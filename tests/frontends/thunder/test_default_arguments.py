"""Default arguments that are tensors, modules, or objects that can change, as in Python."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import thunder
import torch

from tests.frontends.thunder.programs import jit

SCALE = torch.tensor([1.0, 2.0])
LAYER = torch.nn.Linear(2, 2)
X = torch.tensor([3.0, 5.0])


def positional(x: torch.Tensor, scale: torch.Tensor = SCALE) -> torch.Tensor:
    return x * scale


def keyword(x: torch.Tensor, *, scale: torch.Tensor = SCALE) -> torch.Tensor:
    return x * scale


def collected(x: torch.Tensor, given: Any = ({"scale": SCALE}, [2.0])) -> torch.Tensor:
    return x * given[0]["scale"] * given[1][0]


def layered(x: torch.Tensor, layer: torch.nn.Module = LAYER) -> torch.Tensor:
    return layer(x)  # type: ignore[no-any-return]


def unread(x: torch.Tensor, scale: torch.Tensor = SCALE, factor: float = 1.5) -> torch.Tensor:
    return x * factor


class Scaled(torch.nn.Module):
    def forward(self, x: torch.Tensor, scale: torch.Tensor = SCALE) -> torch.Tensor:
        return self.scaled(x) + self.of_class(x, scale=scale)

    def scaled(self, x: torch.Tensor, scale: torch.Tensor = SCALE) -> torch.Tensor:
        return x * scale

    @classmethod
    def of_class(cls, x: torch.Tensor, *, scale: torch.Tensor = SCALE) -> torch.Tensor:
        return x * scale


@pytest.mark.parametrize(
    "function",
    [
        *(positional, keyword, collected, layered, unread),
        lambda x: positional(x) + keyword(x),
        lambda x: positional(x, x) + keyword(x, scale=x),
        lambda x, scale=SCALE: (lambda y, inner=scale: y * inner)(x),
        functools.partial(positional, scale=SCALE * 2),
        functools.partial(positional, X),
        Scaled(),
        Scaled().scaled,
    ],
)
def test_each_call_reads_default_arguments(function: Callable[..., torch.Tensor]) -> None:
    compiled = jit(function)
    given = () if isinstance(function, functools.partial) and function.args else (X,)
    torch.testing.assert_close(compiled(*given), function(*given))
    SCALE.add_(1)
    try:
        torch.testing.assert_close(compiled(*given), function(*given))
    finally:
        SCALE.sub_(1)
    assert thunder.cache_misses(compiled) == 1


class Options:
    """What default arguments hold, and what a caller changes between calls."""

    def __init__(self) -> None:
        self.scale = 2.0
        self.held = SCALE


NUMBERS: list[float] = [2.0, 3.0]
NESTED: list[Any] = [1.0, {"a": [{"b": 2.0}]}]
NAMED: dict[str, float] = {"alpha": 2.0}
OPTIONS = Options()
TRIPLE = functools.partial(torch.add, alpha=3)
SHAPE = torch.Size([3, 1])


def _change(factor: float, *more: float) -> None:
    NUMBERS[:] = [2.0 * factor, 3.0, *more]
    NESTED[1]["a"][0]["b"] = 2.0 * factor
    NAMED.clear()
    NAMED.update(alpha=2.0 * factor, **({"beta": factor} if more else {}))
    OPTIONS.scale = 2.0 * factor


def by_numbers(x: torch.Tensor, by: list[float] = NUMBERS) -> torch.Tensor:
    return x * by[0]


class Configured(torch.nn.Module):
    def forward(self, x: torch.Tensor, *, by: Any = NESTED, more: Any = OPTIONS) -> torch.Tensor:
        return x * by[1]["a"][0]["b"] + self.plus(x) * more.scale

    def plus(self, x: torch.Tensor, by: list[float] = NUMBERS) -> torch.Tensor:
        return x * len(by)


class Memo:
    def scaled(self, x: torch.Tensor, by: dict[str, float] = NAMED) -> torch.Tensor:
        return x * sum(by.values())


@pytest.mark.parametrize(
    "function",
    [
        *(by_numbers, Configured(), Memo().scaled),
        lambda x: by_numbers(x) + Memo().scaled(x) + Configured()(x),
        lambda x, by=NUMBERS: x * sum(by),
        lambda x, by=NESTED: x * by[1]["a"][0]["b"],
        lambda x, by=NAMED: x * by["alpha"] + by.get("beta", 1.0),
        lambda x, by=NAMED: torch.add(x, x, alpha=by["alpha"]) * len(by),
        lambda x, *, by=(1, NAMED): x * by[1]["alpha"],
        lambda x, by=OPTIONS: x * by.scale * by.held,
        lambda x, add=TRIPLE: add(x, x),
        lambda x, shape=SHAPE: x.expand(shape[0], 2),
        lambda x: (lambda y, held=[x * 2], by=NUMBERS: y * held[0] * by[0])(x),
    ],
)
def test_default_arguments_that_change(function: Callable[..., torch.Tensor]) -> None:
    """They were constants, and most of those with a dictionary raised."""
    compiled = jit(function)
    try:
        for changes in ((1.0,), (2.0,), (2.0, 7.0), (1.0,)):
            _change(*changes)
            torch.testing.assert_close(compiled(X), function(X))
    finally:
        _change(1.0)


def test_a_default_argument_that_the_program_fills() -> None:
    calls = []
    for run in (jit, lambda function: function):
        kept: dict[str, torch.Tensor] = {}

        def memo(x: torch.Tensor, kept: dict[str, torch.Tensor] = kept) -> torch.Tensor:
            if "scale" not in kept:
                kept["scale"] = x * 2
            return x * kept["scale"]

        function = run(memo)
        calls.append([function(X), function(X + 1), kept["scale"]])
    torch.testing.assert_close(*calls)


class Made:
    def __init__(self, held: torch.Tensor) -> None:
        self.held = held

    def scaled(self, x: torch.Tensor, scale: torch.Tensor = SCALE) -> torch.Tensor:
        return x * scale + self.held

    @staticmethod
    def static(x: torch.Tensor, *, scale: torch.Tensor = SCALE) -> torch.Tensor:
        return x * scale

    def of_list(self, x: torch.Tensor, scales: Any = (1, [SCALE])) -> torch.Tensor:
        return x * scales[1][0]


class Derived(Made):
    def scaled(self, x: torch.Tensor, scale: torch.Tensor = SCALE) -> torch.Tensor:
        return super().scaled(x) + super().scaled(x, scale * 2)


class Layer(torch.nn.Module):
    def forward(self, x: torch.Tensor, scale: torch.Tensor = SCALE) -> torch.Tensor:
        return x * scale


@pytest.mark.parametrize(
    "function",
    [
        lambda x: Made(x).scaled(x) + Made(x).scaled(x, x),
        lambda x: Made(x).static(x) + Made.static(x, scale=x),
        lambda x: Made(x).of_list(x),
        lambda x: Derived(x).scaled(x),
        lambda x: functools.partial(Made(x).scaled, scale=x)(x) + sum(map(Made(x).scaled, [x, x])),
        lambda x: torch.nn.Sequential(Layer(), Layer())(x),
    ],
)
def test_objects_that_the_program_makes(function: Callable[..., torch.Tensor]) -> None:
    """Their methods raised: a prologue cannot read an object that there is not yet."""
    test_each_call_reads_default_arguments(function)


def test_a_default_argument_that_is_replaced() -> None:
    def scaled(x: torch.Tensor, scale: torch.Tensor = SCALE) -> torch.Tensor:
        return x * scale

    compiled = jit(scaled)
    compiled(X)
    for other in (SCALE * 3, torch.tensor(2.0), 4.0):
        scaled.__defaults__ = (other,)
        torch.testing.assert_close(compiled(X), X * other)


def test_a_parameter_as_default_argument_gets_its_gradient() -> None:
    weight = torch.nn.Parameter(SCALE.clone())

    def weighted(x: torch.Tensor, weight: torch.Tensor = weight) -> torch.Tensor:
        return (x * weight).sum()

    jit(weighted)(X).backward()
    assert weight.grad is not None
    assert torch.equal(weight.grad, X)
