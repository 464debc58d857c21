"""Gradients of gradients are refused; gradients that merely could be differentiated are not."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from thunder.dynamo import thunderfx

import thunder_fuser
from tests.frontends.thunder.programs import jit
from thunder_fuser.errors import FuserError

WEIGHT = (torch.arange(20.0).view(4, 5) / 20).requires_grad_()


def program(x: Any) -> Any:
    return (x @ WEIGHT).tanh()


def penalty(fn: Callable[..., Any], x: torch.Tensor) -> torch.Tensor:
    """The cotangents are constants, which autograd's `once_differentiable` does not notice."""
    (gradient,) = torch.autograd.grad(fn(x).sum(), x, create_graph=True)
    return (gradient.norm(dim=-1) - 1).square().sum()


def weighted_penalty(fn: Callable[..., Any], x: torch.Tensor) -> torch.Tensor:
    """The cotangents depend on the results."""
    (gradient,) = torch.autograd.grad(fn(x).square().sum(), x, create_graph=True)
    return gradient.square().sum()


def hessian_product(fn: Callable[..., Any], x: torch.Tensor) -> torch.Tensor:
    """By the gradients of one argument alone, where "unused" means zeros."""
    return torch.autograd.functional.hvp(lambda x: fn(x).sum(), x, torch.ones_like(x))[1].sum()


def of_a_computed_argument(fn: Callable[..., Any], x: torch.Tensor) -> torch.Tensor:
    twice = x * 2
    later = twice + 1
    (gradient,) = torch.autograd.grad(fn(later).sum(), later, create_graph=True)
    return torch.autograd.grad(gradient.sum(), twice)[0].sum()


@pytest.mark.parametrize(
    "differentiate", [penalty, weighted_penalty, hessian_product, of_a_computed_argument]
)
def test_gradients_of_gradients_are_refused(
    differentiate: Callable[[Callable[..., Any], torch.Tensor], torch.Tensor],
) -> None:
    for fn in (program, lambda x: x.tanh()):
        x = torch.ones(3, 4, requires_grad=True)
        eager = differentiate(fn, x)
        assert eager.isfinite()
        with pytest.raises(FuserError, match=r"differentiated again.*given to thunder.jit"):
            differentiate(jit(fn), x).backward()


def test_a_graph_that_is_not_differentiated() -> None:
    """Also twice, and with `torch.no_grad()` afterwards as in an optimizer."""
    results = []
    for fn in (program, jit(program)):
        x = torch.ones(3, 4, requires_grad=True)
        value = fn(x)
        first = torch.autograd.grad(value.sum(), (x, WEIGHT), create_graph=True)
        again = torch.autograd.grad(value.square().sum(), (x, WEIGHT), create_graph=True)
        assert all(gradient.requires_grad for gradient in (*first, *again))
        results.append([gradient.detach() for gradient in (*first, *again)])
    torch.testing.assert_close(*results)


def test_what_links_the_functions_of_a_call_is_freed() -> None:
    """By reference counts, with the results."""
    fn = jit(program)
    x = torch.ones(3, 4, requires_grad=True)
    gc.disable()
    try:
        value = fn(x * 1)
        link = weakref.ref(value.grad_fn.link)
        assert link() is not None
        torch.autograd.grad(value.sum(), x, create_graph=True)
        del value
        assert link() is None
    finally:
        gc.enable()


def test_without_a_link_a_graph_is_refused() -> None:
    fn = thunderfx(program, executors=[thunder_fuser.executor])
    x = torch.ones(3, 4, requires_grad=True)
    fn(x).sum().backward()
    with pytest.raises(FuserError, match="differentiated again"):
        fn(x).sum().backward(create_graph=True)
