"""Properties and other descriptors: what they get, set and delete, each time, as in eager code."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import thunder
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from tests.frontends.thunder.programs import flat, jit
from tests.support.shares import each_value

Tensors = tuple[Tensor, ...]


class Doubled:
    """A descriptor in Python: reads double what is held, and writes add one to it."""

    def __get__(self, held: Any, kind: type) -> Any:
        held.state.mul_(2)
        return held.state + 1

    def __set__(self, held: Any, value: Any) -> None:
        held.state.copy_(value + 1)


class Last:
    """A descriptor that comes after an object's own attribute of the same name."""

    def __get__(self, held: Any, kind: type) -> Any:
        return held.state.clone() * 3


class Held:
    """An object that is no module."""

    doubled, last = Doubled(), Last()

    def __init__(self, state: Tensor) -> None:
        self.state, self.count = state, 1

    @property
    def level(self) -> Any:
        self.count += 1
        return self.count

    @level.setter
    def level(self, value: Any) -> None:
        self.count = value * 2

    @level.deleter
    def level(self) -> None:
        self.count = 0


class Module(nn.Module):
    doubled, last = Doubled(), Last()
    state: Tensor

    def __init__(self, program: Callable[[Any, Tensor], Tensors]) -> None:
        super().__init__()
        self.register_buffer("state", torch.ones(3))
        self.weight = nn.Parameter(torch.tensor([0.5, 1.0, 2.0]))
        self.held, self.program, self.scale = Held(torch.ones(3)), program, 1.0
        self.normed = parametrizations.spectral_norm(nn.Linear(3, 3))

    @property
    def product(self) -> Tensor:
        self.state.mul_(2)
        return self.state.clone() * self.weight

    @product.setter
    def product(self, value: Tensor) -> None:
        self.state.copy_(value)

    @functools.cached_property
    def size(self) -> int:
        return self.weight.shape[0] * 3

    @property
    def missing(self) -> Any:
        raise AttributeError("missing")

    def forward(self, x: Tensor) -> Tensors:
        return self.program(self, x)


class Inherited(Module):
    @property
    def product(self) -> Tensor:
        return super().product + 1

    @product.setter
    def product(self, value: Tensor) -> None:
        Module.product.fset(self, value * 2)  # type: ignore[attr-defined]


def spectral_norm(self: Any, x: Tensor) -> Tensors:
    return self.normed(x), self.normed(x)


def a_property_is_computed_again(self: Any, x: Tensor) -> Tensors:
    return x * self.product, x + getattr(self, "product")  # noqa: B009


def a_property_is_set(self: Any, x: Tensor) -> Tensors:
    y = x * self.product
    self.product = x.detach()
    z = x * self.product
    setattr(self, "product", z.detach() + 1)  # noqa: B010
    return y, z, self.product


def one_of_an_object(self: Any, x: Tensor) -> Tensors:
    y = x * self.held.level
    self.held.level = 3
    return y, x * self.held.level, x * self.held.level


def one_of_an_object_is_deleted(self: Any, x: Tensor) -> Tensors:
    y = x * self.held.level
    del self.held.level
    return y, x * self.held.level


def one_of_an_object_that_is_made(self: Any, x: Tensor) -> Tensors:
    made = Held(x)
    y = made.level * x
    made.level = 5
    made.state = x * 2
    return y, made.level * x, made.last


def other_descriptors(self: Any, x: Tensor) -> Tensors:
    y = x * self.doubled + self.held.doubled
    self.doubled = x.detach()
    self.held.state = self.held.state * 3
    return y, x * self.doubled, self.last, self.held.last


def an_own_attribute(self: Any, x: Tensor) -> Tensors:
    self.held.last = x.detach()
    return x * self.size, x * self.held.last, x * self.size


def one_that_is_missing(self: Any, x: Tensor) -> Tensors:
    return x * getattr(self, "missing", 2), x * hasattr(self, "missing")


PROGRAMS = (
    spectral_norm,
    a_property_is_computed_again,
    a_property_is_set,
    one_of_an_object,
    one_of_an_object_is_deleted,
    one_of_an_object_that_is_made,
    other_descriptors,
    an_own_attribute,
    one_that_is_missing,
)


@pytest.mark.parametrize(
    ("program", "kind"),
    [
        *((program, Module) for program in PROGRAMS),
        *((program, Inherited) for program in PROGRAMS[1:3]),
    ],
    ids=lambda value: value.__name__,
)
def test_descriptors_are_called_at_each_access(program: Any, kind: type[Module]) -> None:
    torch.manual_seed(0)
    model = kind(program)
    eager = copy.deepcopy(model)
    compiled = jit(model)
    for _ in range(3):
        x = torch.randn(3, requires_grad=True)
        ours, theirs = flat(compiled(x)), flat(eager(x))
        torch.testing.assert_close(ours, theirs)
        gradients = [
            torch.autograd.grad(
                sum(y.sum() for y in ys if y.requires_grad),
                [x, *net.parameters()],
                allow_unused=True,
            )
            for ys, net in ((ours, model), (theirs, eager))
        ]
        torch.testing.assert_close(*([g for g in found if g is not None] for found in gradients))
        torch.testing.assert_close(dict(model.named_buffers()), dict(eager.named_buffers()))
        torch.testing.assert_close(vars(model.held), vars(eager.held))
    assert thunder.cache_misses(compiled) <= 2


def test_a_property_without_a_setter_is_not_set() -> None:
    class Constant(nn.Module):
        @property
        def one(self) -> int:
            return 1

        def forward(self, x: Tensor) -> Tensor:
            self.one = 2  # type: ignore[misc]
            return x

    with pytest.raises(AttributeError, match="has no setter"):
        jit(Constant())(torch.ones(2))


def test_attributes_of_a_namespace_are_set_by_each_call() -> None:
    """Its class has a method of its own that sets them."""

    def program(x: Tensor, state: SimpleNamespace) -> Tensor:
        state.last = state.last + x
        state.last = state.last * 2
        return x * state.last

    compiled, states = jit(program), [SimpleNamespace(last=torch.ones(3)) for _ in range(2)]
    for _ in range(3):
        x = torch.randn(3)
        torch.testing.assert_close(compiled(x, states[0]), program(x, states[1]))
        torch.testing.assert_close(states[0].last, states[1].last)
    assert thunder.cache_misses(compiled) == 1


class Scaled:
    """A descriptor with a number of its own."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def __get__(self, held: Any, kind: type) -> float:
        return self.factor * held.scale


class Layer(nn.Module):
    factor, scaled = 2.0, Scaled(3.0)

    def __init__(self) -> None:
        super().__init__()
        self.scale = 0.5

    def product(self, x: Tensor, scale: Any) -> Tensor:
        return x * scale

    doubled = functools.partialmethod(product, scale=2)
    by_tensor = functools.partialmethod(product, scale=torch.tensor(3.0))

    def forward(self, x: Tensor) -> Tensors:
        kind = type(self)
        return x * self.scaled, self.doubled(x), self.by_tensor(x), x * kind.factor


class Narrow(Layer):
    """Has all of it from its base."""


class Object:
    """The same, not of a module."""

    factor, scaled, scale = Layer.factor, Layer.__dict__["scaled"], 0.5
    product, doubled, by_tensor = (Layer.__dict__[k] for k in ("product", "doubled", "by_tensor"))


@each_value(kind=[Layer, Narrow], depth=[0, 1])
def test_what_a_class_has_is_guarded(
    kind: type[Layer], depth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numbers of a descriptor, a partial method's arguments, and what `type(self)` has."""
    model: nn.Module = nn.Sequential(kind()) if depth else kind()
    compiled, x = jit(model), torch.randn(3)
    torch.testing.assert_close(compiled(x), model(x))
    for owner, name, value in (
        (Layer.__dict__["scaled"], "factor", 7.0),
        (Layer, "doubled", functools.partialmethod(Layer.product, scale=5)),
        (Layer, "factor", 11.0),
    ):
        monkeypatch.setattr(owner, name, value)
        torch.testing.assert_close(compiled(x), model(x))
        torch.testing.assert_close(compiled(x), model(x))
    assert thunder.cache_misses(compiled) == 4


def test_what_the_class_of_an_object_has_is_guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    def program(x: Tensor, held: Any) -> Tensors:
        kind = type(held)
        return x * held.scaled, held.doubled(x), held.by_tensor(x), x * kind.factor * kind.scale

    compiled, x, held = jit(program), torch.randn(3), Object()
    torch.testing.assert_close(compiled(x, held), program(x, held))
    for name, value in (("factor", 5.0), ("scale", 7.0), ("scaled", Scaled(4.0))):
        monkeypatch.setattr(Object, name, value, raising=False)
        torch.testing.assert_close(compiled(x, held), program(x, held))
    assert thunder.cache_misses(compiled) == 4


def test_the_class_of_an_object_is_called_and_compared() -> None:
    class Pair:
        def __init__(self, first: Any) -> None:
            self.first = first

    sizes = {Object: 2, Pair: 3}

    def program(x: Tensor, held: Any) -> Tensors:
        kind = type(held)
        made = kind(x) if kind is Pair else held
        is_known = kind in sizes and type(made) == kind  # noqa: E721
        return x * sizes[kind], x * len(kind.__name__), x * is_known, x * (type(x) is Tensor)

    x = torch.randn(3)
    for held in (Object(), Pair(x)):
        torch.testing.assert_close(jit(program)(x, held), program(x, held))
