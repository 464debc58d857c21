"""The time model: what it must say where bounds are known, and how it moves as devices do."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from benchmarks.modelling import modelled
from tests.support.generator import random_case
from tests.zoo.losses import cross_entropy
from tests.zoo.norms import NORMS
from tests.zoo.workloads import BY_NAME, WORKLOADS, Workload
from thunder_fuser.compiled_fusion import CompiledFusion
from thunder_fuser.device import DeviceInfo
from thunder_fuser.device_table import DEVICES, H200
from thunder_fuser.errors import Refusal
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.domain import Layout
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.segment.plan import SegmentedFusion
from thunder_fuser.segment.planner import partition
from thunder_fuser.templates.choose import TEMPLATES, schedule_segment
from thunder_fuser.templates.estimate import estimate_segment, estimated
from thunder_fuser.templates.lower import lower
from thunder_fuser.templates.reduction.scheduler import candidates
from thunder_fuser.time_model.estimate import Estimate, estimate_kernel

SIZE = 1 << 26


def chain(operations: int) -> FusionBuilder:
    """y = sin(sin(.. x)), of fp32."""
    b = FusionBuilder()
    x = b.tensor([SIZE], DataType.Float)
    y = b.pointwise("add", x, 1.0)
    for _ in range(operations):
        y = b.pointwise("sin", y)
    b.output(y)
    return b


def of(b: FusionBuilder, device: DeviceInfo = H200) -> Estimate:
    (segment,) = (s for s in partition(b.build(), device=device).segments if s.kernels)
    return estimate_segment(segment, device)


@pytest.mark.parametrize("device", DEVICES, ids=lambda d: d.arch + d.name[-4:])
def test_a_copy_runs_at_its_speed(device: DeviceInfo) -> None:
    found = of(chain(0), device)
    assert found.bound == "memory"
    assert found.bytes == found.wanted_bytes == found.sector_bytes == 2 * 4 * SIZE
    assert 0.93 < found.copy_fraction <= 1


def test_arithmetic_hides_behind_bytes_until_it_is_more() -> None:
    few, some, many = (of(chain(n)) for n in (0, 2, 40))
    assert few.seconds <= some.seconds < 1.1 * few.seconds
    assert many.bound in ("issue", "FMA")
    # Twenty times the instructions are twenty times the time then.
    assert many.parts["issue"] > 10 * some.parts["issue"]
    assert many.seconds > 0.9 * many.parts["issue"]


CHANGES: dict[str, Callable[[DeviceInfo], DeviceInfo]] = {
    "memory": lambda d: replace(d, bandwidth=d.bandwidth / 2),
    "clock": lambda d: replace(d, fp32_rate=d.fp32_rate / 2),
    "latency": lambda d: replace(d, load_seconds=4 * d.load_seconds),
    "launch": lambda d: replace(d, launch_seconds=4 * d.launch_seconds),
    "registers": lambda d: replace(d, registers_per_sm=d.registers_per_sm // 2),
}


@pytest.mark.parametrize(
    "name", ["swiglu", "bias_gelu_erf_backward", "rope_llama", "transpose_add_bf16"]
)
@pytest.mark.parametrize("change", CHANGES)
def test_nothing_is_faster_on_a_slower_device(name: str, change: str) -> None:
    plan = workload_plan(BY_NAME[name])
    slower = CHANGES[change](H200)
    kernels = [segment for segment in plan.segments if segment.kernels]
    assert kernels
    for segment in kernels:
        # Schedules may differ; the model must not profit from what the device lost.
        before, after = (estimate_segment(segment, d).seconds for d in (H200, slower))
        assert after >= 0.98 * before


def workload_plan(workload: Workload) -> SegmentedFusion:
    return CompiledFusion(workload.fusion(workload.full)).plan()


def row_kernel(columns: int) -> FusionBuilder:
    """Softmax without its maximum, which needs each row twice."""
    b = FusionBuilder()
    x = b.tensor([SIZE // columns, columns], DataType.Float)
    e = b.pointwise("exp", x)
    total = b.broadcast(b.reduce("sum", e, [1]), [False, True])
    b.output(b.pointwise("div", e, total))
    return b


def test_rows_that_do_not_stay_on_chip_are_read_again() -> None:
    held = of(row_kernel(4096))
    again = of(row_kernel(1 << 17), replace(H200, clusters=()))
    assert held.bytes == pytest.approx(2 * 4 * SIZE, rel=0.02)
    assert again.sector_bytes == pytest.approx(3 * 4 * SIZE, rel=0.05)
    # Most of it from the L2 cache.
    assert again.cache_bytes == pytest.approx(3 * 4 * SIZE, rel=0.05)
    assert held.cache_bytes == pytest.approx(2 * 4 * SIZE, rel=0.02)


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "softmax_backward"])
def test_rows_of_one_multiprocessor_hide_each_others_waiting(name: str) -> None:
    norm = next(n for n in NORMS if n.name == name)
    for columns in (16384, 32768):
        plan = norm.definition(4096, columns, DataType.BFloat16).plan()
        (found,) = (estimate_segment(s, H200) for s in plan.segments)
        launched = found.seconds - H200.launch_seconds
        assert found.copy_seconds >= 0.9 * launched


PARTLY_READ = {"rope_llama"}
"""Workloads that leave a part of a tensor, where accesses count as if they read all of it."""


def test_accesses_touch_the_bytes_of_the_plan() -> None:
    for workload in WORKLOADS:
        for segment in workload_plan(workload).segments:
            if segment.kernels:
                kernel = lower(schedule_segment(segment, H200), segment.body.updates)
                found = estimate_kernel(kernel, H200)
                touched = found.copy_seconds * found.bandwidth / segment.bytes
                least, most = 1 - 1e-4, 1.1 if workload.name in PARTLY_READ else 1 + 1e-4
                assert least < touched < most, f"{workload.name}: {touched}"


def test_elements_that_lie_apart_move_sectors() -> None:
    """Every eighth element of a row, and nothing of what is between them."""
    b = FusionBuilder()
    x = b.tensor([SIZE // 8, 1], DataType.Float)
    b.output(b.pointwise("add", x, 1.0))
    layouts = (Layout((8, 1)),)
    (segment,) = partition(b.build(), layouts).segments
    found = estimate_segment(segment, H200)
    assert found.sector_bytes > 4 * found.wanted_bytes
    assert found.bound == "sectors"


@pytest.mark.parametrize("columns", [1000, 50257])
def test_a_place_that_a_row_chooses_is_one_sector_of_a_warp(columns: int) -> None:
    """All threads of a row read it; where each chooses its own, each moves a sector."""
    (segment,) = partition(cross_entropy(8192, columns, DataType.BFloat16).fusion).segments
    found = estimate_segment(segment, H200)
    assert found.sector_bytes < 1.1 * segment.bytes
    b = FusionBuilder()
    x, chosen = b.tensor([SIZE], DataType.Float), b.tensor([SIZE], DataType.Int)
    b.output(b.pointwise("add", b.gather("take_along_axis", x, 0, chosen), 1.0))
    assert of(b).sector_bytes > 32 * SIZE


@pytest.mark.parametrize("rows", [300, 528, 600, 4096])
def test_rows_that_blocks_have_by_turns_are_all_read(rows: int) -> None:
    """The mean of a loss: blocks do one row after the other, some of them one more than others."""
    (segment,) = partition(cross_entropy(rows, 8192, DataType.Float, mean=True).fusion).segments
    ways = [s for s in candidates(segment.body, H200) if not isinstance(s, Refusal)]
    assert any(way.grid_split == "rows" and way.rows_per_block > 1 for way in ways)
    for schedule in ways:
        if schedule.grid_split == "rows":
            found = estimate_kernel(lower(schedule, segment.body.updates), H200)
            # A few warps say how many turns there are on the average.
            assert found.bytes == pytest.approx(int(segment.bytes), rel=0.2)


def scanned_rows() -> Fusion:
    b = FusionBuilder()
    b.output(b.scan("cumsum", b.tensor([64, 1024], DataType.Float), 1))
    return b.build()


def transposed_rows() -> Fusion:
    b = FusionBuilder()
    x, y = (b.tensor([2048, 2048], DataType.Float) for _ in range(2))
    b.output(b.pointwise("add", b.permute(x, [1, 0]), y))
    return b.build()


def points() -> Fusion:
    b = FusionBuilder()
    b.output(b.pointwise("relu", b.tensor([2048, 2048], DataType.Float)))
    return b.build()


def test_kernels_of_every_template_have_an_estimate() -> None:
    """Of at least a launch, and of the bytes that the plan counts."""
    taken: set[str] = set()
    for fusion in (row_kernel(4096).build(), scanned_rows(), transposed_rows(), points()):
        (segment,) = [s for s in partition(fusion).segments if s.kernels]
        taken.add(schedule_segment(segment, H200).template)
        found = estimate_segment(segment, H200)
        assert found.seconds > H200.launch_seconds
        assert found.bytes == pytest.approx(int(segment.bytes), rel=0.2)
    assert taken == {template.name for template in TEMPLATES}


def test_a_plan_takes_what_its_kernels_take() -> None:
    plan = CompiledFusion(row_kernel(4096).build()).plan()
    assert plan.seconds == sum(s.seconds for s in plan.segments) > 0
    assert f"estimated {1e6 * plan.seconds:.1f} us on NVIDIA H200" in plan.listing(times=True)
    assert "us" not in str(plan).split()
    # What is planned without the road to launches is estimated as well.
    again = estimated(partition(row_kernel(4096).build()), H200)
    assert math.isclose(again.seconds, plan.seconds)


def test_the_table_has_a_row_for_each_kernel_and_device() -> None:
    from benchmarks.workloads import WORKLOADS

    table = modelled([w for w in WORKLOADS if w.name == "RMSNorm"], "full")
    assert [row["device"] for row in table.rows] == ["sm_80", "sm_90", "sm_100"]
    assert all(row["instructions"] > 1 and 0 < row["fraction"] <= 1 for row in table.rows)
    assert "of copy" in table.markdown()


@pytest.mark.parametrize("seed", [38, 48, 127, 145])
def test_a_row_that_is_alone_is_not_one_threads_work(seed: int) -> None:
    """Small programs with one row, beside which no other lies for the next thread."""
    case = random_case(seed, reductions=True)
    plan = CompiledFusion(case.fusion).plan(case.inputs)
    assert plan.seconds < plan.kernels * (H200.launch_seconds + 4e-6)


def test_a_cat_of_hundreds_of_pieces_has_an_estimate() -> None:
    """Its kernels test an index against one piece after the other, each in the branch of the last:
    estimates raised a RecursionError.
    """
    b = FusionBuilder()
    b.output(b.cat([b.tensor([7], DataType.Float) for _ in range(480)], 0))
    assert CompiledFusion(b.build()).plan().seconds
