"""Objects of classes of the user, made and returned by a compiled function."""

from __future__ import annotations

import abc
import copy
import enum
from collections import OrderedDict
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


class Layer:
    def __init__(self) -> None:
        self.key: Tensor | None = None


class Grown:
    """A cache that makes layers of a class when they are needed."""

    def __init__(self) -> None:
        self.layers = [Layer()]
        self.kind = type(self.layers[0])

    def update(self, key: Tensor) -> None:
        self.layers[0].key = key


@dataclass
class Output(OrderedDict):  # type: ignore[type-arg]
    """As the outputs of transformers: attributes of a dataclass that are items of it, too."""

    logits: Tensor | None = None
    cache: Any = None

    def __setattr__(self, name: str, value: Any) -> None:
        if value is not None:
            super().__setitem__(name, value)
        super().__setattr__(name, value)


def test_an_object_that_an_attribute_is_set_to_by_object_is_made() -> None:
    """Set by `object.__setattr__` and never read; it had proxies of the trace as tensors."""

    def program(x: Tensor) -> Output:
        grown = Grown()
        grown.update(x * 2)
        return Output(logits=x + 1, cache=grown)

    compiled = jit(program)
    for _ in range(2):
        x = torch.randn(3, requires_grad=True)
        found = compiled(x)
        assert type(found) is Output
        assert found.cache is found["cache"]
        assert found.cache.kind is Layer
        (layer,) = found.cache.layers
        assert type(layer) is Layer
        assert torch.equal(layer.key, x * 2)
        assert torch.equal(*torch.autograd.grad(layer.key.sum(), x), torch.full((3,), 2.0))


def test_a_property_that_object_sets_keeps_its_own_value() -> None:
    class Doubled:
        @property
        def value(self) -> Any:
            return self.held

        @value.setter
        def value(self, value: Any) -> None:
            self.held = [value * 2]

    def program(x: Tensor) -> tuple[Doubled, Tensor]:
        made = Doubled()
        object.__setattr__(made, "value", x)
        return made, made.value[0] + 1

    x = torch.randn(3)
    made, total = jit(program)(x)
    assert torch.equal(made.held[0], x * 2)
    assert torch.equal(total, x * 2 + 1)


def test_a_class_with_a_metaclass_is_returned_unless_it_holds_tensors() -> None:
    def program(x: Tensor, has_tensor: bool) -> tuple[Any, Tensor]:
        class Kind(metaclass=abc.ABCMeta):  # noqa: B024
            scale = x + 1 if has_tensor else 3

        return Kind, x * 2

    compiled = jit(program)
    kind, _ = compiled(torch.ones(2), False)
    assert kind.scale == 3
    assert type(kind) is abc.ABCMeta
    with pytest.raises(NotImplementedError, match="ABCMeta"):
        compiled(torch.ones(2), True)
