"""Text of integer forms: sums of products."""

from __future__ import annotations

from typing import TYPE_CHECKING

from thunder_fuser.ir.integer.digits import Digit, Opaque, Variable, is_product, operands_of

if TYPE_CHECKING:
    from thunder_fuser.ir.integer.forms import Form


def text_of(form: Form, number: str) -> str:
    """A sum of products, those of more factors first; `number` formats the integers."""
    # Factors of a product are forms; terms of one factor are in the order of their creation.
    terms = sorted(form.terms, key=lambda term: _degree(term[0]), reverse=True)
    parts = []
    for digit, coef in terms:
        shown = _product_text(digit)
        scale = f"{abs(coef):{number}}*" if abs(coef) != 1 else ""
        parts.append((coef < 0, scale + shown))
    if form.const or not parts:
        parts.append((form.const < 0, f"{abs(form.const):{number}}"))
    text = "".join(f" {'-' if negative else '+'} {part}" for negative, part in parts)
    return text[3:] if text.startswith(" + ") else "-" + text[3:]


def _degree(digit: Digit) -> int:
    return len(operands_of(digit.base)) if is_product(digit) else 1


def _product_text(digit: Digit) -> str:
    """A digit as a factor, in parentheses unless it is a name or a call."""
    if is_product(digit):
        return "*".join(_factor_text(x) for x in operands_of(digit.base))
    base = digit.base
    whole = digit.s == 1 and digit.e is None
    is_word = isinstance(base, Variable) or (isinstance(base, Opaque) and base.op == "max")
    return str(digit) if whole and is_word else f"({digit})"


def _factor_text(form: Form) -> str:
    single = len(form.terms) == 1 and not form.const and form.terms[0][1] == 1
    return _product_text(form.terms[0][0]) if single else f"({form})"
