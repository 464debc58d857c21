"""Count: an int that carries its formula, so that results computed from sizes carry one, too.

A fusion of open sizes is planned for representative sizes like any other fusion. The sizes are
Counts, and so is every byte count that results: its value is for the representative sizes, and its
formula, a form of the sizes i0, i1, ..., holds for others (the idea of torch.SymInt with its hint).
The outcome of a comparison on the way to a count is a condition of the formula; `conditions()`
collects those that are not always true. Comparisons of plans are no such conditions, since another
plan has another formula: they compare the `int` of a count.
"""

from __future__ import annotations

import contextvars
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from typing import Any, Literal, cast

from thunder_fuser.errors import FuserValueError
from thunder_fuser.ir.integer.forms import larger, plain_variable
from thunder_fuser.ir.integer.products import long_division
from thunder_fuser.ir.integer.symint import Context, Form, provable

SMALLEST = 2
"""Least size for which formulas hold: 0 leaves nothing to do, and 1 may broadcast."""


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition on sizes: `formula` >= 0, or == 0."""

    formula: Form
    relation: Literal[">=", "=="]

    def holds(self, sizes: Mapping[str, int]) -> bool:
        value = self.formula.evaluate(sizes)
        return value >= 0 if self.relation == ">=" else value == 0

    def __str__(self) -> str:
        form = self.formula
        terms = tuple(term for term in form.terms if term[1] > 0)
        left = form.context.interned(max(form.const, 0), terms)
        return f"{left:,} {self.relation} {left - form:,}"


_collected: contextvars.ContextVar[dict[Condition, None] | None] = contextvars.ContextVar(
    "conditions", default=None
)


@contextmanager
def conditions() -> Iterator[dict[Condition, None]]:
    """Collect, in order, the conditions of the formulas computed in the `with` block."""
    found: dict[Condition, None] = {}
    token = _collected.set(found)
    try:
        yield found
    finally:
        _collected.reset(token)


def without_implied(found: Iterable[Condition]) -> tuple[Condition, ...]:
    """The conditions without those that follow from lower bounds of single sizes."""
    conditions = list(found)
    lowest: dict[Form, int] = {}
    for condition in conditions:
        size = _size_of_bound(condition)
        if size is not None:
            lowest[size] = max(lowest.get(size, 0), -condition.formula.const)
    bounds = [Condition(size - least, ">=") for size, least in lowest.items()]
    context = Context()
    known = {plain_variable(size).name: least for size, least in lowest.items()}

    def is_implied(condition: Condition) -> bool:
        names = [v.name for v in condition.formula.variables()]
        sizes = {name: context.var(name, known.get(name, SMALLEST), None) for name in names}
        return condition.relation == ">=" and provable(condition.formula.evaluate(sizes), 0, None)

    others = [c for c in conditions if not is_implied(c)]
    return tuple(dict.fromkeys([*sorted(bounds, key=str), *others]))


def _size_of_bound(condition: Condition) -> Form | None:
    """The size of a condition of the form `size >= constant`; else None."""
    size = condition.formula - condition.formula.const
    try:
        plain_variable(size)
    except FuserValueError:
        return None
    return size if condition.relation == ">=" else None


class NoFormula(Exception):
    """Raised where elements were enumerated one by one: no formula holds for other sizes."""


class Count(int):
    """An int with the formula that gives it for any sizes.

    formula  its value as a form of the sizes
    sizes    the representative sizes, by name
    exact    False for an upper bound: the value depends on data, or has no form
    """

    formula: Form
    sizes: Mapping[str, int]
    exact: bool

    def __add__(self, other: int) -> int:
        return _combined(self, other, operator.add)

    def __sub__(self, other: int) -> int:
        return _combined(self, other, operator.sub)

    def __rsub__(self, other: int) -> int:
        return _combined(other, self, operator.sub)

    def __mul__(self, other: int) -> int:
        return _combined(self, other, operator.mul)

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
            # No condition: a count is the same on both sides of a tie.
            return False
        theirs = formula(other)
        if isinstance(theirs, Form) and theirs.context is not self.formula.context:
            # Of another plan, whose sizes have their names: no condition on either.
            return str(theirs) == str(self.formula)
        _require(self.formula - theirs)
        return True

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __bool__(self) -> bool:
        return self != 0

    __hash__ = int.__hash__

    def __str__(self) -> str:
        return f"{'' if self.exact else 'at most '}{self.formula:,}"

    __repr__ = __str__

    def __format__(self, specification: str) -> str:
        return str(self)


def count(known: Form | int, sizes: Mapping[str, int], *, exact: bool = True) -> int:
    """The Count of a formula at representative sizes; a plain int if it depends on none."""
    if isinstance(known, int) or (known.is_constant and exact):
        return int(known)
    made = Count(known.evaluate(sizes))
    made.formula, made.sizes, made.exact = known, sizes, exact
    return made


def formula(number: int) -> Form | int:
    """The formula of a count; an int where it depends on no size."""
    return number.formula if isinstance(number, Count) else number


def evaluated(number: int, sizes: Mapping[str, int]) -> int:
    """A count evaluated for other sizes than its representative ones."""
    return number.formula.evaluate(sizes) if isinstance(number, Count) else number


def at_most(number: int) -> int:
    """The count marked as an upper bound (`exact` False)."""
    return count(number.formula, number.sizes, exact=False) if isinstance(number, Count) else number


def most(numbers: Iterable[int]) -> int:
    """The maximum; its formula is a maximum of formulas, valid wherever theirs are."""
    found = list(numbers)
    some = next((n for n in found if isinstance(n, Count)), None)
    if some is None:
        return max(found, default=0)
    exact = all(n.exact for n in found if isinstance(n, Count))
    return count(reduce(larger, map(formula, found)), some.sizes, exact=exact)


def listed(number: int) -> int:
    """A plain int, for a number of iterations. Raises NoFormula while conditions are collected:
    other sizes give another number.
    """
    if isinstance(number, Count) and _collected.get() is not None:
        raise NoFormula
    return int(number)


def _known(*numbers: int) -> tuple[Mapping[str, int], bool]:
    """The representative sizes of an operation's operands, and True if all are exact."""
    sizes = [n for n in numbers if isinstance(n, Count)]
    return sizes[0].sizes, all(n.exact for n in sizes)


def _combined(a: int, b: int, operation: Callable[[Any, Any], Form]) -> int:
    if not isinstance(a, int) or not isinstance(b, int):
        return NotImplemented
    sizes, exact = _known(a, b)
    return count(operation(formula(a), formula(b)), sizes, exact=exact)


def _divided(a: int, b: int) -> tuple[int, int]:
    if not isinstance(a, int) or not isinstance(b, int):
        return NotImplemented
    if not int(b):
        raise ZeroDivisionError(f"({a}) divided by 0")
    sizes, exact = _known(a, b)
    dividend, divisor = _lifted(formula(a), formula(b))
    quotient, rest = long_division(dividend, divisor)
    left = rest.evaluate(sizes)
    if _collected.get() is not None and 0 <= left < int(b):
        _assume(rest, 0)
        _assume(divisor - rest, 1)
    else:
        quotient, rest = divmod(dividend, divisor)
    return count(quotient, sizes, exact=exact), count(rest, sizes, exact=exact)


def _lifted(a: Form | int, b: Form | int) -> tuple[Form, Form]:
    """Two formulas, at least one of them a form, as forms."""
    context = a.context if isinstance(a, Form) else cast(Form, b).context
    return context.lift(a), context.lift(b)


def _assume(difference: Form | int, least: int) -> None:
    """Record the condition `difference >= least`, which held at the representative sizes."""
    found = _collected.get()
    if found is None or isinstance(difference, int):
        return
    if not provable(difference, least, None):
        found[Condition(difference - least, ">=")] = None


def _require(difference: Form | int) -> None:
    found = _collected.get()
    if found is not None and isinstance(difference, Form) and difference.terms:
        positive = difference.terms[0][1] > 0
        found[Condition(difference if positive else -difference, "==")] = None
