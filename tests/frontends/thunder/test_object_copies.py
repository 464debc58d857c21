"""Copies of objects: by `copy`, by `dataclasses`, and by hand; those of the caller and new ones."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

import thunder_fuser
from tests.frontends.thunder.programs import jit
from tests.support.shares import each_value


class Plain:
    def __init__(self, n: Any) -> None:
        self.n, self.kept = n, [n, {"n": n}]


class Slotted:
    __slots__ = ("m", "n")

    def __init__(self, n: Any) -> None:
        self.n = n


class Mixed(Slotted):
    """Some attributes are in slots, one of them with a private name, and others are not."""

    __slots__ = ("__dict__", "__hidden")

    def __init__(self, n: Any) -> None:
        super().__init__(n)
        self.__hidden, self.other = n * 2, n + 1

    @property
    def hidden(self) -> Any:
        return self.__hidden


@dataclass
class Record:
    n: Any
    rate: Any = 0.5
    doubled: Any = field(init=False)

    def __post_init__(self) -> None:
        self.doubled = self.n * 2


@dataclass(frozen=True, slots=True)
class Frozen:
    n: Any
    rate: Any = 0.5


class WithState(Plain):
    def __getstate__(self) -> Any:
        return {"n": self.n}

    def __setstate__(self, state: Any) -> None:
        self.n, self.kept = state["n"] + 1, []


class Reduced(Plain):
    def __reduce__(self) -> Any:
        return Plain, (self.n + 1,)


def namespace(n: Any) -> SimpleNamespace:
    return SimpleNamespace(n=n, kept=[n])


KINDS: tuple[Callable[[Any], Any], ...] = (
    *(Plain, Slotted, Mixed, Record, Frozen, WithState, Reduced, namespace),
)
RECORDS = (Record, Frozen)


def by_hand(held: Any) -> Any:
    made = type(held).__new__(type(held))
    if hasattr(held, "__dict__"):
        made.__dict__.update(held.__dict__)
    if hasattr(type(held), "__slots__"):
        object.__setattr__(made, "n", held.n)
    return made


def item_by_item(held: Any) -> Any:
    made = object.__new__(type(held))
    for name, value in vars(held).items():
        made.__dict__[name] = value
    return made


COPIES: dict[str, Callable[[Any], Any]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "by hand": by_hand,
    "item by item": item_by_item,
    "replace": lambda held: dataclasses.replace(held, rate=held.n),
    "asdict": lambda held: SimpleNamespace(**dataclasses.asdict(held)),
    "astuple": lambda held: SimpleNamespace(n=dataclasses.astuple(held)[0]),
}


def _works_on(name: str, kind: Any) -> bool:
    if name in ("replace", "asdict", "astuple"):
        return kind in RECORDS
    return kind not in (Slotted, Mixed, Frozen, namespace) or name != "item by item"


PAIRS = [(name, kind) for name in COPIES for kind in KINDS if _works_on(name, kind)]


def shown(value: Any) -> Any:
    """The parts of a value."""
    if isinstance(value, Tensor):
        return value.tolist()
    if isinstance(value, list | tuple):
        return [type(value), *map(shown, value)]
    if isinstance(value, dict):
        return {key: shown(part) for key, part in value.items()}
    if isinstance(value, float):
        return value
    names = [*getattr(value, "__dict__", ()), "m", "n", "rate", "hidden"]
    return type(value), {name: shown(getattr(value, name, 0.0)) for name in names}


@each_value(**{"name,kind": PAIRS}, is_tensor=[True, False])
def test_copies_of_objects(name: str, kind: Callable[[Any], Any], is_tensor: bool) -> None:
    """Of an object that the caller changes between the calls, and of one that the program makes.
    What is copied does not depend on what is fused.
    """

    def run(compiler: Callable[[Any], Any]) -> list[Any]:
        held, found = kind(1.0), []

        def program(x: Tensor) -> Any:
            made = kind(x * 2)
            ours, theirs = COPIES[name](made), COPIES[name](held)
            return x * ours.n * theirs.n, made, ours, held, theirs

        compiled = compiler(program)
        for k in range(3):
            held = kind(torch.full((2,), k + 2.0) if is_tensor else k + 2.0)
            found.append(shown(compiled(torch.ones(2) + k)))
            found.append(shown(held))
        return found

    with thunder_fuser.options(fuel=0):
        found = run(jit)
    assert found == run(lambda f: f)


def test_an_object_after_a_copy_is_one_of_the_trace() -> None:
    """What the copy is made by, `Record.__new__`, also makes the next object."""

    def program(x: Tensor) -> Any:
        first = copy.copy(Record(x))
        second = dataclasses.replace(Record(2.0), rate=first.n)
        return first, second, [key for key in {"a": x, "b": x}.keys()]  # noqa: SIM118, C416

    x = torch.ones(2)
    assert shown(jit(program)(x)) == shown(program(x))


def test_the_copy_that_is_kept_is_another_object_than_its_original() -> None:
    home, held = SimpleNamespace(), Record(1.0, [2.0])

    def program(x: Tensor) -> Tensor:
        home.copied = copy.copy(held)
        home.deep = copy.deepcopy(held)
        held.n = held.n + 1
        return x * home.copied.n

    compiled = jit(program)
    for k in range(3):
        assert compiled(torch.ones(2)).tolist() == [k + 1.0] * 2
        assert home.copied.n == home.deep.n == k + 1.0
        assert held.n == k + 2.0
        assert home.copied.rate is held.rate is not home.deep.rate
