"""`torch.func.functional_call` in a compiled function, and of a compiled module."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

import thunder_fuser
from tests.frontends.thunder.programs import jit
from tests.support.shares import each_value


class Net(nn.Module):
    """Two layers with one weight, a batch norm, and a keyword."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
        self.norm, self.second.weight = nn.BatchNorm1d(3), self.first.weight

    def forward(self, x: Tensor, scale: float = 1) -> Tensor:
        found: Tensor = self.norm(torch.tanh(self.second(self.first(x)))) * scale
        return found


def given(net: nn.Module, seed: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Other parameters and buffers for a module."""
    torch.manual_seed(seed)
    parameters = {name: torch.randn_like(p).requires_grad_() for name, p in net.named_parameters()}
    return parameters, {name: b.clone() for name, b in net.named_buffers()}


def outcome(call: Callable[..., Tensor], net: nn.Module, seed: int, *args: Any) -> list[Any]:
    """What a call returns and leaves, and gradients of the parameters that it is given."""
    parameters, buffers = given(net, seed)
    y = call(parameters, buffers, *args)
    gradients = torch.autograd.grad(y.pow(3).sum(), list(parameters.values()), allow_unused=True)
    return [y, *(g for g in gradients if g is not None), buffers]


def whole(net: nn.Module) -> Callable[..., Tensor]:
    return lambda p, b, x: functional_call(net, (p, b), (x,), {"scale": 2})


def in_part(net: nn.Module) -> Callable[..., Tensor]:
    return lambda p, b, x: functional_call(net, {"first.weight": p["first.weight"]}, x)


def not_tied(net: nn.Module) -> Callable[..., Tensor]:
    return lambda p, b, x: functional_call(
        net, {"first.weight": p["first.weight"], "none": x}, x, tie_weights=False
    )


def nested(net: nn.Module) -> Callable[..., Tensor]:
    def call(p: dict[str, Tensor], b: dict[str, Tensor], x: Tensor) -> Tensor:
        x = functional_call(net, {name: 0.5 * value for name, value in p.items()}, (x,)) + net(x)
        found: Tensor = functional_call(net, (p, b), (x,))
        return found

    return call


@each_value(program=[whole, in_part, not_tied, nested], fuel=[None, 0])
def test_a_module_has_the_given_tensors(
    program: Callable[[nn.Module], Callable[..., Tensor]], fuel: int | None
) -> None:
    torch.manual_seed(0)
    net = Net().double()
    other = Net().double()
    other.load_state_dict(net.state_dict())
    compiled, x = jit(program(net)), torch.randn(5, 3, dtype=torch.float64)
    with thunder_fuser.options(fuel=fuel):
        for seed in range(3):
            found = outcome(compiled, net, seed, x)
            torch.testing.assert_close(found, outcome(program(other), other, seed, x))
            torch.testing.assert_close(dict(net.state_dict()), dict(other.state_dict()))
            for module in (net, other):
                module.second.bias = nn.Parameter(torch.full((3,), seed + 1.0).double())
                if seed:  # no longer tied
                    module.second.weight = nn.Parameter(torch.full((3, 3), 0.5).double())


def test_the_module_keeps_its_own_if_the_call_raises() -> None:
    net = nn.Linear(3, 3)
    own = dict(net.named_parameters())

    def program(w: Tensor, x: Tensor) -> Tensor:
        try:
            found: Tensor = functional_call(net, {"weight": w}, (x, x, x))
        except TypeError:
            return x * 2
        return found

    x = torch.randn(2, 3)
    assert torch.equal(jit(program)(torch.randn(3, 3), x), x * 2)
    assert all(own[name] is p for name, p in net.named_parameters())


def test_a_strict_call_names_what_differs() -> None:
    net = nn.Linear(3, 3)
    compiled = jit(lambda p, x: functional_call(net, p, x, strict=True))
    x = torch.randn(2, 3)
    torch.testing.assert_close(compiled(dict(net.named_parameters()), x), net(x))
    with pytest.raises(RuntimeError, match=r"reparametrizing .*unexpected .*other.*missing .*bias"):
        compiled({"weight": net.weight, "other": x}, x)


def test_of_a_compiled_module() -> None:
    torch.manual_seed(0)
    net = Net().double()
    other = Net().double()
    other.load_state_dict(net.state_dict())
    compiled, x = jit(net), torch.randn(5, 3, dtype=torch.float64)
    for seed in range(2):
        found = outcome(whole(compiled), net, seed, x)  # type: ignore[arg-type]
        torch.testing.assert_close(found, outcome(whole(other), other, seed, x))
        torch.testing.assert_close(dict(net.state_dict()), dict(other.state_dict()))
    torch.testing.assert_close(compiled(x), other(x))


def test_parameters_that_are_computed_from_the_modules_own() -> None:
    net = nn.Linear(3, 3)

    def program(x: Tensor) -> Tensor:
        doubled = {name: 2 * p for name, p in net.named_parameters()}
        found: Tensor = functional_call(net, doubled, (x,))
        return found

    x = torch.randn(2, 3)
    found, expected = (
        [y, *torch.autograd.grad(y.pow(2).sum(), list(net.parameters()))]
        for y in (jit(program)(x), program(x))
    )
    torch.testing.assert_close(found, expected)
