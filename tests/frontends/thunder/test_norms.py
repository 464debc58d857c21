"""Softmax and norms through thunder.jit: one kernel, one rounding, and gradients."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from tests.codegen.kernels import roundings
from tests.frontends.thunder.programs import check, fake, flat, jit, traced
from tests.support.shares import each_value
from thunder_fuser.frontends.thunder import fusions, refusals
from thunder_fuser.runtime.cuda.nvrtc import compile_cubin

Call = Callable[..., Any]

# ---- kernels


BLOCKS: dict[str, tuple[Call, int]] = {
    "softmax": (lambda x, w, b: torch.softmax(x, -1), 2),
    "log_softmax": (lambda x, w, b: torch.log_softmax(x, -1), 2),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, w.shape, w, b), 2),
    "rms_norm": (lambda x, w, b: F.rms_norm(x, w.shape, w, 1e-5), 2),
    "mean": (lambda x, w, b: x.mean(-1), 1),
    "variance": (lambda x, w, b: torch.var(x, -1), 1),
    "maximum": (lambda x, w, b: x.max(-1), 1),
}


@pytest.mark.nvrtc
def test_each_is_one_kernel_that_reads_and_writes_once_and_compiles() -> None:
    rows, columns = 8192, 4096
    kernels = []
    for name, (program, tensors) in BLOCKS.items():
        inputs = fake((rows, columns), (columns,), (columns,), dtype=torch.bfloat16)
        (report,) = traced(program, *inputs)
        ideal = sum(t.numel * t.dtype.bytes for t in (*report.inputs, *report.outputs))
        assert (report.plan.kernels, report.plan.bytes) == (1, ideal), name
        assert ideal >= tensors * 2 * rows * columns
        assert all(p.device.type == "cuda" for p in report.outputs)
        kernels += report.kernels
    cubin = compile_cubin(kernels, "sm_90")
    assert len(cubin.resources) == len(BLOCKS)
    assert not any(resources.spills for resources in cubin.resources.values())


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "layer_norm", "rms_norm"])
def test_a_gradient_is_one_kernel_weights_included(name: str) -> None:
    program, _ = BLOCKS[name]
    inputs = fake((8192, 4096), (4096,), (4096,), dtype=torch.bfloat16, grad=True)
    _, backward = traced(program, *inputs)
    assert backward.plan.kernels == 1


@each_value(name=list(BLOCKS), dtype=[torch.bfloat16, torch.float16])
def test_a_block_rounds_once_and_is_no_worse_than_eager(
    name: str, dtype: torch.dtype, device: torch.device
) -> None:
    program, _ = BLOCKS[name]
    # Whole vectors: the last one of other rows is apart, and rounded in its own lines.
    x, w, b = (torch.randn(s).to(dtype).to(device) for s in ((37, 1024), 1024, 1024))
    compiled = jit(program)
    ours, eager = compiled(x, w, b), program(x, w, b)
    truth = program(x.double(), w.double(), b.double())
    for found, theirs, exact in zip(*map(flat, (ours, eager, truth)), strict=True):
        errors = [(t.double() - exact).abs().max() for t in (found, theirs)]
        # A GPU's exp2 is within 2^-22, which moves what lies that near to a tie.
        assert errors[0] <= errors[1] + 2**-20 * exact.abs().max(), name
    (report,) = fusions(compiled)
    rounded = sum(roundings(kernel.source) for kernel in report.kernels)
    assert rounded == sum(t.is_floating_point() for t in flat(ours))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_log_softmax_is_torchs_and_so_is_its_gradient(
    dtype: torch.dtype, device: torch.device
) -> None:
    """Far from zero, where the largest element and the logarithm may not be added."""
    x = (torch.randn(9, 65) + 3000).to(dtype).to(device).requires_grad_()
    seed = torch.randn(9, 65).to(dtype).to(device)
    compiled = jit(lambda x: torch.log_softmax(x, 1))
    runs = []
    for function, leaf in (
        (compiled, x),
        (lambda x: torch.log_softmax(x, 1), x.detach().clone().requires_grad_()),
        (lambda x: torch.log_softmax(x, 1), x.detach().double().requires_grad_()),
    ):
        out = function(leaf)
        runs.append((out, *torch.autograd.grad(out, leaf, seed.to(out.dtype))))
    for ours, eager, exact in zip(*runs, strict=True):
        errors = [(t.double() - exact).abs().max() for t in (ours, eager)]
        assert errors[0] <= 1.01 * errors[1] + 2**-21 * exact.abs().max()
    assert refusals(compiled) == {}
    assert [report.plan.kernels for report in fusions(compiled)] == [1, 1]


def test_log_softmax_of_a_given_dtype_beside_what_is_differentiated() -> None:
    """Its statistics are values of their own in a joint trace, in the dtype that torch is told."""
    compiled = jit(lambda x, w: (torch.log_softmax(x, 1, dtype=torch.float32), w * 2))
    x, w = torch.randn(9, 65).bfloat16(), torch.randn(5, requires_grad=True)
    found, doubled = compiled(x, w)
    exact = torch.log_softmax(x.double(), 1)
    assert found.dtype is torch.float32
    assert (found.double() - exact).abs().max() < 2e-6
    assert torch.equal(torch.autograd.grad(doubled.sum(), w)[0], torch.full((5,), 2.0))
    assert refusals(compiled) == {}


def test_a_call_that_is_not_claimed_whole_is_fused_in_parts() -> None:
    compiled = jit(lambda x: torch.log_softmax(x, 0, dtype=torch.float32))
    x = torch.arange(9)
    found, exact = compiled(x), torch.log_softmax(x.double(), 0)
    assert found.dtype is torch.float32
    assert (found - exact).abs().max() < 1e-6
    (report,) = fusions(compiled)
    assert "amax" in [expr.origin.symbol for expr in report.fusion.exprs]
    assert refusals(compiled) == {}


def test_what_one_kernel_cannot_do_is_several() -> None:
    def program(x: Any) -> Any:
        row = x - x.amax(1, keepdim=True)
        column = row / row.sum(0, keepdim=True)
        return column, (column * column).sum(), column.t().reshape(-1, 3).sum(1)

    compiled = check(program, torch.rand(12, 31, dtype=torch.float64))
    (report,) = fusions(compiled)
    assert report.plan.kernels > 2


# ---- gradients


GRADIENTS: dict[str, Call] = {
    "sum": lambda x: x.sum(1),
    "mean": lambda x: x.mean((0, 1)),
    "prod": lambda x: x.prod(1),
    "amax": lambda x: x.amax(1),
    "var": lambda x: torch.var(x, 1),
    "var_mean": lambda x: torch.var_mean(x, 0),
    "std": lambda x: torch.std(x, 0),
    "softmax": lambda x: torch.softmax(x, 1),
    "log_softmax": lambda x: torch.log_softmax(x, 0),
    "logsumexp": lambda x: torch.logsumexp(x, 1),
    "layer_norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "rms_norm": lambda x: F.rms_norm(x, x.shape[-1:], eps=1e-5),
    "batch_norm": lambda x: F.batch_norm(x, None, None, training=True),
    "group_norm": lambda x: F.group_norm(x, 3),
}


@each_value(name=list(GRADIENTS), dtype=[torch.float32, torch.bfloat16])
def test_gradients(name: str, dtype: torch.dtype, device: torch.device) -> None:
    x = torch.randn(5, 33).to(dtype).requires_grad_()
    check(GRADIENTS[name], x, device=device)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_gradients_of_a_batch_norm_with_running_statistics(
    dtype: torch.dtype, training: bool, device: torch.device
) -> None:
    """They are updated once, in their own dtype, and have no gradients."""
    torch.manual_seed(0)
    x, w, b = (torch.randn(s).to(device) for s in ((4, 8, 5, 5), 8, 8))
    seed = torch.randn(x.shape).to(device)

    def program(*tensors: torch.Tensor) -> torch.Tensor:
        x, mean, var, w, b = tensors
        return F.batch_norm(x, mean, var, w, b, training=training, momentum=0.3)

    compiled, found = jit(program), []
    for function, wanted in ((compiled, dtype), (program, dtype), (program, torch.float64)):
        # What is rounded is rounded for all of them.
        leaves = [t.to(dtype).to(wanted).requires_grad_() for t in (x, w, b)]
        mean, var = torch.full((8,), 0.5), torch.full((8,), 2.0)
        running = [
            t.to(device).to(wanted if wanted is torch.float64 else dtype) for t in (mean, var)
        ]
        result = function(leaves[0], *running, *leaves[1:])
        gradients = torch.autograd.grad(result, leaves, seed.to(dtype).to(wanted))
        found.append([result.detach(), *running, *gradients])
    for k, (ours, eager, exact) in enumerate(zip(*found, strict=True)):
        error, bar = (((t.double() - exact).norm() / exact.norm()) for t in (ours, eager))
        assert error <= 1.1 * bar + 2e-7, (k, float(error), float(bar))
    assert refusals(compiled) == {}


@pytest.mark.parametrize(
    ("shape", "weighted"),
    [((0, 3), False), ((0, 3), True), ((2, 3, 0), False), ((2, 3, 0), True), ((0,), False)],
    ids=str,
)
def test_a_batch_norm_of_nothing_leaves_the_statistics_alone(
    shape: tuple[int, ...], weighted: bool
) -> None:
    def program(x: torch.Tensor, mean: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        affine = (w, w + 1) if weighted else (None, None)
        return F.batch_norm(x, mean, mean + 1, *affine, training=True)

    found = []
    for function in (program, jit(program)):
        x, w = torch.randn(shape, requires_grad=True), torch.ones(3, requires_grad=True)
        mean = torch.tensor([1.0, 2.0, 3.0])
        result = function(x, mean, w)
        read = [x, w] if weighted else [x]
        found.append([result, mean, *torch.autograd.grad(result.sum(), read)])
    torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((4, 16), torch.bfloat16),
        ((16,), torch.float16),
        ((1, 1), torch.bfloat16),
        ((2, 3, 4), torch.float32),
    ],
    ids=str,
)
def test_a_layer_norm_of_a_whole_tensor(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Thunder takes its statistics for numbers, which widen no tensor of 16 bits."""
    a = torch.linspace(-2, 3, math.prod(shape)).reshape(shape).to(dtype)
    weight, bias = (torch.linspace(s, 2, a.numel()).reshape(shape).to(dtype) for s in (-1, 0.5))
    for parameters in ((), (weight, bias)):
        given = [t.clone().requires_grad_() for t in (a, *parameters)]
        exact = [t.detach().double().requires_grad_() for t in given]
        made = jit(F.layer_norm)(given[0], shape, *given[1:])
        right = F.layer_norm(exact[0], shape, *exact[1:])
        found = torch.autograd.grad(made, given, torch.ones_like(made))
        wanted = torch.autograd.grad(right, exact, torch.ones_like(right))
        assert {t.dtype for t in (made, *found)} == {dtype}
        for ours, truth in zip((made, *found), (right, *wanted), strict=True):
            bound = 4 * torch.finfo(dtype).eps * truth.abs().max() + 1e-5
            assert (ours.double() - truth).abs().max() <= bound


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_what_is_normalized_alone_has_a_gradient_of_exactly_zero(dtype: torch.dtype) -> None:
    def program(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rows = x.reshape(40, 1)
        return F.layer_norm(rows, (1,), w[:1], b[:1]), F.group_norm(x, 8, w, b)

    inputs = [torch.randn(s).to(dtype).requires_grad_() for s in ((5, 8), 8, 8)]
    results = jit(program)(*inputs)
    torch.autograd.backward(results, [torch.randn_like(y) for y in results])
    gradient = inputs[0].grad
    assert gradient is not None
    assert not gradient.any()
