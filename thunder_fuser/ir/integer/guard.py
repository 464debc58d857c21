"""Proofs from the bounds of a form, and facts about digits that a guard implies.

Indices of padded and concatenated tensors are used under predicates (`0 <= index < extent`). A
provable predicate is not emitted; an impossible one drops its branch; under one that is neither,
digits of the guard have fewer values than elsewhere, and indices become shorter.
"""

from __future__ import annotations

from typing import NamedTuple

from thunder_fuser.ir.integer.bounds import Bound, Interval, both, sum_bounds
from thunder_fuser.ir.integer.digits import Digit
from thunder_fuser.ir.integer.forms import Form, variables_of
from thunder_fuser.ir.integer.products import is_never_negative


def provable(form: Form, lo: Bound, hi: Bound) -> bool:
    """True if the bounds prove lo <= form <= hi (None: no bound is asked for)."""
    return (lo is None or _is_at_least(form, lo)) and (hi is None or _is_at_least(-form, -hi))


def _is_at_least(form: Form, lo: int) -> bool:
    return is_never_negative(form - lo) if form.lo is None else form.lo >= lo


def impossible(form: Form, lo: Bound, hi: Bound) -> bool:
    """True if the bounds prove that lo <= form <= hi never holds."""
    return (lo is not None and form.hi is not None and form.hi < lo) or (
        hi is not None and form.lo is not None and form.lo > hi
    )


class Restriction(NamedTuple):
    """Facts implied by a guard: (digit, its lowest, its highest value under the guard)."""

    facts: tuple[tuple[Digit, int, int], ...]

    def apply(self, form: Form) -> Form:
        """The form with each digit that has only one value under the guard replaced by it.

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
    """The facts that `lo <= guard <= hi` implies for the digits of the guard.

    An impossible guard implies none: ask `impossible` first.
    """
    bounds: dict[Digit, Interval] = {d: (d.lo, d.hi) for d, _ in guard.terms}
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
            bounds[digit] = both(bounds[digit], (low, high))
        if bounds == before:
            break
    facts = [
        (digit, lo, hi)
        for digit, (lo, hi) in bounds.items()
        if lo is not None and hi is not None and (lo, hi) != (digit.lo, digit.hi)
    ]
    return Restriction(tuple(facts) if all(lo <= hi for _, lo, hi in facts) else ())
