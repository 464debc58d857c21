"""Values of all kinds that a compiled function reads: another one has another program."""

from __future__ import annotations

import contextlib
import enum
import functools
import operator
from collections import deque
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import thunder
import torch
from torch import Tensor, nn

from tests.frontends.thunder.programs import jit
from tests.support.shares import each_value


class Colour(enum.Enum):
    RED = 2
    BLUE = 3


class Place(enum.IntEnum):
    FIRST = 0


class Twice:
    factor = 2

    def __call__(self, x: Tensor) -> Tensor:
        return x * 2


class Thrice:
    factor = 3

    def __call__(self, x: Tensor) -> Tensor:
        return x * 3


class Doubling(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 2


class Tripling(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 3


def called(x: Tensor, value: Any) -> Tensor:
    found: Tensor = value(x)
    return found


def is_first(first: Any) -> Callable[[Tensor, Any], Tensor]:
    return lambda x, value: x * 2 if value == first else x * 3


PROGRAMS: dict[str, tuple[Callable[[Tensor, Any], Tensor], Any, Any]] = {
    "None": (lambda x, value: x * 2 if value is None else x * 3, None, "some"),
    "a dtype": (lambda x, value: x.to(value), torch.float64, torch.float16),
    "a layout": (is_first(torch.strided), torch.strided, torch.sparse_coo),
    "bytes": (is_first(b"a"), b"a", b"b"),
    "an ellipsis": (lambda x, value: x * 2 if value is ... else x * 3, ..., 1),
    "a member": (lambda x, value: x * 2 if value is Colour.RED else x * 3, *Colour),
    "a value of a member": (lambda x, value: x * value.value, *Colour),
    "a type": (lambda x, value: x * 2 if value is int else x * 3, int, float),
    "a type of an object": (
        lambda x, value: x * (2 if isinstance(value, Twice) else 3),
        Twice(),
        Thrice(),
    ),
    "a type of a sequence": (lambda x, v: x * (2 if isinstance(v, tuple) else 3), (1,), [1]),
    "a range": (lambda x, value: sum((x for _ in value), x), range(2), range(3)),
    "a set": (lambda x, value: x * 2 if "a" in value else x * 3, {"a"}, {"b"}),
    "a function": (called, lambda x: x * 2, lambda x: x * 3),
    "a function of torch": (called, torch.sin, torch.cos),
    "a partial function": (
        called,
        functools.partial(torch.mul, other=2),
        functools.partial(torch.mul, other=3),
    ),
    "a method": (lambda x, value: value["f"](x), {"f": Twice().__call__}, {"f": Thrice().__call__}),
    "an object that is called": (called, Twice(), Thrice()),
    "an attribute of a class": (lambda x, value: x * value.factor, Twice(), Thrice()),
    "a function in a list": (lambda x, value: value[0](x), [torch.sin], [torch.cos]),
    "a module": (called, Doubling(), Tripling()),
}
GLOBAL: Any = None


def as_argument(
    run: Callable[[Tensor, Any], Tensor], values: list[Any], x: Tensor
) -> tuple[list[Tensor], int]:
    compiled = jit(run)
    return [compiled(x, value) for value in values], thunder.cache_misses(compiled)


def as_attribute(
    run: Callable[[Tensor, Any], Tensor], values: list[Any], x: Tensor
) -> tuple[list[Tensor], int]:
    class Holder(nn.Module):
        value: Any

        def forward(self, x: Tensor) -> Tensor:
            return run(x, self.value)

    holder, found = Holder(), []
    compiled = jit(holder)
    for value in values:
        holder.value = value
        found.append(compiled(x))
    return found, thunder.cache_misses(compiled)


def as_global(
    run: Callable[[Tensor, Any], Tensor], values: list[Any], x: Tensor
) -> tuple[list[Tensor], int]:
    global GLOBAL
    compiled, found = jit(lambda x: run(x, GLOBAL)), []
    for value in values:
        GLOBAL = value
        found.append(compiled(x))
    return found, thunder.cache_misses(compiled)


@each_value(name=list(PROGRAMS), given=[as_argument, as_attribute, as_global])
def test_another_value_has_another_program(name: str, given: Callable[..., Any]) -> None:
    run, *values = PROGRAMS[name]
    x = torch.arange(1.0, 4.0)
    values = [*values, *values]
    found, programs = given(run, values, x)
    for y, value in zip(found, values, strict=True):
        torch.testing.assert_close(y, run(x, value))
    assert programs == 2


@pytest.mark.parametrize("key", [1, False, Place.FIRST, "a"], ids=str)
def test_items_are_guarded_by_keys_of_all_types_that_a_prologue_reads(key: Any) -> None:
    def program(x: Tensor, values: dict[Any, Any]) -> Tensor:
        return x * 2 if values[key] is None else x * 3

    compiled, x = jit(program), torch.randn(5)
    for value in (None, torch.relu, None):
        assert torch.equal(compiled(x, {key: value}), program(x, {key: value}))


def test_equal_values_share_a_program() -> None:
    """New objects of the same type, code or value at each call."""

    @dataclass
    class Options:
        factor: float

    def run(x: Tensor, f: Any, options: Options, names: set[str], n: Any) -> Tensor:
        y = f(x) * options.factor * len(names)
        return y if n is None else y + 1

    compiled = jit(run)
    x = torch.randn(5)
    for _ in range(3):
        arguments = (lambda x: x.sin() * 2, Options(0.5), {"a", "b"}, None)
        torch.testing.assert_close(compiled(x, *arguments), run(x, *arguments))
    assert thunder.cache_misses(compiled) == 1


def test_a_replaced_submodule_is_run() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Sequential(nn.Linear(4, 4), nn.GELU()))
    inner = model[2]
    assert isinstance(inner, nn.Sequential)
    compiled = jit(model)
    x = torch.randn(3, 4)

    def check(programs: int) -> None:
        torch.testing.assert_close(compiled(x), model(x))
        assert thunder.cache_misses(compiled) == programs

    check(1)
    model[1] = nn.Sigmoid()
    check(2)
    inner[1] = nn.Tanh()
    check(3)
    model[1], inner[1] = nn.ReLU(), nn.GELU()
    check(3)
    model.append(nn.Tanh())
    check(4)
    del model[3]
    check(4)


def test_a_bias_that_is_given_later_is_added() -> None:
    linear = nn.Linear(4, 4, bias=False)
    compiled = jit(linear)
    x, bias = torch.randn(3, 4), nn.Parameter(torch.randn(4))
    for given in (None, bias, None):
        linear.register_parameter("bias", given)
        torch.testing.assert_close(compiled(x), linear(x))


def test_a_model_has_one_guard_of_its_submodules() -> None:
    model = nn.Sequential(*[nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(8)])
    compiled = jit(model)
    compiled(torch.randn(3, 4))
    prologue = str(thunder.last_prologue_traces(compiled)[0])
    assert prologue.count("the submodules of its first call") <= 1
    assert prologue.count("check_value(") < 8


def test_properties_have_the_values_of_the_trace() -> None:
    """Devices, dtypes and shapes of parameters are Thunder's own while a function is traced."""

    class Properties(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        @property
        def device(self) -> torch.device:
            return self.linear.weight.device

        @property
        def dtype(self) -> torch.dtype:
            return next(self.parameters()).dtype

        @property
        def sizes(self) -> torch.Size:
            return self.linear.weight.shape

        @property
        def pair(self) -> dict[str, Any]:
            return {"shape": self.sizes, "weight": self.linear.weight, "none": None}

        def forward(self, x: Tensor) -> Tensor:
            device = "cpu" if self.device == x.device else "meta"
            made = torch.ones(self.sizes, device=device, dtype=self.dtype)
            return self.linear(x) @ made * self.pair["weight"].sum() + len(self.pair["shape"])

    model = Properties()
    compiled = jit(model)
    for _ in range(2):
        x = torch.randn(3, 4)
        torch.testing.assert_close(compiled(x), model(x))
    assert thunder.cache_misses(compiled) == 1


def test_what_is_made_at_each_reading_has_no_guard() -> None:
    class Making(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.queue = deque([1, 2])

        @property
        def function(self) -> Callable[[Tensor], Tensor]:
            return lambda x: x * 2

        @property
        def token(self) -> object:
            return object()

        @functools.cached_property
        def options(self) -> SimpleNamespace:
            return SimpleNamespace(scale=3)

        def __getattr__(self, name: str) -> Any:
            return 5 if name == "made" else super().__getattr__(name)

        def forward(self, x: Tensor) -> Tensor:
            y = self.function(x) * len(self.queue) * self.made * self.options.scale
            return y if self.token is not None else x

    model = Making()
    compiled = jit(model)
    for _ in range(3):
        x = torch.randn(3)
        torch.testing.assert_close(compiled(x), x * 60)
    assert thunder.cache_misses(compiled) <= 2


def test_functions_of_modules_of_python_are_constant() -> None:
    """A guard for each `operator.mul` would be of code, which no program replaces."""
    compiled = jit(lambda x: operator.mul(x, torch.sin(x)))
    x = torch.randn(4)
    torch.testing.assert_close(compiled(x), x * x.sin())
    assert "check_value(" not in str(thunder.last_prologue_traces(compiled)[0])


class Scaled:
    """An object of which the methods below are called."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def times(self, x: Tensor) -> Tensor:
        return x * self.factor

    def plus(self, x: Tensor) -> Tensor:
        return x + self.factor


class ScaledModule(Scaled, nn.Module):
    def __init__(self, factor: float) -> None:
        nn.Module.__init__(self)
        Scaled.__init__(self, factor)


@pytest.mark.parametrize("kind", [Scaled, ScaledModule])
def test_an_attribute_in_place_of_a_method_is_called(kind: Callable[[float], Any]) -> None:
    held = kind(3)
    compiled, x = jit(lambda x: held.times(x) + 1), torch.randn(3)
    for change in (
        lambda: None,
        lambda: setattr(held, "times", held.plus),
        lambda: setattr(held, "factor", 5),
        lambda: setattr(held, "times", lambda x: x - 1),
        lambda: setattr(held, "times", kind(7).times),
        lambda: delattr(held, "times"),
    ):
        change()
        assert torch.equal(compiled(x), held.times(x) + 1)


def test_bound_methods_in_a_list_are_guarded() -> None:
    held = [Scaled(2).times]
    compiled, x = jit(lambda x: [f(x) for f in held]), torch.randn(3)
    for change in (
        lambda: None,
        lambda: held.append(Scaled(4).plus),
        lambda: setattr(held[0].__self__, "factor", 3),
        lambda: held.reverse(),
    ):
        change()
        assert all(map(torch.equal, compiled(x), [f(x) for f in held]))


SCALE: ContextVar[float] = ContextVar("scale", default=2.0)
UNSET: ContextVar[float] = ContextVar("unset")


@contextlib.contextmanager
def scaled_by(variable: ContextVar[float], value: float) -> Iterator[None]:
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def of_a_variable(x: torch.Tensor) -> torch.Tensor:
    return x * SCALE.get()


def of_a_variable_set_inside(x: torch.Tensor) -> torch.Tensor:
    with scaled_by(SCALE, 5.0):
        y = x * SCALE.get()
    return y + SCALE.get()


def of_a_variable_without_value(x: torch.Tensor) -> torch.Tensor:
    try:
        return x * UNSET.get() + UNSET.get(7.0)
    except LookupError:
        return x - 1


@pytest.mark.parametrize(
    "program", [of_a_variable, of_a_variable_set_inside, of_a_variable_without_value]
)
def test_values_of_context_variables(program: Callable[[torch.Tensor], torch.Tensor]) -> None:
    compiled, x = jit(program), torch.arange(3.0)
    for _ in range(2):
        torch.testing.assert_close(compiled(x), program(x))
        for variable in (SCALE, UNSET):
            with scaled_by(variable, 11.0):
                torch.testing.assert_close(compiled(x), program(x))
    assert thunder.cache_misses(compiled) == 2
