"""Polynomials with integer coefficients in named sizes: what a plan's bytes are made of.

    4*i0*i1 + 4*i1                 terms of higher degree first, names in order

Sums and products of sizes are polynomials; what else a plan asks for enters as an atom that is
multiplied like a name: a quotient that does not divide, rounded down, and the largest of several.
So every number has exactly one formula, and it can be evaluated anywhere. Index arithmetic has a
richer algebra (`symint.py`); counts need none of its digits, but their products written out.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeAlias

from thunder_fuser.errors import FuserValueError

SMALLEST = 2
"""Formulas hold for sizes of at least this: 0 leaves nothing to do, and 1 may broadcast."""

_ROUNDS = 8


@dataclass(frozen=True, slots=True)
class Floor:
    """The quotient of two polynomials, rounded down."""

    dividend: Polynomial
    divisor: Polynomial

    def __str__(self) -> str:
        return f"{_grouped(self.dividend)}//{_grouped(self.divisor)}"


@dataclass(frozen=True, slots=True)
class Largest:
    """The largest of several polynomials."""

    of: tuple[Polynomial, ...]

    def __str__(self) -> str:
        return f"max({', '.join(map(str, self.of))})"


Atom: TypeAlias = "str | Floor | Largest"
Monomial: TypeAlias = "tuple[Atom, ...]"
"""A product, its factors in order."""


@dataclass(frozen=True, slots=True)
class Polynomial:
    """A sum of coefficient * monomial; equal polynomials are equal values."""

    terms: tuple[tuple[Monomial, int], ...] = ()

    @property
    def constant(self) -> int | None:
        """The number that it is, if it depends on no size."""
        if not self.terms:
            return 0
        (monomial, coefficient), *others = self.terms
        return coefficient if not monomial and not others else None

    def names(self) -> tuple[str, ...]:
        """The sizes that it depends on."""
        found: dict[str, None] = {}
        for atom in (atom for monomial, _ in self.terms for atom in monomial):
            inner: tuple[Polynomial, ...] = ()
            match atom:
                case str():
                    found[atom] = None
                case Floor(dividend, divisor):
                    inner = (dividend, divisor)
                case Largest(of):
                    inner = of
            found.update(dict.fromkeys(name for p in inner for name in p.names()))
        return tuple(sorted(found, key=_order))

    def at(self, sizes: Mapping[str, int]) -> int:
        """Its value; FuserValueError where a size is missing."""
        missing = [name for name in self.names() if name not in sizes]
        if missing:
            raise FuserValueError(
                f"{self} needs the size {missing[0]}; got {', '.join(sizes) or 'no size'}"
            )
        return sum(c * math.prod(_value(a, sizes) for a in m) for m, c in self.terms)

    def replaced(self, values: Mapping[str, Polynomial]) -> Polynomial:
        """With polynomials for some of the sizes."""
        total = Polynomial()
        for monomial, coefficient in self.terms:
            term = polynomial(coefficient)
            for atom in monomial:
                term = term * _replaced(atom, values)
            total = total + term
        return total

    def __add__(self, other: Polynomial) -> Polynomial:
        total = Counter(dict(self.terms))
        total.update(dict(other.terms))
        return _canonical(total)

    def __mul__(self, other: Polynomial) -> Polynomial:
        total: Counter[Monomial] = Counter()
        for m, c in self.terms:
            for n, d in other.terms:
                total[tuple(sorted((*m, *n), key=_order))] += c * d
        return _canonical(total)

    def __neg__(self) -> Polynomial:
        return self * polynomial(-1)

    def __sub__(self, other: Polynomial) -> Polynomial:
        return self + -other

    def __divmod__(self, other: Polynomial) -> tuple[Polynomial, Polynomial]:
        """(q, r) with self = q * other + r, nothing in r being a multiple of other's first term."""
        if not other.terms:
            raise ZeroDivisionError(f"({self}) divided by 0")
        lead, unit = other.terms[0]
        quotient, kept, rest = Polynomial(), Polynomial(), self
        while rest.terms:
            monomial, coefficient = rest.terms[0]
            left = _without(monomial, lead)
            times = coefficient // unit if left is not None else 0
            if left is None or not times:
                first = Polynomial(rest.terms[:1])
                kept, rest = kept + first, rest - first
                continue
            part = Polynomial(((left, times),))
            quotient, rest = quotient + part, rest - part * other
            if rest.terms and rest.terms[0][0] == monomial:
                # What is left of this term is less than a multiple.
                first = Polynomial(rest.terms[:1])
                kept, rest = kept + first, rest - first
        return quotient, kept

    def __floordiv__(self, other: Polynomial) -> Polynomial:
        if not other.terms:
            # No definition divides by 0 where it means something; any number will do.
            return other
        quotient, rest = divmod(self, other)
        if not rest.terms:
            return quotient
        if rest.constant is not None and other.constant is not None:
            return quotient + polynomial(rest.constant // other.constant)
        return quotient + Polynomial((((Floor(rest, other),), 1),))

    def __str__(self) -> str:
        if not self.terms:
            return "0"
        text = "".join(_term(m, c) for m, c in self.terms)
        return text[3:] if text.startswith(" + ") else f"-{text[3:]}"

    __repr__ = __str__


def polynomial(value: int | str) -> Polynomial:
    """A number, or the size of that name."""
    if isinstance(value, str):
        return Polynomial((((value,), 1),))
    return Polynomial((((), int(value)),)) if value else Polynomial()


def largest(
    candidates: Iterable[Polynomial], lowest: Mapping[str, int] = MappingProxyType({})
) -> Polynomial:
    """The largest of some polynomials, without those that others are never below for sizes that are
    at least as `lowest` says, or SMALLEST.
    """
    found: list[Polynomial] = []
    for p in dict.fromkeys(candidates):
        if any(is_at_least(q - p, 0, lowest) for q in found):
            continue
        found = [q for q in found if not is_at_least(p - q, 0, lowest)] + [p]
    return found[0] if len(found) == 1 else Polynomial((((Largest(tuple(found)),), 1),))


def is_at_least(
    p: Polynomial, least: int, lowest: Mapping[str, int] = MappingProxyType({})
) -> bool:
    """Whether `p` is provably never below a number, sizes being as small as `lowest` says, or
    SMALLEST. A negative term is paid by positive ones that are multiples of it.
    """
    p = p - polynomial(least)
    for _ in range(_ROUNDS):
        quotient = next((a for m, _ in p.terms for a in m if isinstance(a, Floor)), None)
        if quotient is None:
            break
        p = _below(p, quotient)
    atoms = {a for m, _ in p.terms for a in m if isinstance(a, Largest)}
    if any(not any(is_at_least(q, 0, lowest) for q in a.of) for a in atoms):
        return False

    def product(atoms: Monomial) -> int:
        return math.prod(lowest.get(a, SMALLEST) if isinstance(a, str) else 0 for a in atoms)

    supply = {m: c for m, c in p.terms if c > 0}
    total = 0
    for monomial, coefficient in ((m, -c) for m, c in p.terms if c < 0):
        for other in supply if monomial else ():
            left = _without(other, monomial)
            gain = None if left is None else product(left)
            if gain:
                paid = min(supply[other], -(-coefficient // gain))
                supply[other] -= paid
                coefficient -= paid * gain
        if coefficient > 0 and monomial:
            return False
        total -= coefficient * product(monomial)
    return total + sum(c * product(m) for m, c in supply.items()) >= 0


def _below(p: Polynomial, quotient: Floor) -> Polynomial:
    """Something that is at least 0 only if `p` is, with one quotient less in each term.

    Divisors are positive and divisor * quotient is in dividend - divisor + 1 .. dividend, which
    bounds divisor * p; as p is an integer, that has only to be above -divisor.
    """
    total = quotient.divisor - polynomial(1)
    for monomial, coefficient in p.terms:
        left = _without(monomial, (quotient,))
        times = quotient.divisor
        if left is not None:
            times = quotient.dividend
            if coefficient > 0:
                times = times - quotient.divisor + polynomial(1)
        kept = monomial if left is None else left
        total = total + Polynomial(((kept, coefficient),)) * times
    return total


def _value(atom: Atom, sizes: Mapping[str, int]) -> int:
    match atom:
        case str():
            return int(sizes[atom])
        case Floor(dividend, divisor):
            by = divisor.at(sizes)
            return dividend.at(sizes) // by if by else 0
        case Largest(of):
            return max(p.at(sizes) for p in of)


def _replaced(atom: Atom, values: Mapping[str, Polynomial]) -> Polynomial:
    match atom:
        case str():
            return values.get(atom, polynomial(atom))
        case Floor(dividend, divisor):
            return dividend.replaced(values) // divisor.replaced(values)
        case Largest(of):
            return largest(p.replaced(values) for p in of)


def _canonical(terms: Mapping[Monomial, int]) -> Polynomial:
    kept = [(m, c) for m, c in terms.items() if c]
    return Polynomial(tuple(sorted(kept, key=lambda t: (-len(t[0]), [_order(a) for a in t[0]]))))


def _order(atom: Atom) -> tuple[int, str]:
    """Shorter names first: i2 before i10."""
    text = str(atom)
    return len(text), text


def _without(monomial: Monomial, factors: Monomial) -> Monomial | None:
    """The other factors of a product; None where `factors` are not among them."""
    left = list(monomial)
    for factor in factors:
        if factor not in left:
            return None
        left.remove(factor)
    return tuple(left)


def _term(monomial: Monomial, coefficient: int) -> str:
    sign, number = ("-" if coefficient < 0 else "+"), abs(coefficient)
    factors = [f"({a})" if isinstance(a, Floor) else str(a) for a in monomial]
    if number != 1 or not factors:
        factors.insert(0, f"{number:,}")
    return f" {sign} {'*'.join(factors)}"


def _grouped(p: Polynomial) -> str:
    return str(p) if len(p.terms) == 1 else f"({p})"
