"""Division by a constant as two multiplications, if that is proven to be bit-exact.

With high = 1/y truncated to fp32 and low = the remainder, rounded, fma(x, high, x * low) is within
2^-46 of x/y before its one rounding. It rounds as x/y does unless a midpoint between two floats is
as near to x/y. With significands as integers, |x 2^k - y m| is then below 8 for an odd m, and such
x are so few that each can be tried (Brisebarre, Muller and Raina, "Accelerating correctly rounded
floating-point division when the divisor is known in advance", IEEE Trans. Computers 53(8), 2004).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from fractions import Fraction

_DIGITS = 24
"""Bits of an fp32 significand."""
_ONE = 1 << (_DIGITS - 1)
_CLOSE = 8
_WIDEST = 2.0**100
"""Bound of divisors (and its reciprocal): most quotients then are far from the smallest and largest
floats.
"""


@functools.cache
def reciprocal(divisor: float) -> tuple[float, float] | None:
    """Return (high, low) such that fmaf(x, high, x * low) is x / divisor in fp32, or None.

    Results are bit-exact for every x, zeros, infinities and NaN included, except that quotients
    below 2^-100 may differ by one unit in the last place. None if there is no such pair, for powers
    of two, by which compilers multiply anyway, and for divisors that are zero, not finite, or
    extreme.
    """
    if not 1 / _WIDEST < abs(divisor) < _WIDEST or abs(math.frexp(divisor)[0]) == 0.5:
        return None
    significand = int(math.frexp(abs(divisor))[0] * 2 * _ONE)
    # Truncated, not rounded: both parts have one sign, and so have their products with infinity.
    inverse = Fraction(1, significand)
    high = _cut(inverse)
    low = _nearest(inverse - high)
    for x in _near_midpoints(significand):
        if _nearest(x * high + _nearest(x * low)) != _nearest(x * inverse):
            return None
    scale = Fraction(significand) / Fraction(divisor)
    return float(high * scale), float(low * scale)


def _near_midpoints(y: int) -> Iterator[int]:
    """Yield significands x for which x/y may be too near to a midpoint to be rounded safely."""
    factors = (y & -y).bit_length() - 1
    odd = y >> factors
    # x/y is in [1, 2) for x >= y and in [1/2, 1) below: its midpoints are odd multiples of 2^-k.
    for k, smallest, end in ((_DIGITS, y, 2 * _ONE), (_DIGITS + 1, _ONE, y)):
        step = pow(1 << (k - factors), -1, odd)
        # Never 0: y has too few factors of two for a quotient to be a midpoint.
        for rest in range(-_CLOSE, _CLOSE + 1):
            if rest and rest % (1 << factors) == 0:
                x = (rest >> factors) * step % odd
                yield from range(x + -(-(smallest - x) // odd) * odd, end, odd)


def _exponent(value: Fraction) -> int:
    """Return the e with 2^e <= |value| < 2^(e+1)."""
    e = abs(value.numerator).bit_length() - value.denominator.bit_length()
    return e if abs(value) >= Fraction(2) ** e else e - 1


def _nearest(value: Fraction) -> Fraction:
    """Round to an fp32 significand with unbounded exponent, ties to even."""
    if not value:
        return value
    unit = Fraction(2) ** (_exponent(value) - _DIGITS + 1)
    return round(value / unit) * unit


def _cut(value: Fraction) -> Fraction:
    unit = Fraction(2) ** (_exponent(value) - _DIGITS + 1)
    return (value // unit) * unit
