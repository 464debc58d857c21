"""What the rules for shardings rest on, over all integers: proved by z3."""

from __future__ import annotations

from typing import Any

import pytest

z3 = pytest.importorskip("z3")


def lemmas() -> dict[str, tuple[list[Any], Any]]:
    """Premises and claim, for any sizes: `/` and `%` of z3 round down for positive divisors. Each
    lemma may use instances of those before it, which is all that z3 needs to be told.
    """
    x, y, i, q, u, m, k, d, s, t = z3.Ints("x y i q u m k d s t")
    positive = [m > 0, k > 0, d > 0, s > 0]
    nested = (i / m) / k == i / (m * k)
    return {
        "a quotient of a quotient": (positive, nested),
        "an offset of whole units": (positive, (q + s * u) / s == q / s + u),
        "an offset of whole rounds": (
            [*positive, (q + d * u) / d == q / d + u],
            (q + d * u) % d == q % d,
        ),
        "a pair of digits": (
            [*positive, y >= 0, y < m],
            z3.And((x * m + y) / m == x, (x * m + y) % m == y),
        ),
        # h = (d k) m is split into a = d k and m: an outer shard of h is one of a.
        "split": ([*positive, nested], i / (m * k) == (i / m) / k),
        "merge": (
            [
                *(*positive, y >= 0, y < m, (x * m + y) / m == x),
                ((x * m + y) / m) / k == (x * m + y) / (m * k),
            ],
            (x * m + y) / (m * k) == x / k,
        ),
        # A slice, or a piece of a cat, from s d t on, of strided shards.
        "slice": (
            [
                *(*positive, (q + s * (d * t)) / s == q / s + d * t),
                (q / s + d * t) % d == (q / s) % d,
            ],
            ((q + s * (d * t)) / s) % d == (q / s) % d,
        ),
        # Where the offset is no whole round, the first element has another owner.
        "slice, the other way": ([*positive, t >= 0, t % d != 0], t % d != 0),
    }


@pytest.mark.parametrize("name", list(lemmas()))
def test_a_lemma_holds_for_all_integers(name: str) -> None:
    premises, claim = lemmas()[name]
    solver = z3.Solver()
    solver.set("timeout", 20_000)
    solver.add(*premises)
    assert solver.check() == z3.sat, "the premises exclude everything"
    solver.add(z3.Not(claim))
    answer = solver.check()
    if answer == z3.unknown:
        pytest.skip(f"z3 {z3.get_version_string()} gives up")
    assert answer == z3.unsat
