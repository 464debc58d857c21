"""Programs that depend on how many elements a container has, or on its keys."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import thunder
import torch
from torch import Tensor

from tests.frontends.thunder.programs import jit

A, B, C = (torch.full((3,), value) for value in (1.0, 2.0, 4.0))
SHIFTS = [A]
NESTED = {"shifts": [A]}


def loop(x: Tensor, given: Any) -> Tensor:
    for t in given:
        x = x * 2 + t
    return x


def length(x: Tensor, given: Any) -> Tensor:
    return x * len(given)


def last(x: Tensor, given: Any) -> Tensor:
    return x + given[-1]


def rest(x: Tensor, given: Any) -> Tensor:
    first, *others = given
    return x + first * 2 + len(others)


def stacked(x: Tensor, given: Any) -> Tensor:
    return torch.stack(given).sum(0) + x


def values(x: Tensor, given: Any) -> Tensor:
    for value in given.values():
        x = x * 2 + value
    return x


def membership(x: Tensor, given: Any) -> Tensor:
    return x + given["b"] if "b" in given else x


def inner(x: Tensor, given: Any) -> Tensor:
    return loop(x, given[0]["parts"])


@pytest.mark.parametrize(
    ("function", "first", "second"),
    [
        (loop, [A], [A, B, C]),
        (loop, [A, B, C], [A]),
        (loop, (A,), (A, B)),
        (loop, [2.0], [2.0, 3.0]),
        (length, [A], [A, B]),
        (last, [A, B], [A, B, C]),
        (rest, [A, B], [A, B, C]),
        (stacked, [A, B], [A, B, C]),
        (values, {"a": A}, {"a": A, "b": B}),
        (values, {"a": A, "b": B}, {"b": B, "a": A}),
        (membership, {"a": A}, {"a": A, "b": B}),
        (inner, [{"parts": [A]}], [{"parts": [A, B]}]),
    ],
    ids=lambda case: getattr(case, "__name__", ""),
)
def test_other_elements_are_compiled_for(
    function: Callable[[Tensor, Any], Tensor], first: Any, second: Any
) -> None:
    compiled, x = jit(function), torch.ones(3)
    for given in (first, second, first, second):
        torch.testing.assert_close(compiled(x, given), function(x, given), rtol=0, atol=0)
    assert thunder.cache_misses(compiled) == 2


def test_elements_that_are_not_read_do_not_matter() -> None:
    def function(x: Tensor, given: dict[str, Tensor]) -> Tensor:
        return x + given["a"]

    compiled, x = jit(function), torch.ones(3)
    for given in ({"a": A}, {"a": A, "b": B}):
        assert torch.equal(compiled(x, given), function(x, given))
    assert thunder.cache_misses(compiled) == 1


def test_lists_that_the_program_names(monkeypatch: pytest.MonkeyPatch) -> None:
    def function(x: Tensor) -> Tensor:
        return loop(x, SHIFTS) + loop(x, NESTED["shifts"])

    compiled, x = jit(function), torch.ones(3)
    for more in ([A], [A, B], [A]):
        monkeypatch.setitem(globals(), "SHIFTS", more)
        monkeypatch.setitem(NESTED, "shifts", [*more, C])
        assert torch.equal(compiled(x), function(x))


def test_modules_and_their_lists_are_compiled_once() -> None:
    class Stack(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList(torch.nn.Linear(3, 3) for _ in range(3))
            self.scales = [2.0, 3.0, 5.0]

        def forward(self, x: Tensor) -> Tensor:
            for layer, scale in zip(self.layers, self.scales, strict=True):
                x = layer(x) * scale
            return x

    module, x = Stack(), torch.ones(2, 3)
    compiled = jit(module)
    for _ in range(2):
        torch.testing.assert_close(compiled(x), module(x))
    assert thunder.cache_misses(compiled) == 1


def counted(x: Tensor, *others: float, **named: float) -> Tensor:
    return x * (1.0 + len(others) + 10 * len(named))


def extended(x: Tensor, held: Any) -> Tensor:
    made = [1.0]
    made.extend(held.numbers)
    return x * len(made)


def updated(x: Tensor, held: Any) -> Tensor:
    made = {"q": 1.0}
    made.update(held.options)
    return x * len(made)


def merged_in_place(x: Tensor, held: Any) -> Tensor:
    made = {"q": 1.0}
    made |= held.options
    return x * len(made)


@pytest.mark.parametrize(
    "program",
    [
        lambda x, held: counted(x, **held.options),
        lambda x, held: counted(x, *held.numbers),
        lambda x, held: counted(x, 1.0, *held.numbers),
        lambda x, held: counted(x, **{"q": 1.0, **held.options}),
        lambda x, held: x * (1.0 + len([*held.numbers])),
        lambda x, held: x * (1.0 + len(list(held.numbers))),
        lambda x, held: x * (1.0 + len(dict(held.options))),
        lambda x, held: x * len([1.0] + held.numbers),  # noqa: RUF005
        lambda x, held: x * len({"q": 1.0} | held.options),
        extended,
        updated,
        merged_in_place,
    ],
    ids=[
        *("keywords", "arguments", "more arguments", "keywords of a display", "list display"),
        *("list", "dict", "sum", "union", "extend", "update", "union in place"),
    ],
)
def test_what_was_empty_is_noticed_when_it_is_not(program: Any) -> None:
    """Thunder reads no element of it, so that nothing was guarded."""
    compiled, x, held = jit(program), torch.ones(2), SimpleNamespace()
    for numbers in ([], [2.0], [], [2.0, 3.0]):
        held.numbers = numbers
        held.options = {f"n{k}": value for k, value in enumerate(numbers)}
        assert torch.equal(compiled(x, held), program(x, held)), numbers
