"""The symbolic sizes of a Fusion: which there are, and what extents are in terms of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from functools import reduce
from operator import mul
from types import MappingProxyType

from thunder_fuser.errors import FuserValueError
from thunder_fuser.ir.domain import Extent
from thunder_fuser.ir.fusion import Fusion, Scalar, TensorView
from thunder_fuser.ir.integer.forms import plain_variable
from thunder_fuser.ir.integer.guard import provable
from thunder_fuser.ir.integer.polynomial import Polynomial, is_at_least, largest, polynomial
from thunder_fuser.ir.integer.symint import Form, Opaque, Variable


def variable_of(extent: Extent) -> Variable | None:
    """The variable that an extent is, if it is nothing else."""
    if isinstance(extent, int):
        return None
    try:
        return plain_variable(extent)
    except FuserValueError:
        return None


def size_variables(fusion: Fusion) -> Mapping[str, Form]:
    """The variables that sizes and symbolic numbers depend on, by name, in order of appearance."""
    found: dict[str, Form] = {}
    forms = list(_forms(fusion))
    for form in forms:
        variable = variable_of(form)
        if variable is not None:
            found.setdefault(variable.name, form)
    for form in forms:
        for v in form.variables():
            if v.name not in found:
                found[v.name] = form.context.var(v.name, v.lo, v.hi, v.multiple)
    return found


_LARGE: Mapping[str, int] = MappingProxyType({})
"""Sizes are at least SMALLEST."""


def polynomial_of(extent: Extent, lowest: Mapping[str, int] = _LARGE) -> Polynomial:
    """An extent as a polynomial in the names of its variables, which are at least `lowest`."""
    if isinstance(extent, int):
        return polynomial(extent)
    total = polynomial(extent.const)
    for digit, coefficient in extent.terms:
        base = digit.base
        match base:
            case Variable():
                value = polynomial(base.name)
            case Opaque():
                value = _operation(base, lowest)
            case _:
                value = polynomial_of(base, lowest)
        if digit.s != 1:
            value = value // polynomial(digit.s)
        if digit.e is not None:
            value = _remainder(value, polynomial(digit.e))
        total = total + value * polynomial(coefficient)
    return total


def is_at_most(x: Extent, y: Extent) -> bool:
    """Whether x <= y, proven for all sizes."""
    if isinstance(x, int) and isinstance(y, int):
        return x <= y
    difference = y - x
    assert isinstance(difference, Form)
    if provable(difference, 0, None):
        return True
    lowest = {v.name: v.lo for v in difference.variables()}
    positive = all(least >= 0 for least in lowest.values())
    return positive and is_at_least(polynomial_of(difference, lowest), 0, lowest)


def _operation(opaque: Opaque, lowest: Mapping[str, int]) -> Polynomial:
    operands = [polynomial_of(x, lowest) for x in opaque.operands]
    if opaque.op == "*":
        return reduce(mul, operands)
    if opaque.op == "max":
        return largest(operands, lowest)
    dividend, divisor = operands
    return dividend // divisor if opaque.op == "//" else _remainder(dividend, divisor)


def _remainder(dividend: Polynomial, divisor: Polynomial) -> Polynomial:
    return dividend - (dividend // divisor) * divisor


def _forms(fusion: Fusion) -> Iterator[Form]:
    for value in fusion.values():
        if isinstance(value, TensorView):
            domain = value.domain
            extents = [d.size for d in (*domain.root, *domain.logical)]
            for step in domain.transforms:
                extents += [getattr(step, field.name) for field in fields(step)]
            yield from (extent for extent in extents if isinstance(extent, Form))
    for expr in fusion.exprs:
        for operand in expr.inputs:
            if isinstance(operand, Scalar) and isinstance(operand.value, Form):
                yield operand.value
