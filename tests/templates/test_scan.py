"""The scan template: how rows are divided, and that a GPU's division has the right numbers."""

from __future__ import annotations

import functools

import pytest
import torch

from tests.support.batch import Batch, executable
from tests.support.shares import each_architecture
from thunder_fuser.codegen.kernel import Kernel
from thunder_fuser.compile import generate_kernels
from thunder_fuser.compiled_fusion import CompiledFusion
from thunder_fuser.device import DeviceInfo
from thunder_fuser.device_table import H200
from thunder_fuser.ir import dtypes
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.dtypes import Category, DataType
from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.ir.tables import scans
from thunder_fuser.runtime.cuda.nvrtc import compile_cubin
from thunder_fuser.runtime.host.target import HOST
from thunder_fuser.templates.choose import schedule_segment
from thunder_fuser.templates.scan.schedule import ScanSchedule

CPU = torch.device("cpu")
HOST_INFO = HOST.device_info(CPU)


@functools.cache
def scan_of(
    rows: int, columns: int, dtype: DataType = DataType.Float, op: str = "cumsum"
) -> Fusion:
    b = FusionBuilder()
    b.output(b.scan(op, b.tensor([rows, columns], dtype), 1))
    return b.build()


def schedule_of(fusion: Fusion, device: DeviceInfo = H200) -> ScanSchedule:
    (segment,) = CompiledFusion(fusion).plan().segments
    found = schedule_segment(segment, device)
    assert isinstance(found, ScanSchedule)
    return found


@pytest.mark.parametrize(
    ("rows", "columns", "vector", "threads", "rows_per_block", "tiles"),
    [
        (8192, 16384, 4, 256, 1, 16),
        (8192, 1024, 4, 256, 1, 1),
        (8192, 1028, 4, 256, 1, 2),
        (8, 16384, 4, 1024, 1, 4),
        (8192, 100, 4, 32, 8, 1),
        (64, 100, 4, 32, 1, 1),
        (65536, 16, 4, 4, 64, 1),
        (65536, 3, 1, 4, 64, 1),
        (65536, 1, 1, 1, 256, 1),
        (8192, 1001, 4, 256, 1, 1),
        (8192, 1002, 2, 256, 1, 2),
    ],
)
def test_rows_are_divided_among_threads(
    rows: int, columns: int, vector: int, threads: int, rows_per_block: int, tiles: int
) -> None:
    found = schedule_of(scan_of(rows, columns))
    divided = found.lanes.vector, found.threads, found.rows_per_block, found.tiles
    assert divided == (vector, threads, rows_per_block, tiles)
    # A slot for each warp, twice where tiles follow each other.
    slots = threads // 32 * 4 if threads > 32 else 0
    assert found.shared_bytes == slots * (2 if tiles > 1 else 1)
    assert found.block_threads % 32 == 0
    alone = schedule_of(scan_of(rows, columns), HOST_INFO)
    assert (alone.threads, alone.blocks, alone.shared_bytes) == (1, rows, 0)


LENGTHS = (1, 3, 31, 127, 128, 129, 511, 1000, 1025, 4096, 4100, 9001)
DTYPES = (torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.complex64)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_gpus_kernel_has_the_right_numbers(dtype: torch.dtype) -> None:
    batch, planned = Batch(CPU, H200), []
    for length in LENGTHS:
        x = torch.randint(-3, 4, (3, length)).to(dtype)
        fusion = CompiledFusion(scan_of(3, length, dtypes.from_torch(dtype)))
        planned.append((x, executable(fusion, [x], batch, CPU)))
    for x, compiled in planned:
        (found,) = compiled([x])
        assert torch.equal(found, x.cumsum(1)), x.shape


@pytest.mark.parametrize("device", [H200, HOST_INFO], ids=lambda d: d.kind)
def test_every_scan_has_the_right_numbers(device: DeviceInfo) -> None:
    batch, planned = Batch(CPU, device), []
    for name in scans.TABLE:
        for dtype in (torch.float64, torch.float16, torch.int32, torch.uint8, torch.bool):
            x = torch.randint(0, 3, (3, 2100)).to(dtype)
            if dtype.is_floating_point:
                x[0, 700] = torch.nan
            elif name == "cumprod" and dtype is not torch.bool:
                x = x.clamp(min=1)
            fusion = CompiledFusion(scan_of(3, 2100, dtypes.from_torch(dtype), name))
            planned.append((name, x, executable(fusion, [x], batch, CPU)))
    for name, x, compiled in planned:
        (found,) = compiled([x])
        truth = getattr(torch, name)(x, 1)
        truth = truth if isinstance(truth, torch.Tensor) else truth.values
        torch.testing.assert_close(found, truth, rtol=0, atol=0, equal_nan=True, msg=name)


@pytest.mark.nvrtc
@each_architecture()
def test_all_dtypes_compile_without_spills(device: DeviceInfo) -> None:
    kernels: dict[str, Kernel] = {}
    floats = [d for d in DataType if d is not DataType.Null and d.category >= Category.FLOAT]
    for dtype in (*floats, DataType.Int, DataType.Int8, DataType.Bool):
        for rows, columns in ((8192, 16384), (8191, 64), (300, 1001)):
            plan = CompiledFusion(scan_of(rows, columns, dtype)).plan()
            kernels |= {k.kernel.name: k.kernel for k in generate_kernels(plan, device).values()}
    for name in scans.TABLE:
        plan = CompiledFusion(scan_of(8192, 16384, DataType.Float, name)).plan()
        kernels |= {k.kernel.name: k.kernel for k in generate_kernels(plan, device).values()}
    resources = compile_cubin(list(kernels.values()), device.arch).resources
    assert len(resources) == len(kernels) > 30
    assert not [name for name, found in resources.items() if found.spills]
