"""Values that a reduction kernel caches, so that it computes them once."""

from __future__ import annotations

import re

import pytest
import torch

from tests.support.batch import Batch, executable
from tests.support.building import op
from tests.zoo.norms import NORMS
from thunder_fuser.compile import generate_kernels
from thunder_fuser.compiled_fusion import CompiledFusion
from thunder_fuser.device import DeviceInfo
from thunder_fuser.device_table import H200
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import Fusion, TensorView
from thunder_fuser.ir.reference import evaluate
from thunder_fuser.runtime.host.debug import check_orders
from thunder_fuser.runtime.host.target import HOST
from thunder_fuser.templates.choose import schedule_segment
from thunder_fuser.templates.reduction.schedule import ReductionSchedule

Float, BFloat16 = DataType.Float, DataType.BFloat16
CPU = HOST.device_info(torch.device("cpu"))


def held(fusion: Fusion, device: DeviceInfo = CPU) -> list[str]:
    plan = CompiledFusion(fusion).plan()
    (segment,) = plan.segments
    made = schedule_segment(segment, device)
    assert isinstance(made, ReductionSchedule)
    return [value.op for value in made.row_cache.values_in_smem]  # type: ignore[union-attr]


def norm(name: str, rows: int, columns: int) -> Fusion:
    return next(n for n in NORMS if n.name == name).definition(rows, columns, BFloat16).fusion


def softmax_backward(rows: int, columns: int) -> Fusion:
    """With the softmax computed again: four passes, three of which want the exponentials."""
    b = FusionBuilder()
    x, dy = (b.tensor([rows, columns], Float) for _ in range(2))
    e = op(b, "exp", op(b, "sub", x, b.reduce("max", x, [1], keepdim=True)))
    y = op(b, "div", e, b.reduce("sum", e, [1], keepdim=True))
    along = b.reduce("sum", op(b, "mul", y, dy), [1], keepdim=True)
    b.output(op(b, "mul", y, op(b, "sub", dy, along)))
    return b.build()


def source(fusion: Fusion, device: DeviceInfo = CPU) -> str:
    (generated,) = generate_kernels(CompiledFusion(fusion).plan(), device).values()
    return generated.kernel.source


@pytest.mark.parametrize("columns", [200, 4096, 32768])
def test_exponentials_are_computed_once_on_a_host(columns: int) -> None:
    for fusion in (norm("softmax", 16, columns), softmax_backward(16, columns)):
        assert held(fusion) == ["exp"]
        written = source(fusion)
        # A last vector that is not a whole one is apart, and has tests.
        bodies = 2 if f"v <= {columns - 1}" in written else 1
        assert len(re.findall(r"tf::(brief::)?exp\(", written)) == bodies


def test_what_is_cheap_is_computed_again() -> None:
    for name in ("rms_norm", "layer_norm", "layer_norm_backward", "softmax_backward"):
        assert held(norm(name, 16, 4096)) == []
    # The logarithm of the sum is one of a row, and the exponentials are wanted once.
    assert held(norm("log_softmax", 16, 4096)) == []


def test_a_row_that_has_no_room_is_computed_again() -> None:
    assert held(norm("softmax", 16, 1 << 17)) == []


def test_a_gpu_computes_again() -> None:
    for columns in (4096, 1 << 17):
        assert held(norm("softmax", 16, columns), H200) == []


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (5, 33), (19, 300), (3, 5000)])
def test_numbers_and_bits(rows: int, columns: int) -> None:
    cpu = torch.device("cpu")
    generator = torch.Generator().manual_seed(columns)
    x, dy = (torch.randn(rows, columns, generator=generator) for _ in range(2))
    fusion = softmax_backward(rows, columns)
    run = executable(CompiledFusion(fusion), [x, dy], Batch(cpu), cpu)
    (found,) = run([x, dy])
    y = torch.softmax(x.double(), 1)
    exact = y * (dy - (y * dy).sum(1, keepdim=True))
    assert (found - exact).abs().max() <= 1e-6
    (launch,) = HOST.compile(run.kernels)
    check_orders(launch, [x, dy, torch.zeros(rows, columns)], seeds=2)


def test_columns_that_a_vector_has_too_many_of_change_nothing() -> None:
    cpu = torch.device("cpu")
    x = torch.randn(9, 1003, generator=torch.Generator().manual_seed(0))
    x[3, 1002] = 30
    fusion = softmax_backward(9, 1003)
    (found,) = executable(CompiledFusion(fusion), [x, x], Batch(cpu), cpu)([x, x])
    y = torch.softmax(x.double(), 1)
    assert (found - y * (x - (y * x).sum(1, keepdim=True))).abs().max() <= 1e-5


def test_values_that_are_the_same_for_all_lanes_are_kept_too() -> None:
    """Vectors of one column, and columns that come in groups of equal ones."""
    cpu = torch.device("cpu")
    for columns, copies in ((3, 1), (5, 64)):
        b = FusionBuilder()
        x = b.broadcast(b.tensor([7, columns], Float), [False, False, True])
        e = b.expand(op(b, "exp", x), [7, columns, copies])
        w = b.tensor([7, columns, copies], Float)
        total = b.reduce("sum", op(b, "mul", e, w), [1, 2], keepdim=True)
        b.output(op(b, "div", op(b, "mul", e, w), total))
        fusion = b.build()
        assert held(fusion) == ["mul"]
        generator = torch.Generator().manual_seed(columns)
        data = [torch.rand(7, columns, generator=generator), torch.rand(7, columns, copies)]
        (found,) = executable(CompiledFusion(fusion), data, Batch(cpu), cpu)(data)
        exact = data[0].double().exp()[:, :, None] * data[1]
        assert torch.allclose(found.double(), exact / exact.sum((1, 2), keepdim=True), rtol=1e-5)


def dropout_norm(rows: int, columns: int) -> Fusion:
    """h = dropout(x) + r, rounded, and h over its length."""
    b = FusionBuilder()
    x, r = (b.tensor([rows, columns], BFloat16) for _ in range(2))
    drawn = b.random("uniform", [rows, columns], (0.0, 1.0), (7, 3), BFloat16)
    kept = b.cast(op(b, "lt", drawn, b.scalar(0.9)), Float)
    h = b.cast(op(b, "add", op(b, "mul", x, kept), r), BFloat16)
    assert isinstance(h, TensorView)
    square = b.reduce("sum", op(b, "mul", h, h), [1], keepdim=True)
    b.output(h)
    b.output(b.cast(op(b, "mul", h, op(b, "rsqrt", square)), BFloat16))  # type: ignore[arg-type]
    return b.build()


@pytest.mark.parametrize("columns", [256, 1000, 4096])
def test_a_gpu_keeps_a_value_in_the_registers_of_what_it_is_computed_from(columns: int) -> None:
    """Random numbers are drawn once, and the sum is not computed again; the same bits as torch's
    evaluation of the fusion.
    """
    fusion = dropout_norm(9, columns)
    (segment,) = CompiledFusion(fusion).plan().segments
    made = schedule_segment(segment, H200)
    assert isinstance(made, ReductionSchedule)
    assert [v.op for v in made.row_cache.values_in_registers] == ["cast"]  # type: ignore[union-attr]
    assert made.row_cache.in_place == made.row_cache.values_in_registers
    text = source(fusion, H200)
    assert text.count("tf::words<") == 1
    cpu = torch.device("cpu")
    data = [torch.randn(9, columns).bfloat16() for _ in range(2)]
    found = executable(CompiledFusion(fusion), data, Batch(cpu, H200), cpu)(data)
    h, exact = evaluate(fusion, data).outputs
    assert torch.equal(found[0], h)
    assert (found[1].float() - exact.float()).abs().max() <= 2**-7 * exact.abs().max()


def test_registers_are_not_spent_on_what_is_soon_computed_again() -> None:
    for name in ("layer_norm", "softmax", "log_softmax", "rms_norm"):
        (segment,) = CompiledFusion(norm(name, 16, 4096)).plan().segments
        made = schedule_segment(segment, H200)
        assert isinstance(made, ReductionSchedule)
        assert not made.row_cache.values_in_registers, name
