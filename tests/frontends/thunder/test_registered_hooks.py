"""Hooks that a compiled module registers and removes: models install them as they first run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.frontends.thunder.programs import jit

Forward = Callable[["Pair", Tensor], Any]


class Pair(nn.Module):
    """Two layers, and a forward of the test."""

    def __init__(self, forward: Forward) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
        self.kept: list[Any] = []
        self.handle: Any = None
        self._forward = forward

    def forward(self, x: Tensor) -> Any:
        return self._forward(self, x)


def installed_once(model: Pair, x: Tensor) -> Any:
    if not getattr(model, "is_installed", False):
        scale = 2.0

        def hook(module: nn.Module, args: Any, result: Tensor) -> Tensor:
            return result * scale

        model.first.register_forward_hook(hook)
        model.is_installed = True
    return model.second(model.first(x))


def at_each_call(model: Pair, x: Tensor) -> Any:
    model.first.register_forward_hook(lambda module, args, result: result * 2)
    return model.second(model.first(x))


def removed(model: Pair, x: Tensor) -> Any:
    handle = model.first.register_forward_hook(lambda module, args, result: result * 2)
    y = model.first(x)
    handle.remove()
    return y + model.first(x)


def in_a_block(model: Pair, x: Tensor) -> Any:
    with model.first.register_forward_pre_hook(lambda module, args: (args[0] * 3,)):
        y = model.first(x)
    return y + model.first(x)


def with_a_kept_handle(model: Pair, x: Tensor) -> Any:
    if model.handle is None:
        model.handle = model.first.register_forward_hook(lambda module, args, result: result + 1)
    else:
        model.handle.remove()
        model.handle = None
    return model.first(x)


def with_keywords(model: Pair, x: Tensor) -> Any:
    if not model.kept:
        first = model.first
        first.register_forward_hook(lambda m, args, named, y: y + 2, with_kwargs=True)
        first.register_forward_hook(lambda m, args, y: y * 2, prepend=True)
        model.kept.append(1)
    return model.first(x)


def collected(model: Pair, x: Tensor) -> Any:
    found: list[Tensor] = []
    layers = (model.first, model.second)
    handles = [m.register_forward_hook(lambda m, args, y: found.append(y)) for m in layers]
    y = model.second(model.first(x))
    for handle in handles:
        handle.remove()
    return [y, *found]


def with_a_returned_handle(model: Pair, x: Tensor) -> Any:
    return model.first(x), model.first.register_forward_hook(lambda m, args, y: y * 2)


@pytest.mark.parametrize(
    "forward",
    [
        *(installed_once, at_each_call, removed, in_a_block, with_a_kept_handle, with_keywords),
        *(collected, with_a_returned_handle),
    ],
)
def test_hooks_are_those_of_eager_after_each_call(forward: Forward) -> None:
    eager, model = Pair(forward), Pair(forward)
    compiled = jit(model)
    for k in range(4):
        x = torch.arange(3.0) + k
        found, expected = compiled(x), eager(x)
        if forward is with_a_returned_handle:
            assert type(found[1]) is type(expected[1])
            found, expected = found[0], expected[0]
        torch.testing.assert_close(found, expected)
        for name in ("_forward_hooks", "_forward_pre_hooks", "_forward_hooks_with_kwargs"):
            ours, theirs = getattr(model.first, name), getattr(eager.first, name)
            assert len(ours) == len(theirs)
        # What is registered is what eager torch calls, too.
        torch.testing.assert_close(model.first(x), eager.first(x))


def test_a_hook_that_holds_a_tensor_of_the_call_is_refused() -> None:
    def forward(model: Pair, x: Tensor) -> Tensor:
        scale = x.sum()
        model.first.register_forward_hook(lambda m, args, y: y * scale)
        return model.first(x)

    with pytest.raises(NotImplementedError, match="holds tensors of the compiled function"):
        jit(Pair(forward))(torch.ones(3))
