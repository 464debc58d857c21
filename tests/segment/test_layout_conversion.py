"""Copies of what lies in another order than the rows of a reduction kernel: when they pay, what
they move, and the same numbers.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from tests.support.batch import Batch
from tests.support.building import op
from tests.support.seeds import blocks
from thunder_fuser.analysis.layout import loop_order
from thunder_fuser.analysis.torch_strides import TorchMemory
from thunder_fuser.compile import compile_plan
from thunder_fuser.device_table import H200
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.domain import Layout, dense_strides
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import Fusion, TensorView
from thunder_fuser.ir.reference import evaluate
from thunder_fuser.runtime.target import planned_for
from thunder_fuser.segment.layouts.layout_conversion import strided
from thunder_fuser.segment.plan import SegmentedFusion
from thunder_fuser.segment.planner import partition
from thunder_fuser.templates.estimate import estimate_segment

BFloat16, Float = DataType.BFloat16, DataType.Float
FIRST, LAST = (0, 1, 2, 3), (0, 2, 3, 1)
"""Orders of [batch, channels, height, width] in memory, outermost first."""


def normalised(b: FusionBuilder, x: TensorView, dims: Sequence[int]) -> TensorView:
    var, mean = b.var_mean(x, list(dims), correction=0, keepdim=True)
    return op(b, "mul", op(b, "sub", x, mean), op(b, "rsqrt", op(b, "add", var, b.scalar(1e-5))))


def norm(sizes: Sequence[int], dims: Sequence[int], groups: int = 0) -> Fusion:
    """A norm over `dims`, or of so many groups of channels."""
    b = FusionBuilder()
    x = b.cast_tensor(b.tensor(sizes, BFloat16), Float)
    if groups:
        y = normalised(b, b.reshape(x, [sizes[0], groups, -1]), [2])
        y = b.reshape(y, sizes)
    else:
        y = normalised(b, x, dims)
    b.output(b.cast_tensor(y, BFloat16))
    return b.build()


def norm_backward(sizes: Sequence[int], dims: Sequence[int]) -> Fusion:
    """Of an activation, a gradient, and saved means; of rows also with the gradient of a weight."""
    b = FusionBuilder()
    x, g = (b.cast_tensor(b.tensor(sizes, BFloat16), Float) for _ in range(2))
    mean = b.tensor([1 if k in dims else n for k, n in enumerate(sizes)], Float)
    centred = op(b, "sub", x, mean)
    inner = b.reduce("sum", op(b, "mul", centred, g), list(dims), keepdim=True)
    b.output(b.cast_tensor(op(b, "sub", g, op(b, "mul", centred, inner)), BFloat16))
    if dims == [1]:
        b.output(b.reduce("sum", op(b, "mul", g, centred), [0, 2, 3]))
    return b.build()


def planned(
    fusion: Fusion, orders: Sequence[Sequence[int]], promised: Sequence[int]
) -> SegmentedFusion:
    """On inputs in these orders, whose first result is to lie in `promised`."""
    inputs = fusion.tensor_inputs
    known = [*orders, *(FIRST for _ in inputs)]
    layouts = [Layout(dense_strides(t.sizes, o)) for t, o in zip(inputs, known, strict=False)]
    results = [promised, *(range(t.rank) for t in fusion.outputs[1:])]
    pairs = zip(fusion.outputs, results, strict=True)
    memory = [TorchMemory(dense_strides(t.sizes, order)) for t, order in pairs]
    return partition(fusion, layouts, device=H200, promised=memory)


def moved(plan: SegmentedFusion) -> float:
    """Bytes of sectors that the kernels ask for, beside the least that they could."""
    kernels = [s for s in plan.segments if s.kernels]
    return sum(estimate_segment(s, H200).sector_bytes for s in kernels) / plan.bytes_ideal


IMAGE = (32, 256, 56, 56)
CASES = [
    pytest.param(norm(IMAGE, [1]), [FIRST], LAST, 1, id="a norm of channels writes them last"),
    pytest.param(norm(IMAGE, [1]), [LAST], FIRST, 1, id="a norm of channels reads them last"),
    pytest.param(norm_backward(IMAGE, [1]), [FIRST, LAST], FIRST, 2, id="its backward"),
    pytest.param(norm_backward(IMAGE, [0, 2, 3]), [LAST, FIRST], LAST, 2, id="of a batch norm"),
]


@pytest.mark.parametrize(("fusion", "orders", "promised", "copies"), CASES)
def test_a_copy_is_cheaper_than_its_sectors(
    fusion: Fusion, orders: Sequence[Sequence[int]], promised: Sequence[int], copies: int
) -> None:
    plan = planned(fusion, orders, promised)
    assert strided(plan, H200) == []
    converted = [s for s in plan.segments if "stride_order" in s.operations]
    assert 1 <= sum(len(s.outputs) for s in converted) <= copies
    # A copy reads and writes what was read or written anyway.
    assert plan.bytes <= (1 + copies) * plan.bytes_ideal
    assert moved(plan) < 1.3 * (1 + copies)
    (first, *_) = plan.fusion.outputs
    assert loop_order(first, plan.placement.layouts[first]) == tuple(promised)
    told = " ".join(map(str, plan.boundaries))
    assert "[layout]" in told
    assert "a reduction would read it with a large stride" in told


@pytest.mark.parametrize("order", [FIRST, LAST])
def test_one_order_needs_no_copy(order: Sequence[int]) -> None:
    for fusion in (norm(IMAGE, [1]), norm_backward(IMAGE, [1]), norm_backward(IMAGE, [0, 2, 3])):
        plan = planned(fusion, [order, order][: len(fusion.inputs)], order)
        assert strided(plan, H200) == []
        assert not any("stride_order" in s.operations for s in plan.segments)


def test_small_tensors_are_not_worth_a_launch() -> None:
    plan = planned(norm((2, 64, 16, 16), [1]), [FIRST], LAST)
    assert plan.kernels == 1


def test_what_is_overwritten_is_not_copied() -> None:
    """An update writes where its target lies, whatever it costs."""
    b = FusionBuilder()
    x, y = b.tensor([4096, 4096], Float), b.tensor([4096, 4096], Float)
    total = b.reduce("sum", op(b, "mul", b.permute(x, [1, 0]), y), [1], keepdim=True)
    b.output(op(b, "add", y, total), y)
    b.output(total)
    plan = partition(b.build(), device=H200)
    (update,) = plan.fusion.updates
    assert update.target is plan.fusion.inputs[1]
    assert all(
        update.target not in s.inputs for s in plan.segments if "stride_order" in s.operations
    )


def test_what_a_result_is_a_view_of_is_not_copied() -> None:
    b = FusionBuilder()
    x, y = b.tensor([4096, 4096], Float), b.tensor([4096, 4096], Float)
    turned = b.permute(x, [1, 0])
    b.output(b.reduce("sum", op(b, "mul", turned, y), [1]))
    b.output(turned)
    plan = partition(b.build(), device=H200)
    assert plan.placement.root(plan.fusion.outputs[1]) == plan.fusion.inputs[0]


# ---- numbers


def drawn(seed: int, dtype: DataType = Float) -> tuple[Fusion, list[torch.Tensor]]:
    """A random reduction over tensors of random orders, of 100 KB and more each."""
    rng = random.Random(seed)
    rank = rng.choice([2, 3, 4])
    sizes = [rng.choice([2, 3, 5]) for _ in range(rank)]
    while math.prod(sizes) < 25_000:
        sizes[rng.randrange(rank)] += rng.choice([7, 8, 13, 32])
    b = FusionBuilder()
    dims = sorted(rng.sample(range(rank), rng.randint(1, rank - 1)))
    values, inputs = [], []
    generator = torch.Generator().manual_seed(seed)
    for _ in range(rng.randint(1, 3)):
        order = rng.sample(range(rank), rank)
        stored = [sizes[k] for k in order]
        values.append(b.permute(b.tensor(stored, dtype), [order.index(k) for k in range(rank)]))
        inputs.append(torch.randn(stored, generator=generator).to(dtype.torch))
    x = values[0]
    for other in values[1:]:
        x = op(b, rng.choice(["add", "mul"]), x, other)
    if rng.random() < 0.3:
        kept = rng.randrange(1, rank)
        x = b.reshape(x, [*sizes[:kept], -1])
        dims = sorted({min(d, kept) for d in dims})
    total = b.reduce(rng.choice(["sum", "max"]), x, dims, keepdim=True)
    if rng.random() < 0.8:
        y = op(b, "sub", x, total)
        b.output(b.permute(y, rng.sample(range(y.rank), y.rank)))
    others = [k for k in range(x.rank) if k not in dims]
    if others and rng.random() < 0.5:
        b.output(b.reduce("sum", op(b, "mul", x, x), others))
    b.output(total)
    return b.build(), inputs


def results(plan: SegmentedFusion) -> list[tuple[int, ...]]:
    """Strides of what a plan returns."""
    return [tuple(plan.placement.layouts[t].strides) for t in plan.fusion.outputs]


@blocks(28, 14, always=14)
def test_numbers_and_strides_are_those_of_the_reference(device: torch.device, first: int) -> None:
    """By plans for a device on which launches are free and nothing stays in a cache."""
    free = replace(planned_for(device), launch_seconds=0.0, l2_bytes=1)
    dear = replace(free, launch_seconds=1.0)
    batch = Batch(device)
    runs, copied = [], 0
    seeds = range(first, first + 14)
    for seed in seeds:
        fusion, inputs = drawn(seed)
        plan, other = (partition(fusion, device=d) for d in (free, dear))
        assert results(plan) == results(other), seed
        copied += any("stride_order" in s.operations for s in plan.segments)
        runs.append((inputs, compile_plan(plan, device, batch)))
    assert copied >= len(seeds) // 3
    for seed, (inputs, run) in zip(seeds, runs, strict=True):
        exact = evaluate(*drawn(seed, DataType.Double)).outputs
        found = run([x.to(device) for x in inputs])
        for ours, truth in zip(found, exact, strict=True):
            error = (ours.cpu().double() - truth.double()).abs().max()
            assert error <= 1e-5 * (1 + truth.double().abs().max()), seed
