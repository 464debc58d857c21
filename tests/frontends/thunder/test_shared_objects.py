"""One object in two places, of which one gets another object between two calls."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import thunder
import torch
from torch import Tensor

from tests.frontends.thunder.programs import jit


class Slotted:
    __slots__ = ("n",)

    def __init__(self, n: float) -> None:
        self.n = n


SOME = torch.tensor(0.5)
DTYPES = [
    torch.float64,
    torch.int8,
    torch.float32,
    torch.float64,
    torch.bool,
    torch.int8,
    torch.half,
]
OBJECTS: dict[str, tuple[Callable[[float], Any], Callable[[Any], Any]]] = {
    "tuple": (lambda n: (1.0, n), lambda held: held[1]),
    "list": (lambda n: [1.0, n], lambda held: held[1]),
    "dictionary": (lambda n: {"n": n}, lambda held: held["n"]),
    "set": (lambda n: {n}, sum),
    "slotted": (lambda n: Slotted(n), lambda held: held.n),
    "object": (lambda n: SimpleNamespace(n=n), lambda held: held.n),
    "tensor": (lambda n: torch.full((3,), n), lambda held: held),
    "function": (lambda n: torch.sin if n == 2.0 else torch.cos, lambda held: held(SOME)),
    "dtype": (lambda n: DTYPES[int(n)], lambda held: held.itemsize),
    "type": (lambda n: int if n == 2.0 else float, lambda held: 1 if held is int else 2),
}
HOMES: dict[str, tuple[Callable[[], Any], Callable[[Any, str], Any], Any]] = {
    "attributes": (SimpleNamespace, getattr, setattr),
    "items": (dict, lambda home, name: home[name], dict.__setitem__),
}


@pytest.mark.parametrize("home", HOMES)
@pytest.mark.parametrize("kind", OBJECTS)
def test_another_object_in_one_of_two_places_is_noticed(kind: str, home: str) -> None:
    """The program went on with what the first place has."""
    (make, read), (made, get, put) = OBJECTS[kind], HOMES[home]

    def run(compiler: Callable[[Any], Any]) -> list[Tensor]:
        held = made()
        for name in ("first", "second"):
            put(held, name, make(2.0) if name == "first" else get(held, "first"))

        def program(x: Tensor) -> Tensor:
            return x * read(get(held, "first")) + 10 * read(get(held, "second"))

        compiled, found = compiler(program), []
        for change in ((), ("second",), ("first",), ("first", "second")):
            for name in change:
                put(held, name, make(len(found) + 3.0))
            found.append(compiled(torch.ones(3)))
        return found

    torch.testing.assert_close(run(jit), run(lambda f: f))


@pytest.mark.parametrize("kind", ["list", "dictionary", "set", "object", "slotted"])
def test_two_objects_that_become_one_are_noticed(kind: str) -> None:
    """What `is` said was a constant of the first call."""
    make, _ = OBJECTS[kind]

    def run(compiler: Callable[[Any], Any]) -> list[Tensor]:
        held = SimpleNamespace(first=make(1.0), second=make(2.0))

        def program(x: Tensor) -> Tensor:
            x = x * 2 if held.first is held.second else x * 3
            return x + 1 if held.second is not held.first else x

        compiled, found = compiler(program), []
        for change in ((), ("second", "first"), ("first", "third"), ("second", "first")):
            held.third = make(3.0)
            if change:
                setattr(held, change[0], getattr(held, change[1]))
            found.append(compiled(torch.ones(3)))
        return found

    torch.testing.assert_close(run(jit), run(lambda f: f))


def test_an_object_that_the_program_puts_into_a_second_place() -> None:
    """It is not expected there before the program runs."""

    def run(compiler: Callable[[Any], Any]) -> list[Tensor]:
        held = SimpleNamespace(first=[1.0, 2.0], second=[3.0])

        def program(x: Tensor) -> Tensor:
            held.second = held.first
            return x * held.second[-1] + sum(held.first)

        compiled = compiler(program)
        return [compiled(torch.ones(3)), compiled(torch.ones(3))]

    torch.testing.assert_close(run(jit), run(lambda f: f))


def test_one_object_in_two_places_is_compiled_for_once() -> None:
    config = SimpleNamespace(scale=2.0)
    layers = [SimpleNamespace(config=config) for _ in range(3)]

    def program(x: Tensor) -> Tensor:
        for layer in layers:
            x = x * layer.config.scale
        return x

    compiled = jit(program)
    for k in range(3):
        torch.testing.assert_close(compiled(torch.ones(3) + k), (torch.ones(3) + k) * 8)
    assert thunder.cache_misses(compiled) == 1
