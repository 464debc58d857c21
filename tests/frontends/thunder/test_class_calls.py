"""Calls of classes whose `__new__` returns an object of another class, among them `nn.Buffer`."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.frontends.thunder.programs import jit


class Weighted(nn.Module):
    """A loss that a program makes, as transformers does for DETR."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = nn.Buffer(weight)

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.weight).sum(-1)


class Averaged(nn.Module):
    """A module that gives its buffer anew."""

    def __init__(self) -> None:
        super().__init__()
        self.mean = nn.Buffer(torch.zeros(3), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        self.mean = nn.Buffer(self.mean + x.detach().mean(0), persistent=False)
        return x * self.mean


def a_loss(x: Tensor) -> Any:
    weight = torch.ones(3)
    weight[-1] = 0.1
    return Weighted(weight)(x)


def a_flag(x: Tensor) -> Any:
    buffer = nn.Buffer(x * 2, persistent=False)
    kinds = (nn.Buffer, nn.Parameter, (int, (nn.Buffer,)), Tensor, nn.Buffer | nn.Parameter)
    return buffer * 3, [isinstance(buffer, kind) for kind in kinds], isinstance(x, nn.Buffer)


@pytest.mark.parametrize("program", [a_loss, a_flag])
def test_buffers_that_a_program_makes(program: Callable[[Tensor], Any]) -> None:
    x = torch.randn(2, 3)
    found, expected = jit(program)(x), program(x)
    torch.testing.assert_close(found, expected)


def test_a_buffer_that_a_module_gives_anew() -> None:
    eager = Averaged()
    module = copy.deepcopy(eager)
    compiled = jit(module)
    for _ in range(2):
        x = torch.randn(2, 3)
        torch.testing.assert_close(compiled(x), eager(x))
        torch.testing.assert_close(module.mean, eager.mean)


def test_whether_an_argument_is_a_buffer_is_guarded() -> None:
    def program(x: Tensor) -> Tensor:
        return x * 2 if isinstance(x, nn.Buffer) else x * 3

    compiled, one = jit(program), torch.ones(1)
    for x, expected in ((one, 3), (nn.Buffer(one), 2), (one, 3)):
        assert compiled(x).item() == expected


def test_whether_a_tensor_of_a_module_is_a_buffer() -> None:
    module = Weighted(torch.ones(3))
    module.register_buffer("other", torch.ones(3))

    def program(x: Tensor) -> list[bool]:
        tensors = (module.weight, module.other, x)
        return [isinstance(tensor, nn.Buffer) for tensor in tensors]

    assert jit(program)(torch.ones(1)) == [True, False, False]


class Holding(nn.Module):
    """Makes modules, and lists what they have."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Any:
        made, loss = nn.Sequential(self.first, self.second), Weighted(x)
        penalty = sum((p**2).sum() for p in made.parameters())
        listed = (
            made.named_parameters(prefix="made"),
            made.named_parameters(remove_duplicate=False),
            loss.named_buffers(recurse=False),
        )
        return made(x), penalty, [[name for name, _ in members] for members in listed]


def test_members_of_modules_that_a_program_makes() -> None:
    module, x = Holding(), torch.randn(2, 3)
    found, expected = jit(module)(x), module(x)
    torch.testing.assert_close(found[:2], expected[:2])
    assert found[2] == expected[2]
