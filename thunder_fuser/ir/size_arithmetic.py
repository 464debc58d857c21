"""Arithmetic on sizes: scalar operations as functions of integer forms.

A definition computes sizes with the operations that it computes values with: the groups of a norm
are `fd.ops.div(x.size(1), 32)`. If the operands are sizes and constants so is the result, and it is
canonical like every form. Values that pass through floats (cast, divide, round up) are followed as
fractions. Truth values are 0 and 1; a quotient by 0 is an arbitrary integer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from operator import mul
from types import MappingProxyType

from thunder_fuser.ir.domain import Extent, constant_if_known
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import PointwiseOp, Scalar, Val
from thunder_fuser.ir.integer.forms import larger
from thunder_fuser.ir.integer.symint import Form

_LARGEST_POWER = 8


def smaller(x: Extent, y: Extent) -> Extent:
    found: Extent = -larger(-x, -y)
    return found


def floor_division(x: Extent, d: Extent) -> Extent:
    """floor(x / d); 0 for d = 0 if d is constant."""
    if isinstance(d, int):
        return 0 if d == 0 else (x // d if d > 0 else -x // -d)
    return x // d


def division(x: Extent, d: Extent) -> Extent:
    """x / d, truncated towards 0, as in C++."""
    if _least(x) >= 0 and _least(d) >= 0:
        return floor_division(x, d)
    return sign(x) * sign(d) * floor_division(absolute(x), absolute(d))


def modulo(x: Extent, d: Extent) -> Extent:
    """Remainder of the truncated division; it has the sign of x."""
    return x - d * division(x, d)


def remainder(x: Extent, d: Extent) -> Extent:
    """Remainder of the floor division; it has the sign of d."""
    return x - d * floor_division(x, d)


def absolute(x: Extent) -> Extent:
    found: Extent = larger(x, -x)
    return found


def sign(x: Extent) -> Extent:
    return smaller(larger(x, -1), 1)


def is_positive(x: Extent) -> Extent:
    """1 if x > 0, else 0."""
    return smaller(larger(x, 0), 1)


def is_zero(x: Extent) -> Extent:
    return 1 - smaller(absolute(x), 1)


def chosen(condition: Extent, x: Extent, y: Extent) -> Extent:
    """x if `condition` is 1, y if it is 0."""
    return y + condition * (x - y)


def _least(x: Extent) -> int:
    if isinstance(x, int):
        return x
    return -1 if x.lo is None else x.lo


OPERATIONS: Mapping[str, Callable[..., Extent]] = MappingProxyType(
    {
        "neg": lambda x: -x,
        "add": lambda x, y: x + y,
        "sub": lambda x, y: x - y,
        "mul": lambda x, y: x * y,
        "div": division,
        "mod": modulo,
        "fmod": modulo,
        "remainder": remainder,
        "abs": absolute,
        "sign": sign,
        "relu": lambda x: larger(x, 0),
        "minimum": smaller,
        "maximum": larger,
        "clamp": lambda x, low, high: smaller(larger(x, low), high),
        "where": chosen,
        "eq": lambda x, y: is_zero(x - y),
        "ne": lambda x, y: 1 - is_zero(x - y),
        "lt": lambda x, y: is_positive(y - x),
        "le": lambda x, y: 1 - is_positive(x - y),
        "gt": lambda x, y: is_positive(x - y),
        "ge": lambda x, y: 1 - is_positive(y - x),
        "logical_not": is_zero,
        "logical_and": lambda x, y: (1 - is_zero(x)) * (1 - is_zero(y)),
        "logical_or": lambda x, y: 1 - is_zero(x) * is_zero(y),
    }
)
"""Operations on integers by name; truth values are the integers 0 and 1."""

_ROUNDED: Mapping[str, Callable[[Extent, Extent], Extent]] = MappingProxyType(
    {
        "floor": floor_division,
        "ceil": lambda x, d: -floor_division(-x, d),
        "trunc": division,
        "cast": division,
    }
)
"""Roundings of a quotient of floats, as functions of dividend and divisor."""


class Extents:
    """Scalars as extents. `computed` maps computed scalars to their expressions; `variable` returns
    the form of an input by its name.
    """

    def __init__(
        self, computed: Mapping[Scalar, PointwiseOp], variable: Callable[[str], Form]
    ) -> None:
        self._expressions = computed
        self._variable = variable
        self.served: dict[Val, Extent | None] = {}
        """Memo: the extent of each computed scalar, or None."""

    def of(self, scalar: Scalar) -> Extent | None:
        """The scalar as an integer form of sizes; None if it is not known to be one."""
        value = scalar.value
        if isinstance(value, Form):
            return constant_if_known(value)
        if value is None:
            expr = self._expressions.get(scalar)
            if expr is not None:
                if scalar not in self.served:
                    self.served[scalar] = self.computed(expr)
                return self.served[scalar]
            return self._variable(scalar.name) if scalar.dtype.is_integral else None
        if isinstance(value, complex):
            return None
        return int(value) if float(value).is_integer() else None

    def computed(self, expr: PointwiseOp) -> Extent | None:
        """The result of a scalar expression as an integer form of sizes; None if there is none."""
        if expr.op in _ROUNDED:
            return self._rounded(expr)
        if expr.op == "pow":
            return self._power(*expr.inputs)  # type: ignore[arg-type]
        meaning = _meaning(expr)
        if meaning is None:
            return None
        operands = []
        for value in expr.inputs:
            found = self.of(value) if isinstance(value, Scalar) else None
            if found is None:
                return None
            operands.append(found)
        return constant_if_known(meaning(*operands))

    def _rounded(self, expr: PointwiseOp) -> Extent | None:
        """Roundings and casts, which truncate; a cast to Bool is 1 for nonzero values."""
        (x,) = expr.inputs
        assert isinstance(x, Scalar)
        whole = self.of(x)
        if whole is not None:
            is_truth = expr.output.dtype is DataType.Bool and x.dtype is not DataType.Bool
            return constant_if_known(1 - is_zero(whole)) if is_truth else whole
        quotient = self._expressions.get(x)
        if quotient is None or quotient.op not in ("div", "truediv"):
            return None
        if expr.op == "cast" and not expr.output.dtype.is_integral:
            return None
        parts = [self.of(v) for v in quotient.inputs if isinstance(v, Scalar)]
        if None in parts:
            return None
        return constant_if_known(_ROUNDED[expr.op](*parts))  # type: ignore[arg-type]

    def _power(self, base: Scalar, exponent: Scalar) -> Extent | None:
        x, n = self.of(base), self.of(exponent)
        if x is None or not isinstance(n, int) or not 0 <= n <= _LARGEST_POWER:
            return None
        return constant_if_known(reduce(mul, [x] * n, 1))


def _meaning(expr: PointwiseOp) -> Callable[..., Extent] | None:
    """The operation on integers, or None, as for divisions of floats. Bitwise operations on Bools
    are the logical ones.
    """
    kinds = [v.dtype for v in expr.inputs]
    if all(kind is DataType.Bool for kind in kinds):
        name = {
            "bitwise_and": "logical_and",
            "bitwise_or": "logical_or",
            "bitwise_not": "logical_not",
            "bitwise_xor": "ne",
        }.get(expr.op, expr.op)
        return OPERATIONS.get(name)
    if expr.op in ("div", "mod", "fmod", "remainder") and any(kind.is_floating for kind in kinds):
        return None
    return OPERATIONS.get(expr.op)
