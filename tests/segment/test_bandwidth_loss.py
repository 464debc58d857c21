"""BandwidthModel: rows that are few or long want several kernels, others do not."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from tests.support.building import op
from tests.zoo.reductions import REDUCTIONS
from thunder_fuser.compiled_fusion import CompiledFusion
from thunder_fuser.device import DeviceInfo
from thunder_fuser.device_table import A100, B200, H200
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import Fusion, TensorView
from thunder_fuser.segment.anchors.graph import AnchorGraph
from thunder_fuser.segment.legality import Legality
from thunder_fuser.segment.partition.bandwidth_loss import BandwidthLoss, BandwidthModel
from thunder_fuser.segment.plan import SegmentedFusion
from thunder_fuser.segment.planner import partition
from thunder_fuser.templates.choose import schedule_segment
from thunder_fuser.templates.estimate import estimated
from thunder_fuser.templates.reduction.schedule import ReductionSchedule

BFloat16, Float = DataType.BFloat16, DataType.Float
EVERY_DEVICE = pytest.mark.parametrize("device", [A100, H200, B200], ids=lambda d: d.arch)


def normalised(b: FusionBuilder, x: TensorView, dims: list[int]) -> TensorView:
    """Divided by the root of the sum of squares."""
    squares = b.reduce("sum", op(b, "mul", x, x), dims, keepdim=True)
    return op(b, "mul", x, op(b, "rsqrt", squares))


def softmax(b: FusionBuilder, x: TensorView, dims: list[int]) -> TensorView:
    e = op(b, "exp", op(b, "sub", x, b.reduce("max", x, dims, keepdim=True)))
    return op(b, "div", e, b.reduce("sum", e, dims, keepdim=True))


Define = Callable[[FusionBuilder, TensorView, list[int]], TensorView]


def fusion(define: Define, sizes: list[int], dims: list[int], dtype: DataType = BFloat16) -> Fusion:
    b = FusionBuilder()
    x = b.cast_tensor(b.tensor(sizes, dtype), Float)
    b.output(b.cast_tensor(define(b, x, dims), dtype))
    return b.build()


def plan(define: Define, sizes: list[int], dims: list[int]) -> SegmentedFusion:
    return partition(fusion(define, sizes, dims))


def loss(found: Fusion, device: DeviceInfo = H200) -> BandwidthLoss | None:
    """Of everything in one kernel."""
    graph = AnchorGraph(found, None, device=device)
    bandwidth = BandwidthModel(graph, Legality(graph))
    return bandwidth.of((1 << len(graph.anchors)) - 1, found.tensor_inputs[0].bytes)


def rows_of(found: SegmentedFusion, device: DeviceInfo) -> list[ReductionSchedule]:
    schedules = [schedule_segment(s, device) for s in found.segments if s.kind == "reduction"]
    return [s for s in schedules if isinstance(s, ReductionSchedule)]


# ---- one kernel, or two


@EVERY_DEVICE
@pytest.mark.parametrize("define", [normalised, softmax])
def test_one_large_row_is_shared_by_all_blocks(define: Define, device: DeviceInfo) -> None:
    """In one kernel a single block would read 512 MiB, twice."""
    found = partition(fusion(define, [1 << 28], [0]), device=device)
    assert [s.kind for s in found.segments] == ["reduction", "pointwise"]
    (statistics,) = rows_of(found, device)
    assert statistics.blocks >= device.sm_count
    # The row twice, the result once, and what goes between the kernels.
    assert 0 < found.bytes - 3 * 2 * (1 << 28) <= 16


@pytest.mark.parametrize(
    ("rows", "columns"), [(1, 4096), (8, 8192), (256, 65536), (132, 131072), (4096, 32768)]
)
def test_enough_rows_or_short_ones_are_one_kernel(rows: int, columns: int) -> None:
    found = plan(softmax, [rows, columns], [1])
    assert (found.kernels, found.bytes) == (1, found.bytes_ideal)


def test_statistics_of_few_channels_are_shared_by_blocks() -> None:
    """Two images of eight channels: their normalisation is a kernel of its own; 256 channels are
    rows enough for one.
    """
    few, many = (plan(normalised, [n, c, 512, 512], [0, 2, 3]) for n, c in ((2, 8), (2, 256)))
    assert (few.kernels, many.kernels) == (2, 1)
    (statistics,) = rows_of(few, H200)
    assert statistics.mapping.blocks_per_row > 1


def test_rows_side_by_side_are_one_kernel_if_they_are_many() -> None:
    """Those of a few channels have too few threads: blocks share their statistics."""
    many, few = (
        plan(softmax, [columns, rows], [0]) for columns, rows in ((1024, 65536), (1 << 18, 64))
    )
    assert (many.kernels, many.bytes) == (1, many.bytes_ideal)
    assert few.kernels == 2
    (statistics,) = rows_of(few, H200)
    assert (statistics.stages, statistics.grid_split) == (1, "rows")


def test_the_reason_is_told() -> None:
    found = plan(normalised, [1 << 28], [0])
    (boundary,) = found.boundaries
    assert re.match(
        r"\[parallel\] 1 row x 268,435,456: consumers of a whole-row reduction", boundary.reason
    )


def test_figures_of_the_device_decide() -> None:
    """A device without a price of launches divides what one with dear launches does not."""
    defined = fusion(normalised, [64, 131072], [1])
    free = replace(H200, launch_seconds=0.0)
    dear = replace(H200, launch_seconds=1.0)
    small = replace(H200, sm_count=16)
    kernels = [partition(defined, device=d).kernels for d in (H200, free, dear, small)]
    assert kernels == [1, 2, 1, 1]
    huge = fusion(normalised, [1 << 28], [0])
    assert [partition(huge, device=d).kernels for d in (H200, dear)] == [2, 1]


# ---- what it is made of


def test_the_share_is_that_of_the_threads() -> None:
    """A row of 131,072 has as many threads as a block can have; 132 of these use all bandwidth."""
    for rows in (1, 33, 66, 132, 1000):
        found = loss(fusion(normalised, [rows, 131072], [1]))
        if rows >= 132:
            assert found is None
        else:
            assert found is not None
            assert (found.rows, found.columns) == (rows, 131072)
            assert found.share == pytest.approx(rows / 132)
            assert found.is_waited


@pytest.mark.parametrize("define", [normalised, softmax])
@pytest.mark.parametrize("dim", [0, 1])
def test_schedules_agree_with_the_estimate(define: Define, dim: int) -> None:
    """Of one kernel, whatever several would cost: its threads, within a factor of two."""
    alone = replace(H200, launch_seconds=1.0)
    for rows in (1 << 10, 1 << 14) if dim == 0 else (1, 8, 64, 132, 1000, 1 << 14):
        for columns in (1 << 10, 1 << 14, 1 << 17):
            sizes = [columns, rows] if dim == 0 else [rows, columns]
            defined = fusion(define, sizes, [dim])
            found = loss(defined)
            (made,) = rows_of(partition(defined, device=alone), H200)
            assert made.is_outer_shared == (dim == 0)
            share = H200.share(made.blocks * made.block_threads)
            assert 0.45 < (1.0 if found is None else found.share) / share < 2.2, sizes


def test_what_fits_on_chip_or_in_the_cache_is_not_read_again() -> None:
    long = fusion(normalised, [1024, 1 << 20], [1])
    found = loss(long)
    assert found is not None
    assert (found.share, found.again) == (1, long.tensor_inputs[0].bytes)
    near = replace(H200, l2_bytes=132 * (3 << 20))
    held = replace(H200, shared_bytes_per_block=2 << 20)
    assert loss(long, near) is None
    assert loss(long, held) is None


def test_passes_that_can_be_one_are_one() -> None:
    """The largest and the sum of a softmax: a row is read twice, not three times."""
    long = fusion(softmax, [1024, 1 << 20], [1])
    found = loss(long)
    assert found is not None
    assert found.again == long.tensor_inputs[0].bytes


def test_nothing_waits_where_only_reductions_are_stored() -> None:
    b = FusionBuilder()
    b.output(b.reduce("sum", b.tensor([4, 1 << 22], Float), [1]))
    found = loss(b.build())
    assert found is not None
    assert not found.is_waited
    assert partition(b.build()).kernels == 1


@EVERY_DEVICE
@pytest.mark.parametrize(
    ("rows", "columns", "dtype"),
    [(1024, 131072, BFloat16), (128, 65536, DataType.Float), (4096, 50304, DataType.Float)],
)
def test_sums_of_rows_do_not_make_sums_of_columns_strided(
    rows: int, columns: int, dtype: DataType, device: DeviceInfo
) -> None:
    """The gradients of a layer norm of more columns than registers have totals for. Sums of a row
    had been folded along with those of all columns, by threads of which each stepped over memory:
    one kernel less, and up to 16 times the bytes.
    """
    (define,) = (r.definition for r in REDUCTIONS if r.name == "layer_norm_backward")
    found = estimated(partition(define(rows, columns, dtype).fusion, device=device), device)
    for segment in found.segments:
        assert segment.estimate.sector_bytes < 3 * segment.bytes
        assert segment.estimate.copy_fraction > 0.45


def test_no_elements_lose_no_bandwidth() -> None:
    b = FusionBuilder()
    x = b.tensor([4, 0], Float)
    b.output(op(b, "mul", x, b.reduce("sum", x, [1], keepdim=True)))
    assert partition(b.build()).kernels == 0


# ---- numbers


@pytest.mark.parametrize("define", [normalised, softmax])
@pytest.mark.parametrize(("sizes", "dims"), [([1 << 22], [0]), ([1 << 16, 64], [0])])
def test_divided_fusions_are_right(
    define: Define, sizes: list[int], dims: list[int], device: torch.device
) -> None:
    defined = fusion(define, sizes, dims)
    compiled = CompiledFusion(defined)
    x = torch.randn(sizes).bfloat16()
    (got,) = compiled([x.to(device)])
    assert compiled.executables[0].plan.kernels == 2
    wide = x.double()
    if define is softmax:
        expected = torch.softmax(wide, dims[0])
    else:
        expected = wide * wide.square().sum(dims[0], keepdim=True).rsqrt()
    error = (got.cpu().double() - expected).abs().max().item()
    assert error <= expected.abs().max().item() / 256
