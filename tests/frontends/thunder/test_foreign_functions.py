"""Functions written in C, other than torch's, on tensors: never the numbers of random tensors."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.frontends.thunder.programs import jit

READING: dict[str, Callable[[Tensor], Any]] = {
    "a root": lambda x: x * math.sqrt(x.sum()),
    "a floor": lambda x: math.floor(x.sum()),
    "two operands": lambda x: x + math.hypot(x.sum(), 1.0),
    "a list": lambda x: math.fsum([x.sum(), x.sum()]),
    "an integer": lambda x: math.gcd(x.sum().int(), 4),
    "an array": lambda x: np.array(x).sum(),
    "a ufunc": lambda x: np.add(x, x),
}


@pytest.mark.parametrize("name", READING)
def test_numbers_that_are_read_of_tensors_raise(name: str) -> None:
    """They were those of a random tensor, and roots of a negative one raised an error of its."""
    with pytest.raises(NotImplementedError, match="known only as the program runs"):
        jit(READING[name])(torch.ones(3))


def test_numbers_of_known_tensors_are_read() -> None:
    def program(x: Tensor) -> Tensor:
        return x * math.floor(torch.tensor(3.5)) + math.sqrt(torch.tensor(x.shape[0]))

    assert torch.equal(jit(program)(torch.ones(4)), program(torch.ones(4)))


def test_results_that_are_tensors_are_calls_and_tracing_draws_nothing() -> None:
    def program(x: Tensor) -> Tensor:
        return math.prod(x) + torch.rand(2)

    compiled, x, found = jit(program), torch.tensor([1.0, 2.0, 3.0]), []
    for _ in range(2):
        torch.manual_seed(0)
        found.append(compiled(x))
    assert torch.equal(found[0], found[1])
    assert (found[0] >= 6).all()


def test_divmod_raises_as_in_torch() -> None:
    with pytest.raises(TypeError, match="divmod"):
        jit(lambda x: divmod(x, 2))(torch.ones(3))
