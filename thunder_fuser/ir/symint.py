"""The integer algebra: one canonical form for every index, extent, stride and predicate.

    value = const + sum of coef * digit        digit = floor(base / s) mod e
    base  = variable | opaque (a product, or a division by a symbol) | form

Every division rounds down, so no rule needs a side condition on signs.  Forms are interned in a
`Context`: two forms of one context are equal iff they are the same object.  That decides whether
two iteration domains are one, whether a predicate can be dropped, whether an access is a vector,
and whether an output is a view.  Equality is never claimed wrongly; it may be missed, rarely.

The name *digit* says how it works.  Splitting an index by 8 and then by 4 reads it in a mixed
radix: `i mod 8`, `floor(i/8) mod 4`, `floor(i/32)` are its digits.  Reshapes, splits and merges
only cut and join digits, so the normal form is a set of digits with place values, and three facts
suffice:

    floor((x + f*y) / f) = floor(x / f) + y                       peel multiples of the divisor
    floor(x / (g*h)) = floor(floor(x / g) / h)                    divide in steps
    x mod (g*h) = g * (floor(x / g) mod h) + x mod g              cut one digit into two, or join

What no fact applies to becomes an opaque digit over the interned remainder.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import gcd
from typing import NamedTuple, TypeAlias

from thunder_fuser.errors import FuserTypeError, FuserValueError
from thunder_fuser.ir.symint_form import (
    Base,
    Bound,
    Digit,
    Form,
    Opaque,
    Operation,
    Term,
    Variable,
    add_into,
    sum_bounds,
    variables_of,
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
"""Divisions that one division may cause, and terms that it looks into.  Beyond them the answer is
an opaque digit: still exact, only less canonical.  Indices of real programs stay far below."""

_Change: TypeAlias = "tuple[list[Digit], list[tuple[Form, int]]]"
"""Digits to take out of a sum, and forms with coefficients to put in their place."""


class Context:
    """Where forms are interned: one per compilation.  Forms of different contexts do not mix."""

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

        The same arguments give the same form; a variable with one possible value is that constant.
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
        """An int as a form; a form of this context as it is."""
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
            form = self._forms[const, terms] = Form(self, const, terms, self._next())
        return form

    def normal(self, const: int, terms: dict[Digit, int]) -> Form:
        """The normal form of const + sum of coef * digit: digits that belong together joined."""
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
                parts = _mixed_radix(group) if len(group) > 1 else None
                if parts is not None:
                    base = group[0][0].base
                    new = [(self._digit(base, s, e), coef) for s, e, coef in parts]
                    return [digit for digit, _ in group], new
        for digit, coef in terms.items():
            base = digit.base
            if isinstance(base, Form):
                for high, k in terms.items():
                    if digit.e is not None and k == coef * digit.e and high.s == digit.s * digit.e:
                        joined = self._joined(digit, high)
                        if joined is not None:
                            return [digit, high], [(joined, coef)]
            elif isinstance(base, Opaque) and base.whole is not None and digit.e is None:
                quotient, unit = base.whole
                if digit.s == 1 and terms.get(quotient) == coef * unit:
                    return [digit, quotient], [(base.operands[0], coef)]
        return None

    def _joined(self, low: Digit, high: Digit) -> Form | None:
        """low + low.e * high as one digit, for digits over two forms.

        The low digit depends on its base modulo high.s only: the bases may differ by its multiples.
        """
        assert isinstance(low.base, Form)
        if not isinstance(high.base, Form) or high.base is low.base or low.e is None:
            return None
        gap = high.base - low.base
        if gap.const % high.s or any(coef % high.s for _, coef in gap.terms):
            return None
        joined = self.read(high.base, low.s, high.e and low.e * high.e)
        return joined if len(joined.terms) == 1 or joined is high.base else None

    # --------------------------------------------------------------------------------- division

    def read(self, form: Form, s: int, e: int | None) -> Form:
        """floor(form / s) mod e."""
        quotient = self.divmod_int(form, s)[0]
        return quotient if e is None else self.divmod_int(quotient, e)[1]

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
        period = _period(x.lo, x.hi, f)
        if period is not None:
            return self.const(period), x - period * f
        if self._work > _MAX_WORK or len(x.terms) > _MAX_TERMS:
            return self._opaque_divmod(x, f)
        quotient, rest = self._peel(x, f)
        if rest is not x:
            q, r = self.divmod_int(rest, f)
            return quotient + q, r
        for g in _steps(x, f):
            high, low = self._peel(x, g)
            period = _period(low.lo, low.hi, g)
            if period is not None:
                q, r = self.divmod_int(high + period, f // g)
                return q, r * g + (low - period * g)
        return self._opaque_divmod(x, f)

    def _peel(self, x: Form, f: int) -> tuple[Form, Form]:
        """(q, r) with x = q * f + r, term by term; r may lie outside [0, f)."""
        quotient: dict[Digit, int] = {}
        rest: dict[Digit, int] = {}
        q_const, r_const = divmod(x.const, f)
        for digit, coef in x.terms:
            # Keep the sign of what remains: -1 has a smaller range than f - 1.
            times = coef // f if coef >= 0 else -(-coef // f)
            if times:
                quotient[digit] = quotient.get(digit, 0) + times
                coef -= times * f
                if not coef:
                    continue
            t, inexact = divmod(f, abs(coef))
            if inexact or not _cuts(digit, t):
                rest[digit] = rest.get(digit, 0) + coef
                continue
            high = self._part(digit.base, digit.s * t, digit.e and digit.e // t)
            low = self._part(digit.base, digit.s, t)
            q_const += add_into(quotient, high, coef * t // f)
            r_const += add_into(rest, low, coef)
        if not quotient and not q_const:
            return self.const(0), x
        return self.normal(q_const, quotient), self.normal(r_const, rest)

    def _part(self, base: Base, s: int, e: int | None) -> Form:
        """floor(base / s) mod e, a part of a digit of `base`."""
        if not isinstance(base, Form):
            return self._digit(base, s, e)
        if e is None or s == 1:
            return self.read(base, s, e)
        reduced = self._peel(base, s * e)[1]
        if reduced is not base:
            return self.read(reduced, s, e)
        quotient = self.divmod_int(base, s)[0]
        if quotient is self._digit(base, s, None):
            return self._digit(base, s, e)
        return self.divmod_int(quotient, e)[1]

    def _opaque_divmod(self, x: Form, f: int) -> tuple[Form, Form]:
        """No rule applies: digits over x itself, moved by periods so that x does not go below 0."""
        shift = 0 if x.lo is None else x.lo // f
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
            period = _period(lo, hi, e)
            if period is not None:
                return self._digit(base, s, None) - period * e
            lo, hi = 0, e - 1
        return self.interned(0, ((Digit(base, s, e, lo, hi, self._next()), 1),))

    # ------------------------------------------------------------------------ products, symbols

    def apply(self, op: Operation, operands: Sequence[Form]) -> Form:
        """The product of all operands, or the quotient or remainder of two."""
        if op != "*":
            return divmod(operands[0], operands[1])[op == "%"]
        product = operands[0]
        for x in operands[1:]:
            product *= x
        return product

    def product(self, x: Form, y: Form) -> Form:
        """x * y of two forms that are not constant: integer factors outside, one opaque product.

        So the known multiple of a variable is a coefficient of every product that it enters.
        """
        kx, px = _primitive(x)
        ky, py = _primitive(y)
        factors = sorted((*_factors(px), *_factors(py)), key=lambda factor: factor.ordinal)
        return self._digit(self._opaque("*", tuple(factors)), 1, None) * (kx * ky)

    def divmod_form(self, x: Form, d: Form) -> tuple[Form, Form]:
        """Division by a symbol: peel the multiples of d; the rest is below d or stays opaque."""
        unit, divisor = _primitive(d)
        quotient, rest = self.const(0), self.const(x.const)
        for digit, coef in x.terms:
            left = _without(_factors(self.interned(0, ((digit, 1),))), _factors(divisor))
            if left is None or coef % unit:
                rest += self.interned(0, ((digit, coef),))
            else:
                quotient += self.apply("*", [self.const(coef // unit), *left])
        lead, coef = d.terms[0]
        times, inexact = divmod(dict(rest.terms).get(lead, 0), coef)
        if times and not inexact:
            less = rest - d * times
            if len(less.terms) <= len(rest.terms) - len(d.terms):
                quotient, rest = quotient + times, less
        below = 0 if d.lo is None else max(d.lo - 1, 0)
        if provable(rest, 0, below):
            return quotient, rest
        common = gcd(_content(rest), _content(d))
        rest, d = _over(rest, common), _over(d, common)
        if _is_remainder_by(rest, d):
            return quotient, rest * common
        high = self._digit(self._opaque("//", (rest, d)), 1, None)
        low = self._opaque("%", (rest, d))
        whole = high * d
        if len(whole.terms) == 1 and not whole.const:
            low.whole = whole.terms[0]
        return quotient + high, self._digit(low, 1, None) * common

    def _opaque(self, op: Operation, operands: tuple[Form, ...]) -> Opaque:
        key = (op, tuple(x.ordinal for x in operands))
        opaque = self._opaques.get(key)
        if opaque is None:
            opaque = self._opaques[key] = Opaque(op, operands, self._next())
        return opaque


# ------------------------------------------------------------------------------------- knowledge


def provable(form: Form, lo: Bound, hi: Bound) -> bool:
    """Whether the bounds show lo <= form <= hi (None: no bound is asked for)."""
    return (lo is None or (form.lo is not None and form.lo >= lo)) and (
        hi is None or (form.hi is not None and form.hi <= hi)
    )


def impossible(form: Form, lo: Bound, hi: Bound) -> bool:
    """Whether the bounds show that lo <= form <= hi never holds."""
    return (lo is not None and form.hi is not None and form.hi < lo) or (
        hi is not None and form.lo is not None and form.lo > hi
    )


class Restriction(NamedTuple):
    """What is known where a guard holds: (digit, its lowest, its highest value there)."""

    facts: tuple[tuple[Digit, int, int], ...]

    def apply(self, form: Form) -> Form:
        """The form, each digit that has only one value under the guard replaced by it.

        A later substitution or division can cut new digits: apply to final forms.
        """
        known = {v.ordinal for digit, _, _ in self.facts for v in variables_of(digit.base)}
        if not known:
            return form

        def value(digit: Digit) -> Form | None:
            for fact, lo, hi in self.facts:
                if digit.base is fact.base and not digit.s % fact.s:
                    t = digit.s // fact.s
                    # A part of the known digit, if it ends no later than that one.
                    part = fact.e is None or (digit.e is not None and not fact.e % (t * digit.e))
                    if part and lo // t == hi // t:
                        return form.context.const(lo // t if digit.e is None else lo // t % digit.e)
            return None

        return form.rewrite(value, lambda part: any(v.ordinal in known for v in part.variables()))


def restrict(guard: Form, lo: Bound, hi: Bound) -> Restriction:
    """What `lo <= guard <= hi` says about the digits of the guard.

    A guard that cannot hold says nothing: ask `impossible` first.
    """
    bounds: dict[Digit, tuple[Bound, Bound]] = {d: (d.lo, d.hi) for d, _ in guard.terms}
    for _ in guard.terms:  # a narrowed digit can narrow the others
        before = dict(bounds)
        for digit, coef in guard.terms:
            others = [(bounds[d], k) for d, k in guard.terms if d is not digit]
            rest_lo, rest_hi = sum_bounds(guard.const, others)
            least = None if lo is None or rest_hi is None else lo - rest_hi
            most = None if hi is None or rest_lo is None else hi - rest_lo
            if coef < 0:
                least, most = most and -most, least and -least
            low = None if least is None else -(-least // abs(coef))
            high = None if most is None else most // abs(coef)
            bounds[digit] = _tighter(bounds[digit], (low, high))
        if bounds == before:
            break
    facts = [
        (digit, lo, hi)
        for digit, (lo, hi) in bounds.items()
        if lo is not None and hi is not None and (lo, hi) != (digit.lo, digit.hi)
    ]
    return Restriction(tuple(facts) if all(lo <= hi for _, lo, hi in facts) else ())


def _tighter(a: tuple[Bound, Bound], b: tuple[Bound, Bound]) -> tuple[Bound, Bound]:
    lows = [x for x in (a[0], b[0]) if x is not None]
    highs = [x for x in (a[1], b[1]) if x is not None]
    return max(lows, default=None), min(highs, default=None)


# ---------------------------------------------------------------------------------------- digits


def _by_ordinal(term: Term) -> int:
    return term[0].ordinal


def _period(lo: Bound, hi: Bound, f: int) -> int | None:
    """p where p*f <= lo and hi < (p+1)*f: floor(x / f) is p over all of [lo, hi]."""
    if lo is None or hi is None:
        return None
    period = lo // f
    return period if hi < (period + 1) * f else None


def _cuts(digit: Digit, t: int) -> bool:
    """Whether the digit is one of a higher and a lower part, the lower one mod t."""
    if digit.e is not None:
        return digit.e > t and digit.e % t == 0
    return digit.lo is None or digit.hi is None or digit.lo < 0 or digit.hi >= t


def _steps(x: Form, f: int) -> list[int]:
    """Divisors g of f, largest first, by which x might divide without a rest to carry."""
    found = {gcd(f, coef * digit.e) for digit, coef in x.terms if digit.e is not None}
    g = f
    for size in sorted((abs(coef) for _, coef in x.terms), reverse=True):
        g = gcd(g, size)
        found.add(g)
    return sorted(found - {1, f}, reverse=True)


def _mixed_radix(group: list[Term]) -> list[tuple[int, int | None, int]] | None:
    """Digits of one base as (s, e, coef): cut so that none overlap, joined where place values fit.

    None if that changes nothing.  Only places that divide each other can be digits of one radix.
    """
    group = sorted(group, key=lambda term: (term[0].s, term[0].e or 0))
    if all(
        a.e is not None and a.s * a.e <= b.s and not (a.s * a.e == b.s and j * a.e == k)
        for (a, j), (b, k) in pairwise(group)
    ):
        return None
    chains: list[tuple[list[int], list[Term]]] = []
    for digit, coef in group:
        own = [digit.s] if digit.e is None else [digit.s, digit.s * digit.e]
        for places, members in chains:
            both = sorted({*places, *own})
            if all(high % low == 0 for low, high in pairwise(both)):
                places[:] = both
                members.append((digit, coef))
                break
        else:
            chains.append((own, [(digit, coef)]))
    parts = [part for places, members in chains for part in _chain(places, members)]
    same = sorted((d.s, d.e or 0, k) for d, k in group) == sorted(
        (s, e or 0, k) for s, e, k in parts
    )
    return None if same else parts


def _chain(places: list[int], members: list[Term]) -> list[tuple[int, int | None, int]]:
    parts: list[tuple[int, int | None, int]] = []
    end: int | None = None
    for s, top in zip(places, [*places[1:], None], strict=True):
        coef = sum(
            k * (s // d.s) for d, k in members if d.s <= s and (d.e is None or s < d.s * d.e)
        )
        if parts and end == s and coef == parts[-1][2] * (s // parts[-1][0]):
            s, _, coef = parts.pop()
        if coef:
            parts.append((s, None if top is None else top // s, coef))
            end = top
    return parts


# -------------------------------------------------------------------------------------- factors


def _content(form: Form) -> int:
    return gcd(form.const, *(coef for _, coef in form.terms))


def _over(form: Form, k: int) -> Form:
    """form / k where k divides the constant and all coefficients."""
    terms = tuple((digit, coef // k) for digit, coef in form.terms)
    return form if k == 1 else form.context.interned(form.const // k, terms)


def _primitive(form: Form) -> tuple[int, Form]:
    """(k, form / k), the quotient without integer factors and with a positive first term."""
    k = _content(form) if form.terms[0][1] > 0 else -_content(form)
    return k, _over(form, k)


def _factors(form: Form) -> tuple[Form, ...]:
    """The factors of a primitive form: those of a plain product, else itself."""
    if len(form.terms) == 1 and not form.const:
        digit = form.terms[0][0]
        plain = digit.s == 1 and digit.e is None
        if plain and isinstance(digit.base, Opaque) and digit.base.op == "*":
            return digit.base.operands
    return (form,)


def _without(factors: Sequence[Form], taken: Sequence[Form]) -> list[Form] | None:
    """The factors that are left after taking those away; None if they are not all there."""
    left = list(factors)
    for factor in taken:
        if factor not in left:
            return None
        left.remove(factor)
    return left


def _is_remainder_by(form: Form, d: Form) -> bool:
    if len(form.terms) != 1 or form.const or form.terms[0][1] != 1:
        return False
    digit = form.terms[0][0]
    base = digit.base
    plain = digit.s == 1 and digit.e is None
    return plain and isinstance(base, Opaque) and base.op == "%" and base.operands[1] is d
