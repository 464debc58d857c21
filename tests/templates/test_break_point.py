"""Rows outside of a break point and their columns inside: what all rows read is kept, in pairs."""

from __future__ import annotations

import pytest
import torch

from tests.support.batch import Batch, check_between_guards
from tests.support.generator import Case
from tests.support.generator_program import Program
from tests.support.inputs import random_tensor
from tests.support.seeds import blocks
from tests.support.shares import each_value
from tests.zoo.channels_last import normalized
from thunder_fuser.codegen.kernel import Kernel
from thunder_fuser.compile import generate_kernels
from thunder_fuser.compiled_fusion import CompiledFusion
from thunder_fuser.config import options
from thunder_fuser.device import DeviceInfo
from thunder_fuser.device_table import H200
from thunder_fuser.frontends.definition import DataType, FusionDefinition
from thunder_fuser.ir.fusion import TensorView
from thunder_fuser.ir.integer.symint import Context
from thunder_fuser.ir.reference import evaluate
from thunder_fuser.lower.scalar_graph import Load
from thunder_fuser.lower.vectors.lane_windows import VectorAccess
from thunder_fuser.lower.vectors.lanes import Lanes
from thunder_fuser.lower.vectors.vectorize import ALWAYS, RegisterArray, Variant
from thunder_fuser.runtime.host.target import HOST
from thunder_fuser.templates.choose import schedule_segment
from thunder_fuser.templates.pointwise import break_point
from thunder_fuser.templates.pointwise import schedule as pointwise_schedule
from thunder_fuser.templates.pointwise.schedule import PointwisePart, PointwiseSchedule

BFloat16, Float = DataType.BFloat16, DataType.Float
CPU = HOST.device_info(torch.device("cpu"))


def grouped(rows: int) -> FusionDefinition:
    """Operands of all columns, and one that repeats within a row: both are the same in all rows."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([rows, 4, 64], True, BFloat16)
        scale = fd.define_tensor([64], True, Float)
        shift = fd.define_tensor([4, 64], True, BFloat16)
        scale = fd.ops.broadcast_in_dim(scale, [rows, 4, 64], [2])
        shift = fd.ops.broadcast_in_dim(shift, [rows, 4, 64], [1, 2])
        fd.add_output(fd.ops.cast(fd.ops.add(fd.ops.mul(x, scale), shift), BFloat16))
    return fd


def beside_others(rows: int) -> FusionDefinition:
    """Another part of the launch has blocks of many threads."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([rows, 256], True, BFloat16)
        scale = fd.ops.broadcast_in_dim(fd.define_tensor([256], True, Float), [rows, 256], [1])
        other = fd.define_tensor([70001], True, Float)
        fd.add_output(fd.ops.cast(fd.ops.mul(x, scale), BFloat16))
        fd.add_output(fd.ops.mul(other, 2.0))
    return fd


def parts(fd: FusionDefinition, device: DeviceInfo = CPU) -> list[PointwisePart]:
    (segment,) = (s for s in fd.plan().segments if s.kernels)
    found = schedule_segment(segment, device)
    assert isinstance(found, PointwiseSchedule)
    return list(found.parts)


def kernel(fd: FusionDefinition) -> Kernel:
    (found,) = generate_kernels(fd.plan(), CPU).values()
    return found.kernel


def inputs_of(fd: FusionDefinition) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn([int(n) for n in t.sizes]).to(t.dtype.torch) for t in fd.fusion.inputs]  # type: ignore[union-attr]


# ---- where there is one


@pytest.mark.parametrize(
    ("rows", "channels", "columns", "of_block"),
    [(64, 256, 8, 32), (1027, 256, 8, 32), (4096, 64, 2, 128), (100, 1024, 32, 16)],
)
def test_fp32_that_all_rows_read_is_kept(
    rows: int, channels: int, columns: int, of_block: int
) -> None:
    fd = normalized(rows, channels)
    (part,) = parts(fd)
    at = part.break_point
    assert at is not None
    assert part.paired
    assert (at.columns, at.rows, len(at.kept)) == (columns, of_block, 4)
    assert part.blocks == -(-rows // of_block)
    text = kernel(fd).source
    assert kernel(fd).block == (1, 1, 1)
    assert f"tf::Pairs<float, 32> x1[{columns}];" in text
    # Rows read their own vectors alone.
    assert text.split("for (int r = ")[1].count("tf::load") == 1


@pytest.mark.parametrize(
    ("fd", "why"),
    [
        (lambda: normalized(63, 256), "few rows"),
        (lambda: normalized(31, 1024), "few rows"),
        (lambda: normalized(4096, 1056), "operands of more than half a cache"),
        (lambda: normalized(4096, 8192), "operands of more than half a cache"),
        (lambda: normalized(4096, 256, statistics=BFloat16), "pairs without it"),
        (lambda: normalized(4096, 36), "no whole vectors"),
    ],
)
def test_other_vectors_are_one_flat_loop(fd: object, why: str) -> None:
    found = parts(fd())  # type: ignore[operator]
    assert all(part.break_point is None for part in found), why


def test_a_gpu_has_none() -> None:
    assert all(p.break_point is None for p in parts(normalized(4096, 256), H200))


def test_what_repeats_within_a_row_is_kept() -> None:
    (part,) = parts(grouped(1024))
    at = part.break_point
    assert at is not None
    assert (at.columns, len(at.kept)) == (8, 2)


def test_what_two_digits_choose_repeats_after_both() -> None:
    """Rows of 24 vectors: after 8 one digit is where it began, and the other after 3."""
    context = Context()
    i = context.var("i", 0, 32 * 2400 - 1)
    lanes = Lanes(i, 32 * 2400, 0, 32)
    address = lanes(i // 32 % 3 * 32 + i // 64 % 4 * 96)
    window = VectorAccess(address, 32, tuple(range(32)), tuple(range(32)))
    tensor = normalized(64, 256).fusion.inputs[0]
    assert isinstance(tensor, TensorView)
    access = RegisterArray((Load(0, BFloat16, tensor, address),), (Variant(ALWAYS, (window,)),))
    found = break_point.find_break_point([access], lanes)
    assert found is not None
    assert (found.columns, found.kept) == (24, (0,))


def test_schedules_say_so() -> None:
    (part,) = parts(normalized(1027, 256))
    assert "33 blocks of 32 rows of 8 vectors, with 4 kept loads" in str(part)


# ---- numbers

PROGRAMS = {
    "whole blocks": lambda: normalized(64, 256),
    "a last block of few rows": lambda: normalized(1027, 256),
    "several images": lambda: normalized(333, 128, images=3),
    "narrow": lambda: normalized(5000, 32),
    "wide": lambda: normalized(77, 1024),
    "repeated": lambda: grouped(1024),
    "beside others": lambda: beside_others(513),
}


@each_value(name=list(PROGRAMS), debug=[False, True])
def test_numbers_are_those_of_the_flat_loop(
    name: str, debug: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the bit, and near those of float64; infinities, NaNs and subnormals included."""
    fd = PROGRAMS[name]()
    assert any(part.break_point for part in parts(fd))
    inputs = inputs_of(fd)
    for k, value in enumerate((float("inf"), float("-inf"), float("nan"), 1e-40, -0.0)):
        inputs[0].view(-1)[37 * k + 5] = value
    with options(host_debug=debug):
        found = CompiledFusion(fd.fusion)(inputs)
        monkeypatch.setattr(pointwise_schedule, "find_break_point", lambda *_: None)
        flat = CompiledFusion(fd.fusion)(inputs)
    exact = evaluate(fd.fusion, inputs, double=True).outputs
    for one, other, right in zip(found, flat, exact, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)
        torch.testing.assert_close(
            one.double(), right.double(), rtol=2**-8, atol=1e-5, equal_nan=True
        )


def columns_case(seed: int) -> Case:
    """A chain over bf16 points, of operands that have some of their trailing dimensions."""
    p = Program(seed, 60_000, (BFloat16, Float), ("add", "sub", "mul", "maximum"))
    choose = p.rng.choice
    sizes = [choose((2, 3, 7)), choose((8, 21)), choose((1, 2, 3)), choose((32, 64, 96))]

    def dense(sizes: list[int], dtype: DataType) -> TensorView:
        """Or now and then in any other memory format."""
        if p.chance(0.1):
            return p.tensor(sizes, dtype)
        view, data = p.builder.tensor(sizes, dtype), random_tensor(p.rng, sizes, dtype)
        p.inputs.append(data)
        p.oracle.bind([view], [data])
        return view

    value = dense(sizes, BFloat16)
    for _ in range(p.rng.randint(1, 4)):
        kept = choose((1, 1, 2, 2, 3, 4))
        own = [n if k >= 4 - kept else 1 for k, n in enumerate(sizes)]
        other = dense(own, BFloat16 if kept == 4 else choose((BFloat16, Float)))
        value = p.pooled(p.builder.pointwise(choose(p.operations), value, other))
    p.builder.output(p.pooled(p.builder.cast(value, BFloat16)))
    return Case(seed, p.builder.build(), tuple(p.inputs), p.oracle)


@blocks(120, 40, always=80)
def test_random_operands_of_columns(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against the oracle's bound, between guard pages, threads and blocks in any order."""
    monkeypatch.setattr(break_point, "_FEWEST_VECTORS", 1)
    cases = [columns_case(seed) for seed in range(first, first + 40)]
    used = [
        part.break_point
        for case in cases
        for segment in CompiledFusion(case.fusion).plan().segments
        if segment.kernels
        for part in schedule_segment(segment, CPU).parts  # type: ignore[union-attr]
    ]
    assert sum(at is not None for at in used) > 10
    guarded = ((case, CompiledFusion(case.fusion)) for case in cases)
    assert check_between_guards(guarded, Batch(torch.device("cpu")), monkeypatch) >= 40
