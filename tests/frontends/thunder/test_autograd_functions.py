"""Autograd functions of the user: contexts, and what they ask of them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.frontends.thunder.programs import jit


class Doubled(torch.autograd.Function):
    """`x * factor`, with twice its gradient."""

    @staticmethod
    def forward(x: Tensor, factor: float) -> Tensor:
        return x.sin() * factor

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, float], output: Tensor) -> None:
        x, ctx.factor = inputs
        ctx.save_for_backward(x, output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        x, output = ctx.saved_tensors
        return 2 * gradient * x.cos() * ctx.factor + 0 * output, None


class Product(torch.autograd.Function):
    """A product whose backward computes what is needed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        ctx.save_for_backward(x, y)
        return x * y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, y = ctx.saved_tensors
        needs_x, needs_y = ctx.needs_input_grad
        return gradient * y if needs_x else None, gradient * x * 3 if needs_y else None


def test_contexts() -> None:
    def program(x: Tensor, y: Tensor) -> Tensor:
        return Product.apply(Doubled.apply(x, 0.5) + 1, y)

    torch.manual_seed(0)
    x, y = torch.randn(2, 3, 4, dtype=torch.float64)
    for needs in ((True, False), (True, True), (False, True)):
        inputs = [t.clone().requires_grad_(need) for t, need in zip((x, y), needs, strict=True)]
        wanted = [t for t in inputs if t.requires_grad]
        runs = [(run(*inputs), wanted) for run in (jit(program), program)]
        torch.testing.assert_close(*(found for found, _ in runs))
        gradients = [torch.autograd.grad(found.sum(), of) for found, of in runs]
        torch.testing.assert_close(*gradients)
