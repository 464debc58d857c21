"""A program's own kinds of dictionaries, lists and tuples, made, filled and read as in Python."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.frontends.thunder.programs import check


def _read_only(*_: Any, **__: Any) -> None:
    raise TypeError("read-only")


class Frozen(dict[str, Any]):
    """Filled where it is made, and by nobody else."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Frozen:
        made = dict.__new__(cls, *args, **kwargs)
        dict.__init__(made, *args, **kwargs)
        return made

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    __setitem__ = __delitem__ = _read_only
    update = pop = setdefault = _read_only  # type: ignore[assignment]


class Lower(dict[str, Any]):
    """Of keys in any case."""

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key.lower(), value)

    def __getitem__(self, key: str) -> Any:
        return super().__getitem__(key.lower())

    def __delitem__(self, key: str) -> None:
        super().__delitem__(key.lower())

    def __contains__(self, key: object) -> bool:
        return super().__contains__(str(key).lower())


class Doubled(dict[str, Any]):
    """Of which only a subscript gives the double."""

    def __getitem__(self, key: str) -> Any:
        return 2 * super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        return False

    def __missing__(self, key: str) -> int:
        return len(key)


class Attributes(dict[str, Any]):
    def __getattr__(self, name: str) -> Any:
        return self[name]

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value


class Pair(tuple[Any, ...]):
    def __new__(cls, first: Any, second: Any) -> Pair:
        return super().__new__(cls, (first, second))


class Point(namedtuple("Point", "x y")):
    def __new__(cls, x: Any) -> Point:
        return super().__new__(cls, x, x + 1)


class Ordered(OrderedDict[str, Any]):
    def __new__(cls, *args: Any, **kwargs: Any) -> Ordered:
        made = super().__new__(cls)
        made.scale = 3
        return made


class Items(list[Any]):
    def __new__(cls, first: Any, *more: Any) -> Items:
        return super().__new__(cls)

    def __init__(self, first: Any, *more: Any) -> None:
        super().__init__([first, *more])


def of_any_case(x: Tensor) -> Tensor:
    held = Lower()
    held["A"] = x
    held["B"] = 2
    del held["b"]
    return held["a"] * ("A" in held) + len(held)


def of_reads(x: Tensor) -> Tensor:
    held = Doubled(a=1, b=3, c=5)
    found = held["a"] * held.get("a") + held.pop("b") * held.pop("b", 7) + held.setdefault("c", 9)
    return x * found * held.setdefault("d", 11) * len(held) * held["missing"]


def of_a_missing_key(x: Tensor) -> Tensor:
    try:
        return x * Frozen(a=1)["b"]
    except KeyError:
        return x + Frozen(a=1).get("b", 3)


def of_attributes(x: Tensor) -> Tensor:
    held = Attributes(a=2)
    held.b = x
    return held.a * held.b + held["b"]


PROGRAMS: dict[str, Callable[[Tensor], Any]] = {
    "a frozen dictionary": lambda x: x * Frozen({"a": 3})["a"],
    "a frozen dictionary of keywords": lambda x: x * Frozen(a=3)["a"] * len(Frozen(a=3, b=4)),
    "a frozen dictionary of pairs": lambda x: x * Frozen([("a", 3)])["a"],
    "one that is not empty": lambda x: x * (2 if not Frozen(a=1) else 3),
    "one of tensors": lambda x: Frozen(a=x * 2)["a"] + 1,
    "what is in it": lambda x: x * sum(Frozen(a=1, b=2).values()) + len(list(Frozen(a=1).items())),
    "its copy, joined": lambda x: x * len(Frozen(a=1).copy() | Frozen(b=1) | {"c": 2}),
    "a copy as a dictionary": lambda x: x * dict(Doubled(a=3))["a"] * {**Doubled(a=3)}["a"],
    "keys of any case": of_any_case,
    "reads that no subscript makes": of_reads,
    "a missing key": of_a_missing_key,
    "attributes": of_attributes,
    "a tuple": lambda x: Pair(x, x * 2)[1] * len(Pair(1, 2)),
    "a named tuple": lambda x: x * Point(2).y + Point(3)[0],
    "an ordered dictionary": lambda x: x * Ordered(a=2)["a"] * Ordered().scale,
    "a list": lambda x: Items(x, 2, 3)[0] * len(Items(1)),
    "keys of one value": lambda x: (
        dict.fromkeys(["a", "b", "a"], x)["b"] * len(dict.fromkeys("abc"))
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_it_is_as_in_python(name: str) -> None:
    check(PROGRAMS[name], torch.tensor([0.5, -1.25]))


def test_an_argument_of_its_own_kind_is_read() -> None:
    check(lambda x, held: x * held["A"], torch.tensor([0.5, -1.25]), Lower(a=3))


class Makers(OrderedDict[str, Any]):
    """Classes, of which a subscript gives an object."""

    def __getitem__(self, key: str) -> Any:
        kind, options = super().__getitem__(key)
        return kind(**options)

    def __contains__(self, key: object) -> bool:
        return super().__contains__(str(key).lower())


MAKERS = Makers(tanh=(torch.nn.Tanh, {}), gelu=(torch.nn.GELU, {"approximate": "tanh"}))


def test_an_ordered_dictionary_with_its_own_subscript() -> None:
    def program(x: Tensor) -> list[Any]:
        kind, options = MAKERS.get("gelu")  # type: ignore[misc]
        found = [MAKERS["tanh"](x), MAKERS["tanh"](x * 2), MAKERS["gelu"](x), kind(**options)(x)]
        return [*found, x * (2 if "GELU" in MAKERS else 3), x * len(MAKERS)]

    check(program, torch.randn(4, requires_grad=True))
