"""Instructions by pipe that NVRTC generates per thread for each kind of expression.

Figures were read from sm_90 machine code, without slow paths that only huge or tiny arguments
take; tests compare whole kernels with theirs. 0.5 is an instruction that serves two values.
"""

from __future__ import annotations

from collections.abc import Mapping

from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.tables import pointwise
from thunder_fuser.time_model.pipes import Mix, Pipe

_ORDER = (Pipe.FMA, Pipe.ALU, Pipe.XU, Pipe.OTHER, Pipe.FP64)
_Row = tuple[float, ...]
"""Instructions by pipe, in the order of `_ORDER`; missing entries are 0."""


def mix(*counts: float) -> Mix:
    """Return a mix from the counts of FMA, ALU, XU, OTHER and FP64 instructions."""
    return Mix({pipe: n for pipe, n in zip(_ORDER, counts, strict=False) if n})


def lsu(count: float = 1) -> Mix:
    """Return a mix of `count` loads, stores or shuffles."""
    return Mix({Pipe.LSU: count})


# By operation: instructions on fp32, then on fp64 operands.
_FLOATING: Mapping[str, tuple[_Row, _Row]] = {
    "neg": ((), ()),
    "add": ((1,), (0, 0, 0, 0, 1)),
    "sub": ((1,), (0, 0, 0, 0, 1)),
    "mul": ((1,), (0, 0, 0, 0, 1)),
    "mul_rn": ((1,), (0, 0, 0, 0, 1)),
    "div": ((5.25, 1, 1, 3), (2.75, 1.5, 1, 3, 8)),
    "truediv": ((5.25, 1, 1, 3), (2.75, 1.5, 1, 3, 8)),
    "mod": ((9, 9, 1, 7), (20.25, 43.75, 0, 25.25, 9)),
    "fmod": ((9, 9, 1, 7), (20.25, 43.75, 0, 25.25, 9)),
    "remainder": ((10, 12, 1, 7), (19.75, 45.75, 0, 25.25, 13)),
    "pow": ((45, 32.5, 6, 8), (13.5, 31.5, 1, 17, 15)),
    "reciprocal": ((3, 3, 1, 3), (0.25, 1.75, 1, 3, 5)),
    "addcmul": ((2.5,), (1.5, 0, 0, 0, 2)),
    "lerp": ((4.5, 1), (1, 2, 0, 0, 5)),
    "abs": ((), ()),
    "sign": ((1, 4, 1), (1.25, 1.75, 1, 0, 2)),
    "ceil": ((0, 0, 1), (0, 0, 1)),
    "floor": ((0, 0, 1), (0, 0, 1)),
    "round": ((0, 0, 1), (0, 0, 1)),
    "trunc": ((0, 0, 1), (0, 0, 1)),
    "frac": ((1, 0, 1), (0, 0, 1, 0, 1)),
    "relu": ((0, 2), (2, 2, 0, 0, 1)),
    "minimum": ((0, 1), (0.75, 1.5, 0, 0, 2)),
    "maximum": ((0, 1), (0.75, 1.5, 0, 0, 2)),
    "clamp": ((0.5, 5), (3, 4, 0, 0, 4)),
    "threshold": ((0, 2), (1, 2, 0, 0, 1)),
    "nextafter": ((6.5, 15.75, 0, 6), (2.5, 15.25, 0, 6.25, 9)),
    "exp": ((6, 1, 1), (6.5, 7, 0, 6, 18)),
    "exp_rn": ((7, 1, 1), (6.5, 7, 0, 6, 18)),
    "exp2": ((2, 1, 1), (6, 9, 0, 6, 19)),
    "expm1": ((16, 10, 2), (8.5, 15.75, 0, 26, 21)),
    "log": ((15, 9.25, 1), (11, 16, 1, 23, 30)),
    "log2": ((17, 9.25, 1), (11.5, 15.75, 1, 23.5, 32)),
    "log10": ((16, 9.25, 1), (11.5, 15.75, 1, 23.5, 32)),
    "log1p": ((16, 9.25, 1, 3), (16, 19, 2, 42, 53)),
    "sqrt": ((4, 2, 1, 3), (2, 4, 1, 3, 8)),
    "rsqrt": ((2, 1, 1), (2.5, 2.5, 1, 3, 5)),
    "sigmoid": ((9.75, 4.5, 2, 3), (7, 10.25, 1, 17.5, 25)),
    "silu": ((11.75, 2.75, 2, 3), (10.5, 10.25, 1, 28.5, 28)),
    "sin": ((11, 6, 2, 3), (4.25, 4, 0, 3, 11)),
    "cos": ((11, 7, 2, 3), (4.25, 5, 0, 3, 11)),
    "tan": ((16, 5, 3, 3), (3.25, 2, 1, 34, 26)),
    "asin": ((14, 7, 1), (5.5, 7.75, 1, 11, 42)),
    "acos": ((15, 7, 1), (7.5, 11.5, 1, 63, 46)),
    "atan": ((11, 6.25, 1), (4.25, 4.75, 1, 21, 28)),
    "atan2": ((22.25, 15.5, 1, 8), (9, 20.5, 1, 47.75, 39)),
    "sinh": ((14, 6, 3), (15, 18.5, 1, 43.5, 39)),
    "cosh": ((8, 4, 3), (5.5, 7, 1, 25, 21)),
    "tanh": ((9, 4, 2), (7, 7, 6, 44.25, 34)),
    "asinh": ((21, 14.75, 3, 3), (21, 26, 4, 42.5, 66)),
    "acosh": ((24, 14.5, 2, 3), (20, 27.5, 3, 42.5, 64)),
    "atanh": ((20, 12.25, 2, 3), (18.5, 22.5, 3, 45, 64)),
    "erf": ((9.5, 11, 1), (3, 4.75, 5, 14.25, 42)),
    "erfc": ((34, 7, 4), (14.25, 17, 2, 70, 63)),
    "erfinv": ((18.5, 4.75, 2, 3), (13.5, 18, 2, 147, 96)),
    "erfcinv": ((25, 9, 3, 4), (34, 42.25, 7, 181, 161)),
    "lgamma": ((65, 30, 4, 8), (26.5, 31, 5, 40.25, 58.5)),
    "digamma": ((24.5, 27.75, 6, 95.25, 94), (24.5, 27.75, 6, 95.25, 94)),
}  # fmt: skip
_MODIFIERS = frozenset({"real", "imag", "complex", "isreal"})
"""Operations without instructions: they rename operands."""
_FREE = mix()
_TESTS = pointwise.COMPARISONS | {"isnan", "isfinite", "isinf"}
_CONVERSIONS: Mapping[tuple[DataType, DataType], Mix] = {
    (DataType.BFloat16, DataType.Float): mix(0, 1),
    (DataType.Half, DataType.Float): mix(1),
    (DataType.Float, DataType.BFloat16): mix(0, 0.5),
    (DataType.Float, DataType.Half): mix(0, 0.5),
    (DataType.Float, DataType.Double): mix(0, 0, 1),
    (DataType.Double, DataType.Float): mix(0, 0, 1),
}

_ONE_BY_ONE = mix(0, 2)
"""fp32 to bf16 on sm_100, whose compiler does not pair two such conversions."""


def _is_blackwell(arch: str) -> bool:
    return int(arch.removeprefix("sm_")) >= 100


def of_parameter(arch: str) -> Mix:
    """Return the cost of reading a kernel parameter: a load from sm_90 on, an operand before."""
    return lsu() if int(arch.removeprefix("sm_")) >= 90 else mix()


def of_tile_place(dtype: DataType, arch: str) -> Mix:
    """Return the address arithmetic of a tile access: signed divisions, except from sm_100 on."""
    if _is_blackwell(arch):
        return mix(1, 4)
    return mix(2, 9) if dtype.itemsize < 4 else mix(6, 9)


BRIEF: Mapping[str, Mix] = {
    "exp": mix(2, 0, 1),
    "div": mix(1),
    "truediv": mix(1),
    "erf": mix(9, 2, 1),
    "tanh": mix(3, 1, 2),
}
"""Instructions of short forms. A quotient is a product with a reciprocal computed once a row."""


def of_operation(op: str, dtype: DataType) -> Mix:
    """Return the instructions of a pointwise operation on operands of a dtype."""
    if op in _MODIFIERS:
        return _FREE
    if dtype.is_complex:
        # Two parts, each at twice the cost of a real operation.
        real = DataType.Double if dtype is DataType.ComplexDouble else DataType.Float
        return times(of_operation(op, real), 4)
    if op in _TESTS:
        return mix(0, 0, 0, 0, 1) if dtype is DataType.Double else mix(0, _words(dtype))
    if op == "where":
        return mix(0, _words(dtype))
    if dtype.is_floating and op in _FLOATING:
        return mix(*_FLOATING[op][dtype is DataType.Double])
    return mix(0, pointwise.lookup(op).cost * _words(dtype))


def of_conversion(source: DataType, dtype: DataType, arch: str) -> Mix:
    """Return the instructions of a conversion. Those to 16 bits convert pairs, for a store."""
    if (source, dtype) == (DataType.Float, DataType.BFloat16) and _is_blackwell(arch):
        return _ONE_BY_ONE
    if source is dtype or DataType.Bool in (source, dtype):
        return _FREE if source is dtype else mix(0, _words(dtype))
    found = _CONVERSIONS.get((source, dtype))
    if found is not None:
        return found
    if not (source.is_floating or dtype.is_floating):
        return mix(0, 0.5 * _words(dtype))
    return mix(0, 1, 1)


# Instructions to scale a standard sample. A uniform sample rounded to the upper end becomes the
# lower one.
NUMBER = {"uniform": mix(0, 3), "normal": mix(1, 1), "bernoulli": mix(0, 2)}
ROUND = mix(0, 1)
"""Instructions to round fp32 to the precision of a narrower float, in its register."""
NARROW = mix(0, 0.5)
"""Instructions per value to pack two narrower floats into one word."""


def _words(dtype: DataType) -> int:
    return max(1, dtype.itemsize // 4)


def times(found: Mix, factor: float) -> Mix:
    """Return a mix scaled by `factor`."""
    return Mix({pipe: factor * n for pipe, n in found.items()})


# ---- reductions: instructions to accumulate an element, and to combine two accumulators

_TAKE: Mapping[str, tuple[Mix, Mix]] = {
    "sum": (mix(1), mix(1)),
    "prod": (mix(1), mix(1)),
    "argmax": (mix(0, 6), mix(0, 6)),
    "argmin": (mix(0, 6), mix(0, 6)),
    "squared_deviations": (mix(4, 2), mix(23, 8, 3)),
    "sum_exp": (mix(9, 4, 1), mix(14, 6, 2)),
}
_TAKE_VECTOR: Mapping[str, tuple[Mix, Mix]] = {
    "squared_deviations": (mix(3), mix(4, 2)),
    "sum_exp": (mix(5, 2, 1), mix(7, 4, 1)),
    "brief sum_exp": (mix(3, 1, 1), mix(5, 4, 1)),
}
"""Instructions per element to accumulate a vector into one accumulator, and once per vector."""
_DOUBLE = {"sum": mix(0, 0, 0, 0, 1), "prod": mix(0, 0, 0, 0, 1)}


def of_take(op: str, dtype: DataType) -> Mix:
    """Return the instructions to accumulate one element."""
    if dtype is DataType.Double and op in _DOUBLE:
        return _DOUBLE[op]
    if op in _TAKE and (dtype.is_floating or op not in _DOUBLE):
        return _TAKE[op][0]
    return mix(0, _words(dtype))


def of_vector(op: str, dtype: DataType, lanes: int) -> Mix:
    """Return the instructions to accumulate a vector of `lanes` elements."""
    each, rest = _TAKE_VECTOR.get(op, (of_take(op, dtype), _FREE))
    found = times(each, lanes)
    found.update(rest)
    return found


def of_combine(op: str, dtype: DataType) -> Mix:
    """Return the instructions to combine two accumulators."""
    return _TAKE[op][1] if op in _TAKE and op not in _DOUBLE else of_take(op, dtype)
