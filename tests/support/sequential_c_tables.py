"""What the second printer says for dtypes and operations: C's own numbers and functions.

Types of which C has none (complex, 8-bit floats) and operations that C has no function for are not
in these tables: `Unprintable` names them.
"""

from __future__ import annotations

from thunder_fuser.ir.dtypes import DataType


class Unprintable(NotImplementedError):
    """A kernel that the second printer has no words for."""


CTYPES = {
    DataType.Float: "float",
    DataType.Double: "double",
    DataType.BFloat16: "bf16",
    DataType.Half: "_Float16",
    DataType.Bool: "_Bool",
    DataType.Int32: "int",
    DataType.Int: "long long",
}


def ctype(dtype: DataType) -> str:
    found = CTYPES.get(dtype)
    if found is None:
        raise Unprintable(f"no C for {dtype.name}")
    return found


_LARGER = "({{ __auto_type a_ = {0}; __auto_type b_ = {1}; (a_ > b_) | (a_ != a_) ? a_ : b_; }})"
_SMALLER = _LARGER.replace(">", "<")
_FUNCTIONS = (
    *("sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh"),
    *("atanh", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "erf", "erfc"),
)
"""Of <tgmath.h>: of floats where the operands are."""
_WHOLE = "_Generic({{0}}, int: {{0}}, long long: {{0}}, _Bool: {{0}}, default: {}({{0}}))"
"""Integers stay: their digits would not fit a double."""
_BY_KIND = "_Generic({{0}}, int: {0}({{0}}, {{1}}), long long: {0}({{0}}, {{1}}), default: {1})"
_REST = _BY_KIND.format("rest", "fmod({0}, {1})")
OPERATIONS: dict[str, str] = {
    "div": _BY_KIND.format("quotient", "{0} / {1}"),
    "mod": _REST,
    "fmod": _REST,
    "remainder": "({{ __auto_type r_ = " + _REST + "; __auto_type b_ = {1}; "
    "r_ != 0 && (r_ < 0) != (b_ < 0) ? r_ + b_ : r_; }})",
    "pow": _BY_KIND.format("power", "pow({0}, {1})"),
    "signbit": "_Generic({0}, int: {0} < 0, long long: {0} < 0, _Bool: 0, "
    "default: signbit((double){0}))",
    "bitwise_not": "_Generic({0}, _Bool: !{0}, int: ~(int){0}, default: ~(long long){0})",
    **{name: _WHOLE.format(name) for name in ("ceil", "floor", "trunc")},
    "round": _WHOLE.format("rint"),
    "frac": "{0} - trunc({0})",
    **{name: f"{name}({{0}})" for name in _FUNCTIONS},
    **{name: f"{name}({{0}}, {{1}})" for name in ("atan2", "nextafter")},
    "exp_rn": "exp({0})",
    "mul_rn": "{0} * {1}",
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "truediv": "{0} / {1}",
    "neg": "-{0}",
    "abs": "({{ __auto_type a_ = {0}; a_ < 0 ? -a_ : a_ == 0 ? a_ * a_ : a_; }})",
    "sign": "({{ __auto_type a_ = {0}; (__typeof__(a_))((a_ > 0) - (a_ < 0)); }})",
    "reciprocal": "1 / {0}",
    "addcmul": "{0} + {3} * {1} * {2}",
    "relu": "({{ __auto_type a_ = {0}; a_ < 0 ? 0 : a_; }})",
    "minimum": _SMALLER,
    "maximum": _LARGER,
    "clamp": "({{ __auto_type x_ = {0}; __auto_type l_ = {1}; __auto_type h_ = {2}; "
    "__auto_type m_ = (x_ < l_) | (l_ != l_) ? l_ : x_; (m_ > h_) | (h_ != h_) ? h_ : m_; }})",
    "threshold": "({0} <= {1} ? {2} : {0})",
    "rsqrt": "1 / sqrt({0})",
    "sigmoid": "1 / (1 + exp(-{0}))",
    "silu": "({{ __auto_type a_ = {0}; a_ / (1 + exp(-a_)); }})",
    "lerp": "({{ __auto_type a_ = {0}; __auto_type b_ = {1} - a_; __auto_type w_ = {2}; "
    "fabs(w_) < 0.5f ? a_ + w_ * b_ : a_ + b_ - b_ * (1 - w_); }})",
    "eq": "{0} == {1}",
    "ne": "{0} != {1}",
    "lt": "{0} < {1}",
    "le": "{0} <= {1}",
    "gt": "{0} > {1}",
    "ge": "{0} >= {1}",
    "isnan": "({{ __auto_type a_ = {0}; a_ != a_; }})",
    "isfinite": "({{ __auto_type a_ = {0}; a_ - a_ == 0; }})",
    "isinf": "({{ __auto_type a_ = {0}; a_ == a_ && a_ - a_ != 0; }})",
    "isposinf": "({{ __auto_type a_ = {0}; a_ > 0 && a_ - a_ != 0; }})",
    "isneginf": "({{ __auto_type a_ = {0}; a_ < 0 && a_ - a_ != 0; }})",
    "isreal": "({0}, 1)",
    "real": "{0}",
    "where": "({0} ? {1} : {2})",
    "logical_not": "!{0}",
    "logical_and": "({0} && {1})",
    "logical_or": "({0} || {1})",
    "bitwise_and": "{0} & {1}",
    "bitwise_or": "{0} | {1}",
    "bitwise_xor": "{0} ^ {1}",
}
"""Of operands in parentheses; `-fwrapv` lets integers wrap around."""
PRELUDE = """\
#include <math.h>
#include <stdint.h>
#include <string.h>
#include <tgmath.h>
typedef uint16_t bf16;
typedef struct { unsigned char bytes[16]; } raw_vector;
static raw_vector raw_load(const void *place, size_t bytes) {
  raw_vector words;
  memcpy(&words, place, bytes);
  return words;
}
static float wide(bf16 h) {
  uint32_t w = (uint32_t)h << 16;
  float f;
  memcpy(&f, &w, 4);
  return f;
}
static bf16 narrow(float f) {
  uint32_t w;
  memcpy(&w, &f, 4);
  return f != f ? 0x7fc0 : (bf16)((w + 0x7fff + (w >> 16 & 1)) >> 16);
}
static long long quotient(long long a, long long b) {
  return b == 0 ? 0 : b == -1 ? -a : a / b;
}
static long long rest(long long a, long long b) { return b == 0 || b == -1 ? 0 : a % b; }
static long long power(long long a, long long n) {
  if (n < 0) return a == 1 ? 1 : a == -1 ? (n & 1 ? -1 : 1) : 0;
  long long found = 1;
  for (; n; n >>= 1, a *= a) found *= n & 1 ? a : 1;
  return found;
}
static long long checked_position(long long index, long long extent) {
  return index >= 0 && index < extent ? index : 0;
}
"""
