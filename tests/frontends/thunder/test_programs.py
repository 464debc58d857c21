"""Whole programs, forward and backward, against float64; and what their fusions cost."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from tests.frontends.thunder.programs import assert_as_good_as_eager, check, fake, jit, traced
from tests.support.shares import each_value
from tests.zoo.rope import rope as llama_rope
from thunder_fuser.demo import rope
from thunder_fuser.frontends.thunder import fusions


def leaf(*shape: int, dtype: torch.dtype = torch.float32, scale: float = 1.0) -> torch.Tensor:
    return (torch.randn(shape) * scale).to(dtype).requires_grad_()


# ---- layers


def swiglu(x: Any, w: Any, v: Any, out: Any) -> Any:
    return (F.silu(x @ w) * (x @ v)) @ out


def test_swiglu(device: torch.device) -> None:
    weights = [leaf(24, 40, scale=0.2), leaf(24, 40, scale=0.2), leaf(40, 24, scale=0.2)]
    check(swiglu, leaf(6, 24), *weights, device=device)


@each_value(approximate=["tanh", "none"], dtype=[torch.float32, torch.bfloat16])
def test_bias_gelu(approximate: str, dtype: torch.dtype, device: torch.device) -> None:
    def program(x: Any, bias: Any) -> Any:
        return F.gelu(x + bias, approximate=approximate)

    inputs = leaf(12, 20, dtype=dtype), leaf(20, dtype=dtype)
    check(program, *inputs, fusion_count=2, device=device)


def test_mlp_with_residual_and_normalisation(device: torch.device) -> None:
    def program(x: Any, w1: Any, w2: Any, gain: Any) -> Any:
        scale = torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5)
        return x + F.relu(((x * scale) * gain) @ w1) @ w2

    weights = leaf(16, 32, scale=0.3), leaf(32, 16, scale=0.3), leaf(16)
    check(program, leaf(8, 16), *weights, device=device)


def test_layer_norm_and_softmax(device: torch.device) -> None:
    def program(x: Any, gain: Any, bias: Any) -> Any:
        return torch.softmax(F.layer_norm(x, (16,), gain, bias) * 2, -1)

    check(program, leaf(8, 16), leaf(16), leaf(16), device=device)


@pytest.mark.parametrize("options", [{}, {"auto_recompute_intermediates": True}], ids=str)
def test_what_is_recomputed_in_the_backward(options: dict[str, Any]) -> None:
    def part(x: Any, w: Any) -> Any:
        return F.silu(x @ w) * torch.sigmoid(x @ w)

    def program(x: Any, w: Any) -> Any:
        return checkpoint(part, x, w, use_reentrant=False) + x

    check(program, leaf(8, 8), leaf(8, 8, scale=0.3), **options)


def test_autocast() -> None:
    def program(x: Any, w: Any) -> Any:
        return torch.relu(x @ w) * 2

    x, w = torch.randn(5, 5), torch.randn(5, 5)
    with torch.autocast("cpu", torch.bfloat16):
        ours, eager = jit(program)(x, w), program(x, w)
    assert_as_good_as_eager(ours, eager, program(x.double(), w.double()), "autocast", factor=4)


def test_a_module() -> None:
    torch.manual_seed(1)
    eager = torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4), torch.nn.Tanh()
    )
    compiled = jit(eager)
    x = torch.randn(5, 8)
    torch.testing.assert_close(compiled(x), eager(x))
    found = torch.autograd.grad(compiled(x).square().sum(), list(eager.parameters()))
    wanted = torch.autograd.grad(eager(x).square().sum(), list(eager.parameters()))
    torch.testing.assert_close(found, wanted)
    assert len(fusions(compiled)) >= 3


# ---- issue 2577


ROPE = (16, 4, 32, 8)


def rope_inputs(dtype: torch.dtype = torch.bfloat16, length: int = 1024) -> list[torch.Tensor]:
    return [torch.randn(s, dtype=dtype) for s in ((2, length, 768), (length, 8), (length, 8))]


def test_rope_forward_is_one_kernel_at_ideal_bytes() -> None:
    inputs = rope_inputs()
    compiled = jit(rope)
    ours, eager = compiled(*inputs, *ROPE), rope(*inputs, *ROPE)
    truth = rope(*(x.double() for x in inputs), *ROPE)
    for k, tensors in enumerate(zip(ours, eager, truth, strict=True)):
        assert_as_good_as_eager(*tensors, "qkv"[k])
    (report,) = fusions(compiled)
    assert (report.plan.kernels, report.plan.bytes) == (1, 9_469_952)
    assert len(report.kernels) == 1


def test_rope_gradients(device: torch.device) -> None:
    inputs = [x.requires_grad_() for x in rope_inputs(length=64)]
    check(lambda *args: rope(*args, *ROPE), *inputs, device=device)


def test_rope_on_fake_cuda_tensors() -> None:
    inputs = fake((2, 1024, 768), (1024, 8), (1024, 8), dtype=torch.bfloat16)
    (report,) = traced(rope, *inputs, *ROPE)
    assert (report.plan.kernels, report.plan.bytes) == (1, 9_469_952)
    (kernel,) = report.kernels
    assert "__global__" in kernel.source
    assert [str(p.device) for p in report.outputs] == [str(p.device) for p in report.inputs]


def test_rope_with_gradients_on_fake_cuda_tensors() -> None:
    inputs = fake((2, 64, 768), (64, 8), (64, 8), dtype=torch.bfloat16, grad=True)
    reports = traced(rope, *inputs, *ROPE)
    assert reports[0].plan.kernels == 1
    assert [report.name for report in reports] == [f"fuser{k}" for k in range(len(reports))]


def test_rope_backward_says_what_a_second_set_of_rows_costs() -> None:
    """Gradients of cos and sin fold batches and heads, and have the rotated dimensions only."""
    inputs = fake((2, 1024, 768), (1024, 8), (1024, 8), dtype=torch.bfloat16, grad=True)
    plan = traced(rope, *inputs, *ROPE)[-1].plan
    assert (plan.kernels, plan.bytes, plan.bytes_ideal) == (2, 11_599_872, 10_551_296)
    refusals = [why for segment in plan.segments for why in segment.refusals]
    assert {why.code for why in refusals} == {"shape"}
    assert "[2, 4, 6, 1024, 32] differs" in str(refusals[0])
    assert "from its rows [1024, 8]; it needs a kernel of its own" in str(refusals[0])


# ---- sizes that only a plan can have


def glu(gate: Any, up: Any) -> Any:
    return F.silu(gate) * up


def gelu_tanh(x: Any, bias: Any) -> Any:
    return F.gelu(x + bias, approximate="tanh")


def gelu_erf(x: Any, bias: Any) -> Any:
    return F.gelu(x + bias)


def residuals(x: Any, bias: Any) -> Any:
    for _ in range(4):
        x = x + torch.tanh(x * bias)
    return x


ROWS = 8192
WIDE = [
    (glu, [(ROWS, 14336), (ROWS, 14336)], 3 * ROWS * 14336),
    (gelu_tanh, [(ROWS, 16384), (16384,)], 2 * ROWS * 16384 + 16384),
    (gelu_erf, [(ROWS, 16384), (16384,)], 2 * ROWS * 16384 + 16384),
    (residuals, [(ROWS, 4096), (4096,)], 2 * ROWS * 4096 + 4096),
]


@pytest.mark.parametrize(("program", "shapes", "numbers"), WIDE, ids=lambda x: str(x)[:20])
def test_pointwise_regions_are_one_kernel_at_ideal_bytes(
    program: Any, shapes: list[tuple[int, ...]], numbers: int
) -> None:
    (report,) = traced(program, *fake(*shapes, dtype=torch.bfloat16))
    assert (report.plan.kernels, report.plan.bytes) == (1, 2 * numbers)


def test_rope_of_llama_reads_each_needed_element_once() -> None:
    length, size = 8192, 128
    inputs = fake((1, length, 48 * size), (length, size), (length, size), dtype=torch.bfloat16)
    program = partial(llama_rope, groups=8, per_group=4, values=False)
    (report,) = traced(program, *inputs)
    read = length * 40 * size + 2 * length * size
    written = 2 * 32 * length * size
    assert (report.plan.kernels, report.plan.bytes) == (1, 2 * (read + written))
    small = [torch.randn(1, 16, 48 * 8), torch.randn(16, 8), torch.randn(16, 8)]
    check(program, *(x.bfloat16() for x in small), fusion_count=1)


def adamw(*tensors: Any) -> Any:
    """One step for parameters, gradients and two moments each, in place."""
    count = len(tensors) // 4
    parameters, gradients, means, squares = (tensors[k * count : (k + 1) * count] for k in range(4))
    for p, g, m, v in zip(parameters, gradients, means, squares, strict=True):
        p.mul_(1 - 1e-3 * 0.01)
        m.mul_(0.9).add_(g, alpha=0.1)
        v.mul_(0.999).addcmul_(g, g, value=0.001)
        p.addcdiv_(m / (1 - 0.9), (v / (1 - 0.999)).sqrt() + 1e-8, value=-1e-3)
    return None


def test_an_optimizer_step_in_place() -> None:
    shapes = [(5, 7), (3,), (2, 4)]
    tensors = [torch.rand(s, dtype=torch.float64) for _ in range(4) for s in shapes]
    eager = [t.clone() for t in tensors]
    jit(adamw)(*tensors)
    adamw(*eager)
    for ours, theirs in zip(tensors, eager, strict=True):
        torch.testing.assert_close(ours, theirs)


def new_state(p: Any, g: Any, m: Any, v: Any) -> Any:
    """The same step as a function of the old state."""
    m = 0.9 * m + 0.1 * g
    v = 0.999 * v + 0.001 * g * g
    update = (m / (1 - 0.9)) / ((v / (1 - 0.999)).sqrt() + 1e-8)
    return p * (1 - 1e-5) - 1e-3 * update, m, v


def test_an_optimizer_step_over_nine_tensors_is_one_kernel() -> None:
    shapes = [(1024, k) for k in range(100, 109)]
    tensors = [t for s in shapes for t in fake(*[s] * 4, dtype=torch.float32)]

    def step(*state: Any) -> Any:
        return [new_state(*state[4 * k : 4 * k + 4]) for k in range(len(state) // 4)]

    (report,) = traced(step, *tensors)
    numbers = sum(math.prod(s) for s in shapes)
    assert (report.plan.kernels, report.plan.bytes) == (1, 7 * 4 * numbers)
