"""Objects of classes of the user, made and returned by a compiled function."""

from __future__ import annotations

import copy
import enum
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.frontends.thunder.programs import jit


class Cache:
    """Keys and values of the layers of a decoder, which grow from call to call."""

    def __init__(self) -> None:
        self.keys: list[Tensor] = []
        self.seen = 0
        self.limit: int | None = 512

    def update(self, layer: int, key: Tensor) -> Tensor:
        if layer == 0:
            self.seen += key.shape[0]
        if len(self.keys) <= layer:
            self.keys.append(key)
        else:
            self.keys[layer] = torch.cat([self.keys[layer], key])
        return self.keys[layer]


class Both:
    """An object that holds two others."""

    def __init__(self, first: Cache, second: Cache) -> None:
        self.caches = {"first": first, "second": second}
        self.first = first


class Decoder(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(3, 3) for _ in range(2))

    def forward(self, x: Tensor, cache: Cache | None = None) -> tuple[Tensor, Cache]:
        if cache is None:
            cache = Cache()
        for k, layer in enumerate(self.layers):
            key = cache.update(k, torch.tanh(layer(x)))
            x = x + key.sum(0)
        return x, cache


def test_a_cache_is_made_and_grows() -> None:
    torch.manual_seed(0)
    net = Decoder()
    compiled = jit(copy.deepcopy(net))
    ours: Cache | None = None
    eager: Cache | None = None
    for count in (4, 1, 1):
        x = torch.randn(count, 3)
        (y, ours), (expected, eager) = compiled(x, ours), net(x, eager)
        torch.testing.assert_close(y, expected)
        torch.testing.assert_close(vars(ours), vars(eager))
    y.sum().backward()
    expected.sum().backward()
    for p, q in zip(compiled.parameters(), net.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad)


def test_objects_within_objects_are_made_once() -> None:
    def program(x: Tensor) -> list[Any]:
        first, second = Cache(), Cache()
        first.update(0, x * 2)
        second.update(0, x + 1)
        return [Both(first, second), first]

    x = torch.randn(2, 3)
    both, first = jit(program)(x)
    assert type(both) is Both
    assert both.first is first is both.caches["first"]
    assert torch.equal(both.caches["second"].keys[0], x + 1)
    assert jit(program)(x)[1] is not first


def test_an_object_that_refers_to_itself_is_refused() -> None:
    def program(x: Tensor) -> Cache:
        cache = Cache()
        cache.update(0, x * 2)
        cache.owner = cache  # type: ignore[attr-defined]
        return cache

    with pytest.raises(NotImplementedError, match="refers to itself"):
        jit(program)(torch.ones(3))


class Colour(enum.Enum):
    RED = 2


class Name(str, enum.Enum):
    FIRST = "first"


def test_dictionaries_with_keys_of_all_kinds() -> None:
    def program(x: Tensor, key: Any, held: dict[Any, Any]) -> dict[Any, Any]:
        made = {Colour.RED: x * 2, Name.FIRST: [x + 1, {0.5: x - 1, key: x}], (0, 1): 3}
        return {**held, **made, "held": held}

    compiled = jit(program)
    for key in ("a", "b", 3, 1.5, Colour.RED):
        x, held = torch.randn(3, requires_grad=True), {Colour.RED: 1, None: torch.ones(2), 2.5: 4}
        ours, theirs = compiled(x, key, held), program(x, key, held)
        assert list(ours) == list(theirs)
        assert [type(k) for k in ours] == [type(k) for k in theirs]
        assert ours["held"] is held
        torch.testing.assert_close(ours[Name.FIRST][1][key], x)
        torch.testing.assert_close(ours[Colour.RED], x * 2)
        assert torch.equal(*torch.autograd.grad(ours[Colour.RED].sum(), x), torch.full((3,), 2.0))


def test_an_attribute_is_set_to_such_a_dictionary() -> None:
    held: Any = Cache()

    def program(x: Tensor) -> Tensor:
        held.by_colour = {Colour.RED: x * 2}
        return x

    x = torch.randn(3)
    jit(program)(x)
    assert torch.equal(held.by_colour[Colour.RED], x * 2)


@dataclass
class Counted:
    value: Any
    count: int = 0

    def __post_init__(self) -> None:
        self.count += 1


@dataclass(slots=True)
class InSlots:
    value: Any
    count: int = 0


@pytest.mark.parametrize("kind", [Counted, InSlots])
def test_a_dataclass_is_made_once_and_not_by_its_constructor(kind: Any) -> None:
    def program(x: Tensor) -> Any:
        made = kind(x * 2)
        made.value = made.value + 1
        return {"first": made, "second": [made]}

    x = torch.ones(2)
    found, expected = jit(program)(x), program(x)
    made = found["first"]
    assert type(made) is kind
    assert found["second"][0] is made
    assert made.count == expected["first"].count
    assert torch.equal(made.value, expected["first"].value)
