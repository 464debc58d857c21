"""State of a module that changes after it was compiled: the program follows, as eager code does."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import thunder
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune

import thunder_fuser
from tests.frontends.thunder.programs import jit
from tests.support.shares import each_value


class Scale(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


class Model(nn.Module):
    """Tied weights, a buffer, an average, and submodules inside of submodules."""

    shift: float | None = None

    def __init__(self) -> None:
        super().__init__()
        self.first, self.scale = nn.Linear(4, 4), Scale(2.0)
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Tanh())
        self.last = nn.Linear(4, 4, bias=False)
        self.last.weight = self.first.weight
        self.register_buffer("mean", torch.zeros(4))
        self.act = self.scale.forward

    def forward(self, x: Tensor) -> Tensor:
        y = self.last(self.inner(self.act(self.scale(self.first(x)))))
        self.mean = self.mean.lerp(y.detach().mean(0), 0.25)
        return y - self.mean if self.shift is None else y - self.mean + self.shift


def hooked(model: Any) -> None:
    model.first.register_forward_hook(lambda module, inputs, y: y * 3)


def hooked_before(model: Any) -> None:
    model.inner[0].register_forward_pre_hook(lambda module, inputs: (inputs[0] * 3,))


def halved(model: Any) -> None:
    model.load_state_dict({k: v / 2 for k, v in model.state_dict().items()}, assign=True)


CHANGES: dict[str, Callable[[Any], Any]] = {
    "a parameter": lambda m: setattr(m.first, "weight", nn.Parameter(torch.randn(4, 4))),
    "data of a parameter": lambda m: setattr(m.first.bias, "data", torch.randn(4)),
    "a frozen parameter": lambda m: m.first.weight.requires_grad_(False),
    "a buffer": lambda m: setattr(m.inner[1], "running_var", torch.full((4,), 3.0)),
    "a buffer without module": lambda m: setattr(m, "mean", torch.ones(4)),
    "a submodule": lambda m: setattr(m, "first", nn.Linear(4, 4)),
    "an inner submodule": lambda m: m.inner.__setitem__(0, nn.Linear(4, 4)),
    "a submodule with another number": lambda m: setattr(m, "scale", Scale(5.0)),
    "a submodule by name": lambda m: m.add_module("first", nn.Linear(4, 4)),
    "a submodule of another class": lambda m: m.register_module("inner", nn.Tanh()),
    "a buffer by name": lambda m: m.register_buffer("mean", torch.ones(4), persistent=False),
    "no inner submodule": lambda m: m.inner.__delitem__(0),
    "a dtype": lambda m: m.double(),
    "a state": halved,
    "modes": lambda m: m.eval(),
    "a mode": lambda m: setattr(m.inner[1], "training", False),
    "a hook": hooked,
    "a hook before": hooked_before,
    "a forward": lambda m: setattr(m.first, "forward", lambda x: x * 5),
    "a bound method": lambda m: setattr(m, "act", m.inner[2].forward),
    "an attribute": lambda m: setattr(m, "shift", 3.0),
    "a parametrization": lambda m: parametrizations.weight_norm(m.first),
    "a mask": lambda m: prune.l1_unstructured(m.first, "weight", 0.5),  # type: ignore[no-untyped-call]
}


def results(module: Any, dtype: torch.dtype) -> list[Tensor | None]:
    """Return the result of a call and all gradients."""
    x = torch.arange(12.0, dtype=dtype).sin().reshape(3, 4).requires_grad_()
    y = module(x)
    trained = [p for p in module.parameters() if p.requires_grad]
    return [y, *torch.autograd.grad(y.square().sum(), [x, *trained], allow_unused=True)]


# What is guarded does not depend on what is fused: half of them compile nothing.
WAYS = [("module", 0), ("compiled", None), ("module", None), ("compiled", 0)]


@each_value(name=list(CHANGES), **{"through,fuel": WAYS})
def test_changes_are_followed(name: str, through: str, fuel: int | None) -> None:
    torch.manual_seed(0)
    model = Model()
    eager = Model()
    eager.load_state_dict(model.state_dict())
    compiled = jit(model)
    dtype = torch.float32
    with thunder_fuser.options(fuel=fuel):
        for change in (lambda m: None, CHANGES[name], lambda m: None):
            for changed in (compiled if through == "compiled" else model, eager):
                torch.manual_seed(1)
                change(changed)
            dtype = eager.mean.dtype
            found, expected = results(compiled, dtype), results(eager, dtype)
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
            for state in (compiled.state_dict(), model.state_dict()):
                assert list(state) == list(eager.state_dict())
                torch.testing.assert_close(dict(state), dict(eager.state_dict()))
    assert thunder.cache_misses(compiled) <= 2


def test_a_removed_hook_is_not_run() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    compiled, x = jit(model), torch.randn(3, 4)
    torch.testing.assert_close(compiled(x), model(x))
    for k in range(2):
        handle = model[k].register_forward_hook(lambda module, inputs, y: y * 3)
        torch.testing.assert_close(compiled(x), model(x))
        handle.remove()
        torch.testing.assert_close(compiled(x), model(x))
    assert thunder.cache_misses(compiled) == 3


def test_a_module_among_the_arguments_is_followed() -> None:
    def run(module: nn.Module, x: Tensor) -> Tensor:
        return module(x) * 2

    compiled, x = jit(run), torch.randn(3, 4)
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    for change in (lambda: None, lambda: module.__setitem__(0, nn.Linear(4, 4))):
        change()
        torch.testing.assert_close(compiled(module, x), run(module, x))
    hooked_module = module[1]
    hooked_module.register_forward_hook(lambda module, inputs, y: y * 3)
    torch.testing.assert_close(compiled(module, x), run(module, x))


def test_attributes_of_a_compiled_module_are_deleted() -> None:
    model = Model()
    compiled = jit(model)
    compiled.shift = 3.0
    del compiled.shift
    assert compiled.shift is None
    assert "shift" not in vars(model)
    with pytest.raises(AttributeError, match="missing"):
        del compiled.missing


def test_copies_have_the_state() -> None:
    compiled = jit(Model())
    compiled.first = nn.Linear(4, 4)
    copied = copy.deepcopy(compiled)
    x = torch.randn(3, 4)
    torch.testing.assert_close(copied(x), compiled(x))
