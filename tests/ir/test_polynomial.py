"""Polynomials against Python's integers, and numbers that carry them."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thunder_fuser.errors import FuserValueError
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.integer.counts import (
    Condition,
    NoFormula,
    at_most,
    conditions,
    count,
    formula,
    listed,
    most,
    without_implied,
)
from thunder_fuser.ir.integer.polynomial import Polynomial, is_at_least, largest, polynomial
from thunder_fuser.ir.symbolic import polynomial_of

NAMES = ("i0", "i1", "i2")
HERE = dict(zip(NAMES, (2048, 2304, 2560), strict=True))


def leaves() -> st.SearchStrategy[Polynomial]:
    return st.one_of(st.integers(-6, 6), st.sampled_from(NAMES)).map(polynomial)


def polynomials() -> st.SearchStrategy[Polynomial]:
    def combined(inner: st.SearchStrategy[Polynomial]) -> st.SearchStrategy[Polynomial]:
        pairs = st.tuples(inner, inner)
        return st.one_of(
            pairs.map(lambda p: p[0] + p[1]),
            pairs.map(lambda p: p[0] - p[1]),
            pairs.map(lambda p: p[0] * p[1]),
            st.tuples(inner, st.integers(1, 5)).map(lambda p: p[0] // polynomial(p[1])),
        )

    return st.recursive(leaves(), combined, max_leaves=6)


def points() -> st.SearchStrategy[Mapping[str, int]]:
    return st.fixed_dictionaries({name: st.integers(2, 50) for name in NAMES})


@given(polynomials(), polynomials(), points())
def test_arithmetic_is_that_of_integers(
    p: Polynomial, q: Polynomial, at: Mapping[str, int]
) -> None:
    assert (p + q).at(at) == p.at(at) + q.at(at)
    assert (p * q).at(at) == p.at(at) * q.at(at)
    assert (p - p).terms == ()
    assert largest([p, q]).at(at) == max(p.at(at), q.at(at))
    if q.at(at) > 0:
        assert (p // q).at(at) == p.at(at) // q.at(at)
    if q.terms:
        quotient, rest = divmod(p, q)
        assert (quotient * q + rest).terms == p.terms


@given(polynomials(), polynomials())
def test_products_divide(p: Polynomial, q: Polynomial) -> None:
    if q.terms:
        assert divmod(p * q, q) == (p, Polynomial())


@given(polynomials(), st.integers(-10, 10), points())
def test_what_is_proven_is_true(p: Polynomial, least: int, at: Mapping[str, int]) -> None:
    if is_at_least(p, least):
        assert p.at(at) >= least


@given(polynomials(), polynomials(), points())
def test_sizes_are_replaced(p: Polynomial, q: Polynomial, at: Mapping[str, int]) -> None:
    assert p.replaced({"i1": q}).at(at) == p.at({**at, "i1": q.at(at)})


def test_proofs() -> None:
    i0, i1 = polynomial("i0"), polynomial("i1")
    assert is_at_least(i0 * i1 - i1, 2)
    assert is_at_least(i0 * i1 - i0 // polynomial(2), 0)
    assert is_at_least(i0 // polynomial(2), 1)
    assert not is_at_least(i0 - i1, 0)
    assert not is_at_least(i0, 3)
    assert is_at_least(i0, 3, {"i0": 3})


def test_they_read_well() -> None:
    i0, i1, i10 = map(polynomial, ("i0", "i1", "i10"))
    assert str(polynomial(4096) * i0 * i1 - i10 * i0 + polynomial(3)) == "4,096*i0*i1 - i0*i10 + 3"
    assert str(-i0) == "-i0"
    assert str(Polynomial()) == "0"
    assert str((i0 * i1 + i0) // polynomial(2) * i1) == "i1*((i0*i1 + i0)//2)"
    assert str(largest([i0, i1, polynomial(1)])) == "max(i0, i1)"


def test_forms_are_polynomials(b: FusionBuilder) -> None:
    x = b.tensor([-1, -1], DataType.Float)
    rows, columns = x.domain.shape
    for form in ((rows + 3) * columns, rows * columns // 4, (rows * columns) % 7, rows // columns):
        assert not isinstance(form, int)
        for at in ({"T0_0": 5, "T0_1": 3}, {"T0_0": 11, "T0_1": 20}):
            assert polynomial_of(form).at(at) == form.evaluate(at)


def test_a_missing_size_is_named() -> None:
    with pytest.raises(FuserValueError, match="needs the size i1; got i0"):
        (polynomial("i0") * polynomial("i1")).at({"i0": 3})


# ---- numbers with formulas


def number(name: str) -> int:
    return count(polynomial(name), HERE)


def test_numbers_are_those_of_here_and_know_others() -> None:
    n = 4 * number("i0") * (number("i1") - 1)
    assert int(n) == 4 * 2048 * 2303
    assert str(n) == f"{n:,}" == "4*i0*i1 - 4*i0"
    assert formula(n).at({"i0": 2, "i1": 3}) == 16
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
    assert [str(c) for c in found] == ["i0 == 2*(i0//2)"]
    (condition,) = found
    assert condition == Condition(polynomial("i0") - formula(half), "==")
    assert [condition.holds({"i0": k}) for k in (4, 5)] == [True, False]


def test_a_list_has_no_formula() -> None:
    assert listed(number("i0")) == 2048
    with conditions(), pytest.raises(NoFormula):
        listed(number("i0"))
    with conditions():
        assert listed(7) == 7


def test_bounds_stay_bounds() -> None:
    n = at_most(number("i0"))
    assert str(n + number("i1")) == "at most i0 + i1"
    assert str(most([n, number("i1")])) == "at most max(i0, i1)"
    assert most([3, 5]) == at_most(5) == 5


def test_division_by_nothing() -> None:
    with pytest.raises(ZeroDivisionError):
        divmod(number("i0"), 0)
