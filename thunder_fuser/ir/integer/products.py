"""Sums of products: their monomials, long division by them, and bounds where terms share factors.

Open sizes multiply, and a plan's counts are sums of such products. Products of sums are expanded,
so that `(n + 1) * m` and `n * m + m` are one form; this module has the consequences: division of
one sum by another, and the proof that `n * m - m` is never negative although its terms are
unbounded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from math import prod
from operator import mul
from typing import TYPE_CHECKING, TypeAlias

from thunder_fuser.ir.integer.bounds import Bound, product_bounds
from thunder_fuser.ir.integer.digits import Digit, Opaque, Term, Variable
from thunder_fuser.ir.integer.forms import Form
from thunder_fuser.ir.integer.radix import factors_of, without

if TYPE_CHECKING:
    from thunder_fuser.ir.integer.symint import Context

Factors: TypeAlias = "tuple[Form, ...]"
"""Factors of a product, each a single digit, in order of creation."""

_MAX_STEPS = 32
"""Step limit of one long division: sums are short."""
_MAX_ROUNDS = 8
"""Limit on the quotients that one proof of non-negativity eliminates."""


def monomials(form: Form) -> Iterator[tuple[Factors, int]]:
    """(factors, coefficient) of each product of a sum, more factors first; the constant has no
    factors and is last.
    """
    found = [(_factors(form.context, digit), coef) for digit, coef in form.terms]
    yield from sorted(found, key=lambda term: order(term[0]))
    if form.const:
        yield (), form.const


def order(factors: Factors) -> tuple[int, list[int]]:
    """Sort key: more factors first, then in order of creation. Multiplication preserves it."""
    return -len(factors), [factor.ordinal for factor in factors]


def long_division(x: Form, d: Form) -> tuple[Form, Form]:
    """(q, r) with x = q * d + r, where no product in r is a multiple of d's leading one."""
    context = x.context
    quotient, kept, rest = context.const(0), context.const(0), x
    lead, unit = next(monomials(d))
    for _ in range(_MAX_STEPS):
        factors, coef = next(monomials(rest), ((), 0))
        if not coef:
            break
        left = without(factors, lead)
        times = 0 if left is None else coef // unit
        if left is not None and times:
            part = reduce(mul, left, context.const(times))
            quotient, rest = quotient + part, rest - part * d
            coef -= times * unit
        if coef:
            # A coefficient below the divisor's remains in the rest.
            small = reduce(mul, factors, context.const(coef))
            kept, rest = kept + small, rest - small
    return quotient, kept + rest


def lower_bound(context: Context, const: int, terms: Sequence[Term]) -> Bound:
    """A lower bound of a sum some of whose negative terms have no bound of their own: these are
    offset by positive terms that are multiples of them. None if there is no such bound.
    """
    products = [(_factors(context, digit), coef) for digit, coef in terms]
    if any(x.lo is None or x.lo < 0 for factors, _ in products for x in factors):
        return None
    return _paid(const, products)


def is_never_negative(form: Form, rounds: int = _MAX_ROUNDS) -> bool:
    """True if a form is provably at least 0, with quotients bounded by their dividends where the
    form's own bounds do not suffice.

    d * (x // d) is in x - d + 1 .. x, which bounds d times the form; as the form is an integer,
    that only has to be above -d.
    """
    if form.lo is not None or not rounds:
        return form.lo is not None and form.lo >= 0
    products = list(monomials(form))
    if any(x.lo is None or x.lo < 0 for factors, _ in products for x in factors):
        return False
    for quotient in {x: None for factors, _ in products for x in factors}:
        found = _division(quotient)
        if found is None or found[1].lo is None or found[1].lo < 1:
            continue
        dividend, divisor = found
        total = divisor - 1
        for factors, coef in products:
            left = without(factors, (quotient,))
            if left is None:
                total += reduce(mul, factors, divisor * coef)
            else:
                times = dividend - (divisor - 1 if coef > 0 else 0)
                total += reduce(mul, left, times * coef)
        return is_never_negative(total, rounds - 1)
    return False


def _paid(const: int, products: Sequence[tuple[Factors, int]]) -> Bound:
    """The lower bound obtained by offsetting negative terms with positive ones."""
    supply = {factors: coef for factors, coef in products if coef > 0}
    owed = sorted(((f, -coef) for f, coef in products if coef < 0), key=lambda x: order(x[0]))
    total = const
    for factors, coef in owed:
        most = product_bounds((x.lo, x.hi) for x in factors)[1]
        for other in sorted(supply, key=order) if most is None else ():
            left = without(other, factors)
            gain = 0 if left is None else _least(left)
            if gain:
                paid = min(supply[other], -(-coef // gain))
                supply[other] -= paid
                coef -= paid * gain
        if coef > 0 and most is None:
            return None
        total -= coef * (_least(factors) if most is None else most)
    return total + sum(coef * _least(factors) for factors, coef in supply.items())


def _least(factors: Sequence[Form]) -> int:
    return prod(x.lo or 0 for x in factors)


def _division(form: Form) -> tuple[Form, Form] | None:
    """(x, d) if the form is x // d, else None."""
    if form.const or len(form.terms) != 1 or form.terms[0][1] != 1:
        return None
    digit = form.terms[0][0]
    if digit.e is not None:
        return None
    base = digit.base
    if isinstance(base, Opaque) and base.op == "//" and digit.s == 1:
        return base.operands[0], base.operands[1]
    if digit.s == 1 or (isinstance(base, Variable) and digit.s == base.multiple):
        return None
    whole = base if isinstance(base, Form) else form.context.read(base, 1, None)
    return whole, form.context.const(digit.s)


def _factors(context: Context, digit: Digit) -> Factors:
    return factors_of(context.interned(0, ((digit, 1),)))
