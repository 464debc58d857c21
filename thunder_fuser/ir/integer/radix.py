"""Arithmetic on digits and factors: the decisions behind the normal form, without interning."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import gcd

from thunder_fuser.ir.integer.digits import Digit, Opaque, Term
from thunder_fuser.ir.integer.forms import Form


def can_cut(digit: Digit, t: int) -> bool:
    """True if the digit can be split into a higher part and a lower one mod t."""
    if digit.e is not None:
        return digit.e > t and digit.e % t == 0
    return digit.lo is None or digit.hi is None or digit.lo < 0 or digit.hi >= t


def division_steps(x: Form, f: int) -> list[int]:
    """Divisors g of f, largest first, by which x might divide without a carry."""
    found = {gcd(f, coef * digit.e) for digit, coef in x.terms if digit.e is not None}
    g = f
    for size in sorted((abs(coef) for _, coef in x.terms), reverse=True):
        g = gcd(g, size)
        found.add(g)
    return sorted(found - {1, f}, reverse=True)


def mixed_radix(group: list[Term]) -> list[tuple[int, int | None, int]] | None:
    """Digits of one base as (s, e, coef): cut until none overlap, joined where place values fit.

    None if that changes nothing. Only places that divide each other can be digits of one radix.
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


def content(form: Form) -> int:
    """Greatest common divisor of the constant and all coefficients."""
    return gcd(form.const, *(coef for _, coef in form.terms))


def over(form: Form, k: int) -> Form:
    """form / k; k divides the constant and all coefficients."""
    terms = tuple((digit, coef // k) for digit, coef in form.terms)
    return form if k == 1 else form.context.interned(form.const // k, terms)


def factors_of(form: Form) -> tuple[Form, ...]:
    """The factors of a form that is a pure product; else the form itself."""
    return _operands(form, "*")


def operands_of_max(form: Form) -> tuple[Form, ...]:
    """The operands of a form that is a pure maximum; else the form itself."""
    return _operands(form, "max")


def _operands(form: Form, op: str) -> tuple[Form, ...]:
    if len(form.terms) == 1 and not form.const and form.terms[0][1] == 1:
        digit = form.terms[0][0]
        plain = digit.s == 1 and digit.e is None
        if plain and isinstance(digit.base, Opaque) and digit.base.op == op:
            return digit.base.operands
    return (form,)


def without(factors: Sequence[Form], taken: Sequence[Form]) -> list[Form] | None:
    """The factors without those of `taken`; None if some of these are missing."""
    left = list(factors)
    for factor in taken:
        if factor not in left:
            return None
        left.remove(factor)
    return left


def is_remainder_by(form: Form, d: Form) -> bool:
    """True if the form is x % d for some x."""
    if len(form.terms) != 1 or form.const or form.terms[0][1] != 1:
        return False
    digit = form.terms[0][0]
    base = digit.base
    plain = digit.s == 1 and digit.e is None
    return plain and isinstance(base, Opaque) and base.op == "%" and base.operands[1] is d
