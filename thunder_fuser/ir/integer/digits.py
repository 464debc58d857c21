"""Digits, the terms of forms, and what they are read from: variables, opaque bases or forms."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from thunder_fuser.ir.integer.bounds import (
    Bound,
    larger_bounds,
    product_bounds,
    quotient_bounds,
    remainder_bounds,
)

if TYPE_CHECKING:
    from thunder_fuser.ir.integer.forms import Form

Operation: TypeAlias = Literal["*", "//", "%", "max"]
Base: TypeAlias = "Variable | Opaque | Form"
Term: TypeAlias = "tuple[Digit, int]"
"""A digit and its coefficient in a form."""


class Variable:
    """A named integer with inclusive bounds, known to be divisible by `multiple`."""

    __slots__ = ("hi", "lo", "multiple", "name", "ordinal")

    def __init__(self, name: str, lo: int, hi: Bound, multiple: int, ordinal: int) -> None:
        self.name: Final = name
        self.lo: Final = lo
        self.hi: Final = hi
        self.multiple: Final = multiple
        self.ordinal: Final = ordinal

    def __repr__(self) -> str:
        return self.name


class Opaque:
    """An irreducible base: `*` or `max` of two or more operands, `//` or `%` of two."""

    __slots__ = ("hi", "lo", "op", "operands", "ordinal", "whole")

    def __init__(self, op: Operation, operands: tuple[Form, ...], ordinal: int) -> None:
        self.op: Final = op
        self.operands: Final = operands
        self.ordinal: Final = ordinal
        bounds = [(x.lo, x.hi) for x in operands]
        if op == "*":
            lo, hi = product_bounds(bounds)
        elif op == "max":
            lo, hi = reduce(larger_bounds, bounds)
        else:
            lo, hi = (quotient_bounds if op == "//" else remainder_bounds)(*bounds)
        self.lo: Final = lo
        self.hi: Final = hi
        # For x % d: (x // d) * d, whose sum with the remainder is x.
        self.whole: Form | None = None

    def __repr__(self) -> str:
        if self.op == "max":
            return f"max({', '.join(map(str, self.operands))})"
        return self.op.join(f"({x})" if len(x.terms) > 1 else str(x) for x in self.operands)


class Digit:
    """`floor(base / s) mod e`, without the mod if e is None, with its exact bounds.

    Compared and hashed by identity: one context never holds two equal digits.
    """

    __slots__ = ("base", "e", "hi", "lo", "ordinal", "s")

    def __init__(
        self, base: Base, s: int, e: int | None, lo: Bound, hi: Bound, ordinal: int
    ) -> None:
        self.base: Final = base
        self.s: Final = s
        self.e: Final = e
        self.lo: Final = lo
        self.hi: Final = hi
        self.ordinal: Final = ordinal

    def __repr__(self) -> str:
        text = str(self.base)
        if not isinstance(self.base, Variable) and (self.s > 1 or self.e is not None):
            text = f"({text})"
        if self.s > 1:
            text += f"//{self.s}"
        return text if self.e is None else f"{text}%{self.e}"


def is_product(digit: Digit) -> bool:
    """True if a digit is a product and nothing else."""
    base = digit.base
    return isinstance(base, Opaque) and base.op == "*" and digit.s == 1 and digit.e is None


def operands_of(base: Base) -> tuple[Form, ...]:
    """The forms that a base is made of."""
    if isinstance(base, Variable):
        return ()
    return base.operands if isinstance(base, Opaque) else (base,)
