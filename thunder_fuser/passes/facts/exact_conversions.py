"""Exactness of conversions between dtypes: the condition for removing casts."""

from __future__ import annotations

import torch

from thunder_fuser.ir.dtypes import DataType


def holds(wide: DataType, narrow: DataType) -> bool:
    """True if every value of `narrow` is exactly a value of `wide`."""
    if wide is narrow or narrow is DataType.Bool:
        return True
    if wide.category < narrow.category or wide is DataType.Bool:
        return False
    if wide.is_complex:
        return holds(_part(wide), _part(narrow) if narrow.is_complex else narrow)
    if wide.is_floating and narrow.is_floating:
        return _float_holds(wide, narrow)
    low, high = _range(narrow)
    if wide.is_floating:
        # Consecutive integers up to 2 / eps are exact.
        largest = 2 / torch.finfo(wide.torch).eps
        return bool(-largest <= low and high <= min(largest, torch.finfo(wide.torch).max))
    held_low, held_high = _range(wide)
    return held_low <= low and high <= held_high


def _float_holds(wide: DataType, narrow: DataType) -> bool:
    a, b = torch.finfo(wide.torch), torch.finfo(narrow.torch)
    has_infinity = wide is not DataType.Float8_e4m3fn
    smallest = a.smallest_normal * a.eps <= b.smallest_normal * b.eps
    return bool(has_infinity and a.eps <= b.eps and a.max >= b.max and smallest)


def _range(dtype: DataType) -> tuple[int, int]:
    info = torch.iinfo(dtype.torch)
    return int(info.min), int(info.max)


def _part(dtype: DataType) -> DataType:
    return DataType.Double if dtype is DataType.ComplexDouble else DataType.Float
