"""Tensors that a program makes, and asks gradients for: `x.requires_grad_()`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import thunder
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import thunder_fuser
from tests.frontends.thunder.programs import jit

Program = Callable[[Tensor, Tensor], Any]
_ALONE = r"requires_grad_\(True\) of a tensor computed in a compiled function: a result"
_REFUSED = r"requires_grad_\((True|False)\) in a compiled function"


def of_a_view(x: Tensor, w: Tensor) -> Any:
    h = x[:, None]
    h.requires_grad = True
    return h[:, 0] @ w, h.requires_grad, (h * 2).requires_grad, h.detach().requires_grad


def of_a_result(x: Tensor, w: Tensor) -> Any:
    h = x * 2
    return h.requires_grad_() @ w, h.requires_grad_() is h, x.sin()


def of_a_detached_tensor(x: Tensor, w: Tensor) -> Any:
    h = (x @ w).detach().requires_grad_()
    return (h * w).sum(), h.detach() + 1


def without_grad(x: Tensor, w: Tensor) -> Any:
    with torch.no_grad():
        h = (x + 1).requires_grad_()
        y = h.sin()
    return y, y.requires_grad, (h @ w).sum()


@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize(
    "program",
    [of_a_view, of_a_result, of_a_detached_tensor, without_grad],
    ids=lambda p: p.__name__,
)
def test_results_and_gradients_are_those_of_torch(program: Program, enabled: bool) -> None:
    torch.manual_seed(0)
    x, w = torch.randn(4, 4), torch.randn(4, 4)
    found = []
    for run in (jit(program), program):
        leaf = w.clone().requires_grad_()
        with torch.set_grad_enabled(enabled):
            results = run(x.clone(), leaf)
        gradient = None
        if enabled:
            total = sum(y.sum() for y in results if isinstance(y, Tensor) and y.requires_grad)
            (gradient,) = torch.autograd.grad(total, [leaf])
        flags = [y.requires_grad if isinstance(y, Tensor) else y for y in results]
        found.append(([y for y in results if isinstance(y, Tensor)], gradient, flags))
    torch.testing.assert_close(*found)


def returned(x: Tensor, w: Tensor) -> Any:
    return (x * 2).requires_grad_(), w * 2


def a_view(x: Tensor, w: Tensor) -> Any:
    return (x * 2).requires_grad_()[0], w * 2


def beside_another(x: Tensor, w: Tensor) -> Any:
    h = (x * 2).requires_grad_()
    return h @ w, h.sin()


def after_it_was_read(x: Tensor, w: Tensor) -> Any:
    h = x * 2
    y = h.sin()
    return h.requires_grad_() @ w, y


def of_an_argument(x: Tensor, w: Tensor) -> Any:
    return x.requires_grad_() @ w


def taken_away(x: Tensor, w: Tensor) -> Any:
    return (x @ w).requires_grad_(False)


@pytest.mark.parametrize(
    ("program", "message"),
    [
        *((program, _ALONE) for program in (returned, a_view, beside_another)),
        *((program, _REFUSED) for program in (after_it_was_read, of_an_argument, taken_away)),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_others_are_refused(program: Program, message: str) -> None:
    with pytest.raises(NotImplementedError, match=message):
        jit(program)(torch.ones(4, 4), torch.ones(4, 4, requires_grad=True))


def test_nothing_else_requires_a_gradient() -> None:
    """Thunder differentiates no call without such an argument."""
    with pytest.raises(NotImplementedError, match=_ALONE):
        jit(lambda x: (x * 2).requires_grad_().sin())(torch.ones(3))
    with pytest.raises(RuntimeError, match="floating point dtype"):
        jit(lambda x: x.long().requires_grad_())(torch.ones(3))


class Adapted(nn.Module):
    """A frozen embedding and layer with an adapter, and a checkpoint, as adapters train them."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.layer = nn.Embedding(7, 4), nn.Linear(4, 4)
        self.requires_grad_(False)
        self.adapter = nn.Linear(4, 4)
        self.embedding.register_forward_hook(lambda module, args, y: y.requires_grad_(True))

    def block(self, x: Tensor) -> Tensor:
        return self.layer(x).relu() + self.adapter(x)

    def forward(self, tokens: Tensor) -> Tensor:
        found = checkpoint(self.block, self.embedding(tokens), use_reentrant=True)
        assert isinstance(found, Tensor)
        return found


def test_a_hook_that_asks_gradients_of_a_frozen_embedding() -> None:
    torch.manual_seed(0)
    model = Adapted()
    compiled = thunder.jit(model, executors=[thunder_fuser.executor])
    tokens = torch.tensor([[0, 3, 6], [2, 2, 1]])
    found = []
    for run in (compiled, model):
        model.zero_grad()
        y = run(tokens)
        y.square().sum().backward()
        found.append((y, [p.grad for p in model.parameters()]))
    torch.testing.assert_close(*found)
