"""Scans in the IR: what they mean, what their types are, and which are well-formed."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.frontends.definition.rebuilding import executed
from thunder_fuser import FusionDefinition
from thunder_fuser.analysis.footprint import footprint
from thunder_fuser.errors import FuserError, InternalError
from thunder_fuser.ir import dtypes
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.extract import extract
from thunder_fuser.ir.fusion import Fusion, ScanOp
from thunder_fuser.ir.printer import equal
from thunder_fuser.ir.rebuild import rebound
from thunder_fuser.ir.reference import evaluate
from thunder_fuser.ir.tables import scans
from thunder_fuser.ir.verify import verify


def scan_of(
    shape: list[int], dim: int, dtype: DataType, result: DataType | None = None, op: str = "cumsum"
) -> Fusion:
    b = FusionBuilder()
    b.output(b.scan(op, b.tensor(shape, dtype), dim, dtype=result))
    return verify(b.build(), "specialised")


@pytest.mark.parametrize("name", scans.TABLE)
@pytest.mark.parametrize(
    "dtype",
    [torch.float64, torch.float32, torch.bfloat16, torch.int32, torch.uint8, torch.bool,
     torch.complex64],
    ids=str,
)  # fmt: skip
def test_the_reference_is_torchs(name: str, dtype: torch.dtype) -> None:
    if dtype.is_complex and name in ("cummax", "cummin"):
        with pytest.raises(FuserError, match="does not take ComplexFloat"):
            scan_of([3], 0, DataType.ComplexFloat, op=name)
        return
    for shape, dim in (([3, 40], 1), ([3, 40], 0), ([2, 1, 5], -2), ([4, 0], 1), ([], 0)):
        x = torch.randint(0, 3, shape).to(dtype)
        fusion = scan_of(shape, dim, dtypes.from_torch(dtype), op=name)
        (found,) = evaluate(fusion, [x]).outputs
        if not x.numel():
            assert found.shape == x.shape
            continue
        truth = getattr(torch, name)(x, dim)
        truth = truth if isinstance(truth, torch.Tensor) else truth.values
        assert found.dtype == truth.dtype
        assert torch.equal(found, truth)


def test_expanded_elements_have_sums_that_differ() -> None:
    b = FusionBuilder()
    x = b.broadcast_in_dim(b.tensor([1, 3], DataType.Float), [4, 3], [0, 1])
    y = b.scan("cumsum", x, 0)
    b.output(y)
    assert not any(d.is_broadcast for d in y.domain.logical)
    (found,) = evaluate(verify(b.build()), [torch.ones(1, 3)]).outputs
    assert torch.equal(found, torch.arange(1.0, 5.0)[:, None].expand(4, 3))


def test_a_scan_is_copied_printed_and_cut_out_as_it_is() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([4, 9], True, DataType.Half)
        y = fd.ops.cumsum(fd.ops.neg(x), 0)
        fd.add_output(fd.ops.cumsum(y, 1, dtype=DataType.Float))
    fusion = fd.fusion
    assert equal(executed(repr(fd)), fusion)
    assert equal(rebound(fusion, lambda extent: extent), fusion)
    assert equal(extract(fusion, fusion.outputs, set(), {}).fusion, fusion)


def test_kernels_read_whole_rows() -> None:
    b = FusionBuilder()
    x = b.tensor([4, 9], DataType.Float)
    b.output(b.slice(b.scan("cumsum", x, 1), [1, 2], [3, 4]))
    assert footprint(b.build(), b.build().outputs, {x})[x].elements == 2 * 9


def test_what_is_not_well_formed() -> None:
    fusion = scan_of([4, 9], 1, DataType.BFloat16)
    (expr,) = fusion.exprs
    assert isinstance(expr, ScanOp)
    for changed, problem in (
        (replace(expr, dim=2), "there is no dimension 2"),
        (replace(expr, accumulate=DataType.Double), "it should accumulate in DataType.Float"),
        (replace(expr, op="cumdiff"), "there is no scan 'cumdiff'; there are cumsum, cumprod"),
    ):
        with pytest.raises(InternalError, match=problem):
            verify(replace(fusion, exprs=(changed,)))


def test_a_result_of_bools_is_refused() -> None:
    with pytest.raises(FuserError, match="cumsum has no result of dtype Bool"):
        scan_of([3], 0, DataType.Int, DataType.Bool)
    with pytest.raises(FuserError, match="cummax takes no dtype"):
        scan_of([3], 0, DataType.Int, DataType.Float, op="cummax")
