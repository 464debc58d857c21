from __future__ import annotations

import itertools

import pytest
import torch

from tests.passes.patterns import check_on_random_fusions, same_bits
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import Fusion, TensorView
from thunder_fuser.ir.reference import evaluate
from thunder_fuser.passes.cast_chains import cast_chains
from thunder_fuser.passes.dead_code import dead_code
from thunder_fuser.passes.facts.exact_conversions import holds
from thunder_fuser.passes.rewrite import Precision

F64, F32, F16, BF16 = DataType.Double, DataType.Float, DataType.Half, DataType.BFloat16
F8 = DataType.Float8_e4m3fn
I64, I32, I16, I8 = DataType.Int, DataType.Int32, DataType.Int16, DataType.Int8
U8, BOOL, C64 = DataType.UInt8, DataType.Bool, DataType.ComplexFloat


def chain(*dtypes: DataType) -> Fusion:
    """An input of the first dtype cast through the others; a last operation makes it no result."""
    b = FusionBuilder()
    x = b.tensor([4], dtypes[0])
    for dtype in dtypes[1:]:
        y = b.cast(x, dtype)
        assert isinstance(y, TensorView)
        x = y
    b.output(b.pointwise("logical_not", x))
    return b.build()


def casts(fusion: Fusion, precision: Precision = "strict") -> list[DataType]:
    """The types that are cast to once the pass has run."""
    kept = dead_code(cast_chains(fusion, precision))
    return [e.output.dtype for e in kept.exprs if e.op == "cast"]


@pytest.mark.parametrize(
    ("dtypes", "left"),
    [
        ((F32, F32), []),
        ((BF16, F32, BF16), []),
        ((BF16, F32, F64), [F64]),
        ((BF16, F32, F16), [F16]),
        ((F8, F16, F32, F8), []),
        ((I8, I64, U8), [U8]),
        ((I32, I64, F32), [F32]),
        ((I32, F64, I32), []),
        ((BOOL, I64, F32, BOOL), []),
        ((F32, C64, F32), []),
        ((I16, F32, F64), [F64]),
        # The rounding to bf16 stays; what comes after it is found equal to it.
        ((F32, BF16, F32, BF16, F32, BF16), [BF16]),
    ],
)
def test_casts_that_lose_nothing_go(dtypes: tuple[DataType, ...], left: list[DataType]) -> None:
    assert casts(chain(*dtypes)) == left


@pytest.mark.parametrize(
    "dtypes",
    [
        (F32, BF16, F32),
        (F16, BF16, F16),
        (F64, F32, F64),
        (I64, I32, I64),
        (I8, U8, I16),
        (F32, I32, F32),
        (I64, F64, I64),
        (I32, F32, F64),
        (C64, F32, C64),
        (F32, BOOL, F32),
        # In one step from fp32, in two from fp64: not everybody converts the same way.
        (I32, F64, BF16),
        (F32, F64, I32),
    ],
)
def test_casts_that_round_or_are_not_defined_stay(dtypes: tuple[DataType, ...]) -> None:
    fusion = chain(*dtypes)
    assert cast_chains(fusion) is fusion


def test_fast_skips_rounding_but_not_quantisation() -> None:
    assert casts(chain(F32, BF16, F32), "fast") == []
    assert casts(chain(F32, F16, BF16), "fast") == [BF16]
    assert casts(chain(F32, F8, F32), "fast") == [F8, F32]
    assert casts(chain(I64, I32, I64), "fast") == [I32, I64]


def test_a_result_is_not_replaced_by_an_input() -> None:
    b = FusionBuilder()
    x = b.tensor([4], BF16)
    back = b.cast(b.cast(x, F32), BF16)
    assert isinstance(back, TensorView)
    b.output(back)
    fusion = b.build()
    assert cast_chains(fusion) is fusion


def test_holds_is_what_a_round_trip_shows() -> None:
    """Values that a type holds stay what they are in it; of others, one at least changes."""
    small = [F16, BF16, F8, DataType.Float8_e5m2, I16, I8, U8, DataType.UInt16, BOOL]
    for wide, narrow in itertools.product([F64, F32, I64, I32, C64, *small], small):
        values = _all_values(narrow)
        b = FusionBuilder()
        x = b.tensor(list(values.shape), narrow)
        y = b.cast(b.cast(x, wide), F64)
        assert isinstance(y, TensorView)
        b.output(y)
        is_defined = not (wide.is_integral and narrow.is_floating)
        same = is_defined and same_bits(
            evaluate(b.build(), [values]).outputs[0], values.to(torch.float64)
        )
        assert same == holds(wide, narrow), (wide, narrow)


def _all_values(dtype: DataType) -> torch.Tensor:
    if dtype is BOOL:
        return torch.tensor([False, True])
    patterns = torch.arange(1 << 8 * dtype.itemsize, dtype=torch.int32)
    bits = patterns.to(torch.uint8 if dtype.itemsize == 1 else torch.uint16)
    return bits.view(dtype.torch)


def test_results_stay_the_same() -> None:
    check_on_random_fusions(cast_chains)
