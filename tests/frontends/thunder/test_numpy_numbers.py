"""Numbers of NumPy as operands, sizes, places and options of calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.frontends.thunder.programs import check, jit

I64, F32, F64 = np.int64, np.float32, np.float64

PROGRAMS: dict[str, Callable[[Tensor], Any]] = {
    "a quotient": lambda x: x / np.sqrt(x.shape[-1]),
    "products": lambda x: x * F32(1.5) * I64(3) * F64(0.7) * np.bool_(True),
    "operands on the left": lambda x: F32(1.5) * x + F64(2.5) - x + I64(3) * x + F64(2) ** x,
    "a quotient of one": lambda x: F64(1.5) / (x * x + F32(1)),
    "comparisons": lambda x: (x > F32(0.5), x == F64(1), x * (x <= I64(0))),
    "bounds and fills": lambda x: x.clamp(max=F32(0.5)).masked_fill(x > 0, F64(3)),
    "options": lambda x: torch.add(x, x, alpha=F64(2)) + x.mean(I64(1), keepdim=True),
    "sizes": lambda x: x.reshape(np.prod(x.shape)) + torch.zeros(I64(12)),
    "sizes in a list": lambda x: torch.cat(x.split(list(np.array([1, 3])), 1)[::-1], 1) * 2,
    "places": lambda x: x[I64(1), I64(1) : I64(3)] * 2,
    "a table of frequencies": lambda x: x * torch.exp(torch.arange(0, 4) * -(np.log(1e4) / 4)),
    "a scale": lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None], scale=F32(0.5)),
    "an update": lambda x: (x + 0).mul_(F32(2)),
    "16 bits": lambda x: (x.bfloat16() * F32(1.001)).float(),
    "integers": lambda x: (torch.arange(4) * F32(1.5), I64(7) - torch.arange(4), x),
    "full tensors": lambda x: (torch.full((2,), F64(1.5)), torch.full((2,), I64(2)), x),
    "tensors of them": lambda x: (torch.tensor(F64(2)), torch.tensor([F32(2)]), x),
    "tensors of ints": lambda x: (torch.tensor(np.int32(2)), torch.as_tensor([I64(2), I64(3)]), x),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_they_are_those_of_python(name: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 4)
    expected = PROGRAMS[name](x)
    torch.testing.assert_close(jit(PROGRAMS[name])(x), expected)


def test_gradients() -> None:
    check(
        lambda x: F32(2) * (x / np.sqrt(x.shape[-1])).exp() - F64(3) * x,
        torch.randn(3, 4).requires_grad_(),
    )


INDICES: dict[str, Callable[[torch.Tensor], Any]] = {
    "rows": lambda x: x[np.array([0, 2])] * 2,
    "columns": lambda x: x[:, np.array([0, -1])] * 2,
    "a triangle": lambda x: x[np.tril_indices(3, -1)] * 2,
    "pairs": lambda x: x[np.array([0, 1]), torch.tensor([1, 2])] * 2,
    "of two dimensions": lambda x: x[np.array([[0, 1], [2, 0]])] * 2,
    "a mask": lambda x: x[np.array([True, False, True])] * 2,
    "a mask of two dimensions": lambda x: x[np.eye(3, 4) > 0] * 2,
    "a place": lambda x: x[np.array(1)] * 2,
}


@pytest.mark.parametrize("name", INDICES)
def test_an_array_is_an_index(name: str) -> None:
    check(INDICES[name], torch.randn(3, 4, requires_grad=True))


def test_an_array_as_an_operand_is_refused() -> None:
    """The numbers of an array are read again by `torch.from_numpy` only."""
    array = np.ones((3, 4), dtype=np.float32)
    with pytest.raises(NotImplementedError, match=r"add of a tensor .* torch\.from_numpy\(array\)"):
        jit(lambda x: x + array)(torch.ones(3, 4))
