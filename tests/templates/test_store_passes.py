"""What a row kernel stores in a pass that folds: whatever waits for no later one."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.support.batch import Batch, executable
from tests.support.building import op
from tests.support.shares import each_pair, each_value
from thunder_fuser.compile import generate_kernels
from thunder_fuser.compiled_fusion import CompiledFusion
from thunder_fuser.device import DeviceInfo
from thunder_fuser.device_table import A100, H200
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.ir.reference import evaluate
from thunder_fuser.runtime.host.target import HOST
from thunder_fuser.templates.choose import schedule_segment
from thunder_fuser.templates.reduction.schedule import ReductionSchedule
from thunder_fuser.templates.reduction.template import schedule_reduction

BFloat16, Float = DataType.BFloat16, DataType.Float
CPU = torch.device("cpu")
DEVICES = [H200, A100, HOST.device_info(CPU)]


def scheduled(fusion: Fusion, device: DeviceInfo) -> ReductionSchedule:
    (segment,) = [s for s in CompiledFusion(fusion).plan().segments if s.kernels]
    found = schedule_segment(segment, device)
    assert isinstance(found, ReductionSchedule)
    return found


def gradient_and_its_sum(rows: int, columns: int) -> Fusion:
    """Of an activation, and of the bias before it: nothing waits for the sum."""
    b = FusionBuilder()
    x, dy = (b.cast_tensor(b.tensor([rows, columns], BFloat16), Float) for _ in range(2))
    dx = op(b, "mul", dy, op(b, "sub", b.scalar(1.0), op(b, "tanh", x)))
    b.output(b.cast_tensor(dx, BFloat16))
    b.output(b.reduce("sum", dx, [0]))
    return b.build()


def residual_norm(rows: int, columns: int, *, in_place: bool) -> Fusion:
    """h = x + r, in the place of x or not, and h over its length."""
    b = FusionBuilder()
    x, r = (b.tensor([rows, columns], Float) for _ in range(2))
    h = op(b, "add", x, r)
    square = b.reduce("sum", op(b, "mul", h, h), [1], keepdim=True)
    b.output(h, *([x] if in_place else []))
    b.output(op(b, "mul", h, op(b, "rsqrt", square)))
    return b.build()


def test_a_gradient_is_computed_once_and_stored_as_it_is_folded() -> None:
    """Rows that lie side by side: no second pass computes the gradient again."""
    fusion = gradient_and_its_sum(512, 4096)
    # Where blocks wait longer for each other than an H200's do.
    device = replace(H200, grid_barrier_seconds=4e-6)
    found = scheduled(fusion, device)
    assert found.is_outer_shared
    assert found.writes.passes == (0,)
    assert found.passes[-1] == ()
    assert not found.row_cache.reread
    (generated,) = generate_kernels(CompiledFusion(fusion).plan(), device).values()
    assert generated.kernel.source.count("tf::tanh(") == 1


def test_a_result_that_waits_for_a_fold_is_stored_behind_it() -> None:
    found = scheduled(residual_norm(256, 4096, in_place=False), H200)
    assert found.writes.passes == (0, 1)
    assert [len(found.stores_in_pass(n)) for n in range(2)] == [1, 1]


@pytest.mark.parametrize("device", DEVICES, ids=lambda d: d.name)
def test_what_takes_the_place_of_an_input_waits_until_all_passes_have_read_that(
    device: DeviceInfo,
) -> None:
    """Plans give such stores a kernel of their own; a schedule does not rely on that."""
    (segment,) = CompiledFusion(residual_norm(256, 4096, in_place=False)).plan().segments
    h, x = segment.outputs[0], segment.inputs[0]
    found = schedule_reduction(replace(segment.body, updates={h: x}), device)
    assert isinstance(found, ReductionSchedule)
    assert found.writes.passes == (1, 1)


@each_pair(device=DEVICES, in_place=[False, True], columns=[33, 1000, 70000])
def test_sums_and_norms_of_them(device: DeviceInfo, in_place: bool, columns: int) -> None:
    """Rows that are kept, and those that are read in each pass, each beside pages that fault."""
    fusion = residual_norm(3, columns, in_place=in_place)
    data = [torch.randn(3, columns) for _ in range(2)]
    exact = data[0].double() + data[1].double()
    batch = Batch(CPU, None if device.threads_are_serial else device)
    made = executable(CompiledFusion(fusion), data, batch, CPU)
    results = made(data)
    h = data[0] if in_place else results[0]
    assert (h.double() - exact).abs().max() <= 2**-23 * exact.abs().max()
    norm = exact / exact.square().sum(1, keepdim=True).sqrt()
    assert (results[-1].double() - norm).abs().max() <= 1e-6 * norm.abs().max()


@each_value(rows=[3, 96, 512, 1000], columns=[7, 264, 1000], device=DEVICES)
def test_gradients_and_their_sums(device: DeviceInfo, rows: int, columns: int) -> None:
    """Lanes that do not exist, and threads without a row, store nothing."""
    fusion = gradient_and_its_sum(rows, columns)
    data = [torch.randn(rows, columns).bfloat16() for _ in range(2)]
    batch = Batch(CPU, None if device.threads_are_serial else device)
    dx, total = executable(CompiledFusion(fusion), data, batch, CPU)(data)
    same, exact = evaluate(fusion, data).outputs
    assert (dx.double() - same.double()).abs().max() <= 2**-7 * same.double().abs().max()
    exact = (data[1].double() * (1 - data[0].double().tanh())).sum(0)
    assert (total.double() - exact).abs().max() <= 1e-5 * rows
