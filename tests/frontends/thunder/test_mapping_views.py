"""Functions of C that iterate over the keys of a dictionary."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch

from tests.frontends.thunder.programs import jit

VIEWS: dict[str, Callable[[dict[str, float]], Iterable[Any]]] = {
    "keys": lambda held: held.keys(),
    "iterator": lambda held: iter(held),
    "reversed": lambda held: reversed(held),
    "reversed keys": lambda held: reversed(held.keys()),
    "items": lambda held: iter(held.items()),
    "values": lambda held: iter(held.values()),
}
FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "max": max,
    "min": lambda values: min(values, key=str),
    "default": lambda values: max(values, default=0, key=str),
    "sorted": lambda values: sorted(values, key=str),
    "set": lambda values: len(set(values)),
    "deque": lambda values: len(deque(values)),
    "all": all,
    "list": list,
}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_functions_of_c_read_views(view: str, function: str) -> None:
    """They got errors, or the interpreter's signals without an end."""

    def program(x: torch.Tensor, held: dict[str, float]) -> Any:
        return x * 2, FUNCTIONS[function](VIEWS[view](held))

    compiled, x, held = jit(program), torch.ones(2), {"a": 1.0, "b": 2.0}
    for change in ({}, {"c": 0.5}, {"a": 9.0}):
        held |= change
        assert str(compiled(x, held)) == str(program(x, held))
