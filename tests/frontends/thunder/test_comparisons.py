"""Comparisons of objects by methods in Python, whose answers change between calls."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tests.frontends.thunder.programs import jit
from tests.support.shares import each_value


@dataclasses.dataclass(order=True)
class Options:
    size: int = 1
    name: str = "a"


class Ranked:
    def __init__(self, rank: int) -> None:
        self.rank = rank

    def __eq__(self, other: object) -> Any:
        return self.rank == other.rank if isinstance(other, Ranked) else NotImplemented

    def __hash__(self) -> int:
        return self.rank

    def __lt__(self, other: Ranked) -> bool:
        return self.rank < other.rank


PROGRAMS: dict[str, Callable[[Any, Any], bool]] = {
    "equal": lambda a, b: a == b,
    "differs": lambda a, b: a != b,
    "less": lambda a, b: a < b,
    "more": lambda a, b: a > b,
    "another type": lambda a, b: a == 3 or a != 4,
}


@each_value(make=[Options, Ranked], name=list(PROGRAMS))
def test_comparisons_are_those_of_each_call(make: Callable[[int], Any], name: str) -> None:
    def program(x: Tensor, a: Any, b: Any) -> Tensor:
        return x * 2 if PROGRAMS[name](a, b) else x * 3

    compiled, x, held = jit(program), torch.randn(3), make(2)
    for size in (2, 1, 3, 2):
        assert torch.equal(compiled(x, held, make(size)), program(x, held, make(size)))
    attribute = next(iter(vars(held)))
    setattr(held, attribute, 3)
    assert torch.equal(compiled(x, held, make(2)), program(x, held, make(2)))
    assert torch.equal(compiled(x, held, make(3)), program(x, held, make(3)))
