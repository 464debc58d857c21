"""Where 16-bit values are rounded: where a call of the user ends, and where the user says."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import thunder
import torch
from torch import Tensor
from torch.nn import functional as F

import thunder_fuser
from tests.codegen.kernels import roundings
from tests.support.shares import each_value
from tests.zoo.torch_calls import CALLS

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


# ---- calls that have kernels of their own in torch: a result, and a gradient, has one rounding


def of_call(call: Callable[..., Tensor], operands: list[Tensor], seed: Tensor) -> list[Tensor]:
    """The result and the gradients, with the operands as they are."""
    leaves = [x.clone().requires_grad_() for x in operands]
    result = call(*leaves)
    return [result, *torch.autograd.grad(result, leaves, seed.to(result.dtype))]


@pytest.mark.parametrize("name", CALLS)
def test_a_call_and_its_gradient_lose_no_more_than_torchs_kernels(
    name: str, device: torch.device
) -> None:
    """All elements together: two roundings where torch has one are 1.4 times its error."""
    call, shapes = CALLS[name]
    torch.manual_seed(0)
    operands = [(1.3 * torch.randn(shape)).bfloat16().to(device) for shape in shapes]
    seed = torch.randn(call(*operands).shape).bfloat16().to(device)
    compiled = thunder.jit(call, executors=[thunder_fuser.executor])
    truth = of_call(call, [x.double() for x in operands], seed)
    eager = of_call(call, operands, seed)
    for k, (ours, theirs, exact) in enumerate(
        zip(of_call(compiled, operands, seed), eager, truth, strict=True)
    ):
        error, bar = (((t.double() - exact).norm() / exact.norm()) for t in (ours, theirs))
        assert error <= 1.03 * bar + 1e-7, (k, float(error), float(bar))
    assert not thunder_fuser.refusals(compiled)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: F.hardtanh(x, -1.0, 1.0, True),
        lambda x: F.elu(x, 1.5, True),
        lambda x: F.celu(x, 1.3, True),
        lambda x: F.selu(x, True),
        lambda x: F.hardswish(x, True),
    ],
    ids=["hardtanh", "elu", "celu", "selu", "hardswish"],
)
def test_an_operand_is_updated_where_a_position_says_so(call: Callable[[Tensor], Tensor]) -> None:
    """A call that is claimed whole has no update in it."""

    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x * 1
        return y, call(y)

    compiled = thunder.jit(program, executors=[thunder_fuser.executor])
    x = torch.linspace(-4, 4, 97)
    torch.testing.assert_close(compiled(x), program(x))


NUMBERS = {
    "comparisons": lambda x: (x < 0.7, x <= 0.7, x == 0.7, x >= 0.7, x != 0.7, x > 0.7),
    "remainders": lambda x: (x % 0.7, 0.7 % x, torch.fmod(x, 0.7), torch.remainder(x, 0.7)),
    "quotients": lambda x: (0.7 // x, x // 0.7),
    "tensors": lambda x: (x % torch.tensor(0.7), torch.fmod(x, torch.tensor(0.7))),
    "shrinks": lambda x: (F.hardshrink(x, 0.7), F.hardtanh(x, -0.1, 0.7), x.clamp(0.1, 0.7)),
}


@each_value(name=list(NUMBERS), dtype=[torch.bfloat16, torch.float16])
def test_a_number_is_rounded_to_16_bits_where_torchs_kernels_do(
    name: str, dtype: torch.dtype
) -> None:
    """No tensor of 16 bits equals 0.7, but the one that 0.7 is rounded to."""
    x = torch.tensor([0.7, -0.7, 0.3, 2.1, 1e-3, 3.3, -0.1, 0.1, 0.2], dtype=dtype)
    program = NUMBERS[name]
    compiled = thunder.jit(program, executors=[thunder_fuser.executor])
    for found, expected in zip(compiled(x), program(x), strict=True):
        assert torch.equal(found, expected)


def test_numbers_are_rounded_whatever_the_default_device_is() -> None:
    compiled = thunder.jit(lambda x: (x < 0.7) * (x % 0.7), executors=[thunder_fuser.executor])
    x = torch.tensor([0.7, 0.3, 2.1], dtype=torch.bfloat16)
    with torch.device("meta"):
        found = compiled(x)
    assert torch.equal(found, (x < 0.7) * (x % 0.7))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("mode", ["trunc", "floor"])
def test_quotients_by_tensors_round_each_step(mode: str, dtype: torch.dtype) -> None:
    """As torch's kernels, which compute in the dtype of the tensors: 13.8 / 0.629 is 22 in bf16."""
    torch.manual_seed(0)
    x, y = (torch.randn(2, 1 << 14) * torch.tensor([[20], [1]])).to(dtype)

    def program(x: Tensor, y: Tensor) -> list[Tensor]:
        return [torch.div(x, other, rounding_mode=mode) for other in (y, 0.37, y[:1], y[0])]

    compiled = thunder.jit(program, executors=[thunder_fuser.executor])
    for found, expected in zip(compiled(x, y), program(x, y), strict=True):
        assert torch.equal(found, expected)
