"""Results that torch does not differentiate do not require gradients, beside others that do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.frontends.thunder.programs import flat, jit


def _updated(x: Tensor) -> Tensor:
    y = torch.zeros_like(x)
    y[0] = x[1] * 2
    return y


PROGRAMS: dict[str, Callable[[Tensor], Any]] = {
    "layer norm": lambda x: torch.native_layer_norm(x, (4,), x[0], x[1], 1e-5),
    "layer norm of aten": lambda x: torch.ops.aten.native_layer_norm(x, (4,), x[0], x[1], 1e-5),
    "batch norm": lambda x: torch.native_batch_norm(x, x[0], x[1], None, None, True, 0.1, 1e-5),
    "batch norm in evaluation": lambda x: torch.native_batch_norm(
        x, x[0], x[1], torch.zeros(4), torch.ones(4), False, 0.1, 1e-5
    ),
    "group norm": lambda x: torch.native_group_norm(x, None, None, 4, 4, 1, 2, 1e-5),
    "lu": torch.linalg.lu,
    "lu_unpack": lambda x: torch.lu_unpack(*torch.linalg.lu_factor(x)),
    "loss": lambda x: torch.ops.aten.nll_loss_forward(x, torch.arange(4), None, 1, -100),
    "frexp": torch.frexp,
    "places": lambda x: (*torch.max(x, 1), *torch.sort(x), *torch.topk(x, 2), *x.aminmax(dim=0)),
    "new tensors": lambda x: (
        *(make(x) for make in (torch.zeros_like, torch.empty_like, torch.rand_like)),
        torch.full_like(x, 2.0),
        x.new_ones(3),
        x * 2,
    ),
    "an updated new tensor": _updated,
    "draws": lambda x: (torch.multinomial(x.softmax(1), 2), x * 2),
}


def _required(results: Any) -> Sequence[bool]:
    return [y.requires_grad for y in flat(results)]


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_requires_gradients_is_as_in_torch(name: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 4, requires_grad=True)
    found, expected = (f(x) for f in (jit(PROGRAMS[name]), PROGRAMS[name]))
    assert _required(found) == _required(expected)
    gradients = []
    for results in (found, expected):
        trained = [y for y in flat(results) if y.requires_grad]
        gradients.append(torch.autograd.grad(trained, x, [*map(torch.ones_like, trained)]))
    torch.testing.assert_close(*gradients)
