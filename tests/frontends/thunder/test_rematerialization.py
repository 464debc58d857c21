"""What is saved for backward, what regions compute again, and that both are right."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import thunder
import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.programs import batch_norm
from tests.frontends.thunder.programs import check, fake, jit, primitives, traced
from tests.support.shares import each_value
from tests.zoo.plan_programs import (
    bias_gelu,
    layer_norm,
    norm_of_sum,
    residual_norm,
    rms_norm,
    softmax,
    swiglu,
)
from thunder_fuser.frontends.thunder import fusions

BF16 = torch.bfloat16
N, D = 8192, 4096


def saved(program: Callable[..., Any], *inputs: Tensor) -> tuple[int, int]:
    """Bytes that backward gets from the forward: those of inputs, and all others."""
    compiled = jit(program)
    entry, _, _ = thunder.compile_data(compiled).get_computation_and_inputs(*inputs)
    trace = entry.computation_traces[-1]
    names = {p.name for p in trace.args}
    sizes = [0, 0]
    for proxy in trace.bound_symbols[-1].args[1][0]:
        sizes[proxy.name not in names] += math.prod(proxy.shape) * proxy.dtype.bytes
    return sizes[0], sizes[1]


# ---- what is saved


def test_statistics_are_saved_and_nothing_as_large_as_an_input() -> None:
    """bf16 [16, 64]: Thunder's own rematerialization saves 6,208 bytes for the first."""
    x, r, w, b = fake((16, 64), (16, 64), (64,), (64,), dtype=BF16, grad=True)
    assert saved(norm_of_sum, x, r, w)[1] == 16 * 4
    assert saved(layer_norm, x, w, b)[1] == 2 * 16 * 4
    assert saved(bias_gelu, x, b)[1] == saved(swiglu, x, r)[1] == 0


def test_an_output_is_saved_rather_than_what_it_was_made_of() -> None:
    """It is alive anyway: of x + r, twice as much would be read."""
    x, r, w = fake((16, 64), (16, 64), (64,), dtype=BF16, grad=True)
    assert saved(residual_norm, x, r, w) == (64 * 2, 16 * 64 * 2 + 16 * 4)


@pytest.mark.parametrize(
    ("program", "shapes", "outputs", "others"),
    [
        (rms_norm, [(N, D), (D,)], 0, 4 * N),
        (layer_norm, [(N, D), (D,), (D,)], 0, 8 * N),
        (residual_norm, [(N, D), (N, D), (D,)], 2 * N * D, 4 * N),
        (bias_gelu, [(N, 2 * N), (2 * N,)], 0, 0),
        (swiglu, [(N, 14336), (N, 14336)], 0, 0),
        (batch_norm, [(64, 256, 56, 56), (256,), (256,)], 0, 2 * 4 * 256),
    ],
    ids=lambda x: getattr(x, "__name__", None),
)
def test_statistics_are_all_that_is_saved(
    program: Callable[..., Any], shapes: list[tuple[int, ...]], outputs: int, others: int
) -> None:
    inputs = fake(*shapes, dtype=BF16, grad=True)
    assert saved(program, *inputs)[1] == outputs + others
    for report in traced(program, *inputs):
        assert report.plan.kernels == 1
        assert report.plan.bytes == report.plan.bytes_ideal


def test_a_long_cross_entropy_saves_two_numbers_a_row_beside_its_logits() -> None:
    (logits,) = fake((4096, 128256), dtype=BF16, grad=True)
    (target,) = fake((4096,), dtype=torch.int64)
    expected = logits.numel() * 2 + 4096 * 8, 4096 * (4 + 4) + 8
    assert saved(F.cross_entropy, logits, target) == expected


# ---- what moves: elements of bf16, and bytes of statistics and targets besides


@pytest.mark.parametrize(
    ("program", "shapes", "forward", "backward"),
    [
        (rms_norm, [(N, D), (D,)], (2 * N * D + D, 4 * N), (3 * N * D + 2 * D, 4 * N)),
        (
            layer_norm,
            [(N, D), (D,), (D,)],
            (2 * N * D + 2 * D, 8 * N),
            (3 * N * D + 3 * D, 8 * N),
        ),
        (softmax, [(D, 8 * D)], (16 * D * D, 0), (24 * D * D, 0)),
        (
            residual_norm,
            [(N, D), (N, D), (D,)],
            (4 * N * D + D, 4 * N),
            # h and the gradients of both results; both inputs get the same one.
            (4 * N * D + 2 * D, 4 * N),
        ),
        (bias_gelu, [(N, 2 * N), (2 * N,)], (4 * N * N + 2 * N, 0), (6 * N * N + 4 * N, 0)),
        (
            batch_norm,
            [(64, 256, 56, 56), (256,), (256,)],
            (2 * 64 * 256 * 56 * 56 + 2 * 256, 2 * 4 * 256),
            (3 * 64 * 256 * 56 * 56 + 3 * 256, 2 * 4 * 256),
        ),
    ],
    ids=lambda x: getattr(x, "__name__", None),
)
def test_forward_and_backward_are_ideal_kernels(
    program: Callable[..., Any],
    shapes: list[tuple[int, ...]],
    forward: tuple[int, int],
    backward: tuple[int, int],
) -> None:
    plans = [report.plan for report in traced(program, *fake(*shapes, dtype=BF16, grad=True))]
    for plan, (elements, others) in zip(plans, (forward, backward), strict=True):
        assert plan.kernels == 1
        assert plan.bytes == 2 * elements + others, (plan.bytes, 2 * elements + others)


def test_cross_entropy_is_two_ideal_kernels() -> None:
    rows, classes = 4096, 128256
    (logits,) = fake((rows, classes), dtype=BF16, grad=True)
    (target,) = fake((rows,), dtype=torch.int64)
    forward, backward = (report.plan for report in traced(F.cross_entropy, logits, target))
    assert forward.kernels == backward.kernels == 1
    # The loss and the count of targets; the loss's gradient and the count. And each row's largest
    # logit and logarithm, with which the backward folds nothing.
    assert forward.bytes == 2 * rows * classes + (8 + 4 + 4) * rows + 2 + 8
    assert backward.bytes == 4 * rows * classes + (8 + 4 + 4) * rows + 2 + 8
    assert backward.segments[0].kind == "pointwise"


# ---- regions of one direction


def test_a_later_region_computes_what_is_cheaper_than_memory() -> None:
    def program(x: Tensor, w: Tensor) -> Tensor:
        a = torch.sin(x)
        return torch.cos(x @ w) + a

    compiled = check(program, torch.randn(8, 8), torch.randn(8, 8), fusion_count=1)
    assert "sin" in primitives(fusions(compiled)[0])


def test_a_later_region_reads_what_is_in_memory_anyway() -> None:
    def program(x: Tensor, w: Tensor) -> Tensor:
        a = torch.sin(x)
        return torch.cos(a @ w) + a

    compiled = check(program, torch.randn(8, 8), torch.randn(8, 8), fusion_count=2)
    assert "sin" not in primitives(fusions(compiled)[1])


def test_a_reduction_is_not_done_twice() -> None:
    def program(x: Tensor, w: Tensor) -> Tensor:
        a = torch.sin(x).sum(1, keepdim=True)
        return torch.cos(x @ w) + a

    inputs = torch.randn(8, 8), torch.randn(8, 8)
    compiled = check(program, *inputs, fusion_count=2, fusion_type="consecutive")
    assert "sum" not in primitives(fusions(compiled)[1])


# ---- what must not be computed again


def test_nothing_is_computed_from_what_was_overwritten() -> None:
    def program(x: Tensor, state: Tensor) -> Tensor:
        scale = torch.sin(state)
        state.copy_(x)
        return x * scale

    x, state = torch.randn(6, requires_grad=True), torch.randn(6)
    mine = state.clone()
    jit(program)(x, mine).sum().backward()
    assert torch.equal(mine, x)
    torch.testing.assert_close(x.grad, torch.sin(state))


def test_a_view_of_what_was_overwritten_is_not_read_later() -> None:
    def program(x: Tensor, state: Tensor) -> Tensor:
        scale = torch.sin(state.view(2, 3))
        state.mul_(2)
        return x.view(2, 3) * scale

    x, state = torch.randn(6, requires_grad=True), torch.randn(6)
    mine = state.clone()
    jit(program)(x, mine).sum().backward()
    assert torch.equal(mine, 2 * state)
    torch.testing.assert_close(x.grad, torch.sin(state))


def test_torchs_random_numbers_are_drawn_once() -> None:
    x = torch.rand(64, 64, requires_grad=True) + 1
    x.retain_grad()
    y = jit(lambda x: F.dropout(torch.sin(x), 0.5) * 3)(x)
    y.sum().backward()
    assert x.grad is not None
    assert torch.equal(y == 0, x.grad == 0)
    assert 0.4 < (y == 0).double().mean() < 0.6


# ---- the gradient of nll_loss


@each_value(
    reduction=["none", "sum", "mean"], shape=[(7, 11), (3, 11, 5), (11,)], weighted=[False, True]
)
def test_losses_of_classes(reduction: str, shape: tuple[int, ...], weighted: bool) -> None:
    classes = 11
    points = shape[:1] + shape[2:] if len(shape) > 1 else ()
    target = torch.randint(0, classes, points)
    if points:
        target.view(-1)[0] = -100
    x = torch.randn(shape, requires_grad=True)
    inputs = [x, target, torch.rand(classes) + 0.1] if weighted else [x, target]

    def program(x: Tensor, target: Tensor, weight: Tensor | None = None) -> Tensor:
        return F.cross_entropy(x, target, weight, ignore_index=-100, reduction=reduction)

    compiled = check(program, *inputs)
    assert any("nll_loss_backward" in primitives(report) for report in fusions(compiled))
