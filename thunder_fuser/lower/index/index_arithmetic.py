"""Integer forms as index arithmetic of kernel IR, with the smallest number of divisions.

All digits of one base follow from its quotients, which are computed once and shared:

    floor(b / s) mod e = floor(b / s) - e * floor(b / (s * e))

A delinearised index (`u mod 6`, `floor(u/6) mod 5`, `floor(u/30)`) thus costs two divisions, and so
does any part of it.  A modulus that is a power of two is a mask, cheaper than the subtraction.
Hardware division truncates whereas forms round down; the two agree on non-negative dividends, which
the bounds must prove.  Unsigned division lets compilers use shorter sequences.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, Sequence
from itertools import count
from typing import TypeVar

from thunder_fuser.errors import FuserValueError
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.integer.bounds import Interval, product_bounds, sum_bounds
from thunder_fuser.ir.integer.digits import Base, Digit, Opaque, Variable
from thunder_fuser.ir.integer.forms import Form, nested
from thunder_fuser.ir.integer.guard import provable
from thunder_fuser.kernel_ir import (
    Binary,
    Expr,
    Int,
    IntCast,
    Let,
    Negative,
    UnsignedBinary,
    Var,
)

Key = TypeVar("Key")
Found = TypeVar("Found")

INDEX_TYPES = (DataType.Int32, DataType.Int)
_LANE = "v"
"""Variable of loops over the lanes of a vector, an int in kernels with indices of any type."""


class IndexArithmetic:
    """Computes forms of one context as indices of type `dtype` (Int32 or Int).

    `statements` collects the definitions of the temporaries (`prefix` and a number) that the
    expressions use, each computed once. A child's statements follow its parent's, in an inner
    scope.
    """

    def __init__(self, dtype: DataType = DataType.Int32, prefix: str = "i") -> None:
        if dtype not in INDEX_TYPES:
            known = " or ".join(d.name for d in INDEX_TYPES)
            raise FuserValueError(f"dtype must be {known}, got {dtype.name}")
        self.statements: list[Let] = []
        self._dtype = dtype
        self._prefix = prefix
        self._numbers = count()
        self._bound: ChainMap[Variable, Expr] = ChainMap()
        self._quotients: ChainMap[tuple[Base, int], Var] = ChainMap()
        self._by_symbol: ChainMap[tuple[Form, ...], Var] = ChainMap()
        self._digits: ChainMap[Digit, Var] = ChainMap()

    def child(self) -> IndexArithmetic:
        """Return the arithmetic of an inner scope, which sees this one's temporaries."""
        child = IndexArithmetic(self._dtype, self._prefix)
        child._numbers = self._numbers
        child._bound = self._bound.new_child()
        child._quotients = self._quotients.new_child()
        child._by_symbol = self._by_symbol.new_child()
        child._digits = self._digits.new_child()
        return child

    def taken(self) -> list[Let]:
        """Return and clear the statements collected since the last call."""
        found = list(self.statements)
        self.statements.clear()
        return found

    def value(self, form: Form, names: Mapping[str, Expr] | None = None) -> Expr:
        """Return an expression of the form.

        `names` maps names of variables to indices of type `dtype`; other variables keep their name.
        Raises FuserValueError if a dividend may be negative.
        """
        return self.values([form], names)[0]

    def values(self, forms: Sequence[Form], names: Mapping[str, Expr] | None = None) -> list[Expr]:
        """Return `value` of several forms, whose divisions are planned together."""
        for form in forms:
            for variable in form.variables():
                name = variable.name
                self._bind(variable, names[name] if names and name in names else Var(name))
        for base, divisor in _divisions(forms):
            self._quotient(base, divisor)
        return [self._sum(form) for form in forms]

    def _bind(self, variable: Variable, value: Expr) -> None:
        known = _found(self._bound, variable)
        if known is None:
            self._bound[variable] = value
            self._quotients[variable, 1] = self._named(value)
        elif known != value:
            raise FuserValueError(f"variable {variable} is {known} here already, not {value}")

    def _named(self, value: Expr) -> Var:
        return value if isinstance(value, Var) else self._define(value)

    def _define(self, value: Expr) -> Var:
        name = f"{self._prefix}{next(self._numbers)}"
        self.statements.append(Let(name, self._dtype, value))
        return Var(name)

    def _sum(self, form: Form) -> Expr:
        found: Expr | None = None
        for digit, coef in form.terms:
            value: Expr
            if _is_plain_multiple(digit, coef):
                value, coef = self._quotients[digit.base, 1], coef // digit.s
            else:
                value = self._digit(digit)
            if value == Var(_LANE) and abs(coef) > 1 and self._dtype is DataType.Int:
                # A product of ints may overflow, whatever it is added to.
                value = IntCast(value, DataType.Int)
            if found is None:
                found = _scaled(value, coef)
            else:
                part = value if abs(coef) == 1 else Binary("*", Int(abs(coef)), value)
                found = Binary("-" if coef < 0 else "+", found, part)
        if found is None:
            return Int(form.const)
        if form.const:
            sign = "-" if form.const < 0 else "+"
            return Binary(sign, found, Int(abs(form.const)))
        return found

    def _digit(self, digit: Digit) -> Var:
        name = _found(self._digits, digit)
        if name is None:
            name = self._quotient(digit.base, digit.s)
            if digit.e is not None and _is_power_of_two(digit.e):
                name = self._define(UnsignedBinary("%", name, Int(digit.e)))
            elif digit.e is not None:
                high = self._quotient(digit.base, digit.s * digit.e)
                name = self._define(Binary("-", name, Binary("*", Int(digit.e), high)))
            self._digits[digit] = name
        return name

    def _quotient(self, base: Base, divisor: int) -> Var:
        """Return the name of floor(base / divisor), defining it if necessary."""
        name = _found(self._quotients, (base, divisor))
        if name is None:
            if divisor == 1:
                name = self._whole(base)
            else:
                known = self._nearest(base, divisor)
                dividend = self._quotient(base, known)
                name = self._define(UnsignedBinary("/", dividend, Int(divisor // known)))
            self._quotients[base, divisor] = name
        return name

    def _nearest(self, base: Base, divisor: int) -> int:
        """Return the divisor of a known quotient that a shift makes the wanted one, else 1."""
        smaller = divisor
        while smaller % 2 == 0:
            smaller //= 2
            if _found(self._quotients, (base, smaller)) is not None:
                return smaller
        return 1

    def _whole(self, base: Base) -> Var:
        assert not isinstance(base, Variable), f"{base} is bound before it is used"
        if isinstance(base, Form):
            return self._named(self._sum(base))
        operands = [self._sum(x) for x in base.operands]
        if base.op == "*":
            product = operands[0]
            for factor in operands[1:]:
                product = Binary("*", product, factor)
            return self._define(product)
        x, d = operands
        quotient = _found(self._by_symbol, base.operands)
        if quotient is None:
            quotient = self._define(UnsignedBinary("/", x, d))
            self._by_symbol[base.operands] = quotient
        if base.op == "//":
            return quotient
        return self._define(Binary("-", x, Binary("*", quotient, d)))


def _found(table: ChainMap[Key, Found], key: Key) -> Found | None:
    """Return the entry of a key in a scope or an enclosing one, or None."""
    for scope in table.maps:
        found = scope.get(key)
        if found is not None:
            return found
    return None


def _scaled(value: Expr, coef: int) -> Expr:
    if abs(coef) == 1:
        return value if coef == 1 else Negative(value)
    return Binary("*", Int(coef), value)


def fits(form: Form, bits: int = 31) -> bool:
    """True if the form and all intermediates of its arithmetic lie in [-2**bits, 2**bits).

    bits=31 checks for Int32.  The bounds are exact, not estimates from tensor sizes, and partial
    sums, products and dividends count: signed overflow is undefined even if it cancels.
    """

    def small(*bounds: Interval) -> bool:
        limit = 1 << bits
        return all(
            lo is not None and hi is not None and -limit <= lo and hi < limit for lo, hi in bounds
        )

    def base_fits(base: Base) -> bool:
        if isinstance(base, Opaque) and base.op == "*":
            factors = [(x.lo, x.hi) for x in base.operands]
            return small(*(product_bounds(factors[:n]) for n in range(2, len(factors) + 1)))
        return small((base.lo, base.hi))

    for part in nested([form]):
        scaled = [((digit.lo, digit.hi), coef) for digit, coef in part.terms]
        if not (
            all(base_fits(digit.base) for digit, _ in part.terms)
            and small(*(sum_bounds(0, [term]) for term in scaled))
            and small(*(sum_bounds(0, scaled[:n]) for n in range(2, len(scaled) + 1)))
            and small((part.lo, part.hi))
        ):
            return False
    return True


def has_arithmetic(forms: Sequence[Form]) -> bool:
    """True if hardware division computes all forms: no dividend may be negative."""
    try:
        _divisions(forms)
    except FuserValueError:
        return False
    return True


def _divisions(forms: Sequence[Form]) -> list[tuple[Base, int]]:
    """Return (base, divisor) of every quotient that the forms need.

    Inner bases and small divisors come first, so that larger ones can start from them.
    """
    found: dict[Base, set[int]] = {}
    for digit, coef in (term for form in nested(forms) for term in form.terms):
        base = digit.base
        if _is_plain_multiple(digit, coef):
            continue
        if isinstance(base, Opaque) and base.op == "max":
            raise FuserValueError(f"no arithmetic for {base}: sizes are known before kernels are")
        if isinstance(base, Opaque) and base.op != "*":
            x, d = base.operands
            if not (provable(x, 0, None) and provable(d, 1, None)):
                raise FuserValueError(f"no arithmetic for {base}: not proven {x} >= 0, {d} >= 1")
        if (digit.s, digit.e) != (1, None) and (base.lo is None or base.lo < 0):
            raise FuserValueError(
                f"no arithmetic for {digit}: division truncates, and {base} may be {base.lo}"
            )
        divisors = found.setdefault(base, set())
        divisors.add(digit.s)
        if digit.e is not None and not _is_power_of_two(digit.e):
            divisors.add(digit.s * digit.e)
    bases = sorted(found, key=lambda base: base.ordinal)
    return [(base, divisor) for base in bases for divisor in sorted(found[base]) if divisor > 1]


def _is_plain_multiple(digit: Digit, coef: int) -> bool:
    """True if coef * digit is a multiple of the variable itself, which needs no division."""
    variable = isinstance(digit.base, Variable) and digit.s == digit.base.multiple
    return variable and digit.e is None and coef % digit.s == 0


def _is_power_of_two(x: int) -> bool:
    return x & (x - 1) == 0
