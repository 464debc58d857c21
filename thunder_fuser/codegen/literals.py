"""C++ literals of Python numbers, bit-exact."""

from __future__ import annotations

import math
import struct

from thunder_fuser.ir.dtypes import DataType, Number


def literal(value: Number, dtype: DataType) -> str:
    """Return a C++ expression of `value` in the type of `dtype`, rounded once, as torch converts a
    Python number.
    """
    if dtype.is_complex:
        z = complex(value)
        part = DataType.Double if dtype is DataType.ComplexDouble else DataType.Float
        return f"{dtype.ctype}{{{literal(z.real, part)}, {literal(z.imag, part)}}}"
    if dtype is DataType.Bool:
        return "true" if value else "false"
    if isinstance(value, complex):
        value = value.real
    if dtype is DataType.Double:
        return _double(float(value))
    if dtype is DataType.Float:
        return _float(float(value))
    if dtype.is_floating:
        return f"tf::cast<{dtype.ctype}>({_float(float(value))})"
    return _integer(int(value), dtype)


def _double(value: float) -> str:
    if math.isfinite(value):
        return repr(value)
    (bits,) = struct.unpack("<Q", struct.pack("<d", value))
    return f"tf::from_bits(0x{bits:x}ull)"


def _float(value: float) -> str:
    try:
        (rounded,) = struct.unpack("<f", struct.pack("<f", value))
    except OverflowError:
        rounded = math.copysign(math.inf, value)
    if math.isfinite(rounded):
        return f"{rounded!r}f"
    (bits,) = struct.unpack("<I", struct.pack("<f", rounded))
    return f"tf::from_bits(0x{bits:x}u)"


def _integer(value: int, dtype: DataType) -> str:
    bits = 8 * dtype.itemsize
    value %= 1 << bits
    if dtype.is_unsigned:
        return f"{value}ull" if bits == 64 else f"({dtype.ctype}){value}u"
    if value >= 1 << (bits - 1):
        value -= 1 << bits
    if bits == 64:
        return f"({value + 1}ll - 1)" if value == -(1 << 63) else f"{value}ll"
    if bits == 32:
        return f"({value + 1} - 1)" if value == -(1 << 31) else f"{value}"
    return f"({dtype.ctype}){value}"
