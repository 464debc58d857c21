"""Strides, contiguity and storage offsets that a program asks for are those of eager torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import thunder
import torch
from torch import Tensor, nn

import thunder_fuser
from tests.frontends.thunder.programs import jit


def arranged(*shape: int) -> list[Tensor]:
    """Tensors of a shape that lie in memory in different ways."""
    plain = torch.arange(1.0, 1 + torch.Size(shape).numel()).reshape(shape) / 8
    order = [*range(1, len(shape)), 0]
    wide = torch.zeros(*shape[:-1], 2 * shape[-1] + 1)
    wide[..., 1::2] = plain
    moved = plain.permute(order).contiguous().permute([len(shape) - 1, *range(len(shape) - 1)])
    return [plain, moved, plain.mT.contiguous().mT, wide[..., 1::2]]


def layout(x: Tensor) -> tuple[Any, ...]:
    return x.stride(), x.stride(-1), x.is_contiguous(), x.storage_offset()


MADE: dict[str, Callable[[Tensor], Tensor]] = {
    "argument": lambda x: x,
    "pointwise": lambda x: torch.sin(x) * 2,
    "broadcast": lambda x: x + x.mean(0),
    "cast": lambda x: x.double(),
    "view": lambda x: x.transpose(0, 1)[1:, ..., ::2],
    "view of a result": lambda x: torch.exp(x).permute(2, 0, 1)[1:],
    "contiguous": lambda x: x.contiguous(),
    "reshape": lambda x: x.reshape(x.shape[0], -1),
    "expand": lambda x: x[:, :1].expand(-1, 5, -1),
    "sum": lambda x: x.sum(1, keepdim=True),
    "product": lambda x: x @ x.mT,
    "softmax": lambda x: x.softmax(-1),
    "layer_norm": lambda x: nn.functional.layer_norm(x, x.shape[-1:]),
    "cat": lambda x: torch.cat([x, x], 1),
    "chunk": lambda x: x.chunk(2, -1)[1],
    "update": lambda x: (x * 2).add_(1).mT,
}


@pytest.mark.parametrize("name", MADE)
def test_layouts_are_torchs(name: str) -> None:
    def program(x: Tensor) -> tuple[Any, ...]:
        y = MADE[name](x)
        return (y, *layout(y))

    with thunder_fuser.options(fuel=0):
        compiled = jit(program)
        for x in (*arranged(2, 4, 6), *arranged(2, 4, 6)):
            found, *answers = compiled(x)
            expected, *known = program(x)
            assert answers == known
            torch.testing.assert_close(found, expected)
    assert thunder.cache_misses(compiled) == 4


def test_the_memory_format_is_known() -> None:
    def program(x: Tensor) -> Tensor:
        return x * 2 if x.is_contiguous(memory_format=torch.channels_last) else x * 3

    compiled, x = jit(program), torch.randn(2, 3, 4, 5)
    for given in (x, x.to(memory_format=torch.channels_last), x):
        assert torch.equal(compiled(given), program(given))


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3, 3))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight if self.weight.is_contiguous() else x * self.weight.stride(0)


def test_layouts_of_parameters_are_guarded() -> None:
    module, x = Scaled(), torch.randn(2, 3)
    compiled = jit(module)
    for weight in (torch.randn(3, 3), torch.randn(3, 3).t(), torch.randn(3, 3)):
        module.weight = nn.Parameter(weight)
        torch.testing.assert_close(compiled(x), module(x))


def overlapping_chunks(x: Tensor) -> Tensor:
    """As Longformer makes them: chunks of 4 rows, each of which begins 2 rows after the last."""
    x = x.view(x.size(0), x.size(1) // 4, 4, x.size(2))
    size, strides = list(x.size()), list(x.stride())
    size[1], strides[1] = size[1] * 2 - 1, strides[1] // 2
    return x.as_strided(size=size, stride=strides)


@pytest.mark.parametrize("first", [lambda x: x, torch.sin, lambda x: (x @ x.mT) @ x])
def test_overlapping_chunks(first: Callable[[Tensor], Tensor]) -> None:
    def program(x: Tensor) -> Tensor:
        return overlapping_chunks(first(x)) * 2

    x = torch.randn(2, 8, 3, dtype=torch.float64, requires_grad=True)
    for found, expected in zip(
        *([y, *torch.autograd.grad(y.pow(2).sum(), x)] for y in (jit(program)(x), program(x))),
        strict=True,
    ):
        torch.testing.assert_close(found, expected)


def test_as_strided_is_a_function_too() -> None:
    def program(x: Tensor) -> Tensor:
        return torch.as_strided(torch.sin(x), (2, 2), stride=(1, 2), storage_offset=3) * 2

    x = torch.randn(4, 3)
    torch.testing.assert_close(jit(program)(x), program(x))


def test_a_layout_that_a_library_decides_is_refused() -> None:
    compiled = jit(lambda x: nn.functional.conv2d(x, x[:, :, :1, :1]).stride(0) * x)
    with pytest.raises(NotImplementedError, match="strides are not known"):
        compiled(torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last))
