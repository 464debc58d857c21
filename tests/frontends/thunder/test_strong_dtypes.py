"""Tensors with dimensions promote 16-bit tensors as in torch, whatever they are made of."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from tests.frontends.thunder.programs import check
from tests.support.shares import each_value

MADE: dict[str, Callable[[Tensor], Tensor]] = {
    "of a list": lambda x: torch.tensor([0.5, 2.0, -3.0]),
    "of a nested list": lambda x: torch.as_tensor([[0.1], [0.7]]),
    "in another shape": lambda x: torch.tensor([0.1, 0.7]).view(-1, 1),
    "a slice": lambda x: torch.tensor([0.1, 0.7, 2.0, 5.0])[1:],
    "a function of one": lambda x: torch.tensor([0.1, 0.7, 2.0]).exp(),
    "a quotient of integers": lambda x: torch.arange(3) / 3,
    "integers and a number": lambda x: torch.arange(3) + 0.1,
    "a stack of numbers": lambda x: torch.stack([torch.tensor(0.1)] * 3),
    "a mean in another shape": lambda x: x.float().mean().view(1, 1),
    "a mean that keeps dimensions": lambda x: x.float().mean((0, 1), keepdim=True),
    "an expanded mean": lambda x: x.float().mean().expand(3),
    "without dimensions": lambda x: torch.tensor(0.1),
}


@each_value(name=list(MADE), dtype=[torch.bfloat16, torch.float16])
def test_it_promotes(name: str, dtype: torch.dtype) -> None:
    """The products had 16 bits, with gradients."""
    x = torch.tensor([[0.5, -1.25, 3.0], [2.0, 0.1, -0.3]], dtype=dtype, requires_grad=True)
    check(lambda x: (x * MADE[name](x), MADE[name](x) - x, x ** MADE[name](x).abs()), x)
