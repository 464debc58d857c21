"""Kernels of thread block clusters: their numbers, at sizes on both sides of every choice, on a
device that has little of everything; and on a GPU, where there is one.
"""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace

import pytest
import torch

from tests.support.batch import Batch, executable
from tests.support.row_programs import PROGRAMS, assert_beside_float64, assert_on_a_gpu
from tests.support.shares import each_pair
from thunder_fuser.compile import generate_kernels
from thunder_fuser.compiled_fusion import CompiledFusion
from thunder_fuser.config import options
from thunder_fuser.device import DeviceInfo
from thunder_fuser.device_table import B200, DEVICES, H200
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.segment.planner import partition
from thunder_fuser.templates.choose import schedule_segment
from thunder_fuser.templates.reduction.schedule import ReductionSchedule

CPU = torch.device("cpu")
CROWDED = replace(
    H200,
    name="crowded",
    sm_count=8,
    clusters=((2, 4), (4, 2), (8, 1)),
    shared_bytes_per_block=16 << 10,
    shared_bytes_per_sm=17 << 10,
    registers_per_sm=32 << 10,
    l2_bytes=1 << 16,
)
"""Several of its multiprocessors are needed for a row that is not large."""
HASTY = replace(H200, name="hasty", sm_count=8, clusters=((2, 4), (4, 2), (8, 1)), load_seconds=0.0)
"""For which all traffic takes longer than barriers."""
SIZES = [(40, 512), (17, 2000), (9, 4099), (33, 5120), (5, 12_288)]


@pytest.mark.parametrize(
    ("device", "dtype"),
    [
        *((CROWDED, dtype) for dtype in (DataType.Float, DataType.BFloat16, DataType.Double)),
        (HASTY, DataType.Float),
        pytest.param(HASTY, DataType.BFloat16, marks=pytest.mark.campaign),
    ],
    ids=lambda x: x.name,
)
def test_numbers(device: DeviceInfo, dtype: DataType) -> None:
    """No worse than eager's, or than a few roundings, against float64."""
    batch, planned, seen = Batch(CPU, device), [], Counter[str]()
    cases = itertools.product(PROGRAMS.items(), SIZES)
    # Each size with every other program: the crowded device has all of them, in one of the dtypes.
    first, every = {DataType.Float: (0, 2), DataType.BFloat16: (1, 2), DataType.Double: (0, 3)}[
        dtype
    ]
    cases = itertools.islice(cases, first, None, every)
    for (name, program), (rows, columns) in cases:
        inputs = program.inputs(rows, columns, dtype.torch)
        fusion = program.definition(rows, columns, dtype).fusion
        run = executable(CompiledFusion(fusion), inputs, batch, CPU)
        for segment in run.plan.segments:
            made = schedule_segment(segment, device) if segment.kernels else None
            if isinstance(made, ReductionSchedule):
                seen["rows"] += made.mapping.shares_rows and not made.reductions.of_grid
                seen["tiles"] += made.mapping.shares_rows and bool(made.reductions.of_grid)
                seen["totals"] += made.mapping.meets_in_clusters
        planned.append((name, inputs, run))
    expected = ("rows", "tiles") if device is CROWDED else ("totals",)
    assert all(seen[kind] >= 2 for kind in expected), seen
    for name, inputs, run in planned:
        assert_beside_float64(name, run, inputs)


def test_results_do_not_depend_on_what_runs_first() -> None:
    """Parts meet in a fixed order: a second call, and one of more threads, have the same bits."""
    batch = Batch(CPU, CROWDED)
    for name in ("layer_norm_backward", "norm softmax", "layer_norm_backward_anew"):
        inputs = PROGRAMS[name].inputs(33, 5120, torch.float32)
        fusion = PROGRAMS[name].definition(33, 5120, DataType.Float).fusion
        run = executable(CompiledFusion(fusion), inputs, batch, CPU)
        first = run(inputs)
        with options(host_threads=1):
            again = executable(CompiledFusion(fusion), inputs, Batch(CPU, CROWDED), CPU)(inputs)
        assert all(map(torch.equal, first, again))
        assert all(map(torch.equal, first, run(inputs)))


@pytest.mark.parametrize("device", DEVICES, ids=lambda d: d.name)
def test_clusters_are_those_of_the_device(device: DeviceInfo) -> None:
    """Where blocks do not reach each other's shared memory, nothing asks for it."""
    sizes = {1, *(size for size, _ in device.clusters)}
    for program, columns in (("norm softmax", 262_144), ("layer_norm_backward", 12_288)):
        fusion = PROGRAMS[program].definition(1024, columns, DataType.Float).fusion
        for found in generate_kernels(partition(fusion, device=device), device).values():
            kernel = found.kernel
            assert kernel.cluster in sizes
            assert ("__cluster_dims__" in kernel.source) == (kernel.cluster > 1)
            assert kernel.grid[0] % kernel.cluster == 0
            if kernel.cooperative and kernel.cluster > 1:
                assert kernel.grid[0] <= device.sms_of_clusters(kernel.cluster)
    assert (len(sizes) > 1) == (device.arch in ("sm_90", "sm_100"))


@each_pair(
    columns=[16_384, 65_536, 131_072],
    rows=[1, 3, 1024],
    dtype=[DataType.BFloat16, DataType.Float, DataType.Double],
    device=[H200, B200],
)
def test_totals_have_registers_wherever_they_are_beside_rows(
    columns: int, rows: int, dtype: DataType, device: DeviceInfo
) -> None:
    """Also where a row has no room on chip: one block had 128 totals a thread, and spilled 9 KB."""
    totals = 0
    for name in ("rms_norm_backward", "layer_norm_backward", "layer_norm_backward_anew"):
        fusion = PROGRAMS[name].definition(rows, columns, dtype).fusion
        for segment in partition(fusion, device=device).segments:
            made = schedule_segment(segment, device) if segment.kernels else None
            if isinstance(made, ReductionSchedule) and made.reductions.of_rows:
                assert not made.has_crowded_totals, name
                totals += bool(made.reductions.of_grid)
    assert totals


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("name", "rows", "columns"),
    [
        ("norm softmax", 300, 262_144),
        ("norm layer_norm", 300, 131_072),
        ("norm softmax_backward", 300, 65_536),
        ("layer_norm_backward", 3000, 12_288),
        ("layer_norm_backward", 1000, 32_768),
        ("layer_norm_backward_anew", 2000, 4096),
        ("rms_norm_backward", 500, 65_536),
    ],
)
def test_numbers_on_a_gpu(name: str, rows: int, columns: int) -> None:
    assert_on_a_gpu(name, rows, columns, DataType.BFloat16)
