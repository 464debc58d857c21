"""Rows that begin within vectors of memory: numbers against float64 between guard pages, and what
memory moves.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.support.batch import Batch, Guarded, allocations
from tests.support.building import op
from tests.support.shares import each_architecture, each_value
from thunder_fuser.compile import compile_plan, generate_kernels
from thunder_fuser.compiled_fusion import CompiledFusion
from thunder_fuser.device import DeviceInfo
from thunder_fuser.device_table import H200
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import Fusion, TensorView
from thunder_fuser.runtime.cuda.nvrtc import compile_cubin
from thunder_fuser.templates.choose import schedule_segment
from thunder_fuser.templates.estimate import estimate_segment
from thunder_fuser.templates.reduction.schedule import ReductionSchedule

CPU = torch.device("cpu")
BFloat16, Float = DataType.BFloat16, DataType.Float
Define = Callable[[FusionBuilder, TensorView], None]
Exact = Callable[[torch.Tensor], list[torch.Tensor]]


def softmax(b: FusionBuilder, x: TensorView) -> None:
    e = op(b, "exp", op(b, "sub", x, b.reduce("max", x, [1], keepdim=True)))
    y = op(b, "div", e, b.reduce("sum", e, [1], keepdim=True))
    b.output(b.cast_tensor(y, BFloat16))


def moments(b: FusionBuilder, x: TensorView) -> None:
    var, mean = b.var_mean(x, [1], correction=0, keepdim=True)
    b.output(op(b, "mul", op(b, "sub", x, mean), op(b, "rsqrt", op(b, "add", var, b.scalar(1.0)))))
    b.output(mean)


def places(b: FusionBuilder, x: TensorView) -> None:
    b.output(b.reduce("argmax", x, [1]))
    b.output(b.reduce("max", x, [1]))


def loss(b: FusionBuilder, x: TensorView) -> None:
    """One number of all rows, each of which is folded first."""
    s = b.reduce("sum", op(b, "exp", x), [1])
    b.output(b.reduce("sum", op(b, "log", s), [0]))


def picked(b: FusionBuilder, x: TensorView) -> None:
    """Beside an element a row where that row's first says, which has no column."""
    rows, _ = x.sizes
    first = op(b, "abs", b.slice(x, [0, 0], [rows, 1]))
    place = b.cast_tensor(op(b, "mul", first, b.scalar(3.0)), DataType.Int)
    chosen = b.squeeze(b.gather("take_along_axis", x, 1, place), [1])
    each = op(b, "sub", op(b, "log", b.reduce("sum", op(b, "exp", x), [1])), chosen)
    b.output(each)
    b.output(b.reduce("sum", each, [0]))


def log_sum_exp(b: FusionBuilder, x: TensorView) -> None:
    largest = b.reduce("max", x, [1], keepdim=True)
    e = b.reduce("sum", op(b, "exp", op(b, "sub", x, largest)), [1])
    b.output(op(b, "add", b.squeeze(largest, [1]), op(b, "log", e)))


def counted(b: FusionBuilder, x: TensorView) -> None:
    """Beside the number of the column."""
    rows, columns = x.sizes
    number = b.broadcast_in_dim(b.iota(columns, 0, 1, DataType.Int), [rows, columns], [1])
    b.output(
        b.reduce("sum", op(b, "where", op(b, "gt", number, b.scalar(5)), x, b.scalar(0.0)), [1])
    )


def _picked(x: torch.Tensor) -> torch.Tensor:
    place = (3 * x[:, :1].abs()).long()
    return (x.exp().sum(1, keepdim=True).log() - x.gather(1, place))[:, 0]


EXACT: dict[Define, Exact] = {
    softmax: lambda x: [torch.softmax(x, 1)],
    moments: lambda x: [
        (x - x.mean(1, keepdim=True)) * torch.rsqrt(x.var(1, correction=0, keepdim=True) + 1),
        x.mean(1, keepdim=True),
    ],
    places: lambda x: [x.argmax(1), x.amax(1)],
    loss: lambda x: [x.exp().sum(1).log().sum()],
    picked: lambda x: [row := _picked(x), row.sum()],
    log_sum_exp: lambda x: [x.logsumexp(1)],
    counted: lambda x: [x[:, 6:].sum(1)],
}
PROGRAMS = pytest.mark.parametrize("define", list(EXACT), ids=lambda f: f.__name__)
SIZES = ((16, 131), (8, 1001), (24, 257), (7, 133), (5, 1030), (33, 260), (1, 999))


def program(define: Define, rows: int, columns: int, dtype: DataType) -> Fusion:
    b = FusionBuilder()
    x = b.tensor([rows, columns], dtype)
    define(b, b.cast_tensor(x, Float))
    return b.build()


@each_value(define=list(EXACT), dtype=[BFloat16, Float], schedule=["own", "H200"])
def test_numbers(
    define: Define, dtype: DataType, schedule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = H200 if schedule == "H200" else None
    batch = Batch(CPU, info)
    runs = []
    # Of four dtypes and schedules, each size has two.
    for rows, columns in SIZES[(dtype is Float) ^ (info is None) :: 2]:
        x = torch.randn(rows, columns, generator=torch.Generator().manual_seed(columns))
        x = x.to(dtype.torch)
        plan = CompiledFusion(program(define, rows, columns, dtype)).plan([x])
        guarded = Guarded(batch, plan, "random", 1)
        guarded.memory.append(x)
        with allocations(monkeypatch, guarded.memory.append):
            runs.append((x, compile_plan(plan, CPU, guarded)))
    for x, run in runs:
        for ours, exact in zip(run([x]), EXACT[define](x.double()), strict=True):
            if not exact.is_floating_point():
                assert torch.equal(ours, exact)
                continue
            eps = torch.finfo(ours.dtype).eps
            assert (ours - exact).abs().max() <= 8 * max(eps, 1e-6) * exact.abs().max().clamp(min=1)


@pytest.mark.parametrize("dtype", [BFloat16, Float], ids=str)
def test_long_rows_in_one_pass(dtype: DataType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small blocks, whose exponentials see the identity where a vector is not of the row."""
    rows, columns = 529, 16393
    x = torch.randn(rows, columns, generator=torch.Generator().manual_seed(1)).to(dtype.torch)
    x[0] = x[1, :-1] = x[2, 1:] = -torch.inf
    x[3, -1], x[4, 0], x[5, 7] = torch.inf, 1000.0, torch.nan
    batch = Batch(CPU, H200)
    plan = CompiledFusion(program(log_sum_exp, rows, columns, dtype)).plan([x])
    (kernel,) = generate_kernels(plan, H200).values()
    assert "OnlineSoftmax::take" in kernel.kernel.source
    assert kernel.kernel.block == (256, 1, 1)
    guarded = Guarded(batch, plan, "random", 1)
    guarded.memory.append(x)
    with allocations(monkeypatch, guarded.memory.append):
        run = compile_plan(plan, CPU, guarded)
    (ours,) = run([x])
    exact = EXACT[log_sum_exp](x.double())[0]
    exact[[0, 3]] = torch.nan  # As written: infinity less infinity.
    torch.testing.assert_close(ours.double(), exact, rtol=1e-6, atol=0.0, equal_nan=True)


@PROGRAMS
def test_memory_moves_rows_once(define: Define) -> None:
    for columns in (50257, 4098, 1001):
        (segment,) = CompiledFusion(program(define, 8192, columns, BFloat16)).plan().segments
        schedule = schedule_segment(segment, H200)
        assert isinstance(schedule, ReductionSchedule)
        wide = (a for a in schedule.accesses if a.loads[0].tensor.numel == 8192 * columns)
        row, *_ = (a for a in wide if not a.loads[0].positions and not a.is_uniform)
        assert row.is_vector
        assert row.instructions(schedule.lanes.vector) == 1
        assert estimate_segment(segment, H200).bytes <= 1.05 * segment.bytes


@each_architecture("sm_80")
@pytest.mark.nvrtc
def test_kernels_compile_without_spills(device: DeviceInfo) -> None:
    kernels = []
    for define in EXACT:
        for columns in (50257, 1001):
            plan = CompiledFusion(program(define, 8192, columns, BFloat16)).plan()
            kernels += [g.kernel for g in generate_kernels(plan, device).values()]
    for name, found in compile_cubin(kernels, device.arch).resources.items():
        assert not found.spills, name
