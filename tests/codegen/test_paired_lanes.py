"""Lanes of bf16 that stand in registers as words of memory have them, on a host."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.runtime.hand_written import kernel
from tests.support.building import op
from tests.zoo.channels_last import column_statistics
from tests.zoo.norms import NORMS
from thunder_fuser.codegen.kernel import Param
from thunder_fuser.compile import generate_kernels
from thunder_fuser.compiled_fusion import CompiledFusion
from thunder_fuser.device import DeviceInfo
from thunder_fuser.device_table import H200
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.runtime.host.target import HOST
from thunder_fuser.templates.choose import schedule_segment
from thunder_fuser.templates.reduction.schedule import ReductionSchedule

CPU = HOST.device_info(torch.device("cpu"))
BFloat16, Float, Half = DataType.BFloat16, DataType.Float, DataType.Half


def pairs(fusion: Fusion, device: DeviceInfo = CPU) -> bool:
    made = generate_kernels(CompiledFusion(fusion).plan(), device).values()
    return any("tf::Pairs<" in each.kernel.source for each in made)


def norm(name: str, rows: int, columns: int, dtype: DataType = BFloat16) -> Fusion:
    return next(n for n in NORMS if n.name == name).definition(rows, columns, dtype).fusion


def chain(*dtypes: DataType, size: int = 4096) -> Fusion:
    """(x + y) * z + x, rounded twice."""
    b = FusionBuilder()
    x, y, z = (b.tensor([4, size], dtype) for dtype in dtypes)
    total = b.cast_tensor(op(b, "add", x, y), dtypes[0])
    b.output(b.cast_tensor(op(b, "add", op(b, "mul", total, z), x), dtypes[0]))
    return b.build()


def with_total() -> Fusion:
    """Elements, and their sums along columns."""
    b = FusionBuilder()
    x = b.tensor([64, 4096], BFloat16)
    e = op(b, "exp", x)
    b.output(b.cast_tensor(e, BFloat16))
    b.output(b.reduce("sum", e, [0]))
    return b.build()


@pytest.mark.parametrize("columns", [256, 1056, 4096])
def test_accumulators_of_columns_leave_registers_to_rows(columns: int) -> None:
    """Five words of each column: of 16 they fill 10 of AVX2's 16 registers, of 32 all and more."""
    fusion = column_statistics(columns=columns)
    (segment,) = CompiledFusion(fusion).plan().segments
    schedule = schedule_segment(segment, CPU)
    assert isinstance(schedule, ReductionSchedule)
    assert schedule.lanes.vector == 16
    assert schedule.paired
    assert pairs(fusion)


def test_totals_of_columns_are_found_again() -> None:
    assert pairs(with_total())


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "rms_norm", "layer_norm"])
def test_rows_of_bf16_are_paired(name: str) -> None:
    assert pairs(norm(name, 16, 4096))
    assert not pairs(norm(name, 16, 4096), H200)


def test_only_whole_vectors_of_bf16_are_paired() -> None:
    assert pairs(chain(BFloat16, BFloat16, BFloat16))
    assert not pairs(chain(BFloat16, Float, BFloat16))
    assert not pairs(chain(Half, Half, Half))
    # The last vector of a row has lanes that do not exist.
    assert not pairs(norm("softmax", 16, 4097))


def numbered() -> Fusion:
    """A value that depends on its lane."""
    b = FusionBuilder()
    x = b.tensor([4096], BFloat16)
    b.output(b.cast_tensor(op(b, "add", x, b.iota(4096, 0, 1)), BFloat16))
    return b.build()


def padded() -> Fusion:
    """Lanes of one vector that are read from different places."""
    b = FusionBuilder()
    x = b.tensor([4, 1000], BFloat16)
    b.output(b.cast_tensor(op(b, "add", b.pad(x, [8, 16]), 1.0), BFloat16))
    return b.build()


PROGRAMS: dict[str, Callable[[], Fusion]] = {
    "chain": lambda: chain(BFloat16, BFloat16, BFloat16),
    "short": lambda: chain(BFloat16, BFloat16, BFloat16, size=6),
    "odd": lambda: chain(BFloat16, BFloat16, BFloat16, size=33),
    "softmax": lambda: norm("softmax", 5, 4096),
    "layer norm": lambda: norm("layer_norm", 5, 1056),
    "numbered": numbered,
    "padded": padded,
    "total": with_total,
    "statistics": column_statistics,
    "odd statistics": lambda: column_statistics(1001, 272),
    "many statistics": lambda: column_statistics(2500, 48),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_numbers(name: str) -> None:
    fusion = PROGRAMS[name]()
    torch.manual_seed(0)
    inputs = [
        torch.randn(tuple(map(int, t.domain.sizes))).bfloat16()  # type: ignore[union-attr]
        for t in fusion.inputs
    ]
    compiled = CompiledFusion(fusion)
    torch.testing.assert_close(compiled(inputs), compiled.in_torch(inputs))


def test_every_bit_pattern() -> None:
    """Subnormals, infinities and the rounding of ties are torch's; NaN is NaN."""
    b = FusionBuilder()
    x, y = (b.tensor([1 << 16], BFloat16) for _ in range(2))
    b.output(b.cast_tensor(op(b, "add", x, y), BFloat16))
    b.output(b.cast_tensor(op(b, "neg", x), BFloat16))
    fusion = b.build()
    assert pairs(fusion)
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    for other in (torch.zeros_like(every), every.flip(0), every.roll(77), every.roll(129)):
        total, negative = CompiledFusion(fusion)([every, other])
        torch.testing.assert_close(total, every + other, rtol=0, atol=0, equal_nan=True)
        torch.testing.assert_close(negative, -every, rtol=0, atol=0, equal_nan=True)


def test_lanes_that_go_out_as_they_came_in() -> None:
    body = (
        "  tf::Pairs<bf16, 32> a, b;\n  tf::load<32>(x, a);\n"
        "  for (int v = 0; v < 32; ++v) b[v] = a[v];\n  tf::store<32>(y, b);"
    )
    params = (Param("x", "const bf16*"), Param("y", "bf16*"))
    copies = kernel("copies", body, params, headers=("pairs.cuh",), block=(1, 1, 1))
    (launch,) = HOST.compile([copies])
    x, y = torch.randn(32).bfloat16(), torch.empty(32).bfloat16()
    launch(x.data_ptr(), y.data_ptr())
    assert torch.equal(x, y)
