"""The integer algebra: one canonical form for every index, extent, stride and predicate.

    value = const + sum of coef * digit        digit = floor(base / s) mod e
    base  = variable | opaque (a product, a division by a symbol, the larger of several) | form

Every division rounds down, so no rule needs a side condition on signs. Forms are interned in a
`Context`: two forms of one context are equal iff they are the same object. That decides whether two
iteration domains are equal, a predicate can be dropped, an access can be vectorised, and an output
is a view. Equality is never claimed wrongly; it may be missed, rarely.

A *digit* is one of a mixed radix. Splitting an index by 8 and then by 4 reads it in such a radix:
`i mod 8`, `floor(i/8) mod 4`, `floor(i/32)` are its digits. Reshapes, splits and merges only cut
and join digits, so the normal form is a set of digits with place values, and three facts suffice:

    floor((x + f*y) / f) = floor(x / f) + y                       peel multiples of the divisor
    floor(x / (g*h)) = floor(floor(x / g) / h)                    divide in steps
    x mod (g*h) = g * (floor(x / g) mod h) + x mod g              cut one digit into two, or join

Where no fact applies, the result is an opaque digit over the interned remainder.
"""

from __future__ import annotations

from math import gcd
from typing import TypeAlias

from thunder_fuser.errors import FuserTypeError, FuserValueError
from thunder_fuser.ir.integer.bounds import Bound, Interval, period_of, sum_bounds
from thunder_fuser.ir.integer.digits import Base, Digit, Opaque, Operation, Term, Variable
from thunder_fuser.ir.integer.forms import Form, add_into
from thunder_fuser.ir.integer.guard import Restriction, impossible, provable, restrict
from thunder_fuser.ir.integer.products import long_division, lower_bound, monomials
from thunder_fuser.ir.integer.radix import (
    can_cut,
    content,
    division_steps,
    is_remainder_by,
    mixed_radix,
    operands_of_max,
    over,
)

__all__ = [
    "Bound",
    "Context",
    "Digit",
    "Form",
    "Opaque",
    "Restriction",
    "Variable",
    "impossible",
    "provable",
    "restrict",
]

_MAX_WORK = 64
_MAX_TERMS = 32
_MAX_ROUNDS = 4
"""Limits of one division: on the divisions that it causes, the terms that it inspects, and the
passes over them. Beyond these the result is an opaque digit: exact, only less canonical. Real
indices stay far below.
"""

_Change: TypeAlias = "tuple[list[Digit], list[tuple[Form, int]]]"
"""(digits to remove from a sum, (form, coefficient) pairs to add in their place)."""


class Context:
    """The intern table of forms: one per compilation. Forms of different contexts do not mix."""

    __slots__ = ("__weakref__", "_digits", "_forms", "_opaques", "_ordinal", "_variables", "_work")

    def __init__(self) -> None:
        self._variables: dict[tuple[str, int, Bound, int], Form] = {}
        self._opaques: dict[tuple[str, tuple[int, ...]], Opaque] = {}
        self._digits: dict[tuple[int, int, int | None], Form] = {}
        self._forms: dict[tuple[int, tuple[Term, ...]], Form] = {}
        self._ordinal = 0
        self._work = 0

    def var(self, name: str, lo: int, hi: int | None, multiple: int = 1) -> Form:
        """The variable with lo <= name <= hi (None: no upper bound), divisible by `multiple`.

        Equal arguments give the same form; a variable with one possible value is that constant.
        """
        key = (name, lo, hi, multiple)
        form = self._variables.get(key)
        if form is None:
            if multiple < 1:
                raise FuserValueError(f"variable {name}: multiple must be at least 1: {multiple}")
            first, last = -(-lo // multiple) * multiple, hi and hi // multiple * multiple
            if last is not None and first > last:
                raise FuserValueError(f"variable {name}: no multiple of {multiple} in [{lo}, {hi}]")
            variable = Variable(name, first, last, multiple, self._next())
            # Counted in units of `multiple`, so that divisibility shows in the coefficient.
            form = self._variables[key] = self._digit(variable, multiple, None) * multiple
        return form

    def const(self, value: int) -> Form:
        """The constant as a form."""
        return self.interned(value, ())

    def lift(self, value: Form | int) -> Form:
        """An int as a form; a form itself, which must be of this context (FuserValueError)."""
        if isinstance(value, Form):
            if value.context is not self:
                raise FuserValueError(f"({value}) comes from another context")
            return value
        if not isinstance(value, int):
            raise FuserTypeError(f"expected a Form or an int, got {type(value).__name__}")
        return self.interned(value, ())

    # ------------------------------------------------------------------------------------- sums

    def _next(self) -> int:
        self._ordinal += 1
        return self._ordinal

    def interned(self, const: int, terms: tuple[Term, ...]) -> Form:
        """The form of terms that are already normal."""
        form = self._forms.get((const, terms))
        if form is None:
            bounds = self._bounds(const, terms)
            form = self._forms[const, terms] = Form(self, const, terms, bounds, self._next())
        return form

    def _bounds(self, const: int, terms: tuple[Term, ...]) -> Interval:
        lo, hi = sum_bounds(const, [((digit.lo, digit.hi), coef) for digit, coef in terms])
        if len(terms) > 1:
            if lo is None:
                lo = lower_bound(self, const, terms)
            if hi is None:
                least = lower_bound(self, -const, [(digit, -coef) for digit, coef in terms])
                hi = None if least is None else -least
        return lo, hi

    def normal(self, const: int, terms: dict[Digit, int]) -> Form:
        """The normal form of const + sum of coef * digit: adjacent digits are joined."""
        for _ in range(_MAX_TERMS):
            if 0 in terms.values():
                terms = {digit: coef for digit, coef in terms.items() if coef}
            change = self._join(terms) if len(terms) > 1 else None
            if change is None:
                break
            old, new = change
            for digit in old:
                del terms[digit]
            for form, coef in new:
                const += add_into(terms, form, coef)
        return self.interned(const, tuple(sorted(terms.items(), key=_by_ordinal)))

    def _join(self, terms: dict[Digit, int]) -> _Change | None:
        groups: dict[int, list[Term]] = {}
        for term in terms.items():
            groups.setdefault(term[0].base.ordinal, []).append(term)
        if len(groups) < len(terms):
            for group in groups.values():
                parts = mixed_radix(group) if len(group) > 1 else None
                if parts is not None:
                    base = group[0][0].base
                    new = [(self.read(base, s, e), coef) for s, e, coef in parts]
                    return [digit for digit, _ in group], new
        for digit, coef in terms.items():
            base = digit.base
            if isinstance(base, Form):
                for high, k in terms.items():
                    if digit.e is not None and k == coef * digit.e:
                        joined = self._joined(digit, high)
                        if joined is not None:
                            return [digit, high], [(joined, coef)]
            elif isinstance(base, Opaque) and base.whole is not None:
                whole = base.whole
                plain = digit.s == 1 and digit.e is None
                if plain and all(terms.get(part) == coef * k for part, k in whole.terms):
                    rest = base.operands[0] - whole.const
                    return [digit, *(part for part, _ in whole.terms)], [(rest, coef)]
        return None

    def _joined(self, low: Digit, high: Digit) -> Form | None:
        """low + low.e * high as one digit, for digits over two forms; else None.

        The low digit depends on its base modulo `place` only: the bases may differ by multiples.
        """
        assert isinstance(low.base, Form)
        assert low.e is not None
        place = low.s * low.e
        whole = high.base
        if not isinstance(whole, Form) or high.s != place or whole is low.base:
            return None
        gap = whole - low.base
        if not self.divmod_int(gap, place)[1].equals(0):
            return None
        joined = self.read(whole, low.s, high.e and low.e * high.e)
        return joined if len(joined.terms) == 1 or joined is whole else None

    # --------------------------------------------------------------------------------- division

    def read(self, base: Base, s: int, e: int | None) -> Form:
        """floor(base / s) mod e."""
        if not isinstance(base, Form):
            return self._digit(base, s, e)
        if e is None:
            return self.divmod_int(base, s)[0]
        rest = self.divmod_int(base, s * e)[1]
        if len(rest.terms) == 1 and not rest.const:
            digit, coef = rest.terms[0]
            if (digit.s, digit.e, coef) == (1, s * e, 1):
                return self._digit(digit.base, s, e)
        return self.divmod_int(rest, s)[0]

    def divmod_int(self, x: Form, f: int) -> tuple[Form, Form]:
        """(floor(x / f), x mod f) for f >= 1."""
        if f == 1:
            return x, self.const(0)
        pair = x.divisions.get(f)
        if pair is None:
            outermost = self._work == 0
            self._work += 1
            try:
                pair = x.divisions[f] = self._divide(x, f)
            finally:
                if outermost:
                    self._work = 0
        return pair

    def _divide(self, x: Form, f: int) -> tuple[Form, Form]:
        """Try bounds, peeling multiples and cutting digits, steps; else make a new digit."""
        period = period_of(x.lo, x.hi, f)
        if period is not None:
            return self.const(period), x - period * f
        if self._work > _MAX_WORK or len(x.terms) > _MAX_TERMS:
            return self._opaque_divmod(x, f)
        quotient, rest = self._peel(x, f)
        for _ in range(_MAX_ROUNDS):
            period = period_of(rest.lo, rest.hi, f)
            if period is not None:
                return quotient + period, rest - period * f
            more, less = self._peel(rest, f)
            if less is rest:
                break
            quotient, rest = quotient + more, less
        # Cutting digits did not help, so leave them whole: one division instead of several.
        quotient, rest = self._peel(x, f, cut=False)
        q, r = self._divide_whole(rest, f)
        return quotient + q, r

    def _divide_whole(self, x: Form, f: int) -> tuple[Form, Form]:
        """Division in steps: by a divisor of f first, or together with an earlier division."""
        for g in division_steps(x, f):
            high, low = self._peel(x, g)
            period = period_of(low.lo, low.hi, g)
            if period is not None:
                q, r = self.divmod_int(high + period, f // g)
                return q, r * g + (low - period * g)
        for carry, coef in x.terms:
            below = _carried(carry)
            if below is not None and coef == 1:
                # (y // s + more) // f = (y + s * more) // (s * f): one division, not two nested.
                whole = (x - self.interned(0, ((carry, 1),))) * carry.s + below
                q, r = self.divmod_int(whole, carry.s * f)
                return q, self.divmod_int(r, carry.s)[0]
        q, r = self._opaque_divmod(x, f)
        wide = self._widened(x, f)
        return q, r if wide is x else self.divmod_int(wide, f)[1]

    def _widened(self, x: Form, f: int) -> Form:
        """A simpler form congruent to x modulo f: digits without a mod that makes no difference."""
        const, terms = x.const, dict[Digit, int]()
        for digit, coef in x.terms:
            if digit.e is not None and digit.base.lo is not None and coef * digit.e % f == 0:
                const += add_into(terms, self.read(digit.base, digit.s, None), coef)
            else:
                terms[digit] = terms.get(digit, 0) + coef
        return x if const == x.const and terms == dict(x.terms) else self.normal(const, terms)

    def _peel(self, x: Form, f: int, *, cut: bool = True) -> tuple[Form, Form]:
        """(q, r) with x = q * f + r, term by term; r may lie outside [0, f)."""
        quotient: dict[Digit, int] = {}
        rest: dict[Digit, int] = {}
        q_const, r_const = divmod(x.const, f)
        for digit, coef in x.terms:
            # Keep the sign of the remainder: -1 has a smaller range than f - 1.
            times = coef // f if coef >= 0 else -(-coef // f)
            if times:
                quotient[digit] = quotient.get(digit, 0) + times
                coef -= times * f
                if not coef:
                    continue
            t, inexact = divmod(f, abs(coef))
            if inexact or not cut or not can_cut(digit, t):
                rest[digit] = rest.get(digit, 0) + coef
                continue
            high = self.read(digit.base, digit.s * t, digit.e and digit.e // t)
            low = self.read(digit.base, digit.s, t)
            q_const += add_into(quotient, high, coef * t // f)
            r_const += add_into(rest, low, coef)
        if not quotient and not q_const:
            return self.const(0), x
        return self.normal(q_const, quotient), self.normal(r_const, rest)

    def _opaque_divmod(self, x: Form, f: int) -> tuple[Form, Form]:
        """No rule applies: digits over x, shifted by periods so that it is not negative."""
        shift = 0 if x.lo is None else min(0, x.lo // f)
        base = x - shift * f
        return self._digit(base, f, None) + shift, self._digit(base, 1, f)

    def _digit(self, base: Base, s: int, e: int | None) -> Form:
        """floor(base / s) mod e, simplified by bounds alone."""
        key = (base.ordinal, s, e)
        form = self._digits.get(key)
        if form is None:
            form = self._digits[key] = self._new_digit(base, s, e)
        return form

    def _new_digit(self, base: Base, s: int, e: int | None) -> Form:
        if s == 1 and e is None and isinstance(base, Form):
            return base
        lo = None if base.lo is None else base.lo // s
        hi = None if base.hi is None else base.hi // s
        if lo is not None and lo == hi:
            return self.const(lo if e is None else lo % e)
        if e is not None:
            period = period_of(lo, hi, e)
            if period is not None:
                return self._digit(base, s, None) - period * e
            lo, hi = 0, e - 1
        return self.interned(0, ((Digit(base, s, e, lo, hi, self._next()), 1),))

    # ------------------------------------------------------------------------ products, symbols

    def product(self, x: Form, y: Form) -> Form:
        """x * y of two forms that are not constant, expanded into a sum of products.

        The known multiple of a variable becomes a coefficient of every product that contains it.
        """
        terms, const = dict[Digit, int](), 0
        for p, j in monomials(x):
            for q, k in monomials(y):
                factors = sorted((*p, *q), key=lambda factor: factor.ordinal)
                const += add_into(terms, self._monomial(factors), j * k)
        return self.normal(const, terms)

    def _monomial(self, factors: list[Form]) -> Form:
        """The product of single digits."""
        if len(factors) < 2:
            return factors[0] if factors else self.const(1)
        return self._digit(self._opaque("*", tuple(factors)), 1, None)

    def larger(self, x: Form, y: Form) -> Form:
        """max(x, y): the operand that bounds prove to be larger, else opaque."""
        candidates: dict[int, Form] = {}
        for form in (*operands_of_max(x), *operands_of_max(y)):
            if not any(provable(other - form, 0, None) for other in candidates.values()):
                kept = (c for c in candidates.values() if not provable(form - c, 0, None))
                candidates = {c.ordinal: c for c in (*kept, form)}
        found = sorted(candidates.values(), key=lambda form: form.ordinal)
        if len(found) == 1:
            return found[0]
        return self._digit(self._opaque("max", tuple(found)), 1, None)

    def divmod_form(self, x: Form, d: Form) -> tuple[Form, Form]:
        """Division by a symbol: peel multiples of d; the rest is provably below d, or opaque."""
        quotient, rest = long_division(x, d)
        if provable(rest, 0, None) and provable(d - rest, 1, None):
            return quotient, rest
        common = gcd(content(rest), content(d))
        rest, d = over(rest, common), over(d, common)
        if is_remainder_by(rest, d):
            return quotient, rest * common
        high = self._digit(self._opaque("//", (rest, d)), 1, None)
        low = self._opaque("%", (rest, d))
        low.whole = high * d
        return quotient + high, self._digit(low, 1, None) * common

    def _opaque(self, op: Operation, operands: tuple[Form, ...]) -> Opaque:
        key = (op, tuple(x.ordinal for x in operands))
        opaque = self._opaques.get(key)
        if opaque is None:
            opaque = self._opaques[key] = Opaque(op, operands, self._next())
        return opaque


def _by_ordinal(term: Term) -> int:
    return term[0].ordinal


def _carried(digit: Digit) -> Form | None:
    """y if the digit is floor(y / s) of a form, which a division could not split; else None."""
    return digit.base if digit.e is None and isinstance(digit.base, Form) else None
