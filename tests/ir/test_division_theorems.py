"""The theorems of integer division that the algebra rests on, by brute force on small integers.

For divisions that round down (and their Euclidean relatives), for C's, and for those that round up;
then splits, merges and shardings of axes.  Claims that look just as right and are false are listed
too, each with a counterexample.  `test_division_lemmas.py` proves what must hold for all integers.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from math import gcd

import pytest

SMALL = range(-9, 10)

# ------------------------------------------------------------------- brute force: three divisions


def euclidean(a: int, b: int) -> tuple[int, int]:
    """a = q * b + r with 0 <= r < |b|."""
    r = a % abs(b)
    return (a - r) // b, r


def truncated(a: int, b: int) -> tuple[int, int]:
    """C's division: q rounds towards 0, r has the sign of a."""
    q = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
    return q, a - q * b


def ceiling(a: int, b: int) -> tuple[int, int]:
    """q rounds up; r is never positive for b > 0."""
    q = -(-a // b)
    return q, a - q * b


Claim = Callable[[int, int, int], "bool | None"]
"""Of a, b, c: whether the claim holds; None where its conditions do not."""


def given(condition: bool, claim: Callable[[], bool]) -> bool | None:
    return claim() if condition else None


def verdicts(claim: Claim) -> list[bool]:
    found = (claim(*abc) for abc in itertools.product(SMALL, repeat=3))
    return [verdict for verdict in found if verdict is not None]


def divides(a: int, b: int) -> bool:
    return a != 0 and b % a == 0


def q(a: int, b: int) -> int:
    return euclidean(a, b)[0]


def r(a: int, b: int) -> int:
    return euclidean(a, b)[1]


def tq(a: int, b: int) -> int:
    return truncated(a, b)[0]


def tr(a: int, b: int) -> int:
    return truncated(a, b)[1]


def cq(a: int, b: int) -> int:
    return ceiling(a, b)[0]


def cr(a: int, b: int) -> int:
    return ceiling(a, b)[1]


EUCLIDEAN: dict[str, Claim] = {
    "1.1 quotient and rest are unique": lambda a, b, c: given(
        b != 0,
        lambda: (
            [(x, a - x * b) for x in range(-100, 101) if 0 <= a - x * b < abs(b)]
            == [euclidean(a, b)]
        ),
    ),
    "2.3 equal rests are congruent numbers": lambda a, b, c: given(
        b != 0, lambda: (r(a, b) == r(c, b)) == ((a - c) % b == 0)
    ),
    "2.4 a rest is congruent to its number": lambda a, b, c: given(
        b != 0, lambda: (a - r(a, b)) % b == 0
    ),
    "2.5 a rest below the divisor stays": lambda a, b, c: given(
        a != 0 and 0 <= b < abs(a), lambda: euclidean(b, a) == (0, b)
    ),
    "2.6 the divisor's sign moves to the quotient": lambda a, b, c: given(
        b != 0, lambda: euclidean(a, -b) == (-q(a, b), r(a, b))
    ),
    "2.7 rests add": lambda a, b, c: given(c != 0, lambda: r(a + b, c) == r(r(a, c) + r(b, c), c)),
    "2.7.1 a multiple of the divisor adds nothing": lambda a, b, c: given(
        divides(c, a), lambda: r(a + b, c) == r(b, c)
    ),
    "2.7.2 a tail below the gcd passes through": lambda a, b, c: given(
        c != 0 and 0 <= b < gcd(a, c), lambda: r(a + b, c) == r(a, c) + b
    ),
    "2.8 rests multiply": lambda a, b, c: given(
        c != 0, lambda: r(a * b, c) == r(r(a, c) * r(b, c), c)
    ),
    "2.9 a multiple leaves no rest": lambda a, b, c: given(divides(b, a), lambda: r(a, b) == 0),
    "2.10 an exact quotient can be multiplied first": lambda a, b, c: given(
        divides(c, b), lambda: a * q(b, c) == q(a * b, c)
    ),
    "2.11 divide in steps": lambda a, b, c: given(
        b > 0 and c != 0, lambda: q(a, b * c) == q(q(a, b), c)
    ),
    "2.11 steps commute": lambda a, b, c: given(
        b > 0 and c > 0, lambda: q(q(a, b), c) == q(q(a, c), b)
    ),
    "2.12 a rest in mixed radix": lambda a, b, c: given(
        b > 0 and c != 0, lambda: r(a, b * c) == r(a, b) + r(q(a, b), c) * b
    ),
    "2.13 a common factor comes out of a rest": lambda a, b, c: given(
        c > 0 and divides(c, a) and divides(c, b) and b != 0,
        lambda: r(a, b) == r(q(a, c), q(b, c)) * c,
    ),
    "2.14 dividing by an exact quotient": lambda a, b, c: given(
        c > 0 and divides(c, b) and b != 0, lambda: q(a, q(b, c)) == q(a * c, b)
    ),
    "2.15 quotients add while the rests fit": lambda a, b, c: given(
        c != 0 and r(a, c) + r(b, c) < abs(c), lambda: q(a + b, c) == q(a, c) + q(b, c)
    ),
    "2.15.1 multiples of the divisor peel off": lambda a, b, c: given(
        divides(c, a), lambda: q(a + b, c) == q(a, c) + q(b, c)
    ),
    "2.15.2 a tail below the gcd drops": lambda a, b, c: given(
        c != 0 and 0 <= b < gcd(a, c), lambda: q(a + b, c) == q(a, c)
    ),
    "2.16 a bound on a quotient is a bound on the number": lambda a, b, c: given(
        c > 0, lambda: (q(a, c) < b) == (a < b * c)
    ),
}

TRUNCATED: dict[str, Claim] = {
    "4.1, 4.11 divide in steps, whatever the signs": lambda a, b, c: given(
        b != 0 and c != 0, lambda: tq(a, b * c) == tq(tq(a, b), c)
    ),
    "4.3 equal rests: congruent, and of one sign or 0": lambda a, b, c: given(
        b != 0,
        lambda: (tr(a, b) == tr(c, b)) == ((a - c) % b == 0 and (a % b == 0 or (a < 0) == (c < 0))),
    ),
    "4.5 a rest below the divisor stays": lambda a, b, c: given(
        a != 0 and abs(b) < abs(a), lambda: truncated(b, a) == (0, b)
    ),
    "4.6 the number's sign moves to the rest, the divisor's is lost": lambda a, b, c: given(
        b != 0, lambda: tr(-a, b) == -tr(a, b) and tr(a, -b) == tr(a, b)
    ),
    "4.7 rests add for equal signs": lambda a, b, c: given(
        c != 0 and a * b >= 0, lambda: tr(a + b, c) == tr(tr(a, c) + tr(b, c), c)
    ),
    "4.7.1 a multiple of the divisor adds nothing": lambda a, b, c: given(
        divides(c, a) and a * b >= 0, lambda: tr(a + b, c) == tr(b, c)
    ),
    "4.7.2 a tail below the gcd passes through": lambda a, b, c: given(
        c != 0 and a * b >= 0 and abs(b) < gcd(a, c), lambda: tr(a + b, c) == tr(a, c) + b
    ),
    "4.8 rests multiply, whatever the signs": lambda a, b, c: given(
        c != 0, lambda: tr(a * b, c) == tr(tr(a, c) * tr(b, c), c)
    ),
    "4.10 an exact quotient can be multiplied first": lambda a, b, c: given(
        divides(c, b), lambda: a * tq(b, c) == tq(a * b, c)
    ),
    "4.12 a rest in mixed radix": lambda a, b, c: given(
        b != 0 and c != 0, lambda: tr(a, b * c) == tr(a, b) + tr(tq(a, b), c) * b
    ),
    "4.13 a common factor comes out of a rest": lambda a, b, c: given(
        divides(c, a) and divides(c, b) and b != 0, lambda: tr(a, b) == tr(tq(a, c), tq(b, c)) * c
    ),
    "4.14 dividing by an exact quotient": lambda a, b, c: given(
        divides(c, b) and b != 0, lambda: tq(a, tq(b, c)) == tq(a * c, b)
    ),
    "4.15 quotients add while the rests fit": lambda a, b, c: given(
        c != 0 and a * b >= 0 and abs(tr(a, c) + tr(b, c)) < abs(c),
        lambda: tq(a + b, c) == tq(a, c) + tq(b, c),
    ),
    "4.15.1 multiples of the divisor peel off": lambda a, b, c: given(
        divides(c, a) and a * b >= 0, lambda: tq(a + b, c) == tq(a, c) + tq(b, c)
    ),
    "4.15.2 a tail below the gcd drops": lambda a, b, c: given(
        c != 0 and a * b >= 0 and abs(b) < gcd(a, c), lambda: tq(a + b, c) == tq(a, c)
    ),
    "4.16 a bound on a quotient, from 0 on": lambda a, b, c: given(
        c > 0 and a >= 0, lambda: (tq(a, c) < b) == (a < b * c)
    ),
    "agrees with rounding down on what is emitted": lambda a, b, c: given(
        a >= 0 and b > 0, lambda: truncated(a, b) == divmod(a, b)
    ),
}

CEILING: dict[str, Claim] = {
    "5.11 divide in steps": lambda a, b, c: given(
        b > 0 and c > 0, lambda: cq(a, b * c) == cq(cq(a, b), c)
    ),
    "5.12 a rest in mixed radix": lambda a, b, c: given(
        b > 0 and c > 0, lambda: cr(a, b * c) == cr(a, b) + cr(cq(a, b), c) * b
    ),
    "the factor of a split by a factor is no larger": lambda a, b, c: given(
        a > 0 and b > 0, lambda: cq(a, cq(a, b)) <= b
    ),
    "and the same if it divides": lambda a, b, c: given(
        a > 0 and b > 0 and divides(b, a), lambda: cq(a, cq(a, b)) == b
    ),
    "three times is once": lambda a, b, c: given(
        a > 0 and b > 0, lambda: cq(a, cq(a, cq(a, b))) == cq(a, b)
    ),
}

FALSE: dict[str, Claim] = {
    "division associates (2.1)": lambda a, b, c: given(
        b != 0 and c != 0 and q(b, c) != 0, lambda: q(q(a, b), c) == q(a, q(b, c))
    ),
    "division distributes over a sum (2.2)": lambda a, b, c: given(
        c != 0, lambda: q(a + b, c) == q(a, c) + q(b, c)
    ),
    "2.11 for a negative first divisor": lambda a, b, c: given(
        b < 0 and c != 0, lambda: q(a, b * c) == q(q(a, b), c)
    ),
    "2.7.2 for a tail that reaches the gcd": lambda a, b, c: given(
        c != 0 and 0 <= b <= gcd(a, c), lambda: r(a + b, c) == r(a, c) + b
    ),
    "2.15 without its condition": lambda a, b, c: given(
        c != 0, lambda: q(a + b, c) == q(a, c) + q(b, c)
    ),
    "in C, the divisor's sign moves to the rest (-9 % -8 is -1)": lambda a, b, c: given(
        b != 0, lambda: tr(a, -b) == -tr(a, b)
    ),
    "4.7 without a condition on signs": lambda a, b, c: given(
        c != 0, lambda: tr(a + b, c) == tr(tr(a, c) + tr(b, c), c)
    ),
    "4.15.1 without a condition on signs": lambda a, b, c: given(
        divides(c, a), lambda: tq(a + b, c) == tq(a, c) + tq(b, c)
    ),
    "4.16 below 0": lambda a, b, c: given(c > 0, lambda: (tq(a, c) < b) == (a < b * c)),
    "ceil(a / ceil(a / b)) is b (split(1, 2) is (2, 1))": lambda a, b, c: given(
        a > 0 and b > 0, lambda: cq(a, cq(a, b)) == b
    ),
}


@pytest.mark.parametrize("name", [*EUCLIDEAN, *TRUNCATED, *CEILING])
def test_theorem_holds_on_small_integers(name: str) -> None:
    found = verdicts({**EUCLIDEAN, **TRUNCATED, **CEILING}[name])
    assert len(found) > 100
    assert all(found)


@pytest.mark.parametrize("name", FALSE)
def test_false_claim_has_a_counterexample(name: str) -> None:
    found = verdicts(FALSE[name])
    assert False in found
    assert True in found  # it does look right


# ------------------------------------------------------------------ brute force: splits and merges


def test_inner_splits_compose() -> None:
    """Split by n, then its outer by m: the three parts of a split by m*n, then its inner by n."""
    for n, m, i in itertools.product(range(1, 7), range(1, 7), range(60)):
        assert i // n // m == i // (m * n)
        assert i // n % m == i % (m * n) // n
        assert i % n == i % (m * n) % n


def test_merge_then_split_is_split_then_merge_iff_the_factor_divides_the_inner_extent() -> None:
    for outer, inner, f in itertools.product(range(2, 5), range(1, 13), range(1, 13)):
        same = all(
            divmod(x * inner + y, f) == (x * cq(inner, f) + y // f, y % f)
            for x in range(outer)
            for y in range(inner)
        )
        assert same == (inner % f == 0), (outer, inner, f)


def test_ranges_of_split_merge_and_resize() -> None:
    for n, f, i in itertools.product(range(1, 13), range(1, 8), range(-20, 40)):
        outer, inner = divmod(i, f)
        if 0 <= i < n:  # split: in range, so are both parts
            assert 0 <= outer < cq(n, f)
            assert 0 <= inner < f
        assert (0 <= i < n * f) == (0 <= outer < n)  # merge: in range iff the outer part is
        for left, right in itertools.product(range(4), repeat=2):  # a resize that only grows
            assert not 0 <= i < n or 0 <= i + left < n + left + right


def test_inner_splits_of_a_reshaped_axis() -> None:
    """An inner split of the whole is one of the inner axis if d divides it, of heads hardly ever.

    The split [a/d, d, m] in the middle does shard heads cyclically.
    """
    for a, m, d in itertools.product(range(1, 7), range(1, 7), range(1, 7)):
        whole = range(a * m)
        assert all(i % d == i % m % d for i in whole) == (m % d == 0 or a == 1)
        assert all(i % d == i // m % d for i in whole) == (m == 1 or d == 1)
        assert all(i % (m * d) // m == i // m % d for i in whole)


def test_slices_keep_the_inner_split_iff_the_offset_is_a_multiple() -> None:
    for o, n, d, s in itertools.product(range(13), range(1, 13), range(1, 6), range(1, 4)):
        strided = all((j + o) // s % d == j // s % d for j in range(n))
        if n >= s * d:
            assert strided == (o % (s * d) == 0 or d == 1), (o, n, d, s)
        elif o % (s * d) == 0:
            assert strided
