"""Items of dictionaries by keys of all kinds, beside each other, and their guards."""

from __future__ import annotations

import enum
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.frontends.thunder.programs import jit


class Colour(enum.Enum):
    RED = 2
    BLUE = 3


class Name(str, enum.Enum):
    FIRST = "first"
    SECOND = "second"


class Place(enum.IntEnum):
    LAST = 7


KEYS: dict[str, Any] = {
    "float": 0.5,
    "tuple": (0, "b"),
    "size": torch.Size([3]),
    "None": None,
    "member": Colour.RED,
    "string": Name.FIRST,
    "integer": Place.LAST,
    "bool": True,
    "bytes": b"x",
    "frozenset": frozenset({1}),
    "type": int,
    "function": torch.sin,
}


@pytest.mark.parametrize("name", KEYS)
def test_an_item_is_guarded(name: str) -> None:
    key, x = KEYS[name], torch.randn(3)
    for values in ((2, 3), (torch.ones(3), torch.zeros(3)), (None, torch.relu)):
        by_key = jit(lambda x, d: x * d[key] if d[key] is not None else x * 7)
        if values[0] is None:
            by_key = jit(lambda x, d: x * 7 if d[key] is None else d[key](x))
            assert torch.equal(by_key(x, {key: None}), x * 7)
            assert torch.equal(by_key(x, {key: torch.relu}), torch.relu(x))
            continue
        in_loop = jit(lambda x, d: [x * value for value in d.values()])
        for value in (*values, *values):
            assert torch.equal(by_key(x, {key: value}), x * value)
            assert torch.equal(in_loop(x, {key: value})[0], x * value)


def test_keys_of_all_kinds_beside_each_other() -> None:
    def program(held: dict[Any, Any]) -> Any:
        found = torch.zeros(2)
        for k, value in enumerate(held.values(), 1):
            found = found * 2 + value * k
        return found

    compiled = jit(program)
    held = {key: torch.full((2,), k + 1.0) for k, key in enumerate(KEYS.values())}
    held |= {Name.SECOND: 3, "a": 4, 5: torch.ones(2), Colour.BLUE: 6.0}
    assert torch.equal(compiled(held), program(held))
    for key in (*KEYS.values(), Name.SECOND, "a", 5, Colour.BLUE):
        held[key] = held[key] + 1
        assert torch.equal(compiled(held), program(held)), key
    del held[Colour.RED]
    assert torch.equal(compiled(held), program(held))


def test_items_are_changed_by_such_keys() -> None:
    def program(x: Tensor, held: dict[Any, Any]) -> Tensor:
        held[Colour.BLUE] = x * held[Colour.RED]
        held[0.5] = held.pop(Name.FIRST) + 1
        return x * 2

    x = torch.randn(3)
    ours, theirs = ({Colour.RED: 2, Name.FIRST: x, 1: x} for _ in range(2))
    compiled = jit(program)
    for k in range(2):
        for held, call in ((ours, compiled), (theirs, program)):
            held[Name.FIRST] = x + k
            call(x, held)
        assert list(ours) == list(theirs)
        assert all(
            map(
                torch.equal,
                map(torch.as_tensor, ours.values()),
                map(torch.as_tensor, theirs.values()),
            )
        )
