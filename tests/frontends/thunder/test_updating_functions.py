"""Functions of torch that update their first operand: as torch's results, gradients and memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.frontends.thunder.programs import check, jit

CALLS: dict[str, Callable[[Tensor], Tensor]] = {
    "sigmoid_": torch.sigmoid_,
    "fill_": lambda x: torch.fill_(x, 3.0),
    "clip_": lambda x: torch.clip_(x, max=0.3),
    "nan_to_num_": torch.nan_to_num_,
    "arctan_": torch.arctan_,
    "xlogy_": lambda x: torch.xlogy_(x, x.detach().exp()),
    "selu_": torch.selu_,
    "celu_": lambda x: torch.celu_(x, 0.5),
    "F.selu_": F.selu_,
    "F.elu_": lambda x: F.elu_(x, 0.5),
    "F.leaky_relu_": lambda x: F.leaky_relu_(x, negative_slope=0.3),
}


@pytest.mark.parametrize("name", CALLS)
def test_functions_that_update(name: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 4)

    def program(x: Tensor) -> Tensor:
        y = x * 2
        return CALLS[name](y) + y.sin()

    check(program, x.clone().requires_grad_())
    ours, theirs = x.clone(), x.clone()
    jit(CALLS[name])(ours)
    CALLS[name](theirs)
    torch.testing.assert_close(ours, theirs)


def _builtins() -> list[str]:
    """Return the functions whose method is an update of a tensor by itself."""
    names = [name for name in dir(torch._C._VariableFunctions) if name.endswith("_")]
    return [name for name in names if name[0] != "_" and _runs(name, torch.full((2,), 0.5))]


def _runs(name: str, x: Tensor) -> bool:
    method: Any = getattr(x, name, None)
    try:
        return method is not None and method() is not None and name != "detach_"
    except (TypeError, RuntimeError):
        return False


def test_every_function_of_one_tensor_is_traced() -> None:
    names = _builtins()
    assert len(names) > 40

    def program(x: Tensor) -> list[Tensor]:
        return [getattr(torch, name)(x * 1) for name in names]

    x = torch.rand(5) * 0.5 + 0.2
    for name, found, expected in zip(names, jit(program)(x), program(x), strict=True):
        torch.testing.assert_close(found, expected, equal_nan=True, msg=name)
