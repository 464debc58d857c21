"""Integer forms as C expressions, with the smallest number of divisions.

All digits of one base are read off its quotients, so that these are what is computed and shared:

    floor(b / s) mod e = floor(b / s) - e * floor(b / (s * e))

A delinearised index (`u mod 6`, `floor(u/6) mod 5`, `floor(u/30)`) thus costs two divisions, and so
does any part of it.  A modulus that is a power of two is a mask, cheaper than the subtraction.
C division truncates where forms round down; the two agree on dividends that are never negative,
which the bounds must show.  Dividing as unsigned lets the compiler use its shorter sequences.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, Sequence
from itertools import count

from thunder_fuser.errors import FuserValueError
from thunder_fuser.ir.integer.bounds import Interval, product_bounds, sum_bounds
from thunder_fuser.ir.integer.forms import (
    Base,
    Digit,
    Form,
    Opaque,
    Variable,
    nested,
)
from thunder_fuser.ir.integer.guard import provable

_UNSIGNED = {"int": ("unsigned", "u"), "long long": ("unsigned long long", "ull")}


class Emitter:
    """Writes forms of one context as C expressions of type `ctype` ("int" or "long long").

    `statements` collects the definitions of the temporaries (`prefix` and a number) that the
    expressions use, each computed once.  A child's text goes behind its parent's, in an inner
    scope.
    """

    def __init__(self, ctype: str = "int", prefix: str = "i") -> None:
        if ctype not in _UNSIGNED:
            raise FuserValueError(f"ctype must be one of {sorted(_UNSIGNED)}, got {ctype!r}")
        self.statements: list[str] = []
        self._ctype = ctype
        self._unsigned, self._suffix = _UNSIGNED[ctype]
        self._prefix = prefix
        self._numbers = count()
        self._bound: ChainMap[Variable, str] = ChainMap()
        self._quotients: ChainMap[tuple[Base, int], str] = ChainMap()
        self._by_symbol: ChainMap[tuple[Form, ...], str] = ChainMap()
        self._digits: ChainMap[Digit, str] = ChainMap()

    def child(self) -> Emitter:
        """An emitter for an inner scope: it sees this one's temporaries and adds its own."""
        child = Emitter(self._ctype, self._prefix)
        child._numbers = self._numbers
        child._bound = self._bound.new_child()
        child._quotients = self._quotients.new_child()
        child._by_symbol = self._by_symbol.new_child()
        child._digits = self._digits.new_child()
        return child

    def emit(self, form: Form, names: Mapping[str, str] | None = None) -> str:
        """A C expression for the form; a sum comes without parentheses around it.

        `names` gives the C expression, of type `ctype`, of each variable that is not known by its
        own name.  Raises FuserValueError where a dividend may be negative.
        """
        return self.emit_all([form], names)[0]

    def emit_all(self, forms: Sequence[Form], names: Mapping[str, str] | None = None) -> list[str]:
        """`emit` for several forms, whose divisions are planned together."""
        for form in forms:
            for variable in form.variables():
                self._bind(variable, (names or {}).get(variable.name, variable.name))
        for base, divisor in _divisions(forms):
            self._quotient(base, divisor)
        return [self._sum(form) for form in forms]

    def _bind(self, variable: Variable, text: str) -> None:
        known = self._bound.get(variable)
        if known is None:
            self._bound[variable] = text
            self._quotients[variable, 1] = text if _is_name(text) else self._define(text)
        elif known != text:
            raise FuserValueError(f"variable {variable} is {known} in this emitter, not {text}")

    def _define(self, value: str) -> str:
        name = f"{self._prefix}{next(self._numbers)}"
        self.statements.append(f"const {self._ctype} {name} = {value};")
        return name

    def _divided(self, dividend: str, op: str, divisor: str) -> str:
        return f"({self._unsigned}){dividend} {op} {divisor}"

    def _sum(self, form: Form) -> str:
        parts: list[tuple[int, str]] = []
        for digit, coef in form.terms:
            if _is_plain_multiple(digit, coef):
                value, coef = self._quotients[digit.base, 1], coef // digit.s
            else:
                value = self._digit(digit)
            parts.append((coef, value if abs(coef) == 1 else f"{abs(coef)} * {value}"))
        if form.const or not parts:
            parts.append((form.const, str(abs(form.const))))
        text = "".join(f" {'-' if k < 0 else '+'} {part}" for k, part in parts)
        return text[3:] if text.startswith(" + ") else "-" + text[3:]

    def _digit(self, digit: Digit) -> str:
        name = self._digits.get(digit)
        if name is None:
            name = self._quotient(digit.base, digit.s)
            if digit.e is not None and _is_power_of_two(digit.e):
                name = self._define(self._divided(name, "%", f"{digit.e}{self._suffix}"))
            elif digit.e is not None:
                high = self._quotient(digit.base, digit.s * digit.e)
                name = self._define(f"{name} - {digit.e} * {high}")
            self._digits[digit] = name
        return name

    def _quotient(self, base: Base, divisor: int) -> str:
        """The name of floor(base / divisor)."""
        name = self._quotients.get((base, divisor))
        if name is None:
            if divisor == 1:
                name = self._whole(base)
            else:
                known = self._nearest(base, divisor)
                dividend = self._quotient(base, known)
                by = f"{divisor // known}{self._suffix}"
                name = self._define(self._divided(dividend, "/", by))
            self._quotients[base, divisor] = name
        return name

    def _nearest(self, base: Base, divisor: int) -> int:
        """The divisor of a known quotient that a shift turns into the one asked for, else 1."""
        smaller = divisor
        while smaller % 2 == 0:
            smaller //= 2
            if (base, smaller) in self._quotients:
                return smaller
        return 1

    def _whole(self, base: Base) -> str:
        assert not isinstance(base, Variable), f"{base} is bound before it is used"
        if isinstance(base, Form):
            text = self._sum(base)
            return text if _is_name(text) else self._define(text)
        operands = [x if _is_name(x) else f"({x})" for x in map(self._sum, base.operands)]
        if base.op == "*":
            return self._define(" * ".join(operands))
        x, d = operands
        quotient = self._by_symbol.get(base.operands)
        if quotient is None:
            quotient = self._define(self._divided(x, "/", f"({self._unsigned}){d}"))
            self._by_symbol[base.operands] = quotient
        return quotient if base.op == "//" else self._define(f"{x} - {quotient} * {d}")


def fits(form: Form, bits: int = 31) -> bool:
    """Whether the form and all intermediates of its emitted text lie in [-2**bits, 2**bits).

    bits=31 asks whether "int" will do.  The bounds are exact, not estimates from tensor sizes, and
    partial sums, products and dividends count: signed overflow is undefined even where it cancels.
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


def _divisions(forms: Sequence[Form]) -> list[tuple[Base, int]]:
    """(base, divisor) of every quotient that the forms need.

    Inner bases come first, and small divisors, so that larger ones can start from them.
    """
    found: dict[Base, set[int]] = {}
    for digit, coef in (term for form in nested(forms) for term in form.terms):
        base = digit.base
        if _is_plain_multiple(digit, coef):
            continue
        if isinstance(base, Opaque) and base.op == "max":
            raise FuserValueError(f"cannot emit {base}: sizes are known before kernels are written")
        if isinstance(base, Opaque) and base.op != "*":
            x, d = base.operands
            if not (provable(x, 0, None) and provable(d, 1, None)):
                raise FuserValueError(f"cannot emit {base}: not proven {x} >= 0, {d} >= 1")
        if (digit.s, digit.e) != (1, None) and (base.lo is None or base.lo < 0):
            raise FuserValueError(
                f"cannot emit {digit}: C truncates, and {base} may be as low as {base.lo}"
            )
        divisors = found.setdefault(base, set())
        divisors.add(digit.s)
        if digit.e is not None and not _is_power_of_two(digit.e):
            divisors.add(digit.s * digit.e)
    bases = sorted(found, key=lambda base: base.ordinal)
    return [(base, divisor) for base in bases for divisor in sorted(found[base]) if divisor > 1]


def _is_plain_multiple(digit: Digit, coef: int) -> bool:
    """Whether coef * digit is a multiple of the variable itself, which needs no division."""
    variable = isinstance(digit.base, Variable) and digit.s == digit.base.multiple
    return variable and digit.e is None and coef % digit.s == 0


def _is_power_of_two(x: int) -> bool:
    return x & (x - 1) == 0


def _is_name(text: str) -> bool:
    return text.replace(".", "_").isidentifier()
