"""Tensors whose numbers a trace knows, read into Python; and those that it does not know."""

from __future__ import annotations

import pytest
import thunder
import torch
from torch import Tensor

from tests.frontends.thunder.programs import Program, jit
from tests.support.shares import each_value

LAST = 3


def last() -> Tensor:
    """Return the number 3, in a tensor that is computed."""
    return torch.arange(LAST)[-1] + 1


def updated(x: Tensor) -> Tensor:
    numbers = torch.arange(LAST)
    numbers[:2].add_(1)
    return x * 2 if numbers[0] > 0 else x


def written(x: Tensor) -> Tensor:
    numbers = torch.arange(LAST)
    numbers[0] = 7
    return x * 2 if numbers.max() > 5 else x


def of_updated(x: Tensor) -> Tensor:
    """Update a tensor that is computed from one which is asked later."""
    places = torch.arange(LAST)
    mask = (x * 0 + places).mul_(places > 1)
    mask[:, :1] = mask[:, :1].masked_fill(x[:, :1] > 0, 5.0)
    return x + mask if places[-1] > 1 else x


KNOWN: dict[str, Program] = {
    "a branch": lambda x: x * 2 if torch.arange(5).max() > 3 else x,
    "a branch of a literal": lambda x: x * 2 if torch.tensor([1, 2]).sum() == 3 else x,
    "any": lambda x: x * 2 if (torch.zeros(4) > 0).any() else x,
    "while": lambda x: x * sum(1 for n in torch.arange(5).tolist() if n > 2),
    "item": lambda x: x.repeat(round(torch.tensor(2.3).item()), 1),
    "an int": lambda x: x * range(5)[int(last())],
    "a float": lambda x: x * float(last()),
    "a range": lambda x: x * sum(range(last())),
    "the larger": lambda x: x * max(last() - 5, 0),
    "full": lambda x: x + torch.full((2, last()), 0.5),
    "zeros": lambda x: x + torch.zeros(2, last()),
    "new ones": lambda x: x + x.new_ones((2, last())),
    "arange": lambda x: x + torch.arange(last()),
    "arange of floats": lambda x: x + torch.arange(0, last() / 2, torch.tensor(0.5)),
    "arange, backwards": lambda x: x + torch.arange(end=last() - 4, start=1.0 * last(), step=-1.5),
    "arange of a new tensor": lambda x: x + torch.arange(last().new_tensor([3])[0]),
    "zeros, by name": lambda x: x + torch.zeros(size=(2, last())),
    "a slice": lambda x: x[:, 1 : last()] * 2,
    "an element": lambda x: x[:, last() - 1] * 2,
    "view": lambda x: x.view(last(), 2) * 2,
    "expand": lambda x: x[None].expand(last(), -1, -1) * 2,
    "of what is updated": of_updated,
    "sizes": lambda x: x * 2 if torch.tensor(x.shape).prod() == 6 else x,
}
UNKNOWN: dict[str, tuple[Program, str]] = {
    "an argument": (lambda x: x * 2 if x.sum() > 0 else x, "data dependency"),
    "a random number": (lambda x: x * 2 if torch.rand(3).sum() > -1 else x, "data dependency"),
    "a draw of normals": (lambda x: x * 2 if torch.randn([]) < 9 else x, "data dependency"),
    "memory as it is": (lambda x: x * 2 if torch.empty([]) < 9 else x, "data dependency"),
    "updated through a view": (updated, "data dependency"),
    "written": (written, "data dependency"),
    "a size": (lambda x: torch.full((x.sum().long(),), 1.0), "full: the size of its result"),
    "new zeros": (lambda x: x.new_zeros((2, x.sum().long())), "full: the size"),
    "arange": (lambda x: torch.arange(x.sum().long()), "arange: the size of its result"),
    "a list": (lambda x: x * x.tolist()[0][0], "tolist in a compiled function"),
    "a float": (lambda x: x * float(x.sum()), "data dependency"),
}


@each_value(name=list(KNOWN), requires_grad=[False, True])
def test_numbers_that_a_trace_knows(name: str, requires_grad: bool) -> None:
    program = KNOWN[name]
    x = torch.arange(1.0, 7.0).reshape(2, 3).requires_grad_(requires_grad)
    found, expected = jit(program)(x), program(x)
    assert torch.equal(found, expected)
    assert found.dtype == expected.dtype
    if requires_grad:
        (gradient,) = torch.autograd.grad(found.sum(), x)
        assert torch.equal(gradient, torch.autograd.grad(expected.sum(), x)[0])


@pytest.mark.parametrize("name", UNKNOWN)
def test_numbers_that_the_program_computes_are_refused(name: str) -> None:
    program, message = UNKNOWN[name]
    with pytest.raises(NotImplementedError, match=message):
        jit(program)(torch.ones(2, 3))


def test_sizes_are_those_of_each_call() -> None:
    def program(x: Tensor) -> Tensor:
        ends = torch.arange(x.shape[1])
        return x + torch.full((ends[-1] + 1,), 0.5) if ends.max() < 4 else x

    compiled = jit(program)
    for size in (3, 4, 7, 3):
        x = torch.randn(2, size)
        assert torch.equal(compiled(x), program(x))


@pytest.mark.parametrize("needs_gradient", [False, True])
def test_arguments_are_not_known(needs_gradient: bool) -> None:
    """Also in traces that are made of others, which begin with the unpacking of arguments."""

    def program(x: Tensor, k: Tensor) -> tuple[Tensor, ...]:
        return x[k], x[k] * 2, (x * 2)[:, k]

    x = torch.randn(3, 4, requires_grad=needs_gradient)
    compiled = jit(program)
    for number in (1, 2):
        k = torch.tensor(number)
        torch.testing.assert_close(compiled(x, k), program(x, k))
    assert thunder.cache_misses(compiled) == 1
