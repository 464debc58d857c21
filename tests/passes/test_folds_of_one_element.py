from __future__ import annotations

import pytest
import torch

from tests.passes.patterns import check_on_random_fusions, ops_of, same_bits
from tests.support.building import op
from thunder_fuser.compiled_fusion import CompiledFusion
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.dtypes import Category, DataType
from thunder_fuser.ir.fusion import Fusion, ReductionOp
from thunder_fuser.ir.reference import evaluate
from thunder_fuser.ir.tables.reductions import TABLE
from thunder_fuser.ir.verify import verify
from thunder_fuser.passes.broadcast_reductions import broadcast_reductions

F32, BF16 = DataType.Float, DataType.BFloat16
NUMBERS = [
    name
    for name, row in TABLE.items()
    if Category.FLOAT in row.accepts and not row.accumulator.takes_position
]


def reduced(name: str, sizes: list[int], dims: list[int] | None, dtype: DataType = F32) -> Fusion:
    """A reduction of what was folded before."""
    b = FusionBuilder()
    x = b.reduce("max", b.tensor([*sizes, 2], dtype), [-1])
    b.output(b.reduce(name, op(b, "neg", x), dims))
    return b.build()


def folds(fusion: Fusion) -> list[tuple[int, ...]]:
    """The dimensions of all reductions but the first."""
    return [expr.dims for expr in fusion.exprs if isinstance(expr, ReductionOp)][1:]


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_one_element_is_not_folded(name: str, dtype: DataType) -> None:
    before = reduced(name, [5, 1], [1], dtype)
    after = verify(broadcast_reductions(before), "folded")
    assert folds(after) == []
    numbers = torch.tensor([0.0, -0.0, 3.5, -torch.inf, torch.nan]).to(dtype.torch)
    x = torch.stack([numbers, numbers], -1).reshape(5, 1, 2)
    for old, new in zip(evaluate(before, [x]).outputs, evaluate(after, [x]).outputs, strict=True):
        assert same_bits(old, new)


def test_the_other_dimensions_are() -> None:
    assert folds(broadcast_reductions(reduced("sum", [3, 1, 4], [0, 1]))) == [(0,)]
    assert folds(broadcast_reductions(reduced("sum", [1, 3, 1, 4], None))) == [(0, 1)]


def test_a_sum_of_one_number_has_no_negative_zero() -> None:
    fusion = broadcast_reductions(reduced("sum", [5, 1], [1]))
    assert ops_of(fusion)[-2:] == ["squeeze", "add"]


def test_a_fold_of_one_row_shares_a_kernel_with_the_folds_along_it() -> None:
    """One row's weight gradient."""
    b = FusionBuilder()
    x = b.tensor([1, 64], F32)
    b.output(b.reduce("sum", x, [1]))
    b.output(b.reduce("sum", x, [0]))
    before = b.build()
    assert folds(broadcast_reductions(before)) == []
    plan = CompiledFusion(before).plan()
    assert (plan.kernels, plan.bytes) == (1, plan.bytes_ideal)


def test_two_results_are_two_tensors() -> None:
    """The largest of one element would be a view of another result."""
    b = FusionBuilder()
    once = b.reduce("max", b.tensor([5, 1, 2], F32), [2])
    b.output(once)
    b.output(b.reduce("max", once, [1]))
    before = b.build()
    assert broadcast_reductions(before) is before


def test_positions_of_one_element_stay() -> None:
    before = reduced("argmin", [5, 1], [1])
    assert broadcast_reductions(before) is before


def test_no_result_changes() -> None:
    check_on_random_fusions(broadcast_reductions)
