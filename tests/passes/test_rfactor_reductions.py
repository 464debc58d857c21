"""Folds of rows that have waited for folds of their own: one of each row, then one of all."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from tests.passes.patterns import ops_of
from tests.support.building import op
from thunder_fuser.compiled_fusion import CompiledFusion
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import Fusion, ReductionOp, TensorView
from thunder_fuser.ir.reference import evaluate
from thunder_fuser.ir.verify import verify
from thunder_fuser.passes.rfactor_reductions import rfactor_reductions

F32, BF16 = DataType.Float, DataType.BFloat16


def softmax(b: FusionBuilder, x: TensorView, dims: list[int]) -> TensorView:
    wide = b.cast_tensor(x, F32)
    shifted = op(b, "sub", wide, b.reduce("max", wide, dims, keepdim=True))
    powers = op(b, "exp", shifted)
    return op(b, "truediv", powers, b.reduce("sum", powers, dims, keepdim=True))


def square_error(b: FusionBuilder, x: TensorView, y: TensorView, dims: list[int]) -> TensorView:
    off = op(b, "sub", softmax(b, x, dims), b.cast_tensor(y, F32))
    return op(b, "mul", off, off)


def loss(sizes: list[int], rows: list[int], dims: list[int], fold: str = "sum") -> Fusion:
    b = FusionBuilder()
    off = square_error(b, b.tensor(sizes, BF16), b.tensor(sizes, BF16), rows)
    b.output(b.reduce(fold, off, dims))
    return b.build()


def folds(fusion: Fusion) -> list[tuple[str, int, tuple[int, ...]]]:
    """Of each the operation, the rank of what it folds, and the dimensions."""
    found = [e for e in fusion.exprs if isinstance(e, ReductionOp)]
    return [(e.op, e.input.rank, e.dims) for e in found]


@pytest.mark.parametrize("fold", ["sum", "max", "prod"])
@pytest.mark.parametrize(
    ("sizes", "rows", "dims", "left"),
    [
        ([6, 40], [1], [0, 1], [(2, (1,)), (1, (0,))]),
        ([6, 40], [0], [0, 1], [(2, (0,)), (1, (0,))]),
        ([3, 5, 40], [2], [0, 1, 2], [(3, (2,)), (2, (0, 1))]),
        ([3, 5, 40], [2], [1, 2], [(3, (2,)), (2, (1,))]),
        ([3, 5, 8, 9], [2, 3], [0, 2, 3], [(4, (2, 3)), (2, (0,))]),
        ([3, 5, 8, 9], [0, 2], [0, 1, 2, 3], [(4, (0, 2)), (2, (0, 1))]),
    ],
    ids=str,
)
def test_rows_are_folded_and_then_what_is_left_of_them(
    sizes: list[int],
    rows: list[int],
    dims: list[int],
    left: list[tuple[int, tuple[int, ...]]],
    fold: str,
) -> None:
    before = loss(sizes, rows, dims, fold)
    after = verify(rfactor_reductions(before), "folded")
    assert folds(after)[-2:] == [(fold, *each) for each in left]
    given = [torch.randn(sizes).bfloat16() for _ in range(2)]
    (old,), (new,) = (evaluate(f, given, double=True).outputs for f in (before, after))
    torch.testing.assert_close(new, old)
    assert rfactor_reductions(after) is after


def waits_for_nothing(b: FusionBuilder, x: TensorView) -> TensorView:
    return b.reduce("sum", op(b, "mul", x, x), [0, 1])


def waits_for_the_same(b: FusionBuilder, x: TensorView) -> TensorView:
    return b.reduce("sum", softmax(b, x, [0, 1]), [0, 1])


def waits_for_rows_and_columns(b: FusionBuilder, x: TensorView) -> TensorView:
    return b.reduce("sum", op(b, "mul", softmax(b, x, [0]), softmax(b, x, [1])), [0, 1])


def waits_for_other_rows(b: FusionBuilder, x: TensorView) -> TensorView:
    return b.reduce("sum", softmax(b, x, [1]), [0])


def wants_a_position(b: FusionBuilder, x: TensorView) -> TensorView:
    flat = b.reshape(softmax(b, x, [1]), [math.prod((6, 40))])
    return b.reduce("argmax", flat, [0])


def waits_for_one_row(b: FusionBuilder, x: TensorView) -> TensorView:
    row = b.reshape(x, [1, 240])
    return b.reduce("sum", softmax(b, row, [1]), [0, 1])


@pytest.mark.parametrize(
    "define",
    [
        waits_for_nothing,
        waits_for_the_same,
        waits_for_rows_and_columns,
        waits_for_other_rows,
        wants_a_position,
        waits_for_one_row,
    ],
)
def test_others_stay(define: Callable[[FusionBuilder, TensorView], TensorView]) -> None:
    b = FusionBuilder()
    b.output(define(b, b.tensor([6, 40], F32)))
    fusion = b.build()
    assert rfactor_reductions(fusion) is fusion


@pytest.mark.parametrize("sizes", [[512, 1024], [64, 32000], [2, 300, 1000]], ids=str)
def test_a_loss_over_rows_is_one_kernel_that_reads_once(
    sizes: list[int], device: torch.device
) -> None:
    compiled = CompiledFusion(loss(sizes, [len(sizes) - 1], list(range(len(sizes)))))
    plan = compiled.plan()
    assert plan.kernels == 1
    assert plan.bytes == plan.bytes_ideal
    x, y = (torch.randn(sizes).bfloat16() for _ in range(2))
    (got,) = compiled([x.to(device), y.to(device)])
    right = (torch.softmax(x.double(), -1) - y.double()).square().sum()
    assert abs(got.cpu().double() - right) <= 1e-5 * right
    assert "sum" in ops_of(compiled.fusion)
