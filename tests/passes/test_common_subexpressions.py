from __future__ import annotations

from tests.passes.patterns import check_on_random_fusions, ops_of
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.passes.common_subexpressions import common_subexpressions
from thunder_fuser.passes.dead_code import dead_code


def merged(b: FusionBuilder) -> list[str]:
    return ops_of(dead_code(common_subexpressions(b.build())))


def test_equal_expressions_are_computed_once() -> None:
    b = FusionBuilder()
    x, y = b.tensor([4, 6], DataType.Float), b.tensor([4, 6], DataType.Float)
    one = b.pointwise("add", b.permute(b.pointwise("exp", x), [1, 0]), b.permute(y, [1, 0]))
    two = b.pointwise("add", b.permute(y, [1, 0]), b.permute(b.pointwise("exp", x), [1, 0]))
    b.output(b.pointwise("mul", one, two))
    assert merged(b) == ["exp", "permute", "permute", "add", "mul"]


def test_constants_are_equal_by_value_sign_and_type() -> None:
    b = FusionBuilder()
    x = b.tensor([4], DataType.Float)
    for number in (0.0, 0.0, -0.0, 0, False, float("nan"), float("nan")):
        b.output(b.pointwise("neg", b.pointwise("add", x, number)))
    # Seven results; the sums with 0.0 are shared, and so are those with NaN.
    assert merged(b).count("add") == 5


def test_a_subtraction_is_not_symmetric_and_attributes_count() -> None:
    b = FusionBuilder()
    x, y = b.tensor([4, 4], DataType.Float), b.tensor([4, 4], DataType.Float)
    pairs = [
        (b.pointwise("sub", x, y), b.pointwise("sub", y, x)),
        (b.cast(x, DataType.Half), b.cast(x, DataType.BFloat16)),
        (b.slice(x, [0, 0], [2, 4]), b.slice(x, [2, 0], [4, 4])),
        (b.cat([x, y], 0), b.cat([x, y], 1)),
        (b.full([4], 0.0, DataType.Float), b.full([2], 0.0, DataType.Float)),
        (b.iota(4), b.iota(4, step=2)),
    ]
    for pair in pairs:
        for value in pair:
            b.output(b.pointwise("neg", value))
    fusion = b.build()
    assert common_subexpressions(fusion) is fusion


def test_results_and_cuts_stay_two() -> None:
    """What the caller gets are two tensors, and two segment_sets are two cuts."""
    b = FusionBuilder()
    x = b.tensor([4], DataType.Float)
    b.output(b.pointwise("neg", x))
    b.output(b.pointwise("neg", x))
    b.output(b.pointwise("exp", b.segment_set(x)))
    b.output(b.pointwise("sin", b.segment_set(x)))
    fusion = b.build()
    assert common_subexpressions(fusion) is fusion


def test_a_result_may_share_what_is_no_result() -> None:
    b = FusionBuilder()
    x = b.tensor([4], DataType.Float)
    b.output(b.pointwise("exp", b.pointwise("neg", x)))
    b.output(b.pointwise("neg", x))
    assert merged(b) == ["neg", "exp"]


def test_results_stay_the_same() -> None:
    check_on_random_fusions(common_subexpressions)
