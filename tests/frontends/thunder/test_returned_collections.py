"""Ordered dictionaries, deques, sets and namespaces that a compiled function makes and returns."""

from __future__ import annotations

from collections import Counter, OrderedDict, UserDict, UserList, defaultdict, deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.frontends.thunder.programs import jit


def ordered(x: Tensor) -> Any:
    found = OrderedDict(b=x)
    found["a"] = x * 2
    return found


def nested(x: Tensor) -> Any:
    inner = OrderedDict((str(k), x * k) for k in range(2))
    return {"a": inner, "b": [OrderedDict(d=x, e=(x * 3, inner["1"]))]}


def moved(x: Tensor) -> Any:
    found = OrderedDict([("a", x), ("b", x.sin()), ("c", x.cos())])
    found.move_to_end("a")
    found.move_to_end("c", last=False)
    return found


def with_default(x: Tensor) -> Any:
    found: dict[str, list[Tensor]] = defaultdict(list)
    for k in range(3):
        found["even" if k % 2 == 0 else "odd"].append(x * k)
    return found


def lists(x: Tensor) -> Any:
    found = deque([x, x * 2], maxlen=2)
    found.append(x * 3)
    return found, deque([1, 2])


def constants(x: Tensor) -> Any:
    return {"b", "a"}, frozenset([1]), range(1, 7, 2), Counter("abca"), x * 2


def namespace(x: Tensor) -> Any:
    return SimpleNamespace(x=x * 2, name="y", inner=[x.sin(), {"y": x}])


class Named(dict[str, Any]):
    """A program's own kind of dictionary, with an attribute."""

    def __init__(self, **items: Any) -> None:
        super().__init__(**items)
        self.first = next(iter(items))

    def __repr__(self) -> str:
        return f"Named({self.first}, {dict(self)})"


class Frozen(OrderedDict[str, Any]):
    def __setitem__(self, key: str, value: Any) -> None:
        if key in self:
            raise TypeError("it is written once")
        super().__setitem__(key, value)


class Listed(defaultdict[str, list[Any]]):
    pass


def own_classes(x: Tensor) -> Any:
    listed = Listed(list)
    listed["a"].append(x.cos())
    return Named(a=x * 2, b=Named(c=x.sin())), Frozen(d=x * 3), listed


def users(x: Tensor) -> Any:
    return UserDict(a=x * 2), UserList([x.sin(), UserList([x.cos()])])


PROGRAMS = [ordered, nested, moved, with_default, lists, constants, namespace, own_classes, users]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_collections_are_those_of_eager_code(program: Callable[[Tensor], Any]) -> None:
    run = jit(program)
    for k in range(2):
        x = torch.arange(3.0) + k
        found, expected = run(x), program(x)
        assert type(found) is type(expected)
        assert str(found) == str(expected)


def test_each_call_makes_its_own() -> None:
    def program(x: Tensor) -> Any:
        return {1, 2}, OrderedDict(a=x * 2), deque([x * 3])

    run, x = jit(program), torch.ones(2)
    some, named, queue = run(x)
    some.add(3)
    named["b"] = x
    queue.clear()
    found = run(x)
    assert found[0] == {1, 2}
    assert list(found[1]) == ["a"]
    assert len(found[2]) == 1


class Segmentation(nn.Module):
    """Features and results by name, as torchvision's segmentation models have them."""

    def __init__(self) -> None:
        super().__init__()
        layers = OrderedDict(low=nn.Linear(3, 4), high=nn.Linear(4, 4))
        self.backbone = nn.ModuleDict(layers)
        self.head, self.aux = nn.Linear(4, 2), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> OrderedDict[str, Tensor]:
        features: OrderedDict[str, Tensor] = OrderedDict()
        for name, layer in self.backbone.items():
            x = features[name] = layer(x).relu()
        found: OrderedDict[str, Tensor] = OrderedDict()
        found["out"] = self.head(features["high"])
        found["aux"] = self.aux(features["low"])
        return found


def test_a_model_that_returns_an_ordered_dictionary_is_trained() -> None:
    module, x = Segmentation(), torch.randn(5, 3)
    gradients = []
    for run in (jit(module), module):
        module.zero_grad()
        found = run(x)
        assert type(found) is OrderedDict
        (found["out"].square().mean() + found["aux"].sin().mean()).backward()
        gradients.append([p.grad for p in module.parameters()])
    torch.testing.assert_close(*gradients)
