"""Element types: nvFuser's `DataType` names, torch's equivalents, and the promotion rules of both.

A `DataType` is a storage type. Arithmetic on 16- and 8-bit floats is done in `compute_dtype`
(fp32), which is why nvFuser's pointwise ops return Float for Half operands.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import torch

from thunder_fuser.errors import FuserTypeError, FuserValueError

Number = bool | int | float | complex


class Category(enum.IntEnum):
    """Category of a dtype, in promotion order: a higher one wins regardless of width."""

    BOOL = 0
    INT = 1
    FLOAT = 2
    COMPLEX = 3


@dataclass(frozen=True, slots=True)
class _Storage:
    torch: torch.dtype
    ctype: str
    category: Category
    itemsize: int


class DataType(enum.Enum):
    """Storage types under nvFuser's names; additional integer widths are named alike."""

    Double = _Storage(torch.float64, "double", Category.FLOAT, 8)
    Float = _Storage(torch.float32, "float", Category.FLOAT, 4)
    Half = _Storage(torch.float16, "f16", Category.FLOAT, 2)
    BFloat16 = _Storage(torch.bfloat16, "bf16", Category.FLOAT, 2)
    Float8_e4m3fn = _Storage(torch.float8_e4m3fn, "f8e4m3", Category.FLOAT, 1)
    Float8_e5m2 = _Storage(torch.float8_e5m2, "f8e5m2", Category.FLOAT, 1)
    Int = _Storage(torch.int64, "long long", Category.INT, 8)
    Int32 = _Storage(torch.int32, "int", Category.INT, 4)
    Int16 = _Storage(torch.int16, "short", Category.INT, 2)
    Int8 = _Storage(torch.int8, "signed char", Category.INT, 1)
    UInt8 = _Storage(torch.uint8, "unsigned char", Category.INT, 1)
    UInt16 = _Storage(torch.uint16, "unsigned short", Category.INT, 2)
    UInt32 = _Storage(torch.uint32, "unsigned int", Category.INT, 4)
    UInt64 = _Storage(torch.uint64, "unsigned long long", Category.INT, 8)
    Bool = _Storage(torch.bool, "bool", Category.BOOL, 1)
    ComplexFloat = _Storage(torch.complex64, "tf::complex64", Category.COMPLEX, 8)
    ComplexDouble = _Storage(torch.complex128, "tf::complex128", Category.COMPLEX, 16)
    Null = None
    # nvFuser's Index is the width that a kernel indexes with; to a user such values are Int.
    Index = Int

    @cached_property
    def _storage(self) -> _Storage:
        if self.value is None:
            raise FuserTypeError(
                "DataType.Null is not a storage type: it only means 'keep the dtype'"
            )
        storage: _Storage = self.value
        return storage

    @cached_property
    def torch(self) -> torch.dtype:
        return self._storage.torch

    @cached_property
    def ctype(self) -> str:
        """Name of the C++ type in generated kernels."""
        return self._storage.ctype

    @cached_property
    def category(self) -> Category:
        return self._storage.category

    @cached_property
    def itemsize(self) -> int:
        """Size of one element in bytes."""
        return self._storage.itemsize

    @cached_property
    def is_floating(self) -> bool:
        return self.category is Category.FLOAT

    @cached_property
    def is_complex(self) -> bool:
        return self.category is Category.COMPLEX

    @cached_property
    def is_integral(self) -> bool:
        """True for integers, bool excluded."""
        return self.category is Category.INT

    @cached_property
    def is_unsigned(self) -> bool:
        return self in _UNSIGNED

    @cached_property
    def is_reduced_precision(self) -> bool:
        """True for floats narrower than fp32: stored as such, computed in fp32."""
        return self.is_floating and self.itemsize < 4

    def __repr__(self) -> str:
        return f"DataType.{self.name}"


_UNSIGNED = frozenset({DataType.UInt8, DataType.UInt16, DataType.UInt32, DataType.UInt64})
_FROM_TORCH = {d.torch: d for d in DataType if d is not DataType.Null}
_SIGNED = (DataType.Int8, DataType.Int16, DataType.Int32, DataType.Int)


def from_torch(dtype: torch.dtype) -> DataType:
    """The DataType of a torch dtype; FuserTypeError for unsupported dtypes."""
    found = _FROM_TORCH.get(dtype)
    if found is None:
        raise FuserTypeError(
            f"dtype {dtype} is not supported; cast to one of "
            f"{', '.join(str(d).removeprefix('torch.') for d in _FROM_TORCH)}"
        )
    return found


def of_number(value: Number) -> DataType:
    """nvFuser's dtype of a Python constant: Bool, Int, Double or ComplexDouble; else
    FuserTypeError.
    """
    if isinstance(value, bool):
        return DataType.Bool
    if isinstance(value, int):
        return DataType.Int
    if isinstance(value, float):
        return DataType.Double
    if isinstance(value, complex):
        return DataType.ComplexDouble
    raise FuserTypeError(f"expected a Python number, got {type(value).__name__}: {value!r}")


def compute_dtype(dtype: DataType) -> DataType:
    """The type of arithmetic: fp32 for reduced-precision floats, else the type itself."""
    return DataType.Float if dtype.is_reduced_precision else dtype


def promote_pair(a: DataType, b: DataType) -> DataType:
    """The narrowest type that holds both, by torch's rules where torch has one.

    torch has none for 8-bit floats and for wide unsigned integers: an 8-bit float yields to any
    other float, two different ones give Float; a wide unsigned integer and a signed one give the
    next wider signed integer. FuserTypeError if there is none.
    """
    low, high = sorted((a, b), key=lambda d: (d.category, d.itemsize))
    if low is high:
        return low
    if low.category is high.category:
        match low.category:
            case Category.INT:
                return _promote_integers(low, high)
            case Category.FLOAT if low.itemsize == high.itemsize:
                return DataType.Float
        return high
    return DataType.ComplexDouble if high.is_complex and low is DataType.Double else high


def _promote_integers(low: DataType, high: DataType) -> DataType:
    if low.is_unsigned == high.is_unsigned or (high.itemsize > low.itemsize and low.is_unsigned):
        return high
    unsigned = low if low.is_unsigned else high
    for holder in _SIGNED:
        if holder.itemsize > unsigned.itemsize:
            return holder
    raise FuserTypeError(
        f"no integer type holds both {low!r} and {high!r}; cast one operand explicitly"
    )


@dataclass(frozen=True, slots=True)
class Operand:
    """The dtype and the rank of an operand of type promotion."""

    dtype: DataType
    rank: int | None
    """None for scalars, which yield to 0-dim tensors, which yield to tensors with dimensions."""

    @property
    def level(self) -> int:
        """0 for tensors with dimensions, 1 for 0-dim tensors, 2 for scalars."""
        return 2 if self.rank is None else (1 if self.rank == 0 else 0)


def result_dtype(operands: Iterable[Operand]) -> DataType:
    """Common dtype of operands by torch's three levels: tensors, then 0-dim tensors, then scalars.

    A weaker level changes the result only if its category is higher. A Python scalar then means the
    default width (Float, ComplexFloat), and a complex 0-dim tensor takes the width of the floats
    that it meets, as in torch.
    """
    levels: list[DataType | None] = [None, None, None]
    for operand in operands:
        held = levels[operand.level]
        levels[operand.level] = operand.dtype if held is None else promote_pair(held, operand.dtype)
    tensors, zero_dim, scalars = levels
    result = tensors
    for weaker, is_scalar in ((zero_dim, False), (scalars, True)):
        if weaker is None:
            continue
        if result is None:
            result = weaker
        elif weaker.category > result.category:
            narrows = is_scalar or (weaker.is_complex and result.is_floating)
            result = _default_width(weaker, result) if narrows else promote_pair(result, weaker)
    if result is None:
        raise FuserTypeError("promotion needs at least one operand")
    return result


def _default_width(scalar: DataType, against: DataType) -> DataType:
    if scalar.is_complex:
        wide = against is DataType.Double
        return DataType.ComplexDouble if wide else DataType.ComplexFloat
    return DataType.Float if scalar.is_floating else scalar


def check_is_storage(dtype: DataType, what: str) -> DataType:
    """`dtype` itself; FuserTypeError for no DataType, FuserValueError for DataType.Null."""
    if not isinstance(dtype, DataType):
        raise FuserTypeError(f"{what}: expected a DataType, got {type(dtype).__name__}: {dtype!r}")
    if dtype is DataType.Null:
        raise FuserValueError(f"{what}: DataType.Null is not a storage type; name a concrete dtype")
    return dtype
