"""Element types: the map to torch, and promotion against torch's wherever torch has an answer."""

from __future__ import annotations

import itertools

import pytest
import torch

from thunder_fuser.errors import FuserTypeError, FuserValueError
from thunder_fuser.ir.dtypes import (
    Category,
    DataType,
    Operand,
    check_is_storage,
    compute_dtype,
    from_torch,
    of_number,
    promote_pair,
    result_dtype,
)

D = DataType
DTYPES = tuple(d for d in DataType if d is not DataType.Null)
WIDE_UNSIGNED = {D.UInt16, D.UInt32, D.UInt64}
EIGHT_BIT_FLOATS = {D.Float8_e4m3fn, D.Float8_e5m2}
TORCH_PROMOTES = [d for d in DTYPES if d not in WIDE_UNSIGNED | EIGHT_BIT_FLOATS]


@pytest.mark.parametrize("dtype", DTYPES)
def test_torch_dtypes_map_both_ways(dtype: DataType) -> None:
    assert from_torch(dtype.torch) is dtype
    assert dtype.itemsize == dtype.torch.itemsize
    assert dtype.is_floating == dtype.torch.is_floating_point
    assert dtype.is_complex == dtype.torch.is_complex
    if dtype.is_integral:
        assert dtype.is_unsigned == (torch.iinfo(dtype.torch).min == 0)


def test_dtypes_without_kernels_are_refused() -> None:
    with pytest.raises(FuserTypeError, match=r"complex32.*cast"):
        from_torch(torch.complex32)
    with pytest.raises(FuserTypeError, match="Null is not a storage type"):
        _ = D.Null.torch
    with pytest.raises(FuserValueError, match=r"full: .*Null"):
        check_is_storage(D.Null, "full")
    with pytest.raises(FuserTypeError, match="full: expected a DataType, got dtype"):
        check_is_storage(torch.float32, "full")


def test_index_is_int() -> None:
    assert D.Index is D.Int


def test_numbers_have_the_widest_dtype() -> None:
    found = [of_number(x) for x in (True, 1, 1.0, 1j)]
    assert found == [D.Bool, D.Int, D.Double, D.ComplexDouble]
    with pytest.raises(FuserTypeError, match="expected a Python number"):
        of_number("1")


def test_reduced_floats_are_computed_in_float() -> None:
    reduced = {D.Half, D.BFloat16, *EIGHT_BIT_FLOATS}
    for dtype in DTYPES:
        assert dtype.is_reduced_precision == (dtype in reduced)
        assert compute_dtype(dtype) is (D.Float if dtype in reduced else dtype)


@pytest.mark.parametrize("a", TORCH_PROMOTES)
def test_pairs_promote_as_in_torch(a: DataType) -> None:
    for b in TORCH_PROMOTES:
        assert promote_pair(a, b).torch is torch.promote_types(a.torch, b.torch), (a, b)


def integers(dtype: DataType) -> range:
    info = torch.iinfo(dtype.torch)
    return range(info.min, info.max + 1)


def test_integers_meet_in_the_narrowest_type_that_holds_both() -> None:
    kinds = [d for d in DTYPES if d.is_integral]
    for a, b in itertools.product(kinds, repeat=2):
        low = min(integers(a).start, integers(b).start)
        high = max(integers(a).stop, integers(b).stop)
        holders = [d for d in kinds if integers(d).start <= low and high <= integers(d).stop]
        if holders:
            narrowest = min(d.itemsize for d in holders)
            found = promote_pair(a, b)
            assert found in holders, (a, b)
            assert found.itemsize == narrowest, (a, b)
        else:
            with pytest.raises(FuserTypeError, match="no integer type holds both"):
                promote_pair(a, b)


def test_promotion_is_symmetric_idempotent_and_loses_no_category() -> None:
    for a, b in itertools.product(DTYPES, repeat=2):
        try:
            found = promote_pair(a, b)
        except FuserTypeError:
            assert D.UInt64 in (a, b)
            continue
        assert promote_pair(b, a) is found
        assert found.category is max(a.category, b.category)
        assert promote_pair(a, found) is found
        if Category.COMPLEX not in (a.category, b.category) or a.category is b.category:
            assert found.itemsize >= max(
                (d.itemsize for d in (a, b) if d.category is found.category), default=0
            )


@pytest.mark.parametrize("dim", TORCH_PROMOTES)
def test_levels_bind_as_in_torch(dim: DataType) -> None:
    """Tensors with dimensions over 0-dim tensors over Python numbers."""
    tensor = torch.ones(1, dtype=dim.torch)
    for other in TORCH_PROMOTES:
        if dim is D.Half and other.is_complex:
            continue  # torch has a complex type of two halves, for which there are no kernels
        if dim in (D.Float, D.BFloat16) and other is D.ComplexDouble:
            continue  # here the 0-dim tensor keeps its width, in torch the parts narrow
        zero_dim = torch.ones((), dtype=other.torch)
        want = torch.result_type(tensor, zero_dim)
        assert result_dtype([Operand(dim, 1), Operand(other, 0)]).torch is want, (dim, other)
    for number in (True, 1, 1.0, 1j):
        if dim is D.Half and number == 1j:
            continue
        want = torch.result_type(tensor, number)
        scalar = Operand(of_number(number), None)
        assert result_dtype([Operand(dim, 1), scalar]).torch is want, (dim, number)
        zero_dim = torch.ones((), dtype=dim.torch)
        want = torch.result_type(zero_dim, number)
        assert result_dtype([scalar, Operand(dim, 0)]).torch is want, (dim, number)


def test_scalars_alone_keep_their_dtype() -> None:
    assert result_dtype([Operand(D.Int, None), Operand(D.Double, None)]) is D.Double
    assert result_dtype([Operand(D.Bool, None), Operand(D.Int, None)]) is D.Int
    with pytest.raises(FuserTypeError, match="at least one operand"):
        result_dtype([])
