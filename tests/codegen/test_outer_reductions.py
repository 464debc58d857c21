"""Rows that lie side by side in memory, shared by the threads of a block: numbers against float64,
orders of threads, what is read, and machine code.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch

from tests.support.batch import Batch, executable
from tests.support.building import op
from tests.support.shares import GPUS, each_value
from tests.tools import sass
from thunder_fuser.codegen.kernel import Kernel
from thunder_fuser.compile import generate_kernels
from thunder_fuser.compiled_fusion import CompiledFusion
from thunder_fuser.device import DeviceInfo
from thunder_fuser.device_table import H200
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.dtypes import DataType, compute_dtype
from thunder_fuser.ir.fusion import Fusion, TensorView
from thunder_fuser.runtime.cuda.nvrtc import compile_cubin
from thunder_fuser.runtime.host.debug import check_orders
from thunder_fuser.runtime.host.target import HOST
from thunder_fuser.segment.planner import partition
from thunder_fuser.templates.choose import schedule_segment
from thunder_fuser.templates.reduction.schedule import ReductionSchedule

BFloat16, Float, Double = DataType.BFloat16, DataType.Float, DataType.Double
Outputs = list[TensorView]


def softmax(b: FusionBuilder, x: TensorView, w: TensorView) -> Outputs:
    e = op(b, "exp", op(b, "sub", x, b.reduce("max", x, [0], keepdim=True)))
    return [op(b, "div", e, b.reduce("sum", e, [0], keepdim=True))]


def layer_norm(b: FusionBuilder, x: TensorView, w: TensorView) -> Outputs:
    """Over channels, with a weight for each of them; the means as well."""
    var, mean = b.var_mean(x, [0], correction=0, keepdim=True)
    y = op(b, "mul", op(b, "sub", x, mean), op(b, "rsqrt", op(b, "add", var, b.scalar(1e-5))))
    return [op(b, "mul", y, w), mean]


def centred(b: FusionBuilder, x: TensorView, w: TensorView) -> Outputs:
    """Places of the largest beside what differs from the mean."""
    total = b.reduce("sum", x, [0], keepdim=True)
    mean = op(b, "div", total, b.scalar(float(x.sizes[0])))
    return [op(b, "sub", x, mean), b.reduce("argmax", x, [0])]


def in_torch(define: Define, x: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
    if define is softmax:
        return [torch.softmax(x, 0)]
    if define is layer_norm:
        y = torch.nn.functional.layer_norm(x.t(), (x.shape[0],), w.flatten()).t()
        return [y, x.mean(0, keepdim=True)]
    return [x - x.mean(0, keepdim=True), x.argmax(0)]


def exactly(define: Define, x: torch.Tensor, w: torch.Tensor) -> list[np.ndarray]:
    """In numpy's long double, which has 64 bits of mantissa where processors have it."""
    wide, weight = (t.double().numpy().astype(np.longdouble) for t in (x, w))
    if define is softmax:
        e = np.exp(wide - wide.max(0))
        return [e / e.sum(0)]
    mean = wide.mean(0, keepdims=True)
    if define is layer_norm:
        variance = ((wide - mean) ** 2).mean(0)
        return [(wide - mean) / np.sqrt(variance + np.longdouble(1e-5)) * weight, mean]
    return [wide - mean, wide.argmax(0)]


Define = Callable[[FusionBuilder, TensorView, TensorView], Outputs]
PROGRAMS = pytest.mark.parametrize("define", [softmax, layer_norm, centred])


def fusion(define: Define, sizes: Sequence[int], dtype: DataType) -> Fusion:
    b = FusionBuilder()
    wide = compute_dtype(dtype)
    x, w = b.tensor(sizes, dtype), b.tensor([sizes[0], 1], dtype)
    for made in define(b, b.cast_tensor(x, wide), b.cast_tensor(w, wide)):
        b.output(b.cast_tensor(made, dtype) if made.dtype.is_floating else made)
    return b.build()


def stacked(made: Fusion, device: DeviceInfo = H200) -> ReductionSchedule:
    (segment,) = (s for s in partition(made).segments if s.kernels)
    found = schedule_segment(segment, device)
    assert isinstance(found, ReductionSchedule)
    assert found.is_outer_shared
    return found


def kernel(made: Fusion, device: DeviceInfo = H200) -> Kernel:
    (generated,) = generate_kernels(partition(made), device).values()
    return generated.kernel


# ---- numbers

SIZES = (
    (32, 640),
    (33, 1000),
    (100, 1003),
    (127, 264),
    (300, 1000),
    (5000, 400),
    (1000, 264),
    (40, 1),
)


@each_value(define=[softmax, layer_norm, centred], dtype=[BFloat16, Float, Double])
def test_one_kernel_is_no_worse_than_eager(
    device: torch.device, define: Define, dtype: DataType
) -> None:
    """Rows that are no whole vectors, vectors that are no whole blocks, columns of every number."""
    batch = Batch(device, H200 if device.type == "cpu" else None)
    runs, count = [], 0
    for rows, sizes in enumerate(SIZES):
        generator = torch.Generator().manual_seed(rows)
        x = (3 * torch.randn(sizes, generator=generator)).to(dtype.torch)
        w = torch.randn(sizes[0], 1, generator=generator).to(dtype.torch)
        made = fusion(define, sizes, dtype)
        run = executable(CompiledFusion(made), [x.to(device), w.to(device)], batch, device)
        count += "outer_block_reduce" in run.kernels[0].source
        runs.append((x, w, run))
    assert count >= 3
    for x, w, run in runs:
        found = run([x.to(device), w.to(device)])
        eager = in_torch(define, x, w)
        for ours, theirs, truth in zip(found, eager, exactly(define, x, w), strict=True):
            if truth.dtype.kind == "i":
                assert np.array_equal(ours.cpu().numpy(), truth)
                continue
            error, allowed = (
                np.abs(t.cpu().double().numpy() - truth).max() for t in (ours, theirs)
            )
            floor = 2 * torch.finfo(dtype.torch).eps * np.abs(truth).max()
            assert error <= max(allowed, floor), (x.shape, error, allowed, floor)


def test_nan_and_infinity_stay_in_their_rows(device: torch.device) -> None:
    x = torch.randn(300, 100)
    x[17, 3], x[200, 50], x[0, 99], x[299, 99] = torch.nan, torch.inf, -torch.inf, torch.nan
    batch = Batch(device, H200 if device.type == "cpu" else None)
    inputs = [x.to(device), torch.ones(300, 1, device=device)]
    run = executable(CompiledFusion(fusion(softmax, x.shape, Float)), inputs, batch, device)
    assert "outer_block_reduce" in run.kernels[0].source
    (found,) = run(inputs)
    torch.testing.assert_close(found.cpu(), torch.softmax(x, 0), equal_nan=True)


@PROGRAMS
def test_no_order_of_threads_and_blocks_matters(define: Define) -> None:
    for sizes in ((127, 1003), (1100, 40)):
        made = fusion(define, sizes, Float)
        (generated,) = generate_kernels(partition(made), H200).values()
        (launch,) = HOST.compile([generated.kernel])
        memory = {t: torch.randn(t.sizes) for t in made.tensor_inputs}
        memory |= {t: torch.zeros(t.sizes, dtype=t.dtype.torch) for t in made.results}
        check_orders(launch, [memory[bound] for bound in generated.arguments])


# ---- what is read, and by whom


@pytest.mark.parametrize(
    ("columns", "place"), [(128, "registers"), (512, "shared memory"), (1500, "shared memory")]
)
def test_a_row_is_read_once(columns: int, place: str) -> None:
    made = fusion(softmax, [columns, 1 << 16], BFloat16)
    plan = partition(made)
    assert (plan.kernels, plan.bytes) == (1, plan.bytes_ideal)
    found = stacked(made)
    assert f"persistent in {place}" in str(found)
    assert all(found.row_cache.reads(k) == 1 for k in range(len(found.accesses)))


def test_rows_too_long_for_a_block_are_read_again() -> None:
    found = stacked(fusion(softmax, [1 << 14, 1 << 13], BFloat16))
    assert found.row_cache.reread


def test_neighbouring_threads_read_whole_sectors() -> None:
    """As many blocks as multiprocessors where rows suffice, and none narrower than two sectors."""
    for rows in (64, 1 << 10, 1 << 13, 1 << 16):
        found = stacked(fusion(softmax, [512, rows], BFloat16))
        assert found.rows_per_block * found.lanes.vector * 2 >= 64
        assert found.block_threads % 32 == 0
        few = found.blocks < H200.sm_count
        assert few <= (found.rows_per_block == 4)


@pytest.mark.nvrtc
@pytest.mark.parametrize("every", [2, pytest.param(1, marks=pytest.mark.campaign)])
@each_value(define=[softmax, layer_norm, centred], device=GPUS)
def test_they_compile_without_spills(define: Define, device: DeviceInfo, every: int) -> None:
    """NVRTC takes seconds: a plain run has every second of these."""
    kernels = {}
    shapes = ((128, 1 << 16), (1024, 1 << 13), (1500, 4096), (1 << 14, 1 << 12))
    cases = itertools.product(shapes, (BFloat16, Float, Double))
    for sizes, dtype in itertools.islice(cases, 0, None, every):
        plan = partition(fusion(define, sizes, dtype))
        for generated in generate_kernels(plan, device).values():
            kernels[generated.kernel.name] = generated.kernel
    assert sum("outer_block_reduce" in k.source for k in kernels.values()) >= 6 / every
    cubin = compile_cubin(list(kernels.values()), device.arch)
    for name, found in cubin.resources.items():
        assert not found.spills, (name, found)


@pytest.mark.nvrtc
@pytest.mark.skipif(bool(sass.SKIP_REASON), reason=sass.SKIP_REASON)
def test_they_load_and_store_sixteen_bytes() -> None:
    found = kernel(fusion(softmax, [512, 1 << 16], BFloat16))
    code = sass.disassemble(compile_cubin([found], H200.arch).image)[found.name]
    assert set(code.load_bits) == set(code.store_bits) == {128}


@pytest.mark.nvrtc
@pytest.mark.skipif(bool(sass.SKIP_REASON), reason=sass.SKIP_REASON)
@pytest.mark.parametrize("columns", [128, 512, 1500, 1 << 14])
def test_loads_under_way_keep_memory_busy(columns: int) -> None:
    """48 KB a multiprocessor, whether a row is held or read again."""
    found = kernel(fusion(softmax, [columns, 1 << 13], BFloat16))
    cubin = compile_cubin([found], H200.arch)
    code = sass.disassemble(cubin.image)[found.name]
    threads, registers = found.block[0], cubin.resources[found.name].registers
    together = min(
        H200.threads_per_sm // threads,
        H200.registers_per_sm // (registers * threads),
        H200.shared_bytes_per_sm // (found.shared_bytes + 1024),
    )
    assert max(code.bytes_awaited) * threads * together >= 48 << 10
