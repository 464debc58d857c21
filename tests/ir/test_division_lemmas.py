"""Splits, merges, slices and shardings over unbounded integers, proved by z3.

z3 seldom proves such a statement in one go: products and quotients of unknowns are beyond it.  So
statements are composed of lemmas, each small enough.  A proof may use instances of lemmas proved
before it, and instances are made by substitution, never written by hand.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

z3 = pytest.importorskip("z3")
TIMEOUT_MS = 20_000
VARIABLES = "i j x y m k d h a u o s t n f b c"


@dataclass(frozen=True)
class Lemma:
    """`claim` follows from `premises` and `uses`, instances of lemmas proved by themselves.

    `witness` is a point where all premises hold: a lemma must not be true for want of cases.
    """

    premises: Sequence[Any]
    claim: Any
    witness: Mapping[str, int]
    uses: Sequence[Any] = ()

    def at(self, **terms: Any) -> Any:
        """The lemma with its variables replaced by terms: a statement that is known to hold."""
        statement = z3.Implies(z3.And(*self.premises), self.claim)
        return z3.substitute(statement, *((z3.Int(name), term) for name, term in terms.items()))


def lemmas() -> Iterator[tuple[str, Lemma]]:
    """Each may use those before it.  z3's `/` and `%` on integers are Euclidean: they round down
    for positive divisors."""
    i, j, x, y, m, k, d, h, a, u, o, s, t, n, f, b, c = z3.Ints(VARIABLES)

    steps = Lemma([m > 0, k > 0], i / m / k == i / (m * k), {"m": 2, "k": 3})
    yield "divide in steps (2.11)", steps
    peel = Lemma([s > 0], (j + s * u) / s == j / s + u, {"s": 2})
    yield "peel multiples of the divisor (2.15.1)", peel
    wrap = Lemma([s > 0], (j + s * u) % s == j % s, {"s": 2}, uses=[peel.at()])
    yield "multiples of the divisor leave no rest (2.7.1)", wrap
    radix = Lemma([m > 0, k > 0], i % (m * k) == i / m % k * m + i % m, {"m": 2, "k": 3})
    yield "a rest in mixed radix (2.12)", radix
    unmerge = Lemma(
        [m > 0, y >= 0, y < m],
        z3.And((x * m + y) / m == x, (x * m + y) % m == y),
        {"m": 3, "y": 2},
    )
    yield "a split undoes a merge", unmerge
    exact = Lemma([d > 0, x % d == 0], x == d * (x / d), {"d": 3, "x": 6})
    yield "an exact quotient multiplies back", exact
    positive = Lemma([x > 0, d > 0, x % d == 0], x / d > 0, {"x": 6, "d": 3})
    yield "an exact quotient of positive numbers is positive", positive
    ratio = Lemma([d > 0], (d * x) / d == x, {"d": 3}, uses=[peel.at(s=d, j=z3.IntVal(0), u=x)])
    yield "a quotient undoes a product", ratio

    # A reshape h -> [a, h/a] (or back), sharded on the outside by d, with d | a.
    reshape = [h > 0, a > 0, d > 0, h % a == 0, a % d == 0]
    sizes = {"h": 24, "a": 6, "d": 3}
    product = Lemma(
        reshape,
        h == d * ((h / a) * (a / d)),
        sizes,
        uses=[exact.at(d=a, x=h), exact.at(d=d, x=a)],
    )
    yield "the sizes of a sharded reshape multiply", product
    shard = Lemma(
        reshape,
        z3.And(h / d == (h / a) * (a / d), h / a > 0, a / d > 0),
        sizes,
        uses=[
            product.at(),
            positive.at(x=h, d=a),
            positive.at(x=a, d=d),
            ratio.at(d=d, x=(h / a) * (a / d)),
        ],
    )
    yield "the local size of a sharded reshape", shard
    yield (
        "case 1: an outer shard passes a reshape that splits",
        Lemma(
            reshape,
            i / (h / d) == i / (h / a) / (a / d),
            sizes,
            uses=[shard.at(), steps.at(m=h / a, k=a / d)],
        ),
    )
    yield (
        "case 1: the local reshape is the reshape of the shard",
        Lemma(
            reshape,
            i % (h / d) == i / (h / a) % (a / d) * (h / a) + i % (h / a),
            sizes,
            uses=[shard.at(), radix.at(m=h / a, k=a / d)],
        ),
    )
    yield (
        "case 2: an outer shard passes a reshape that merges",
        Lemma(
            [*reshape, y >= 0, y < h / a],
            (x * (h / a) + y) / (h / d) == x / (a / d),
            {**sizes, "y": 3},
            uses=[
                shard.at(),
                unmerge.at(m=h / a),
                steps.at(i=x * (h / a) + y, m=h / a, k=a / d),
            ],
        ),
    )

    # Without d | a: h = a * m, b = ceil(h / d), c = ceil(a / d), t = (-a) mod d.
    uneven = [
        *(m > 0, a > 0, d > 0),
        *(a + t == d * c, t >= 0, t < d),
        *(d * b >= a * m, d * b < a * m + d),
    ]
    point = {"m": 1, "a": 5, "d": 3, "c": 2, "t": 1, "b": 2}
    yield (
        "exact condition: the local sizes agree iff m * ((-a) mod d) < d",
        Lemma(uneven, (b == m * c) == (m * t < d), point),
    )
    smaller = Lemma(uneven, b <= m * c, point)
    yield "exact condition: the shard of the whole is never larger", smaller
    yield (
        "exact condition: if they differ, the point b is inside",
        Lemma(
            [*uneven, b != m * c],
            z3.And(b > 0, b < a * m),
            {"m": 3, "a": 5, "d": 3, "c": 2, "t": 1, "b": 5},
            uses=[smaller.at()],
        ),
    )
    yield (
        "exact condition: and the two device indices differ there",
        Lemma([b > 0, u > b], z3.And(b / b == 1, b / u == 0), {"b": 5, "u": 6}),
    )

    # Slices and concatenations: y = x + o, split by d on the inside, or strided by s.
    yield (
        "cases 3 and 4: the inner split of a slice whose offset divides",
        Lemma(
            [d > 0, o % d == 0],
            z3.And((j + o) % d == j % d, (j + o) / d == j / d + o / d),
            {"d": 3, "o": 6},
            uses=[exact.at(x=o), peel.at(s=d, u=o / d), wrap.at(s=d, u=o / d)],
        ),
    )
    yield (
        "cases 3 and 4: no other offset will do",
        Lemma([d > 0, o % d != 0], (z3.IntVal(0) + o) % d != z3.IntVal(0) % d, {"d": 3, "o": 4}),
    )
    yield (
        "cases 3 and 4, strided",
        Lemma(
            [s > 0, d > 0, o == s * (d * t)],
            (j + o) / s % d == j / s % d,
            {"s": 2, "d": 3, "o": 6, "t": 1},
            uses=[peel.at(u=d * t), wrap.at(j=j / s, s=d, u=t)],
        ),
    )

    # Splits of splits, and splits of merges.
    yield (
        "split of a split: outer",
        Lemma(
            [m > 0, n > 0], i / n / m == i / (m * n), {"m": 2, "n": 3}, uses=[steps.at(m=n, k=m)]
        ),
    )
    split = radix.at(m=n, k=m)
    bounded = Lemma([n > 0], z3.And(i % n >= 0, i % n < n), {"n": 3})
    yield "a rest is below the divisor", bounded
    yield (
        "split of a split: middle",
        Lemma(
            [m > 0, n > 0],
            i / n % m == i % (m * n) / n,
            {"m": 2, "n": 3},
            uses=[split, bounded.at(), unmerge.at(m=n, x=i / n % m, y=i % n)],
        ),
    )
    yield (
        "split of a split: inner",
        Lemma(
            [m > 0, n > 0],
            i % (m * n) % n == i % n,
            {"m": 2, "n": 3},
            uses=[split, bounded.at(), unmerge.at(m=n, x=i / n % m, y=i % n)],
        ),
    )
    merged = Lemma([f > 0, b == f * u], x * b == f * (x * u), {"f": 2, "b": 6, "u": 3})
    yield "a multiple of a multiple", merged
    yield (
        "theorem 5: split of a merge, where the factor divides the inner extent",
        Lemma(
            [f > 0, b == f * u],
            z3.And((x * b + y) / f == x * (b / f) + y / f, (x * b + y) % f == y % f),
            {"f": 2, "b": 6, "u": 3},
            uses=[
                merged.at(),
                ratio.at(d=f, x=u),
                peel.at(s=f, j=y, u=x * u),
                wrap.at(s=f, j=y, u=x * u),
            ],
        ),
    )


LEMMAS = dict(lemmas())


@pytest.mark.parametrize("name", LEMMAS)
def test_lemma(name: str) -> None:
    lemma = LEMMAS[name]
    solver = z3.Solver()
    solver.set("timeout", TIMEOUT_MS)
    solver.add(*lemma.premises, *lemma.uses, z3.Not(lemma.claim))
    verdict = solver.check()
    if verdict == z3.unknown:
        pytest.fail(f"z3 {z3.get_version_string()} gave up: {solver.reason_unknown()}")
    assert verdict == z3.unsat, f"counterexample: {solver.model()}"


@pytest.mark.parametrize("name", LEMMAS)
def test_lemma_is_about_something(name: str) -> None:
    """Its premises hold together somewhere, and there its claim and what it uses do too."""
    lemma = LEMMAS[name]
    statements = [*lemma.premises, *lemma.uses, lemma.claim]
    point = [(z3.Int(v), z3.IntVal(lemma.witness.get(v, 0))) for v in VARIABLES.split()]
    for statement in statements:
        assert z3.is_true(z3.simplify(z3.substitute(statement, *point))), statement


@pytest.mark.parametrize(
    ("name", "dropped"),
    [
        ("peel multiples of the divisor (2.15.1)", 0),
        ("a split undoes a merge", 2),
        ("exact condition: the shard of the whole is never larger", 7),
        ("cases 3 and 4: no other offset will do", 1),
    ],
)
def test_premises_are_needed(name: str, dropped: int) -> None:
    """Without one of its premises a lemma has a counterexample, so the solver can say no."""
    lemma = LEMMAS[name]
    solver = z3.Solver()
    solver.set("timeout", TIMEOUT_MS)
    solver.add(*(p for k, p in enumerate(lemma.premises) if k != dropped))
    solver.add(z3.Not(lemma.claim))
    verdict = solver.check()
    if verdict == z3.unknown:
        pytest.fail(f"z3 {z3.get_version_string()} gave up: {solver.reason_unknown()}")
    assert verdict == z3.sat
