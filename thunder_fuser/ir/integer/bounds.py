"""Interval arithmetic on inclusive integer bounds, any of which may be absent (None)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

Bound: TypeAlias = "int | None"
Interval: TypeAlias = "tuple[Bound, Bound]"


def sum_bounds(const: int, scaled: Iterable[tuple[Interval, int]]) -> Interval:
    """Bounds of const + sum of k * x, from ((lo, hi) of x, k)."""
    lo: Bound = const
    hi: Bound = const
    for (low, high), k in scaled:
        if k < 0:
            low, high = high, low
        lo = None if lo is None or low is None else lo + k * low
        hi = None if hi is None or high is None else hi + k * high
    return lo, hi


def product_bounds(factors: Iterable[Interval]) -> Interval:
    """Bounds of the product of all factors, taken as independent."""
    lo: Bound = 1
    hi: Bound = 1
    for low, high in factors:
        if lo is not None and hi is not None and low is not None and high is not None:
            corners = (lo * low, lo * high, hi * low, hi * high)
            lo, hi = min(corners), max(corners)
        elif lo is not None and low is not None and lo >= 0 and low >= 0:
            lo, hi = lo * low, None
        else:
            lo = hi = None
    return lo, hi


def quotient_bounds(x: Interval, d: Interval) -> Interval:
    """Bounds of floor(x / d), for nonzero d."""
    if d[0] is None or d[0] < 1:
        return None, None

    def divided(bound: Bound, by: Bound) -> Bound:
        if bound is None:
            return None
        if by is None:  # an unbounded divisor takes a quotient to 0 or, rounding down, to -1
            return 0 if bound >= 0 else -1
        return bound // by

    lo = divided(x[0], d[1] if x[0] is not None and x[0] >= 0 else d[0])
    hi = divided(x[1], d[0] if x[1] is not None and x[1] >= 0 else d[1])
    return lo, hi


def remainder_bounds(x: Interval, d: Interval) -> Interval:
    """Bounds of x mod d = x - d * floor(x / d), for nonzero d."""
    if d[0] is None or d[0] < 1:
        return None, None
    highs = [] if d[1] is None else [d[1] - 1]
    if x[0] is not None and x[0] >= 0 and x[1] is not None:
        highs.append(x[1])
    return 0, min(highs, default=None)


def larger_bounds(a: Interval, b: Interval) -> Interval:
    """Bounds of the larger of two values."""
    lows = [bound for bound in (a[0], b[0]) if bound is not None]
    return max(lows, default=None), None if a[1] is None or b[1] is None else max(a[1], b[1])


def both(a: Interval, b: Interval) -> Interval:
    """Intersection of two intervals."""
    lows = [bound for bound in (a[0], b[0]) if bound is not None]
    highs = [bound for bound in (a[1], b[1]) if bound is not None]
    return max(lows, default=None), min(highs, default=None)


def period_of(lo: Bound, hi: Bound, f: int) -> int | None:
    """p with p*f <= lo and hi < (p+1)*f: floor(x / f) is p over all of [lo, hi]; else None."""
    if lo is None or hi is None:
        return None
    period = lo // f
    return period if hi < (period + 1) * f else None
