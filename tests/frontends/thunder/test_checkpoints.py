"""`torch.utils.checkpoint` with updates in place, both of its kinds, and keyword arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from tests.frontends.thunder.programs import jit
from tests.support.shares import each_value

Function = Callable[..., Any]


def again(function: Function, *args: Any, **kwargs: Any) -> Any:
    return checkpoint(function, *args, use_reentrant=False, **kwargs)


def relu_of_a_product(x: Tensor, w: Tensor) -> Any:
    return again(lambda x: torch.relu_(x @ w) @ w, x)


def updates_of_products(x: Tensor, w: Tensor) -> Any:
    def inside(x: Tensor) -> Tensor:
        y = torch.sin(x)
        z = nn.functional.relu(y @ w, inplace=True)
        both = torch.cat([z, y], 1)
        both.mul_(2)
        return (both * both) @ torch.cat([w, w])

    return again(inside, x)


def parts_updated(x: Tensor, w: Tensor) -> Any:
    def inside(x: Tensor) -> Tensor:
        z = x @ w
        z[0] = 2
        z[1].mul_(3)
        return (z * z) @ w

    return again(inside, x)


def in_two_checkpoints(x: Tensor, w: Tensor) -> Any:
    def inside(x: Tensor) -> Tensor:
        return (x @ w).mul_(3).add_(1).sigmoid() @ w

    y = again(inside, x)
    y.mul_(2)
    return again(inside, y)


def with_keywords(x: Tensor, w: Tensor) -> Any:
    def inside(x: Tensor, *, scale: float, shift: Tensor) -> tuple[Tensor, None, dict[str, Tensor]]:
        return x.sin() * scale + shift, None, {"cos": x.cos()}

    y, _, more = again(inside, x, scale=3.0, shift=w, determinism_check="none")
    return y @ more["cos"]


@pytest.mark.parametrize(
    "program",
    [relu_of_a_product, updates_of_products, parts_updated, in_two_checkpoints, with_keywords],
)
def test_gradients_are_those_of_eager_code(program: Function) -> None:
    inputs = [torch.randn(5, 5, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    found, expected = jit(program)(*inputs), program(*inputs)
    torch.testing.assert_close(found, expected)
    weight = torch.randn_like(expected)
    for mine, theirs in zip(
        torch.autograd.grad((found * weight).sum(), inputs),
        torch.autograd.grad((expected * weight).sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs)


class Blocks(nn.Module):
    """Two blocks in reentrant checkpoints; the first has no argument that requires gradients."""

    def __init__(self, call: Function) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True)) for _ in range(2)
        )
        self.embed, self.head, self.call = nn.Linear(4, 4), nn.Linear(4, 2), call

    def forward(self, x: Tensor) -> Tensor:
        aside = self.call(self.blocks[0], x)
        x = self.call(self.blocks[0], self.embed(x) + aside)
        return self.head(self.call(self.blocks[1], x))  # type: ignore[no-any-return]


class OnlyData(Blocks):
    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.call(self.blocks[0], x))  # type: ignore[no-any-return]


def reentrant(function: Function, *args: Any) -> Any:
    return checkpoint(function, *args, use_reentrant=True)


def in_segments(function: Function, x: Tensor) -> Any:
    return checkpoint_sequential(function, 2, x, use_reentrant=True)


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.filterwarnings("ignore:torch.utils.checkpoint. the use_reentrant parameter")
@each_value(kind=[Blocks, OnlyData], call=[reentrant, checkpoint, in_segments])
def test_reentrant_checkpoints(kind: type[Blocks], call: Function) -> None:
    """Parameters in a checkpoint of data alone have no gradients, as in eager code."""
    module, x = kind(call), torch.randn(3, 4)
    results: list[Sequence[Any]] = []
    for run in (jit(module), module):
        module.zero_grad()
        y = run(x)
        y.square().sum().backward()
        results.append([y, *(p.grad for p in module.parameters())])
    torch.testing.assert_close(*results)


def test_a_reentrant_checkpoint_takes_no_keywords() -> None:
    def program(x: Tensor) -> Any:
        return checkpoint(lambda x, scale: x * scale, x, scale=2, use_reentrant=True)

    with pytest.raises(ValueError, match="Unexpected keyword arguments: scale"):
        jit(program)(torch.ones(3, requires_grad=True))


def test_contexts_are_ignored_with_a_warning() -> None:
    def program(x: Tensor) -> Any:
        return again(torch.sin, x, context_fn=lambda: (nullcontext(), nullcontext()))

    x = torch.randn(3, requires_grad=True)
    with pytest.warns(UserWarning, match="context_fn is ignored"):
        torch.testing.assert_close(jit(program)(x), x.sin())
