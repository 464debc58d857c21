"""`torch.ops.aten`: functions of torch, opaque calls, and what neither is."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.frontends.thunder.programs import check, jit
from thunder_fuser.frontends.thunder import fusions

aten = torch.ops.aten

CALLS: dict[str, Callable[[Tensor], Tensor]] = {
    "add": lambda x: aten.add(x, x, alpha=2),
    "add.Tensor": lambda x: aten.add.Tensor(x, x[0]),
    "relu": lambda x: aten.relu.default(x) * 2,
    "sum": lambda x: aten.sum.dim_IntList(x, [-1], True),
    "softmax": lambda x: aten._softmax(x, 1, False),
    "safe softmax": lambda x: aten._safe_softmax.default(x, dim=1),
    "slice": lambda x: aten.slice.Tensor(x * 2, -1, 1, 9223372036854775807, 2),
    "view": lambda x: aten.view(x, [-1]).sin(),
    "update": lambda x: aten.mul_(x * 1, 3) + aten.t(x).t(),
    "loss": lambda x: aten.mse_loss(x, x.detach() * 2, 2),
}


@pytest.mark.parametrize("name", CALLS)
def test_calls_are_torchs(name: str) -> None:
    torch.manual_seed(0)
    check(CALLS[name], torch.randn(3, 4, requires_grad=True))


def test_functions_of_torch_are_fused() -> None:
    compiled = jit(lambda x: aten.exp(aten.add(x, 1)))
    compiled(torch.ones(4))
    assert [e.origin.symbol for e in fusions(compiled)[0].fusion.exprs] == ["add", "exp"]


def test_others_are_refused() -> None:
    with pytest.raises(NotImplementedError, match=r"aten\._reshape_alias .* views"):
        jit(lambda x: aten._reshape_alias(x, [4, 3], [3, 1]))(torch.ones(3, 4))
