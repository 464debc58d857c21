"""Modules that change after they were compiled: parameters, buffers, submodules and hooks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.frontends.thunder.programs import jit


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(2, 2), nn.Linear(2, 2)
        self.register_buffer("scale", torch.ones(2))

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x)) * self.scale


def replaced(net: Net) -> None:
    net.first = nn.Linear(2, 2)


def widened(net: Net) -> None:
    net.first, net.second = nn.Linear(2, 5), nn.Linear(5, 2, bias=False)


def wrapped(net: Net) -> None:
    net.first = nn.Sequential(net.first, nn.Tanh())


def new_weight(net: Net) -> None:
    net.first.weight = nn.Parameter(torch.randn(2, 2))


def tied(net: Net) -> None:
    net.first.weight = net.second.weight


def new_buffer(net: Net) -> None:
    net.scale = torch.full((2,), 3.0)


def buffer_to_parameter(net: Net) -> None:
    del net.scale
    net.scale = nn.Parameter(torch.full((2,), 3.0))


def hooked(net: Net) -> None:
    net.first.register_forward_hook(lambda module, inputs, result: result * 2)
    net.second.register_forward_pre_hook(lambda module, inputs: (inputs[0] + 1,))


@pytest.mark.parametrize("has_run", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(
    "change",
    [replaced, widened, wrapped, new_weight, tied, new_buffer, buffer_to_parameter, hooked],
)
def test_each_call_is_of_the_module_as_it_is(change: Callable[[Net], None], has_run: bool) -> None:
    """Compiled, changed, and trained a step; `has_run`: with a call before the change."""
    torch.manual_seed(0)
    net, x = Net(), torch.randn(3, 2)
    compiled = jit(net)
    if has_run:
        compiled(x)
    change(net)
    for _ in range(2):
        gradients = []
        for each in (compiled, net):
            y = each(x)
            found = torch.autograd.grad(y.sin().sum(), [*net.parameters()])
            gradients.append([y, *found])
        torch.testing.assert_close(*gradients)
    named = dict(compiled.named_parameters(remove_duplicate=False))
    assert named.keys() == dict(net.named_parameters(remove_duplicate=False)).keys()
    assert all(p is named[name] for name, p in net.named_parameters(remove_duplicate=False))


def test_a_removed_hook_runs_no_longer() -> None:
    net, x = Net(), torch.randn(3, 2)
    hook = net.first.register_forward_hook(lambda module, inputs, result: result * 2)
    compiled = jit(net)
    torch.testing.assert_close(compiled(x), net(x))
    hook.remove()
    torch.testing.assert_close(compiled(x), net(x))


def test_hooks_with_keywords_run() -> None:
    net = Net()
    compiled = jit(net)
    x = torch.randn(3, 2)
    compiled(x)
    for module in (net.first, net):
        handles = [
            module.register_forward_hook(lambda m, a, k, y: y * 2, with_kwargs=True),
            module.register_forward_pre_hook(lambda m, a, k: ((a[0] + 1,), k), with_kwargs=True),
        ]
        torch.testing.assert_close(compiled(x), net(x))
        for handle in handles:
            handle.remove()
            torch.testing.assert_close(compiled(x), net(x))


def test_a_hook_that_is_registered_again_with_keywords_is_called_with_them() -> None:
    def hook(module: nn.Module, *given: Any) -> Tensor:
        found: Tensor = given[-1] * len(given)
        return found

    net = Net()
    compiled = jit(net)
    x = torch.randn(3, 2)
    for with_keywords in (False, True):
        handle = net.first.register_forward_hook(hook, with_kwargs=with_keywords)
        torch.testing.assert_close(compiled(x), net(x))
        handle.remove()


def test_hooks_of_all_modules_run_once_for_each() -> None:
    net = Net()
    compiled = jit(net)
    x = torch.randn(3, 2)
    compiled(x)
    hook = nn.modules.module.register_module_forward_hook(lambda module, inputs, y: y * 2)
    try:
        torch.testing.assert_close(compiled(x), net(x))
    finally:
        hook.remove()
    torch.testing.assert_close(compiled(x), net(x))


def test_hooks_of_the_compiled_module_run() -> None:
    net = Net()
    compiled = jit(net)
    x = torch.randn(3, 2)
    handle = compiled.register_forward_hook(lambda module, inputs, y: y * 3)  # type: ignore[attr-defined]
    torch.testing.assert_close(compiled(x), 3 * net(x))
    handle.remove()
    torch.testing.assert_close(compiled(x), net(x))
