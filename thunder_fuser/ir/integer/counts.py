"""Count: an int that knows its formula, so that what is computed from sizes has one, too.

A fusion whose sizes are open is planned for representative sizes, as any other. These are Counts,
and every byte count that comes out is one: its value is that of the representative sizes, its
formula holds for others (torch.SymInt with its hint is the same idea). What a comparison decides on
the way to a count is a condition of the formula; `conditions()` collects those that are not always
true. What decides between plans is no such condition: another plan is another formula.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from thunder_fuser.ir.integer.polynomial import (
    Atom,
    Floor,
    Largest,
    Polynomial,
    is_at_least,
    largest,
    polynomial,
)


@dataclass(frozen=True, slots=True)
class Condition:
    """`formula` is at least 0, or 0."""

    formula: Polynomial
    relation: Literal[">=", "=="]

    def holds(self, sizes: Mapping[str, int]) -> bool:
        value = self.formula.at(sizes)
        return value >= 0 if self.relation == ">=" else value == 0

    def __str__(self) -> str:
        left = Polynomial(tuple(t for t in self.formula.terms if t[1] > 0))
        return f"{left} {self.relation} {left - self.formula}"


_collected: contextvars.ContextVar[dict[Condition, None] | None] = contextvars.ContextVar(
    "conditions", default=None
)


@contextmanager
def conditions() -> Iterator[dict[Condition, None]]:
    """Conditions of the formulas of all that is computed from now on, in order."""
    found: dict[Condition, None] = {}
    token = _collected.set(found)
    try:
        yield found
    finally:
        _collected.reset(token)


def without_implied(found: Iterable[Condition]) -> tuple[Condition, ...]:
    """The conditions that do not follow from those on a single size."""
    lowest: dict[str, int] = {}
    for condition in found:
        match condition.formula.terms:
            case (((str(name),), 1), ((), least)) if condition.relation == ">=":
                lowest[name] = max(lowest.get(name, 0), -least)
    bounds = [Condition(polynomial(n) - polynomial(k), ">=") for n, k in lowest.items()]
    others = [c for c in found if c.relation == "==" or not is_at_least(c.formula, 0, lowest)]
    return tuple(dict.fromkeys([*sorted(bounds, key=str), *others]))


class NoFormula(Exception):
    """What is being counted was listed one by one: for other sizes the list is another."""


class Count(int):
    """formula  its value for any sizes
    sizes    the representative ones, by name
    exact    an upper bound where it is not: data decide, or no polynomial says it
    """

    formula: Polynomial
    sizes: Mapping[str, int]
    exact: bool

    def __add__(self, other: int) -> int:
        return _combined(self, other, Polynomial.__add__)

    def __sub__(self, other: int) -> int:
        return _combined(self, other, Polynomial.__sub__)

    def __rsub__(self, other: int) -> int:
        return _combined(other, self, Polynomial.__sub__)

    def __mul__(self, other: int) -> int:
        return _combined(self, other, Polynomial.__mul__)

    __radd__, __rmul__ = __add__, __mul__

    def __neg__(self) -> int:
        return 0 - self

    def __divmod__(self, other: int) -> tuple[int, int]:
        return _divided(self, other)

    def __rdivmod__(self, other: int) -> tuple[int, int]:
        return _divided(other, self)

    def __floordiv__(self, other: int) -> int:
        return _divided(self, other)[0]

    def __rfloordiv__(self, other: int) -> int:
        return _divided(other, self)[0]

    def __mod__(self, other: int) -> int:
        return _divided(self, other)[1]

    def __rmod__(self, other: int) -> int:
        return _divided(other, self)[1]

    def __lt__(self, other: int) -> bool:
        return not self >= other

    def __ge__(self, other: int) -> bool:
        result = int(self) >= int(other)
        difference = formula(self) - formula(other)
        _assume(difference if result else -difference, 0 if result else 1)
        return result

    def __gt__(self, other: int) -> bool:
        return not self <= other

    def __le__(self, other: int) -> bool:
        result = int(self) <= int(other)
        difference = formula(other) - formula(self)
        _assume(difference if result else -difference, 0 if result else 1)
        return result

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, int) or int(self) != int(other):
            # A count is the same from both sides of a tie.
            return False
        _require(formula(self) - formula(other))
        return True

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __bool__(self) -> bool:
        return self != 0

    __hash__ = int.__hash__

    def __str__(self) -> str:
        return f"{'' if self.exact else 'at most '}{self.formula}"

    __repr__ = __str__

    def __format__(self, specification: str) -> str:
        return str(self)


def count(known: Polynomial, sizes: Mapping[str, int], *, exact: bool = True) -> int:
    """A formula's value at representative sizes; a plain int if it depends on none."""
    if known.constant is not None and exact:
        return known.constant
    made = Count(known.at(sizes))
    made.formula, made.sizes, made.exact = known, sizes, exact
    return made


def decided(p: Polynomial, sizes: Mapping[str, int]) -> Polynomial:
    """A formula that says what is the largest of several: what it is at representative sizes."""
    total = Polynomial()
    for monomial, coefficient in p.terms:
        term = polynomial(coefficient)
        for atom in monomial:
            term = term * _decided(atom, sizes)
        total = total + term
    return total


def _decided(atom: Atom, sizes: Mapping[str, int]) -> Polynomial:
    match atom:
        case str():
            return polynomial(atom)
        case Floor(dividend, divisor):
            return decided(dividend, sizes) // decided(divisor, sizes)
        case Largest(of):
            candidates = [decided(q, sizes) for q in of]
            best = max(candidates, key=lambda q: q.at(sizes))
            for other in candidates:
                _assume(best - other, 0)
            return best


def formula(number: int) -> Polynomial:
    """The polynomial that a number of a plan is."""
    return number.formula if isinstance(number, Count) else polynomial(number)


def at_most(number: int) -> int:
    """The same as an upper bound."""
    return count(number.formula, number.sizes, exact=False) if isinstance(number, Count) else number


def most(numbers: Iterable[int]) -> int:
    """The largest; its formula is right wherever theirs are."""
    found = list(numbers)
    some = next((n for n in found if isinstance(n, Count)), None)
    if some is None:
        return max(found, default=0)
    exact = all(n.exact for n in found if isinstance(n, Count))
    return count(largest(map(formula, found)), some.sizes, exact=exact)


def listed(number: int) -> int:
    """A plain int, for something that is done that often. Raises NoFormula where conditions are
    collected: for other sizes it is done more or less often."""
    if isinstance(number, Count) and _collected.get() is not None:
        raise NoFormula
    return int(number)


def _known(*numbers: int) -> tuple[Mapping[str, int], bool]:
    """The representative sizes of an operation's operands, and whether its result is exact."""
    sizes = [n for n in numbers if isinstance(n, Count)]
    return sizes[0].sizes, all(n.exact for n in sizes)


def _combined(a: int, b: int, operation: Callable[[Polynomial, Polynomial], Polynomial]) -> int:
    if not isinstance(a, int) or not isinstance(b, int):
        return NotImplemented
    sizes, exact = _known(a, b)
    return count(operation(formula(a), formula(b)), sizes, exact=exact)


def _divided(a: int, b: int) -> tuple[int, int]:
    if not isinstance(a, int) or not isinstance(b, int):
        return NotImplemented
    sizes, exact = _known(a, b)
    dividend, divisor = formula(a), formula(b)
    quotient, rest = divmod(dividend, divisor)
    left = rest.at(sizes)
    if _collected.get() is not None and 0 <= left < int(b):
        _assume(rest, 0)
        _assume(divisor - rest, 1)
    else:
        quotient = dividend // divisor
        rest = dividend - quotient * divisor
    return count(quotient, sizes, exact=exact), count(rest, sizes, exact=exact)


def _assume(difference: Polynomial, least: int) -> None:
    """A difference is at least `least` at the representative sizes, and was used so."""
    found = _collected.get()
    if found is not None and not is_at_least(difference, least):
        found[Condition(difference - polynomial(least), ">=")] = None


def _require(difference: Polynomial) -> None:
    found = _collected.get()
    if found is not None and difference.terms:
        positive = difference.terms[0][1] > 0
        found[Condition(difference if positive else -difference, "==")] = None
