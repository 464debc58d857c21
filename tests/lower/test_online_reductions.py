"""Which reductions can be done along with the one that they wait for, and what they then are."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.building import op
from thunder_fuser.analysis.layout import declared_layout
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.dtypes import DataType, compute_dtype
from thunder_fuser.ir.fusion import ReductionOp, TensorView
from thunder_fuser.lower.body import KernelBody
from thunder_fuser.lower.rows.online_reductions import in_one_pass

Float, BFloat16, Half, Double = DataType.Float, DataType.BFloat16, DataType.Half, DataType.Double
Build = Callable[[FusionBuilder, TensorView], TensorView]


def found(build: Build, dtype: DataType = Float) -> list[tuple[str, TensorView]]:
    """The reductions of a [6, 40] tensor and what is derived from it, as one pass has them."""
    b = FusionBuilder()
    x = b.tensor([6, 40], dtype)
    b.output(build(b, x))
    fusion = b.build()
    folds = [e for e in fusion.exprs if isinstance(e, ReductionOp)]
    made = in_one_pass(KernelBody(fusion.definitions(), {x: declared_layout(x)}, folds=folds))
    assert [f.output for f in made] == [f.output for f in folds]
    return [(f.op, f.input) for f in made]


def mean(b: FusionBuilder, x: TensorView, count: float = 40.0) -> TensorView:
    total = b.reduce("sum", x, [1], keepdim=True)
    return b.apply("div", (total, b.scalar(count)), total.dtype)


def squares(b: FusionBuilder, x: TensorView, center: TensorView) -> TensorView:
    apart = op(b, "sub", x, center)
    return b.reduce("sum", op(b, "mul", apart, apart), [1])


@pytest.mark.parametrize("dtype", [Float, Double, BFloat16, Half], ids=str)
@pytest.mark.parametrize("dims", [[0], [1], [0, 1]], ids=str)
def test_a_variance_is_one_fold_of_what_its_mean_folds(dtype: DataType, dims: list[int]) -> None:
    made = found(lambda b, x: b.var_mean(x, dims)[0], dtype)
    assert [name for name, _ in made] == ["sum", "squared_deviations"]
    assert made[0][1] is made[1][1]


@pytest.mark.parametrize(
    "build",
    [
        # However it is written: the mean by a product, broadcasts by name, casts in between.
        lambda b, x: squares(
            b, x, op(b, "mul", b.reduce("sum", x, [1], keepdim=True), b.scalar(1 / 40))
        ),
        lambda b, x: squares(b, x, b.expand(mean(b, x), [6, 40])),
        lambda b, x: squares(b, b.cast_tensor(x, Float), mean(b, b.cast_tensor(x, Float))),
        lambda b, x: squares(b, op(b, "exp", x), mean(b, op(b, "exp", x))),
    ],
)
def test_it_does_not_matter_how_it_is_written(build: Build) -> None:
    for dtype in (Float, BFloat16):
        names = [name for name, _ in found(lambda b, x: build(b, b.cast_tensor(x, Float)), dtype)]
        assert names == ["sum", "squared_deviations"]


def exponentials(b: FusionBuilder, x: TensorView, largest: TensorView) -> TensorView:
    return b.reduce("sum", op(b, "exp", op(b, "sub", x, largest)), [1])


@pytest.mark.parametrize("dtype", [Float, Double, BFloat16, Half], ids=str)
def test_a_softmax_is_one_fold_of_what_its_largest_folds(dtype: DataType) -> None:
    wide = compute_dtype(dtype)

    def build(b: FusionBuilder, x: TensorView) -> TensorView:
        # The largest is exact in any type.
        largest = b.cast_tensor(b.reduce("max", x, [1], keepdim=True), wide)
        return exponentials(b, b.cast_tensor(x, wide), largest)

    made = found(build, dtype)
    assert [name for name, _ in made] == ["max", "sum_exp"]
    assert made[0][1] is made[1][1]


@pytest.mark.parametrize(
    ("build", "dtype"),
    [
        # Around something else than the mean of these elements.
        (lambda b, x: squares(b, x, mean(b, x, 39.0)), Float),
        (lambda b, x: squares(b, op(b, "exp", x), mean(b, x)), Float),
        (lambda b, x: squares(b, x, b.reduce("max", x, [1], keepdim=True)), Float),
        (lambda b, x: squares(b, x, b.reduce("sum", x, [1], keepdim=True)), Float),
        # The mean is rounded before it is subtracted.
        (
            lambda b, x: squares(b, x, b.cast_tensor(b.cast_tensor(mean(b, x), BFloat16), Float)),
            Float,
        ),
        (lambda b, x: squares(b, b.cast_tensor(x, Float), mean(b, x)), BFloat16),
        # Another element's deviation, and not its square.
        (lambda b, x: squares(b, b.permute(b.permute(x, [1, 0]), [1, 0]), mean(b, x)), Half),
        (lambda b, x: b.reduce("sum", op(b, "sub", x, mean(b, x)), [1]), Float),
        (lambda b, x: b.reduce("max", op(b, "mul", x, mean(b, x)), [1]), Float),
        # Not the largest, not of these elements, not along these dimensions, and rounded before.
        (lambda b, x: exponentials(b, x, b.reduce("min", x, [1], keepdim=True)), Float),
        (lambda b, x: exponentials(b, x, b.reduce("max", x, [0], keepdim=True)), Float),
        (
            lambda b, x: exponentials(b, op(b, "neg", x), b.reduce("max", x, [1], keepdim=True)),
            Float,
        ),
        (
            lambda b, x: exponentials(
                b, x, b.cast_tensor(b.reduce("max", x, [1], keepdim=True), BFloat16)
            ),
            Float,
        ),
    ],
)
def test_what_only_looks_like_it_stays(build: Build, dtype: DataType) -> None:
    assert {name for name, _ in found(build, dtype)} <= {"sum", "max", "min"}
