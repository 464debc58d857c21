"""Grad modes in a compiled function: contexts in contexts, and what asks for the mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.frontends.thunder.programs import flat, jit


@torch.no_grad()
def frozen(x: Tensor) -> Tensor:
    return x * 2


@torch.inference_mode()
def inferred(x: Tensor) -> Tensor:
    return x * 2


def nested(x: Any) -> Any:
    with torch.no_grad():
        inner = frozen(x)
        after = x * 3
    return inner, after, x + after


def enabled_in_between(x: Any) -> Any:
    with torch.no_grad():
        with torch.enable_grad():
            inner = x * 2
        with torch.set_grad_enabled(True):
            other = x * 4
        after = x * 3
    return inner, other, after, after * x


def asked(x: Any) -> Any:
    outside = x * 2 if torch.is_grad_enabled() else x * 3
    with torch.no_grad():
        inside = x * 2 if torch.is_grad_enabled() else x * 3
    return outside, inside


def restored(x: Any) -> Any:
    before = torch.is_grad_enabled()
    torch.set_grad_enabled(False)
    y = x * 2
    torch.set_grad_enabled(before)
    return y, y * x


def in_inference_mode(x: Any) -> Any:
    with torch.inference_mode():
        y = x * 2
        asked = x * 5 if torch.is_grad_enabled() else x
    with torch.no_grad(), torch.inference_mode(False):
        z = x * 3
    return y, asked, z, inferred(x), x * 2


PROGRAMS: tuple[Callable[..., Any], ...] = (
    nested,
    enabled_in_between,
    asked,
    restored,
    in_inference_mode,
)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
@pytest.mark.parametrize("is_enabled", [True, False])
def test_gradients_go_where_they_are_enabled(program: Callable[..., Any], is_enabled: bool) -> None:
    """After an inner context gradients were those of the caller's mode, as was what asked."""
    x, found = torch.tensor([0.5, 1.25]), []
    for function in (jit(program), program):
        leaf = x.clone().requires_grad_()
        with torch.set_grad_enabled(is_enabled):
            results = flat(function(leaf))
        differentiated = [y for y in results if y.requires_grad]
        if differentiated:
            torch.autograd.backward(differentiated, [torch.ones_like(y) for y in differentiated])
        found.append((results, [y.requires_grad for y in results], leaf.grad))
    ours, eager = found
    assert ours[1] == eager[1]
    torch.testing.assert_close(ours, eager)
