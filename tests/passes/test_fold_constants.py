from __future__ import annotations

import math

import pytest
import torch

from tests.passes.patterns import check_on_random_fusions, ops_of
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.dtypes import DataType, Number
from thunder_fuser.ir.fusion import FullOp, Fusion, Scalar, TensorView, Val
from thunder_fuser.ir.tables.pointwise import TABLE
from thunder_fuser.passes.dead_code import dead_code
from thunder_fuser.passes.fold_constants import fold_constants
from thunder_fuser.passes.rewrite import Precision

F32, BF16, I32, U8 = DataType.Float, DataType.BFloat16, DataType.Int32, DataType.UInt8
BOOL, C64 = DataType.Bool, DataType.ComplexFloat


class Program(FusionBuilder):
    """A builder with an input `x`, whose results are hidden from callers by a last operation."""

    def __init__(self, dtype: DataType = F32, sizes: tuple[int, ...] = (4, 6)) -> None:
        super().__init__()
        self.x = self.tensor(list(sizes), dtype)

    def filled(self, number: Number, dtype: DataType | None = None) -> TensorView:
        return self.full(self.x.sizes, number, dtype or self.x.dtype)

    def folded(self, value: Val, precision: Precision = "strict") -> list[str]:
        assert isinstance(value, TensorView)
        self.output(self.view("set", value))
        *ops, last = ops_of(dead_code(fold_constants(self.build(), precision)))
        assert last in ("set", "full")
        return ops


@pytest.mark.parametrize("as_tensor", [False, True])
@pytest.mark.parametrize(
    ("dtype", "op", "number"),
    [
        (F32, "add", -0.0),
        (F32, "sub", 0.0),
        (F32, "mul", 1.0),
        (F32, "truediv", 1.0),
        (F32, "div", 1.0),
        (F32, "pow", 1.0),
        (I32, "add", 0),
        (I32, "mul", 1),
        (I32, "div", 1),
        (U8, "bitwise_and", 255),
        (I32, "bitwise_and", -1),
        (I32, "bitwise_or", 0),
        (I32, "bitwise_xor", 0),
        (I32, "bitwise_left_shift", 0),
        (BOOL, "add", False),
        (BOOL, "mul", True),
        (BOOL, "logical_and", True),
        (BOOL, "logical_or", False),
        (C64, "sub", 0.0),
        (C64, "add", complex(-0.0, -0.0)),
    ],
)
def test_neutral_operands_go(dtype: DataType, op: str, number: Number, as_tensor: bool) -> None:
    p = Program(dtype)
    operand = p.filled(number) if as_tensor else number
    assert p.folded(p.pointwise(op, p.x, operand)) == []


@pytest.mark.parametrize(
    ("dtype", "op", "number"),
    [
        # -0.0 + 0.0 is 0.0, inf * 0 is NaN, NaN - NaN is NaN.
        (F32, "add", 0.0),
        (F32, "sub", -0.0),
        (F32, "mul", 0.0),
        (F32, "mul", -1.0),
        (F32, "pow", 0.0),
        (U8, "bitwise_and", 127),
        (C64, "add", 0.0),
        (C64, "mul", 1.0),
        (C64, "truediv", 1.0),
    ],
)
def test_others_stay(dtype: DataType, op: str, number: Number) -> None:
    p = Program(dtype)
    assert p.folded(p.pointwise(op, p.x, number)) == [op]


def test_order_matters_where_the_operation_is_not_symmetric() -> None:
    for op, number in (("sub", 0.0), ("truediv", 1.0), ("pow", 1.0)):
        p = Program()
        assert p.folded(p.pointwise(op, number, p.x)) == [op]


def test_the_result_keeps_its_type() -> None:
    """bf16 operands give Float, integers divided truly give Float: the conversion stays."""
    p = Program(BF16)
    assert p.folded(p.pointwise("mul", p.x, 1.0)) == ["cast"]
    p = Program(I32)
    assert p.folded(p.pointwise("truediv", p.x, 1)) == ["cast"]
    p = Program(I32)
    # To Float first, then to bf16: a cast may round once only.
    chosen = p.pointwise("where", True, p.x, p.filled(0.5, BF16))
    assert chosen.dtype is BF16
    assert p.folded(chosen) == ["full", "where"]


def test_an_operand_that_broadcasts_is_not_the_result() -> None:
    p = Program(F32, (1, 6))
    y = p.pointwise("mul", p.x, p.full([4, 6], 1.0, F32))
    assert p.folded(y) == ["full", "mul"]


def test_adding_zero_goes_where_no_negative_zero_can_be() -> None:
    p = Program()
    square = p.pointwise("mul", p.x, p.x)
    total = p.pointwise("add", square, 0.0)
    assert p.folded(p.pointwise("add", total, p.filled(0.0))) == ["mul"]
    p = Program(I32)
    assert p.folded(p.pointwise("add", p.cast(p.x, F32), 0.0)) == ["cast"]
    # Rounding to fewer bits makes -0.0 of a small negative number.
    p = Program()
    narrow = p.cast(p.pointwise("sub", p.pointwise("exp", p.x), 1.0), BF16)
    assert p.folded(p.pointwise("add", narrow, 0.0))[-1] == "add"
    p = Program()
    assert p.folded(p.pointwise("add", p.x, 0.0), "fast") == []


def test_doubled_operations_cancel() -> None:
    for dtype, op in ((F32, "neg"), (I32, "neg"), (U8, "bitwise_not"), (BOOL, "logical_not")):
        p = Program(dtype)
        assert p.folded(p.pointwise(op, p.pointwise(op, p.x))) == []
    p = Program()
    assert p.folded(p.pointwise("logical_not", p.pointwise("logical_not", p.x))) == ["cast"]
    p = Program()
    value: Val = p.x
    for _ in range(7):
        value = p.pointwise("neg", value)
    assert p.folded(value) == ["neg"]


@pytest.mark.parametrize("dtype", [I32, U8, BOOL], ids=str)
def test_integers_are_equal_to_themselves(dtype: DataType) -> None:
    """Also where they are tested for NaN; floats may be NaN."""
    values = torch.tensor([[0, 1, 2, 3, 127, 200]], dtype=torch.int64).to(dtype.torch)
    rows = [row for row in TABLE.values() if row.of_equal is not None]
    assert len(rows) > 12
    for row in (row for row in rows if dtype.category in row.accepts):
        if dtype is BOOL and row.name == "sub":
            continue  # which torch refuses
        p = Program(dtype)
        left = p.folded(p.pointwise(row.name, *[p.x] * row.arity))
        assert {*left} <= {"full"}, row.name
        found = row.reference(*[values] * row.arity)
        assert torch.equal(found, torch.full_like(found, row.of_equal)), row.name
    p = Program()
    assert p.folded(p.pointwise("bitwise_or", *_tests_for_nan(p))) == ["ne", "isnan", "bitwise_or"]


def _tests_for_nan(p: Program) -> tuple[Val, Val]:
    return p.pointwise("ne", p.x, p.x), p.pointwise("isnan", p.x)


def test_a_known_condition_chooses() -> None:
    p = Program()
    chosen = p.pointwise("where", p.filled(True, BOOL), p.x, p.pointwise("exp", p.x))
    assert p.folded(chosen) == []
    p = Program()
    assert p.folded(p.pointwise("where", False, p.x, p.pointwise("exp", p.x))) == ["exp"]
    p = Program()
    y = p.pointwise("exp", p.x)
    assert p.folded(p.pointwise("where", p.pointwise("gt", p.x, y), y, y)) == ["exp"]
    p = Program(BF16)
    assert only_full(p, p.pointwise("where", True, 0.1, p.x)) == 0.10009765625


def only_full(b: FusionBuilder, value: Val) -> Number:
    """The number that a folded fusion's one expression fills its output with."""
    assert isinstance(value, TensorView)
    b.output(value)
    fusion = dead_code(fold_constants(b.build()))
    (expr,) = fusion.exprs
    assert isinstance(expr, FullOp)
    assert isinstance(expr.fill, Scalar)
    assert expr.output.sizes == value.sizes
    assert expr.output.dtype is value.dtype
    number = expr.fill.value
    assert isinstance(number, (bool, int, float, complex))
    return number


def test_operations_on_constants_are_computed() -> None:
    b = FusionBuilder()
    two = b.full([4, 1], 2.0, F32)
    third = b.pointwise("truediv", b.full([3], 1.0, F32), 3.0)
    assert only_full(b, b.pointwise("sqrt", b.pointwise("mul", two, two))) == 2.0
    b = FusionBuilder()
    narrow = b.cast(b.full([3], 1 / 3, F32), BF16)
    assert only_full(b, narrow) == 0.333984375
    b = FusionBuilder()
    assert only_full(b, b.pointwise("add", b.full([3], 250, U8), 10)) == 4
    b = FusionBuilder()
    ones = b.full([2, 3], 1.0, F32)
    joined = b.cat([b.permute(ones, [1, 0]), b.pad(ones, [-1, 0, 0, 1], 1.0)], 0)
    assert only_full(b, joined) == 1.0
    assert isinstance(third, TensorView)


def test_an_unsigned_absorbing_number_is_the_one_stored() -> None:
    p = Program(U8)
    assert only_full(p, p.pointwise("bitwise_or", p.x, 255)) == 255
    p = Program(I32)
    assert only_full(p, p.pointwise("mul", p.x, 0)) == 0
    p = Program()
    assert only_full(p, p.pointwise("logical_or", p.x, 2.5)) is True


@pytest.mark.parametrize(
    "make",
    [
        # Implementations differ in the last bit, or in everything.
        lambda b: b.pointwise("exp", b.full([4], 1.5, F32)),
        lambda b: b.cast(b.full([4], 1e20, F32), I32),
        lambda b: b.cast(b.full([4], math.nan, F32), I32),
        lambda b: b.pointwise("div", b.full([4], 1, I32), 0),
        lambda b: b.pointwise("mul", b.full([4], 1j, C64), b.full([4], 2j, C64)),
        # Pads with another value, and a cat of two.
        lambda b: b.pad(b.full([4], 0.0, F32), [1, 1], -0.0),
        lambda b: b.cat([b.full([4], 0.0, F32), b.full([4], 1.0, F32)]),
        # More than a full can say.
        lambda b: b.expand(b.full([4, 1], 1.0, F32), [4, 3]),
        lambda b: b.stride_order(b.full([4, 3], 1.0, F32), [0, 1]),
        # The user's cut.
        lambda b: b.segment_set(b.full([4], 1.0, F32)),
        lambda b: b.pointwise("neg", b.segment_set(b.full([4], 1.0, F32))),
    ],
)
def test_what_has_no_one_answer_is_not_computed(make: object) -> None:
    b = FusionBuilder()
    assert callable(make)
    b.output(make(b))
    fusion = b.build()
    assert fold_constants(fusion) is fusion


def test_fast_computes_what_is_as_good_here_as_there() -> None:
    b = FusionBuilder()
    value = b.pointwise("exp", b.full([4], 0.0, F32))
    assert isinstance(value, TensorView)
    b.output(value)
    assert ops_of(dead_code(fold_constants(b.build(), "fast"))) == ["full"]


def identity_chain(n: int) -> Fusion:
    b = FusionBuilder()
    x = b.tensor([4], F32)
    value: Val = b.pointwise("exp", x)
    for _ in range(n):
        value = b.pointwise("mul", value, 1.0)
    assert isinstance(value, TensorView)
    b.output(value)
    return b.build()


def test_a_whole_chain_goes_in_one_run() -> None:
    assert ops_of(dead_code(fold_constants(identity_chain(1000)))) == ["exp"]


def test_a_result_is_not_replaced_by_an_input() -> None:
    """`x * 1` is a new tensor: the caller may write into it."""
    b = FusionBuilder()
    x = b.tensor([4], F32)
    same = b.pointwise("mul", x, 1.0)
    assert isinstance(same, TensorView)
    b.output(b.reshape(same, [2, 2]))
    b.output(b.pointwise("neg", same))
    fusion = b.build()
    assert fold_constants(fusion) is fusion


def test_two_results_do_not_become_one() -> None:
    b = FusionBuilder()
    y = b.pointwise("exp", b.tensor([4], F32))
    same = b.pointwise("mul", y, 1.0)
    for value in (y, same):
        assert isinstance(value, TensorView)
        b.output(value)
    fusion = b.build()
    assert fold_constants(fusion) is fusion


def test_results_stay_the_same() -> None:
    check_on_random_fusions(fold_constants)
