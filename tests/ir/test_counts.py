"""Sums of products of sizes against Python's integers, and numbers that carry them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thunder_fuser.errors import FuserValueError
from thunder_fuser.ir.integer.counts import (
    SMALLEST,
    Condition,
    Count,
    NoFormula,
    at_most,
    conditions,
    count,
    evaluated,
    listed,
    most,
    without_implied,
)
from thunder_fuser.ir.integer.forms import larger
from thunder_fuser.ir.integer.products import long_division
from thunder_fuser.ir.integer.symint import Context, Form, provable

NAMES = ("i0", "i1", "i2")
HERE = dict(zip(NAMES, (2048, 2304, 2560), strict=True))
CONTEXT = Context()


def size(name: str) -> Form:
    return CONTEXT.var(name, SMALLEST, None)


def leaves() -> st.SearchStrategy[Form]:
    return st.one_of(st.integers(-6, 6).map(CONTEXT.const), st.sampled_from(NAMES).map(size))


def forms() -> st.SearchStrategy[Form]:
    def combined(inner: st.SearchStrategy[Form]) -> st.SearchStrategy[Form]:
        pairs = st.tuples(inner, inner)
        return st.one_of(
            pairs.map(lambda p: p[0] + p[1]),
            pairs.map(lambda p: p[0] - p[1]),
            pairs.map(lambda p: p[0] * p[1]),
            pairs.map(lambda p: larger(*p)),
            st.tuples(inner, st.integers(1, 5)).map(lambda p: p[0] // p[1]),
            st.tuples(inner, st.sampled_from(NAMES)).map(lambda p: p[0] // size(p[1])),
            st.tuples(inner, st.sampled_from(NAMES)).map(lambda p: p[0] % (size(p[1]) + 1)),
        )

    return st.recursive(leaves(), combined, max_leaves=6)


def points() -> st.SearchStrategy[Mapping[str, int]]:
    return st.fixed_dictionaries({name: st.integers(2, 50) for name in NAMES})


@given(forms(), forms(), points())
def test_arithmetic_is_that_of_integers(p: Form, q: Form, at: Mapping[str, int]) -> None:
    assert (p + q).evaluate(at) == p.evaluate(at) + q.evaluate(at)
    assert (p * q).evaluate(at) == p.evaluate(at) * q.evaluate(at)
    assert (p - p).equals(0)
    assert larger(p, q).evaluate(at) == max(p.evaluate(at), q.evaluate(at))
    if provable(q, 1, None):
        assert (p // q).evaluate(at) == p.evaluate(at) // q.evaluate(at)
        assert (p % q).evaluate(at) == p.evaluate(at) % q.evaluate(at)
    if not q.equals(0):
        quotient, rest = long_division(p, q)
        assert (quotient * q + rest).evaluate(at) == p.evaluate(at)


@given(forms(), points())
def test_bounds_are_bounds(p: Form, at: Mapping[str, int]) -> None:
    value = p.evaluate(at)
    assert p.lo is None or p.lo <= value
    assert p.hi is None or value <= p.hi


def sums_of_products() -> st.SearchStrategy[Form]:
    product = st.lists(st.sampled_from(NAMES), max_size=3)
    term = st.tuples(product, st.integers(-6, 6))
    return st.lists(term, min_size=1, max_size=4).map(
        lambda terms: sum(
            (reduce(Form.__mul__, map(size, names), CONTEXT.const(k)) for names, k in terms),
            CONTEXT.const(0),
        )
    )


@given(sums_of_products(), sums_of_products(), sums_of_products())
def test_products_are_written_out_and_divide(p: Form, q: Form, r: Form) -> None:
    assert (p + q) * r is p * r + q * r
    if not q.equals(0):
        assert long_division(p * q, q) == (p, CONTEXT.const(0))


@given(forms(), st.integers(-10, 10), points())
def test_what_is_proven_is_true(p: Form, least: int, at: Mapping[str, int]) -> None:
    if provable(p, least, None):
        assert p.evaluate(at) >= least
    if provable(p, None, least):
        assert p.evaluate(at) <= least


@given(forms(), forms(), points())
def test_forms_are_evaluated_at_forms(p: Form, q: Form, at: Mapping[str, int]) -> None:
    """Of another context, and whatever their bounds."""
    other = Context()
    names = {name: other.var(name, 0, None) for name in NAMES}
    moved = other.lift(q.evaluate(names))
    found = other.lift(p.evaluate({**names, "i1": moved}))
    assert found.evaluate(at) == p.evaluate({**at, "i1": q.evaluate(at)})


def test_proofs() -> None:
    i0, i1 = size("i0"), size("i1")
    assert provable(i0 * i1 - i1, 2, None)
    assert provable(i0 * i1 - i0 // 2, 0, None)
    assert provable(i0 // 2, 1, None)
    assert provable((i0 * i1 - 1) // i1, 1, None)
    assert provable(i0 * i1 - i0 // i1, 0, None)
    assert not provable(i0 - i1, 0, None)
    assert not provable(i0, 3, None)
    assert provable(CONTEXT.var("i9", 3, None), 3, None)


def test_remainders_by_sums() -> None:
    i0, i1 = size("i0"), size("i1")
    assert i0 // (i1 + 1) * (i1 + 1) + i0 % (i1 + 1) is i0
    assert (i0 * (i1 + 1) + 1) // (i1 + 1) is i0
    assert (7 * i0) // (2 * i0) == CONTEXT.const(3)


def test_they_read_well() -> None:
    i0, i1, i10 = map(size, ("i0", "i1", "i10"))
    assert f"{4096 * i0 * i1 - i10 * i0 + 3:,}" == "4,096*i0*i1 - i0*i10 + 3"
    assert str(-i0) == "-i0"
    assert str(i0 - i0) == "0"
    assert str((i0 * i1 + i0) // 2 * i1) == "i1*((i0*i1 + i0)//2)"
    assert str(larger(larger(i0, i1), 1)) == "max(i0, i1)"
    assert str(i0 // i1 * 4) == "4*(i0//i1)"


def test_a_missing_size_is_named() -> None:
    with pytest.raises(FuserValueError, match="needs i1; got i0"):
        (size("i0") * size("i1")).evaluate({"i0": 3})


# ---- numbers with formulas


def number(name: str) -> int:
    return count(size(name), HERE)


def test_numbers_are_those_of_here_and_know_others() -> None:
    n = 4 * number("i0") * (number("i1") - 1)
    assert int(n) == 4 * 2048 * 2303
    assert str(n) == f"{n:,}" == "4*i0*i1 - 4*i0"
    assert evaluated(n, {"i0": 2, "i1": 3}) == 16
    assert divmod(n, number("i1") - 1) == (4 * 2048, 0)
    assert str(sum([number("i0"), 1, number("i1")])) == "i0 + i1 + 1"


def test_numbers_that_depend_on_nothing_are_plain() -> None:
    assert type(number("i0") - number("i0")) is int
    assert type(number("i0") // number("i0")) is int


def test_comparisons_are_conditions_while_they_are_collected() -> None:
    n = number("i0")
    assert n > 10
    with conditions() as found:
        assert n > 10
        assert n > 1
        assert n * n >= n
        assert not n < 4
        assert n != 2050
    assert [str(c) for c in found] == ["i0 >= 11", "i0 >= 4"]
    assert [str(c) for c in without_implied(found)] == ["i0 >= 11"]
    assert [c.holds({"i0": k}) for c in without_implied(found) for k in (10, 11)] == [False, True]


def test_a_tie_is_a_condition() -> None:
    half, whole = number("i0") // 2 * 2, number("i0")
    with conditions() as found:
        assert half == whole
        assert not whole % 2
    assert [str(c) for c in found] == ["(i0%2) == 0"]
    (condition,) = found
    assert condition == Condition(size("i0") % 2, "==")
    assert [condition.holds({"i0": k}) for k in (4, 5)] == [True, False]


def test_the_largest_of_counts_is_decided_here() -> None:
    """A form that is evaluated at counts is one, and what it chose is a condition."""
    with conditions() as found:
        chosen = larger(size("i0"), size("i1") - 3).evaluate({n: number(n) for n in NAMES})
    assert (int(chosen), str(chosen)) == (2301, "i1 - 3")
    assert [str(c) for c in found] == ["i1 >= i0 + 3"]


def test_a_list_has_no_formula() -> None:
    assert listed(number("i0")) == 2048
    with conditions(), pytest.raises(NoFormula):
        listed(number("i0"))
    with conditions():
        assert listed(7) == 7


def test_bounds_stay_bounds() -> None:
    n = at_most(number("i0"))
    assert isinstance(n, Count)
    assert str(n + number("i1")) == "at most i0 + i1"
    assert str(most([n, number("i1")])) == "at most max(i0, i1)"
    assert most([3, 5]) == at_most(5) == 5


def test_division_by_nothing() -> None:
    with pytest.raises(ZeroDivisionError):
        divmod(number("i0"), 0)
