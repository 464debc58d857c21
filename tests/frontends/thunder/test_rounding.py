"""Where 16-bit values are rounded: where a call of the user ends, and where the user says."""

from __future__ import annotations

import pytest
import thunder
import torch

import thunder_fuser
from tests.codegen.kernels import roundings

X = torch.linspace(-4, 4, 1 << 12).bfloat16()


def kernel_text(compiled: object) -> str:
    return "".join(k.source for f in thunder_fuser.fusions(compiled) for k in f.kernels)


@pytest.mark.parametrize("call", [torch.nn.functional.silu, torch.nn.functional.gelu])
def test_a_call_rounds_once_at_its_end(call: object) -> None:
    compiled = thunder.jit(lambda x: call(x), executors=[thunder_fuser.executor])
    error = (compiled(X).double() - call(X.double())).abs().max()
    assert error <= (call(X).double() - call(X.double())).abs().max() * 1.01
    assert roundings(kernel_text(compiled)) == 1


@pytest.mark.parametrize("call", [torch.nn.functional.silu, torch.nn.functional.gelu])
def test_its_gradient_rounds_once_too(call: object) -> None:
    """As torch's own kernel for it does."""

    def gradient(function: object, dtype: torch.dtype) -> torch.Tensor:
        x = X.to(dtype, copy=True).requires_grad_()
        (found,) = torch.autograd.grad(function(x), x, X.flip(0).to(dtype))  # type: ignore[operator]
        return found

    compiled = thunder.jit(lambda x: call(x), executors=[thunder_fuser.executor])  # type: ignore[operator]
    exact = gradient(call, torch.float64)
    ours, eager = (gradient(f, torch.bfloat16).double() for f in (compiled, call))
    assert (ours - exact).abs().max() <= (eager - exact).abs().max() * 1.01


def test_two_calls_round_twice() -> None:
    compiled = thunder.jit(lambda x, y: (x + y) * y, executors=[thunder_fuser.executor])
    y = X.flip(0).contiguous()
    assert torch.equal(compiled(X, y), (X + y) * y)
    assert roundings(kernel_text(compiled)) == 2


def test_a_round_trip_that_the_user_writes_stays() -> None:
    compiled = thunder.jit(
        lambda x: (x * 1.001).bfloat16().float() * 3, executors=[thunder_fuser.executor]
    )
    x = torch.linspace(-4, 4, 1 << 12)
    assert torch.equal(compiled(x), (x * 1.001).bfloat16().float() * 3)
