"""Attributes that a compiled function sets, and objects that it makes."""

from __future__ import annotations

import copy
import functools
import random
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import thunder
import torch
from torch import Tensor, nn

import thunder_fuser
from tests.frontends.thunder.programs import jit
from tests.support.shares import each_value


class Options:
    kind: Any = None
    count = 0


class Model(nn.Module):
    """A linear layer, and what the programs below set."""

    def __init__(self, program: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.linear, self.inner, self.options = nn.Linear(8, 8), nn.Identity(), Options()
        self.count, self.kind, self.flag = 0, None, False
        self.program = program

    def forward(self, x: Tensor) -> Tensor:
        return self.program(self, x)


def number(self: Any, x: Tensor) -> Tensor:
    self.count += 1
    self.count += 1
    return self.linear(x).sum() * self.count


def flag(self: Any, x: Tensor) -> Tensor:
    self.flag = not self.flag
    return self.linear(x).sum() if self.flag else self.linear(x).sum() * 3


def string(self: Any, x: Tensor) -> Tensor:
    if self.kind is None:
        self.kind = "later"
        return self.linear(x).sum()
    return self.linear(x).sum() * 2


def tensors(self: Any, x: Tensor) -> Tensor:
    self.last = self.linear(x)
    self.inner.first, self.inner.second = x + 1, x + 2
    return (self.last * self.inner.first * self.inner.second).sum()


def containers(self: Any, x: Tensor) -> Tensor:
    self.kept = {"rows": [x + 1, 2], "pair": (x.sum(), "a"), "dtype": torch.float32}
    return self.linear(x).sum()


def of_another_object(self: Any, x: Tensor) -> Tensor:
    self.options.count += 1
    self.options.kind = "a" if self.options.kind is None else self.options.kind + "a"
    return self.linear(x).sum() * self.options.count


def made_once(self: Any, x: Tensor) -> Tensor:
    if not hasattr(self, "mask"):
        self.mask = torch.tril(torch.ones(5, 5))
    return (self.mask @ self.linear(x)).sum()


def a_loss(self: Any, x: Tensor) -> Tensor:
    weights = torch.arange(1.0, 9.0)
    loss = nn.CrossEntropyLoss(label_smoothing=0.1) if self.flag else nn.CrossEntropyLoss(weights)
    return loss(self.linear(x), x.argmax(-1))


def a_sequence(self: Any, x: Tensor) -> Tensor:
    return nn.Sequential(self.linear, nn.ReLU(), nn.ModuleList([self.linear])[0])(x).sum()


def a_norm(self: Any, x: Tensor) -> Tensor:
    y = nn.BatchNorm1d(8, affine=False)(self.linear(x))
    return (y * nn.LayerNorm(8, elementwise_affine=False)(x) * x).sum()


def a_generator(self: Any, x: Tensor) -> Tensor:
    return self.linear(x).sum() * random.Random(7).randint(2, 9)


PROGRAMS = [number, flag, string, tensors, containers, of_another_object, made_once]
MAKING = [a_loss, a_sequence, a_norm, a_generator]


def shown(value: Any) -> Any:
    """Return what can be compared of what a module holds."""
    if isinstance(value, Tensor):
        return [round(v, 3) for v in value.double().flatten().tolist()]
    if isinstance(value, nn.Module | Options):
        return {k: shown(v) for k, v in vars(value).items() if not k.startswith("_")}
    if isinstance(value, list | tuple):
        return type(value)(shown(v) for v in value)
    return {k: shown(v) for k, v in value.items()} if isinstance(value, dict) else value


@pytest.mark.parametrize("program", [*PROGRAMS, *MAKING], ids=lambda p: p.__name__)
def test_attributes_are_set_as_in_torch(program: Callable[[Any, Tensor], Tensor]) -> None:
    torch.manual_seed(0)
    model = Model(program)
    eager = copy.deepcopy(model)
    compiled = thunder.jit(model, executors=[thunder_fuser.executor])
    for k in range(4):
        x = torch.randn(5, 8) + k
        found, expected = compiled(x), eager(x)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
        found.backward()
        expected.backward()
        torch.testing.assert_close(
            model.linear.weight.grad, eager.linear.weight.grad, rtol=1e-4, atol=1e-4
        )
        assert shown(model) == shown(eager)
        assert shown(model.inner) == shown(eager.inner)


def test_an_attribute_of_an_argument_is_set() -> None:
    def run(x: Tensor, options: Options) -> Tensor:
        options.count += 1
        options.kind = x * 2
        return x.sum() * options.count

    compiled, x = thunder.jit(run, executors=[thunder_fuser.executor]), torch.randn(5)
    ours, theirs = Options(), Options()
    for _ in range(3):
        torch.testing.assert_close(compiled(x, ours), run(x, theirs))
        assert shown(ours) == shown(theirs)


def test_objects_with_tensors_are_set() -> None:
    def run(x: Tensor, options: Options) -> Tensor:
        made = Options()
        made.kind = x * 2
        options.kind = made
        return x + 1

    compiled, options = thunder.jit(run, executors=[thunder_fuser.executor]), Options()
    for _ in range(3):
        x = torch.randn(5)
        compiled(x, options)
        assert type(options.kind) is Options
        assert torch.equal(options.kind.kind, x * 2)


class Single:
    """What `__new__` makes is not known."""

    def __new__(cls, *_: Any) -> Single:
        return super().__new__(cls)

    def __init__(self, kind: Any) -> None:
        self.kind = kind


def test_an_object_with_tensors_and_its_own_new_is_refused() -> None:
    def run(x: Tensor, options: Options) -> Tensor:
        options.kind = Single(x * 2)
        return x + 1

    compiled = thunder.jit(run, executors=[thunder_fuser.executor])
    with pytest.raises(
        NotImplementedError, match=r"attribute kind is set to an object of .*Single"
    ):
        compiled(torch.randn(5), Options())


class InSlots:
    __slots__ = ("count", "last")

    def __init__(self) -> None:
        self.count, self.last = 1, torch.ones(3)


class WithOwnSetter:
    def __init__(self) -> None:
        self.count, self.last = 1, torch.ones(3)

    def __setattr__(self, name: str, value: Any) -> None:
        self.__dict__[name] = value
        self.__dict__["sets"] = self.__dict__.get("sets", 0) + 1


def kinds() -> dict[str, Any]:
    """Objects of types that keep attributes in different ways."""
    function = functools.partial(print)
    held = {
        "slots": InSlots(),
        "setter": WithOwnSetter(),
        "SimpleNamespace": SimpleNamespace(),
        "exception": ValueError(),
        "partial": function,
        "thread": threading.local(),
    }
    for kind in held.values():
        kind.count, kind.last = 1, torch.ones(3)
    return held


def set_by_operator(held: Any, y: Tensor) -> None:
    held.last, held.count = y, held.count + 1


def set_by_name(held: Any, y: Tensor) -> None:
    setattr(held, "last", held.last + y)  # noqa: B010
    setattr(held, "count", held.count * 2)  # noqa: B010


def deleted_and_set(held: Any, y: Tensor) -> None:
    del held.last
    held.last = y
    delattr(held, "count")
    held.count = 4


@each_value(kind=list(kinds()), change=[set_by_operator, set_by_name, deleted_and_set])
def test_attributes_are_set_however_they_are_kept(
    kind: str, change: Callable[[Any, Tensor], None]
) -> None:
    def program(held: Any, x: Tensor) -> Tensor:
        y: Tensor = x * held.last * held.count
        change(held, y)
        return y + held.count

    ours, theirs, compiled = kinds()[kind], kinds()[kind], jit(program)
    for k in range(3):
        x = torch.arange(3.0) + k
        torch.testing.assert_close(compiled(ours, x), program(theirs, x))
        torch.testing.assert_close((ours.count, ours.last), (theirs.count, theirs.last))


BY_DICTIONARY: dict[str, Callable[[Any, Tensor], Any]] = {
    "item": lambda held, y: held.__dict__.__setitem__("last", y),
    "update": lambda held, y: vars(held).update(last=y, count=held.count + 1),
    "setdefault": lambda held, y: vars(held).setdefault("other", y),
    "pop": lambda held, y: vars(held).pop("other", None),
    "clear": lambda held, y: (vars(held).clear(), vars(held).update(count=2, last=y)),
}


@pytest.mark.parametrize("name", BY_DICTIONARY)
def test_attributes_are_set_through_their_dictionary(name: str) -> None:
    def program(held: Any, x: Tensor) -> Tensor:
        y: Tensor = x * held.last * held.count * len(vars(held))
        BY_DICTIONARY[name](held, y)
        return y + held.count + getattr(held, "other", 7)

    ours, theirs = (SimpleNamespace(count=1, last=torch.ones(3), other=2) for _ in range(2))
    compiled = jit(program)
    for k in range(3):
        x = torch.arange(3.0) + k
        torch.testing.assert_close(compiled(ours, x), program(theirs, x))
        torch.testing.assert_close(vars(ours), vars(theirs))


class Counted:
    count = 0


def test_attributes_of_classes_are_set_by_each_call() -> None:
    def by_type(held: Counted, x: Tensor) -> Tensor:
        type(held).count += 1
        return x * held.count

    def by_name(held: Counted, x: Tensor) -> Tensor:
        Counted.count += 1
        return x * Counted().count

    def of_its_own(held: Counted, x: Tensor) -> Tensor:
        class Made:
            count = 1

        Made.count = 3
        return x * Made.count

    x = torch.randn(3)
    for program in (by_type, by_name):
        Counted.count, compiled = 0, jit(program)
        for k in range(1, 4):
            assert torch.equal(compiled(Counted(), x), x * k)
            assert Counted.count == k
    assert torch.equal(jit(of_its_own)(Counted(), x), x * 3)


def test_code_of_classes_that_is_set_is_refused() -> None:
    def method(x: Tensor) -> Tensor:
        WithProperty.twice = lambda self: 2  # type: ignore[attr-defined]
        return x

    def of_property(x: Tensor) -> Tensor:
        WithProperty.scale = 3  # type: ignore[method-assign, assignment]
        return x

    def of_torch(x: Tensor) -> Tensor:
        torch.nn.Linear.count = 1  # type: ignore[assignment]
        return x

    before = {**vars(WithProperty)}
    for program in (method, of_property, of_torch):
        with pytest.raises(NotImplementedError, match="of the class"):
            jit(program)(torch.ones(3))
    assert vars(WithProperty) == before
    assert not hasattr(torch.nn.Linear, "count")


class WithProperty:
    def __init__(self) -> None:
        self._scale: Any = 2

    @property
    def scale(self) -> Any:
        return self._scale

    @scale.setter
    def scale(self, value: Any) -> None:
        self._scale = value * 10


def test_properties_are_set_by_their_setters() -> None:
    def program(held: WithProperty, x: Tensor) -> Tensor:
        held.scale = held.scale + 1
        y: Tensor = x * held.scale
        return y

    ours, theirs, compiled, x = WithProperty(), WithProperty(), jit(program), torch.randn(3)
    for _ in range(3):
        torch.testing.assert_close(compiled(ours, x), program(theirs, x))
        assert ours._scale == theirs._scale


def set_and_deleted(held: Any) -> None:
    held.count = 7
    del held.count


def deleted_by_name(held: Any) -> None:
    delattr(held, "count")


def deleted_where_it_is(held: Any) -> None:
    try:
        del held.count
    except AttributeError:
        held.last = held.last + 1


def deleted_twice(held: Any) -> None:
    del held.count
    held.count = 3
    del held.count


@pytest.mark.parametrize(
    "change", [set_and_deleted, deleted_by_name, deleted_where_it_is, deleted_twice]
)
@pytest.mark.parametrize("kind", [InSlots, SimpleNamespace])
def test_attributes_are_deleted_that_are_there_at_some_calls(
    kind: Callable[[], Any], change: Callable[[Any], None]
) -> None:
    def run(compiler: Callable[[Any], Any]) -> list[Any]:
        held, found = kind(), []

        def program(x: Tensor) -> Tensor:
            change(held)
            return x * held.last + (1 if hasattr(held, "count") else 2)

        compiled = compiler(program)
        for is_there in (True, True, False, False, True):
            held.last = torch.ones(3)
            if is_there:
                held.count = 5
            elif hasattr(held, "count"):
                del held.count
            try:
                found.append(compiled(torch.ones(3)).tolist())
            except AttributeError:
                found.append("missing")
            found.append((getattr(held, "count", None), held.last.tolist()))
        return found

    assert run(jit) == run(lambda f: f)


@pytest.mark.parametrize("kind", [InSlots, Options])
def test_an_object_that_is_kept_is_another_one_after_each_call(kind: Callable[[], Any]) -> None:
    """What a call sets of it is not there at the next call."""
    home = SimpleNamespace(held=kind())

    def program(x: Tensor) -> Tensor:
        last = home.held
        last.count = last.count + 2
        home.held = kind()
        home.held.last = x * last.count
        return x * home.held.count

    compiled, first, seen = jit(program), kind().count, []
    for k in range(3):
        seen.append(home.held)
        y = compiled(torch.ones(3) + k)
        assert torch.equal(y, (torch.ones(3) + k) * first)
        assert seen[-1].count == first + 2
        assert home.held.count == first
        assert torch.equal(home.held.last, (torch.ones(3) + k) * (first + 2))
    assert len({*map(id, seen), id(home.held)}) == 4
