"""Attributes that a compiled function sets, and objects that it makes."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import pytest
import thunder
import torch
from torch import Tensor, nn

import thunder_fuser


class Options:
    kind: Any = None
    count = 0


class Slotted:
    """An object without a dictionary of attributes."""

    __slots__ = ("held",)

    def __init__(self, held: Tensor) -> None:
        self.held = held


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


def test_an_object_with_tensors_in_slots_is_refused() -> None:
    def run(x: Tensor, options: Options) -> Tensor:
        options.kind = Slotted(x * 2)
        return x + 1

    compiled = thunder.jit(run, executors=[thunder_fuser.executor])
    with pytest.raises(
        NotImplementedError, match=r"attribute kind is set to an object of .*Slotted"
    ):
        compiled(torch.randn(5), Options())
