"""Loops over lists and tuples take one step an element; results and checks are as before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import thunder
import torch
from thunder.core import interpreter

from tests.frontends.thunder.programs import jit
from thunder_fuser.frontends.thunder.patches import iterators

FACTORS = [2.0, 3.0, 5.0]


def of_a_list(x: torch.Tensor, given: list[Any]) -> torch.Tensor:
    for factor in FACTORS:
        x = x * factor
    for tensor in given:
        x = x + tensor
    return x


def of_unpacking(x: torch.Tensor, given: list[Any]) -> torch.Tensor:
    (first, [second, third]), fourth = (given[0], given[1:]), 7.0
    return x * first + second * third + fourth


def of_a_wrong_number(x: torch.Tensor, given: list[Any]) -> torch.Tensor:
    try:
        first, second = given
        return first + second
    except ValueError as few_or_many:
        return x * len(str(few_or_many))


def of_next(x: torch.Tensor, given: list[Any]) -> torch.Tensor:
    rest = iter(given)
    x = x * next(rest) + next(rest)
    x = x + next(rest, 2.0) * next(rest, 3.0)
    try:
        return x * next(rest)
    except StopIteration:
        return x - 1


def of_a_list_that_grows(x: torch.Tensor, given: list[Any]) -> torch.Tensor:
    seen = [x]
    for tensor in seen:
        if len(seen) < 4:
            seen.append(tensor * 2)
    return seen[-1] + len(seen)


def of_nothing(x: torch.Tensor, given: list[Any]) -> torch.Tensor:
    for tensor in ():
        x = x + tensor
    return x * 2


def backwards(x: torch.Tensor, given: list[Any]) -> torch.Tensor:
    for factor in reversed(FACTORS):
        x = x * factor + 1
    return x


def of_two_at_once(x: torch.Tensor, given: list[Any]) -> torch.Tensor:
    for k, (factor, tensor) in enumerate(zip(FACTORS, given, strict=True)):
        x = x + k * factor * tensor
    return x


def of_a_shape(x: torch.Tensor, given: list[Any]) -> torch.Tensor:
    a, b = x.shape
    return x.reshape(b, a)


PROGRAMS = [
    *(of_a_list, of_unpacking, of_a_wrong_number, of_next, of_a_list_that_grows, of_nothing),
    *(backwards, of_two_at_once, of_a_shape),
]


def traced(function: Callable[..., torch.Tensor], *given: Any) -> tuple[list[str], torch.Tensor]:
    """Lines of what checks the inputs and of what is computed, without times; and the result."""
    compiled = jit(function)
    found = compiled(*given)
    texts = (thunder.last_prologue_traces(compiled)[-1], thunder.last_traces(compiled)[0])
    lines = [line for text in texts for line in str(text).splitlines()]
    return [line for line in lines if not line.startswith("#")], found


@pytest.mark.parametrize("function", PROGRAMS, ids=lambda f: f.__name__)
def test_inputs_are_checked_and_computed_with_as_before(
    function: Callable[..., torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.arange(6.0).reshape(2, 3)
    given = [torch.full((2, 3), k) for k in (1.0, 2.0, 3.0)]
    lines, found = traced(function, x, given)
    assert torch.equal(found, function(x, given))
    monkeypatch.setitem(interpreter._default_lookaside_map, next, iterators._original)
    before, same = traced(function, x, given)
    assert lines == before
    assert torch.equal(found, same)


def test_other_functions_of_thunder_are_traced_by_its_own_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[object] = []

    def original(iterator: object, *default: object) -> object:
        asked.append(iterator)
        return kept(iterator, *default)

    kept = iterators._original
    monkeypatch.setattr(iterators, "_original", original)
    given = [torch.ones(3)]
    thunder.jit(of_a_list, executors=[])(torch.ones(3), given)
    assert asked
    asked.clear()
    jit(of_a_list)(torch.ones(3), given)
    assert asked == []
