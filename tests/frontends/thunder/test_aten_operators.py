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
    # Torch's functions of these names do not reduce by default.
    "mean loss": lambda x: aten.mse_loss(x, x.detach() * 2),
    "mean of logits": lambda x: aten.binary_cross_entropy_with_logits(x, (x.detach() > 0).float()),
    "divergence": lambda x: aten.kl_div(x, target=x.detach().softmax(1)),
    "margins": lambda x: aten.triplet_margin_loss.default(x, x.detach() * 2, x.detach().flip(0)),
    "sum of losses": lambda x: aten.hinge_embedding_loss(x, x.detach().sign(), reduction=2),
    "alias": lambda x: aten.alias.default(x) * 2,
    "index": lambda x: aten.index.Tensor(x, [None, torch.tensor([3, 0])]) * 2,
    "copy": lambda x: aten.copy(x.detach(), x.detach()[0]) * x,
    "sizes": lambda x: x * aten.sym_size.int(x, 1) + aten.sym_numel(x),
    "filled": lambda x: aten.fill_.Scalar(x * 2, 3) + x,
    "elu": lambda x: aten.elu_(x * 2, 0.5).sin(),
    "silu": lambda x: aten.silu_(x * 2).sin(),
    "gelu": lambda x: aten.gelu(x, approximate="tanh"),
}


@pytest.mark.parametrize("name", CALLS)
def test_calls_are_torchs(name: str) -> None:
    torch.manual_seed(0)
    check(CALLS[name], torch.randn(3, 4, requires_grad=True))


def test_functions_of_torch_are_fused() -> None:
    compiled = jit(lambda x: aten.exp(aten.add(x, 1)))
    compiled(torch.ones(4))
    assert [e.origin.symbol for e in fusions(compiled)[0].fusion.exprs] == ["add", "exp"]


def test_an_operator_that_torch_has_not_been_asked_for() -> None:
    for name in ("exp", "_softmax"):
        vars(aten).pop(name, None)
        vars(getattr(aten, name)).pop("default", None)
    vars(aten).pop("exp", None)
    x = torch.ones(2, 3)
    found = jit(lambda x: aten.exp(x) + aten._softmax.default(x, 1, False))(x)
    torch.testing.assert_close(found, x.exp() + x.softmax(1))


def test_operators_named_like_methods() -> None:
    x, y = torch.tensor([True, False, True]), torch.tensor([True, True, False])
    assert torch.equal(jit(aten.__and__)(x, y), x & y)


def test_others_are_refused() -> None:
    with pytest.raises(NotImplementedError, match=r"aten\._reshape_alias .* views"):
        jit(lambda x: aten._reshape_alias(x, [4, 3], [3, 1]))(torch.ones(3, 4))
