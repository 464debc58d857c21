"""`torch._check_tensor_all`, by which transformers checks the places of images in a text."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.frontends.thunder.programs import check, jit


def test_a_check_of_all_elements_runs_with_the_program() -> None:
    def program(x: Tensor) -> Tensor:
        torch._check_tensor_all(x > 0, lambda: f"expected {x.shape[0]} positive numbers")
        torch._check_tensor_all(x < 9)
        return (x * 2).sin()

    compiled = check(program, torch.ones(3))
    with pytest.raises(RuntimeError, match="expected 3 positive numbers"):
        compiled(torch.tensor([1.0, -1.0, 1.0]))
    with pytest.raises(RuntimeError, match="Expected cond to be True"):
        compiled(torch.tensor([1.0, 10.0, 1.0]))


def test_with_gradients_the_backward_checks() -> None:
    def program(x: Tensor) -> Tensor:
        torch._check_tensor_all_with(ValueError, x > 0, lambda: f"not positive: {x.min().item()}")
        return (x * 2).sin()

    compiled = check(program, torch.ones(3, requires_grad=True))
    found = compiled(-torch.ones(3, requires_grad=True))
    with pytest.raises(ValueError, match="Expected cond to be True"):
        found.sum().backward()


@pytest.mark.parametrize("condition", [lambda x: x, lambda x: 1.0], ids=["floats", "a-number"])
def test_errors_of_other_conditions_are_torchs(condition: Any) -> None:
    def program(x: Tensor) -> Tensor:
        torch._check_tensor_all(condition(x))
        return x * 2

    with pytest.raises(TypeError, match="cond"):
        jit(program)(torch.ones(3))
