"""fd.ops.cumsum: numbers at every threshold of a schedule, plans, and what definitions print."""

from __future__ import annotations

import pytest
import torch

from tests.frontends.definition.rebuilding import executed
from tests.support.shares import each_value
from thunder_fuser import DataType, FusionDefinition
from thunder_fuser.errors import FuserError
from thunder_fuser.ir import dtypes
from thunder_fuser.ir.printer import equal

Float = DataType.Float


def scan_of(shape: list[int], dtype: DataType = Float, dim: int = -1) -> FusionDefinition:
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape, True, dtype)
        fd.add_output(fd.ops.cumsum(x, dim))
    return fd


@each_value(dtype=[torch.float32, torch.bfloat16, torch.int32], length=[1, 16, 17, 333, 5000])
def test_rows_of_many_lengths(dtype: torch.dtype, length: int) -> None:
    x = torch.randint(-4, 5, (7, length)).to(dtype)
    (found,) = scan_of([7, length], dtypes.from_torch(dtype)).execute([x])
    # Sums are small integers, which every one of these dtypes holds, or rounds alike.
    truth = x.to(torch.float64).cumsum(-1)
    wanted = truth.to(torch.int64 if dtype is torch.int32 else dtype)
    assert found.dtype == wanted.dtype
    assert torch.equal(found, wanted)


@pytest.mark.parametrize("dim", [0, 1, 2, -2])
def test_any_dimension(dim: int) -> None:
    x = torch.randn(5, 6, 7, dtype=torch.float64)
    (found,) = scan_of([5, 6, 7], DataType.Double, dim).execute([x])
    torch.testing.assert_close(found, x.cumsum(dim))


def test_nan_and_infinity_stay_behind_where_they_are() -> None:
    x = torch.ones(2, 40)
    x[0, 20], x[1, 10], x[1, 30] = torch.nan, torch.inf, -torch.inf
    (found,) = scan_of([2, 40]).execute([x])
    torch.testing.assert_close(found, x.cumsum(-1), equal_nan=True)


def test_a_start_and_a_dtype() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([3, 50], True, DataType.BFloat16)
        s = fd.define_scalar(None, dtype=DataType.Double)
        fd.add_output(fd.ops.cumsum(x, 1, init=s))
        fd.add_output(fd.ops.cumsum(x, 1, 2.5))
        fd.add_output(fd.ops.cumsum(x, 1, dtype=Float))
    x = torch.randn(3, 50).bfloat16()
    by_number, by_constant, wide = fd.execute([x, 0.5])
    sums = x.double().cumsum(1)
    for found, start in ((by_number, 0.5), (by_constant, 2.5)):
        assert found.dtype == torch.bfloat16
        torch.testing.assert_close(found.double(), sums + start, rtol=2**-8, atol=2**-8)
    torch.testing.assert_close(wide.double(), sums, rtol=1e-5, atol=1e-5)
    assert equal(executed(repr(fd)), fd.fusion)


def test_the_other_scans_and_where_they_begin() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([3, 50], True, DataType.Half)
        fd.add_output(fd.ops.cumprod(x, 1, 0.5))
        fd.add_output(fd.ops.cummax(x, 1, init=0.25))
        fd.add_output(fd.ops.cummin(x, 1))
    assert [s.kind for s in fd.plan().segments] == ["scan"]
    x = torch.randn(3, 50).half()
    product, largest, smallest = fd.execute([x])
    truth = 0.5 * x.double().cumprod(1)
    torch.testing.assert_close(product.double(), truth, rtol=2**-9, atol=1e-7)
    assert torch.equal(largest, x.cummax(1).values.clamp(min=0.25))
    assert torch.equal(smallest, x.cummin(1).values)
    fd.validate([x])
    assert equal(executed(repr(fd)), fd.fusion)


def test_a_number_is_a_row_of_one_element() -> None:
    (found,) = scan_of([], DataType.Int32, 0).execute([torch.tensor(3, dtype=torch.int32)])
    assert found.dtype == torch.int64
    assert found.item() == 3


def test_open_sizes() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], [True, True], Float)
        fd.add_output(fd.ops.mul(fd.ops.cumsum(fd.ops.add(x, 1.0), 1), x))
    text = str(fd.plan())
    assert "segment 0 (scan)" in text
    assert "8*i0*i1 B moved (ideal 8*i0*i1 B)" in text
    for shape in ((3, 5), (1, 700), (0, 4), (4, 0), (6, 1)):
        x = torch.randint(-4, 5, shape).float()
        (found,) = fd.execute([x])
        assert torch.equal(found, (x + 1).cumsum(1) * x)


def test_one_kernel_does_what_is_before_and_behind_scans_of_its_rows() -> None:
    """A scan of a scan, too."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([64, 3000], True, Float)
        once = fd.ops.cumsum(fd.ops.exp(x), 1)
        twice = fd.ops.cumsum(fd.ops.mul(once, x), 1)
        fd.add_output(fd.ops.add(twice, once))
    plan = fd.plan()
    assert [s.kind for s in plan.segments] == ["scan"]
    assert plan.bytes == plan.bytes_ideal == 2 * 64 * 3000 * 4
    x = torch.randn(64, 3000) / 100
    (found,) = fd.execute([x])
    y = x.double().exp().cumsum(1)
    torch.testing.assert_close(found.double(), (y * x).cumsum(1) + y, rtol=1e-4, atol=1e-2)


def test_what_reads_a_scan_elsewhere_finds_it_in_memory() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([64, 3000], True, Float)
        y = fd.ops.cumsum(fd.ops.div(x, fd.ops.sum(x, [1], True)), 1)
        fd.add_output(fd.ops.sum(y, [0]))
        fd.add_output(fd.ops.add(y, fd.ops.slice(y, [0, 2999], [64, 3000])))
    plan = fd.plan()
    assert [s.kind for s in plan.segments].count("scan") == 1
    assert {s.kind for s in plan.segments} == {"scan", "reduction", "pointwise"}
    told = "\n".join([str(b.reason) for b in plan.boundaries] + [str(plan)])
    assert "a kernel does one or the other, so that each needs its own" in told
    x = torch.rand(64, 3000) + 1
    total, last = fd.execute([x])
    y = (x.double() / x.double().sum(1, keepdim=True)).cumsum(1)
    torch.testing.assert_close(total.double(), y.sum(0), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(last.double(), y + y[:, -1:], rtol=1e-4, atol=1e-4)


def test_scans_of_two_dimensions_are_two_kernels() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([40, 60], True, DataType.Double)
        fd.add_output(fd.ops.cumsum(fd.ops.cumsum(x, 1), 0))
    plan = fd.plan()
    assert [s.kind for s in plan.segments] == ["scan", "scan"]
    assert "it scans dimension 0 of [40, 60], T1 scans dimension 1 of [40, 60]" in str(plan)
    x = torch.randn(40, 60, dtype=torch.float64)
    torch.testing.assert_close(fd.execute([x])[0], x.cumsum(1).cumsum(0))


def test_what_cannot_be_scanned() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([4, 5], True, Float)
        with pytest.raises(FuserError, match="dimension 2 is out of range"):
            fd.ops.cumsum(x, 2)
        with pytest.raises(FuserError, match="no result of dtype Bool"):
            fd.ops.cumsum(x, 1, dtype=DataType.Bool)
        fd.add_output(x)
