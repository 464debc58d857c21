"""Reductions in the IR: torch's results and dtypes, what the builder refuses, text and rules."""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch

from tests.frontends.definition.rebuilding import rebuilt, shape_of_program
from tests.fuzz.definitions.meanings import MEANINGS
from tests.support.generator import random_case
from tests.support.sequential_c_reducers import NUMBERS
from thunder_fuser import passes
from thunder_fuser.errors import FuserError, FuserTypeError, FuserValueError, InternalError
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.domain import NewBroadcast, Reduce, Reorder, tensor_domain
from thunder_fuser.ir.dtypes import Category, DataType
from thunder_fuser.ir.fusion import Expr, Fusion, ReductionOp, TensorView, ViewOp
from thunder_fuser.ir.printer import equal, to_python
from thunder_fuser.ir.rebuild import specialise
from thunder_fuser.ir.reference import evaluate
from thunder_fuser.ir.tables.reductions import TABLE, Rule, lookup
from thunder_fuser.ir.verify import verify

D = DataType
Fold = Callable[..., torch.Tensor]


def position(fold: Fold) -> Fold:
    """torch.argmax or argmin over several dimensions, which torch does not have."""

    def found(x: torch.Tensor, dims: Sequence[int] | int, keepdim: bool = False) -> torch.Tensor:
        dims = [dims] if isinstance(dims, int) else dims
        kept = [k for k in range(x.dim()) if k not in dims]
        first = fold(x.permute(*kept, *dims).flatten(len(kept)), -1)
        return first.reshape([1 if k in dims else x.shape[k] for k in range(x.dim())
                              if keepdim or k not in dims])  # fmt: skip

    return found


def xor_sum(x: torch.Tensor, dims: Sequence[int] | int, keepdim: bool = False) -> torch.Tensor:
    """One element after the other; torch has no such reduction."""
    for dim in sorted([dims] if isinstance(dims, int) else dims, reverse=True):
        folded = functools.reduce(operator.xor, x.unbind(dim))
        x = folded.unsqueeze(dim) if keepdim else folded
    return x


TORCH: dict[str, Fold] = {
    "sum": torch.sum, "prod": torch.prod, "max": torch.amax, "min": torch.amin,
    "any": torch.any, "all": torch.all,
    "xor_sum": xor_sum,
    "argmax": position(torch.argmax), "argmin": position(torch.argmin),
}  # fmt: skip
DTYPES = (D.Bool, D.UInt8, D.Int32, D.Int, D.Half, D.BFloat16, D.Float, D.Double, D.ComplexFloat)


def reduced(
    op: str,
    x: torch.Tensor,
    dtype: DataType,
    dims: Sequence[int] | None,
    *,
    keepdim: bool = False,
    to: DataType | None = None,
) -> torch.Tensor:
    """What the reference computes."""
    b = FusionBuilder()
    b.output(b.reduce(op, b.tensor(list(x.shape), dtype), dims, keepdim=keepdim, dtype=to))
    (found,) = evaluate(verify(b.build()), [x]).outputs
    return found


def sample(dtype: DataType, sizes: Sequence[int] = (3, 4, 2)) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 4, tuple(sizes), generator=generator).to(dtype.torch)


def dtypes_of(op: str) -> list[DataType]:
    return [d for d in DTYPES if d.category in lookup(op).accepts]


# ---- results


def test_every_reduction_is_stated_without_the_table() -> None:
    """What the table is compared with: torch here, float64 in definitions, and plain C."""
    numbers = {name for name, row in TABLE.items() if row.accumulator.is_number}
    assert set(TABLE) <= set(TORCH), "add it to TORCH"
    assert set(TABLE) <= set(MEANINGS), "add it to tests/fuzz/definitions/meanings.py"
    assert numbers <= set(NUMBERS), "add it to tests/support/sequential_c_reducers.py"


@pytest.mark.parametrize(
    ("op", "dtype"), [(op, dtype) for op in TABLE for dtype in dtypes_of(op)], ids=str
)
def test_results_and_dtypes_are_those_of_torch(op: str, dtype: DataType) -> None:
    x = sample(dtype)
    for count in (1, 2, 3):
        for dims in itertools.combinations(range(3), count):
            for keepdim in (False, True):
                found = reduced(op, x, dtype, [d - 3 for d in dims], keepdim=keepdim)
                if op == "prod":
                    wanted = x
                    for d in reversed(dims):
                        wanted = torch.prod(wanted, d, keepdim=keepdim)
                else:
                    wanted = TORCH[op](x, dims, keepdim=keepdim)
                assert found.dtype is (torch.bool if op in ("any", "all") else wanted.dtype)
                assert torch.equal(found, wanted.to(found.dtype)), (dims, keepdim)
    everything = reduced(op, x, dtype, None)
    assert everything.shape == ()
    assert torch.equal(everything, reduced(op, x, dtype, [0, 1, 2]))


@pytest.mark.parametrize("op", TABLE)
def test_a_tensor_without_dimensions_reduces_to_itself(op: str) -> None:
    takes_floats = Category.FLOAT in TABLE[op].accepts
    x, dtype = (torch.tensor(2.5), D.Float) if takes_floats else (torch.tensor(25), D.Int)
    for dims in (None, [0], [-1]):
        for keepdim in (False, True):
            found = reduced(op, x, dtype, dims, keepdim=keepdim)
            assert found.shape == ()
            special = {"any": True, "all": True, "argmax": 0, "argmin": 0}
            assert found.item() == special.get(op, x.item())


@pytest.mark.parametrize(("op", "value"), [("sum", 0), ("prod", 1), ("any", False), ("all", True)])
def test_folding_nothing_gives_the_first_value(op: str, value: float) -> None:
    x = torch.zeros(2, 0)
    assert reduced(op, x, D.Float, [1]).tolist() == [value, value]
    assert reduced(op, x, D.Float, None).item() == value
    assert reduced(op, x, D.Float, [0]).shape == (0,)


def test_the_xor_of_nothing_has_no_bits() -> None:
    assert reduced("xor_sum", torch.zeros(2, 0, dtype=torch.int32), D.Int32, [1]).tolist() == [0, 0]


@pytest.mark.parametrize("op", ["max", "min", "argmax", "argmin"])
def test_there_is_no_extreme_of_nothing(op: str) -> None:
    b = FusionBuilder()
    x = b.tensor([2, 0], D.Float)
    with pytest.raises(FuserValueError, match=f"folds dimension 1, .* there is no {op} of nothing"):
        b.reduce(op, x, [-1])
    assert b.reduce(op, x, [0]).sizes == (0,)
    symbolic = FusionBuilder()
    unknown = symbolic.tensor([-1], D.Float)
    symbolic.output(symbolic.reduce(op, unknown, [0]))
    (size,) = unknown.domain.shape
    with pytest.raises(FuserValueError, match="has no elements"):
        specialise(symbolic.build(), {size: 0})  # type: ignore[dict-item]


def test_elements_are_converted_to_the_dtype_before_they_are_folded() -> None:
    x = torch.tensor([0.75, 1.5, 2051.0, 2051.0, 2051.0])
    assert reduced("sum", x, D.Float, [0], to=D.Int).tolist() == 0 + 1 + 3 * 2051
    half = reduced("sum", x[2:], D.Float, [0], to=D.Half)
    assert half.dtype is torch.float16
    assert half.item() == 3 * 2052
    big = torch.tensor([2**24, 1], dtype=torch.int32)
    assert reduced("sum", big, D.Int32, [0], to=D.Double).item() == 2**24 + 1
    assert reduced("prod", torch.tensor([200, 2], dtype=torch.uint8), D.UInt8, [0]).item() == 400
    assert reduced("sum", torch.ones(5, dtype=torch.bool), D.Bool, [0]).item() == 5


def test_sixteen_bits_accumulate_in_float_and_round_once() -> None:
    x = torch.full((4096,), 1.0, dtype=torch.bfloat16)
    assert reduced("sum", x, D.BFloat16, [0]).item() == 4096
    assert reduced("sum", torch.full((300,), 1.0).half(), D.Half, None).item() == 300


def test_nan_and_infinities_as_torch_keeps_them() -> None:
    inf, nan = float("inf"), float("nan")
    x = torch.tensor([[1.0, nan, -inf], [inf, -inf, 0.0], [-inf, -inf, -inf], [inf, 1.0, 2.0]])
    for op, fold in TORCH.items():
        if Category.FLOAT not in TABLE[op].accepts:
            continue
        found, wanted = reduced(op, x, D.Float, [1]), fold(x, 1)
        assert torch.equal(found.isnan(), wanted.isnan())
        assert torch.equal(found.nan_to_num(), wanted.nan_to_num()), op


def test_large_unsigned_numbers_are_in_order() -> None:
    x = torch.tensor([3, 2**63 + 5, 2**64 - 1, 7], dtype=torch.uint64)
    assert reduced("max", x, D.UInt64, [0]).item() == 2**64 - 1
    assert reduced("min", x, D.UInt64, [0]).item() == 3
    assert reduced("argmax", x, D.UInt64, [0]).item() == 2
    assert reduced("argmin", x, D.UInt64, [0]).item() == 0


def test_positions_are_those_of_the_first_in_the_order_of_the_dimensions() -> None:
    nan = float("nan")
    x = torch.tensor([[[0.0, 7.0], [7.0, nan]], [[7.0, nan], [-0.0, 0.0]]])
    for dims, wanted in ([2], [[1, 1], [1, 0]]), ([0], [[1, 1], [0, 0]]), ([0, 2], [3, 1]):
        assert reduced("argmax", x, D.Float, dims).tolist() == wanted
    assert reduced("argmax", x, D.Float, None).item() == 3
    assert reduced("argmin", x[:, :, 0].contiguous(), D.Float, None).item() == 0
    assert reduced("argmin", torch.tensor([3.0, -0.0, 0.0]), D.Float, [0]).item() == 1
    assert reduced("argmax", torch.full((4,), -float("inf")), D.Float, [0]).item() == 0


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
@pytest.mark.parametrize("correction", [0, 1, 2.5, 4, 7])
@pytest.mark.parametrize("dims", [None, [0], [-1], [0, 2]])
def test_var_mean(dims: list[int] | None, correction: float) -> None:
    x = torch.randn(4, 3, 5, generator=torch.Generator().manual_seed(0)) + 100
    b = FusionBuilder()
    for value in b.var_mean(b.tensor([4, 3, 5], D.Float), dims, correction=correction):
        b.output(value)
    var, mean = evaluate(verify(b.build()), [x]).outputs
    wanted = torch.var_mean(x.double(), dims, correction=correction)
    assert torch.allclose(var.double(), wanted[0], rtol=1e-4, equal_nan=True)
    assert torch.allclose(mean.double(), wanted[1], rtol=1e-6)


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
def test_var_mean_of_unknown_sizes() -> None:
    x = torch.randn(3, 7, generator=torch.Generator().manual_seed(0))
    for correction in (1, 0.5, 8):
        b = FusionBuilder()
        t = b.tensor([-1, -1], D.Float)
        for value in b.var_mean(t, [1], correction=correction, keepdim=True):
            b.output(value)
        fusion = b.build()
        assert equal(rebuilt(fusion), fusion)
        static = specialise(verify(fusion), dict(zip(t.domain.shape, x.shape, strict=True)))  # type: ignore[arg-type]
        var, mean = evaluate(verify(static, "specialised"), [x]).outputs
        wanted = torch.var_mean(x.double(), 1, correction=correction, keepdim=True)
        assert torch.allclose(var.double(), wanted[0], rtol=1e-5)
        assert torch.allclose(mean.double(), wanted[1], atol=1e-6)


# ---- refusals


@pytest.mark.parametrize(
    ("dims", "message"),
    [
        ([0, 0], r"dimensions \[0, 0\] repeat"),
        ([1, -2], r"dimensions \[1, -2\] repeat"),
        ([3], "dimension 3 is out of range"),
        ([-4], "dimension -4 is out of range"),
        ([], "no dimensions are named"),
    ],
)
def test_dimensions_that_make_no_sense(dims: list[int], message: str) -> None:
    b = FusionBuilder()
    x = b.tensor([2, 3, 4], D.Float)
    for call in (lambda: b.reduce("sum", x, dims), lambda: b.var_mean(x, dims)):
        with pytest.raises(FuserValueError, match=message):
            call()


@pytest.mark.parametrize(
    ("dtype", "op", "to", "message"),
    [
        (D.ComplexFloat, "max", None, "max does not take ComplexFloat tensors"),
        (D.ComplexFloat, "min", None, "cast first"),
        (D.Float, "max", D.Half, "max of .* takes no dtype"),
        (D.Float, "any", D.Bool, "any of .* takes no dtype"),
    ],
)
def test_types_that_make_no_sense(
    dtype: DataType, op: str, to: DataType | None, message: str
) -> None:
    b = FusionBuilder()
    with pytest.raises(FuserTypeError, match=message):
        b.reduce(op, b.tensor([2], dtype), [0], dtype=to)


def test_names_and_operands_that_make_no_sense() -> None:
    b = FusionBuilder()
    with pytest.raises(FuserValueError, match="no reduction 'summ'; did you mean sum"):
        b.reduce("summ", b.tensor([2], D.Float))
    with pytest.raises(FuserTypeError, match=r"var_mean of .* expected a tensor of floats"):
        b.var_mean(b.tensor([2], D.Int))
    for call in (lambda: b.reduce("sum", b.scalar(1.0)), lambda: b.var_mean(b.scalar(1.0))):  # type: ignore[arg-type]
        with pytest.raises(FuserTypeError, match="expected a tensor"):
            call()


# ---- text


def folds(fusion: Fusion) -> list[object]:
    return [(e.dims, e.accumulate) for e in fusion.exprs if isinstance(e, ReductionOp)]


def test_every_reduction_is_rebuilt_from_its_text() -> None:
    for op, row in TABLE.items():
        b = FusionBuilder()
        for dtype in dtypes_of(op):
            x = b.tensor([2, -1, 3], dtype)
            for to in (None, D.Half, D.Double, D.Int8) if row.takes_dtype else (None,):
                if to is None or to.category >= dtype.category:
                    b.output(b.reduce(op, x, [2, 0], dtype=to))
        b.output(b.reduce(op, b.tensor([], dtypes_of(op)[0]), keepdim=True))
        fusion = b.build()
        again = rebuilt(fusion)
        assert equal(again, fusion)
        assert folds(again) == folds(fusion)
        verify(again)


def test_generated_reductions_are_rebuilt_before_and_after_the_passes() -> None:
    seen = 0
    for seed in range(120):
        fusion = random_case(seed, reductions=True).fusion
        for program in (fusion, passes.run(fusion)):
            again = rebuilt(program)
            assert shape_of_program(again) == shape_of_program(program), seed
            assert folds(again) == folds(program), seed
            seen += len(folds(program))
    assert seen > 300


def test_passes_change_no_result_of_a_reduction() -> None:
    for seed in range(120, 240):
        case = random_case(seed, max_numel=200, reductions=True)
        found = evaluate(verify(passes.run(case.fusion), "folded"), case.inputs)
        case.check(found.outputs, found.updates)


def test_text_names_everything() -> None:
    b = FusionBuilder()
    b.output(b.reduce("sum", b.tensor([2, 3], D.Int32), [-1], dtype=D.Double))
    assert "fd.ops.sum(T0, dims=[1], keepdim=False, dtype=DataType.Double)" in to_python(b.build())


# ---- rules


def small(op: str = "sum", dtype: DataType = D.Float) -> Fusion:
    b = FusionBuilder()
    b.output(b.reduce(op, b.tensor([2, 3, 0], dtype), [1, 0]))
    return b.build()


def changed(fusion: Fusion, **changes: object) -> Fusion:
    (expr,) = fusion.exprs
    new = replace(expr, **changes)  # type: ignore[type-var]
    assert isinstance(new.output, TensorView)
    return replace(fusion, exprs=(new,), outputs=(new.output,))


def with_output(fusion: Fusion, steps: Sequence[object] | None = None, **changes: object) -> Fusion:
    (expr,) = fusion.exprs
    out = expr.output
    assert isinstance(out, TensorView)
    if steps is not None:
        changes["domain"] = tensor_domain(out.domain.root, steps)  # type: ignore[arg-type]
    return changed(fusion, output=replace(out, **changes))


def as_view(fusion: Fusion) -> Fusion:
    (expr,) = fusion.exprs
    assert isinstance(expr, ReductionOp)
    view: Expr = ViewOp("squeeze", expr.input, expr.output)
    return replace(fusion, exprs=(view,))


BROKEN: dict[str, tuple[Callable[[], Fusion], str]] = {
    "another type to accumulate in": (
        lambda: changed(small(), accumulate=D.Double),
        "should accumulate in DataType.Float",
    ),
    "no such reduction": (lambda: changed(small(), op="mean"), "there is no reduction 'mean'"),
    "nothing folded": (lambda: with_output(small(), []), "folds no dimension"),
    "dimensions from the first": (
        lambda: with_output(small(), [Reduce(0), Reduce(0)]),
        "from the last to the first",
    ),
    "something else done": (
        lambda: with_output(small(), [Reduce(1), Reduce(0), NewBroadcast(0)]),
        "does nothing else",
    ),
    "reordered": (
        lambda: with_output(small(), [Reorder((1, 0, 2)), Reduce(1), Reduce(0)]),
        "does nothing else",
    ),
    "a dtype of its own": (
        lambda: with_output(small("max"), dtype=D.Double),
        "its dtype should be DataType.Float",
    ),
    "narrower than its elements": (
        lambda: with_output(small(), dtype=D.Half),
        "elements should be converted to DataType.Half first",
    ),
    "no order of complex numbers": (
        lambda: changed(small("sum", D.ComplexFloat), op="max"),
        "max does not take ComplexFloat",
    ),
    "an extreme of nothing": (
        lambda: with_output(small("max"), [Reduce(2)]),
        "there is no max of nothing",
    ),
    "a view that folds": (lambda: as_view(small()), "a view folds nothing"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_reductions_are_reported(name: str) -> None:
    build, message = BROKEN[name]
    with pytest.raises(InternalError, match=message):
        verify(build())


def test_the_table_is_whole() -> None:
    for name, row in TABLE.items():
        assert row.name == name
        for dtype in (d for d in DataType if d is not D.Null):
            if dtype.category not in row.accepts:
                with pytest.raises(FuserError, match="cast first"):
                    row.check(dtype)
                continue
            result = row.result_dtype(dtype)
            accumulate = row.accumulate_dtype(dtype, result)
            assert (
                accumulate.itemsize >= (result if row.rule is not Rule.POSITION else dtype).itemsize
            )
            assert row.folded_dtype(accumulate).itemsize >= result.itemsize
            for other in (0, 1) if accumulate.category <= Category.INT else (-2.5, 1.0):
                if accumulate.is_complex or accumulate in (D.UInt16, D.UInt32, D.UInt64):
                    continue  # torch has no order of these
                first = torch.tensor([row.identity(accumulate), other], dtype=accumulate.torch)
                position = int(row.identity(accumulate) != other)
                wanted = position if row.rule is Rule.POSITION else other
                assert row.reference(first, [0]).item() == wanted
