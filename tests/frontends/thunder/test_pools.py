"""Pools with windows through Thunder: numbers and gradients as torch's, and their kernels."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.frontends.thunder.programs import check, fake, jit, traced
from tests.support.shares import each_value
from thunder_fuser import fusions, refusals
from thunder_fuser.device_table import H200
from thunder_fuser.templates.choose import schedule_segment
from thunder_fuser.templates.estimate import estimate_segment
from thunder_fuser.templates.pointwise.schedule import PointwiseSchedule

Options = dict[str, Any]
Pool = Callable[..., Tensor]

# Of a window, in as many dimensions as it has: the pool, the image, its options.
LARGEST: dict[str, tuple[Pool, tuple[int, ...], Options]] = {
    "1d": (F.max_pool1d, (2, 3, 17), {"kernel_size": 3}),
    "1d overlapping": (
        F.max_pool1d,
        (2, 3, 17),
        {"kernel_size": 4, "stride": 3, "padding": 2, "dilation": 2},
    ),
    "2d": (F.max_pool2d, (2, 3, 8, 12), {"kernel_size": 2}),
    "2d of a stem": (
        F.max_pool2d,
        (2, 3, 16, 16),
        {"kernel_size": 3, "stride": 2, "padding": 1},
    ),
    "2d, odd": (
        F.max_pool2d,
        (2, 3, 11, 9),
        {"kernel_size": (3, 2), "stride": (2, 1), "padding": (1, 0), "dilation": (1, 3)},
    ),
    "2d, ceil": (
        F.max_pool2d,
        (1, 2, 10, 9),
        {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True},
    ),
    "2d, dense": (F.max_pool2d, (1, 2, 9, 16), {"kernel_size": 5, "stride": 1, "padding": 2}),
    "2d, gaps between windows": (F.max_pool2d, (2, 2, 13, 16), {"kernel_size": 2, "stride": 4}),
    "one image": (F.max_pool2d, (3, 8, 8), {"kernel_size": 3, "stride": 1, "dilation": 2}),
    "3d": (F.max_pool3d, (1, 2, 5, 6, 7), {"kernel_size": 2, "stride": (1, 2, 3), "padding": 1}),
}
AVERAGE: dict[str, tuple[Pool, tuple[int, ...], Options]] = {
    "1d": (F.avg_pool1d, (2, 3, 17), {"kernel_size": 3, "stride": 2, "padding": 1}),
    "1d, ceil": (F.avg_pool1d, (2, 3, 16), {"kernel_size": 3, "stride": 2, "ceil_mode": True}),
    "2d": (F.avg_pool2d, (2, 3, 8, 12), {"kernel_size": 2}),
    "2d, odd": (
        F.avg_pool2d,
        (2, 3, 11, 9),
        {"kernel_size": (3, 2), "stride": (2, 1), "padding": (1, 0)},
    ),
    "2d, pads do not count": (
        F.avg_pool2d,
        (1, 2, 10, 9),
        {"kernel_size": 3, "stride": 2, "padding": 1, "count_include_pad": False},
    ),
    "2d, ceil": (
        F.avg_pool2d,
        (1, 2, 10, 8),
        {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True},
    ),
    "2d, divisor": (F.avg_pool2d, (2, 2, 13, 16), {"kernel_size": 3, "divisor_override": 5}),
    "2d, gaps between windows": (F.avg_pool2d, (2, 2, 13, 16), {"kernel_size": 2, "stride": 4}),
    "2d, large": (F.avg_pool2d, (2, 3, 17, 24), {"kernel_size": 8}),
    "3d": (F.avg_pool3d, (1, 2, 5, 6, 7), {"kernel_size": 2, "stride": (1, 2, 3), "padding": 1}),
}
CASES = {
    **{f"max {name}": case for name, case in LARGEST.items()},
    **{f"avg {name}": case for name, case in AVERAGE.items()},
}


def left(compiled: Any) -> list[str]:
    """What torch computes."""
    return [r.subject for r in refusals(compiled)]


@pytest.mark.parametrize("name", CASES)
def test_numbers_and_gradients(name: str, device: torch.device) -> None:
    pool, shape, options = CASES[name]
    torch.manual_seed(0)
    x = torch.randn(shape, requires_grad=True)
    compiled = check(lambda x: pool(x * 2, **options) * 3, x, device=device)
    assert left(compiled) == []


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_of_other_types(dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    x = torch.randn(2, 3, 16, 16).to(dtype).requires_grad_()
    compiled = check(lambda x: F.max_pool2d(x, 3, 2, 1) + F.avg_pool2d(x, 3, 2, 1), x)
    assert left(compiled) == []


def gradients(pool: Pool, x: Tensor) -> tuple[Tensor, Tensor]:
    """Result, and gradient of the image for gradients that are all different."""
    x = x.clone().requires_grad_()
    y = pool(x)
    y.backward(torch.arange(1.0, y.numel() + 1).view(y.shape).to(y.dtype))
    assert x.grad is not None
    return y.detach(), x.grad


@pytest.mark.parametrize("name", LARGEST)
def test_of_equal_elements_the_first_has_the_gradient(name: str) -> None:
    """Ties; windows of NaN, of which the last one is torch's, and of -inf."""
    pool, shape, options = LARGEST[name]
    torch.manual_seed(2)
    ties = torch.randint(0, 3, shape).float()
    special = torch.where(torch.rand(shape) < 0.3, math.nan, ties - 1)
    least = torch.where(torch.rand(shape) < 0.9, -math.inf, ties)
    compiled = jit(lambda x: pool(x, **options))
    for x in (ties, special, least, torch.full(shape, -math.inf)):
        ours, theirs = gradients(compiled, x), gradients(lambda x: pool(x, **options), x)
        for found, expected in zip(ours, theirs, strict=True):
            torch.testing.assert_close(found, expected, equal_nan=True, rtol=0, atol=0)


@pytest.mark.parametrize("pool", [F.max_pool2d, F.avg_pool2d])
def test_channels_stay_last(pool: Pool) -> None:
    torch.manual_seed(3)
    x = torch.randn(2, 8, 9, 10).contiguous(memory_format=torch.channels_last)
    function = lambda x: pool(x, 3, 2, 1)  # noqa: E731
    compiled = jit(function)
    ours, theirs = gradients(compiled, x), gradients(function, x)
    assert [t.stride() for t in ours] == [t.stride() for t in theirs]
    for found, expected in zip(ours, theirs, strict=True):
        torch.testing.assert_close(found, expected)


def test_where_the_largest_are(device: torch.device) -> None:
    torch.manual_seed(4)
    x = torch.randn(2, 3, 9, 10, requires_grad=True)
    compiled = check(
        lambda x: F.max_pool2d(x.sin(), 3, 2, 1, return_indices=True), x, device=device
    )
    assert left(compiled) == []


def test_windows_of_too_many_elements_are_torchs() -> None:
    torch.manual_seed(5)
    x = torch.randn(1, 2, 20, 20, requires_grad=True)
    compiled = check(lambda x: F.max_pool2d(x.sin(), 8, 2) * 2, x)
    assert set(left(compiled)) == {"max_pool2d_with_indices", "max_pool2d_with_indices_backward"}
    assert all("window" in r.text for r in refusals(compiled))


STEM = (32, 64, 112, 112)
IMAGE, POOLED = 2 * math.prod(STEM), 2 * math.prod(STEM) // 4


def test_a_pool_is_one_kernel_each_way_and_saves_a_byte_for_a_window() -> None:
    x = fake(STEM, dtype=torch.bfloat16, grad=True)
    forward, backward = (f.plan for f in traced(lambda x: F.max_pool2d(x, 3, 2, 1), *x))
    places = POOLED // 2
    for plan in (forward, backward):
        assert plan.kernels == 1
        assert plan.bytes == plan.bytes_ideal == IMAGE + POOLED + places


def test_loads_of_windows_are_vectors_and_neighbours_share_them() -> None:
    """By the time model memory moves what the kernels want once, however often a point's
    neighbours read it.
    """
    x = fake(STEM, dtype=torch.bfloat16, grad=True)
    for report in traced(lambda x: F.max_pool2d(x, 3, 2, 1), *x):
        (segment,) = report.plan.segments
        schedule = schedule_segment(segment, H200)
        assert isinstance(schedule, PointwiseSchedule)
        assert all(a.is_vector for part in schedule.parts for a in part.accesses)
        assert estimate_segment(segment, H200).bytes <= 1.1 * report.plan.bytes


def test_a_normalised_image_is_not_written_before_its_pool() -> None:
    """A gradient that a reduction reads is: each of its elements would be found at every pass."""
    tensors = fake(STEM, (64,), (64,), dtype=torch.bfloat16, grad=True)

    def stem(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.max_pool2d(F.relu(F.batch_norm(x, None, None, weight, bias, True)), 3, 2, 1)

    forward, backward = (f.plan for f in traced(stem, *tensors))
    small = 8192
    assert forward.kernels == backward.kernels == 2
    assert forward.bytes - 2 * IMAGE - POOLED - POOLED // 2 < small
    assert backward.bytes - 4 * IMAGE - POOLED - POOLED // 2 < small


def test_average_pools_are_no_convolutions() -> None:
    x = fake(STEM, dtype=torch.bfloat16, grad=True)
    found = traced(lambda x: F.avg_pool2d(x, 2), *x)
    assert [f.plan.kernels for f in found] == [1, 1]
    assert all(f.plan.bytes == IMAGE + POOLED for f in found)


def test_pools_without_gradients_are_fused() -> None:
    torch.manual_seed(6)
    x = torch.randn(2, 3, 16, 16)
    compiled = check(lambda x: torch.max_pool2d(F.relu(x), 3, 2, 1) * 2, x)
    assert len(fusions(compiled)) == 1
    assert left(compiled) == []


FORMATS = {
    "an image that looks like one of channels last": ((3, 2, 3, 4), (48, 1, 4, 12)),
    "channels last": ((3, 2, 4, 4), (32, 1, 8, 2)),
    "one channel": ((2, 1, 4, 4), (16, 1, 4, 1)),
    "rows": ((3, 2, 4, 4), (32, 16, 4, 1)),
    "a volume": ((2, 2, 3, 3, 4), (72, 1, 24, 8, 2)),
}


@each_value(name=list(FORMATS), requires_grad=[False, True])
def test_results_have_the_memory_format_of_the_operand(name: str, requires_grad: bool) -> None:
    sizes, strides = FORMATS[name]
    x = torch.randn(200).as_strided(sizes, strides).requires_grad_(requires_grad)
    k = len(sizes) - 2
    largest, average = getattr(F, f"max_pool{k}d"), getattr(F, f"avg_pool{k}d")

    def program(x: Tensor) -> tuple[Tensor, ...]:
        return largest(x, 2), average(x, 2), largest(x, 2, return_indices=True)[0]

    for ours, eager in zip(jit(program)(x), program(x), strict=True):
        assert ours.stride() == eager.stride()
