"""Open sizes: a definition whose inputs may have any sizes, as a fusion that can be planned.

Dimensions that meet in an operation are one size, or a number where the other is one, or what the
rest of an equation leaves. What is free then is named i0, i1, ... in order of the inputs, and each
gets a representative value: large, as what is worth fusing is, and unlike any other size, so that
nothing looks equal that is not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count as counting

from thunder_fuser.device import DeviceInfo
from thunder_fuser.errors import FuserValueError
from thunder_fuser.ir.counts import count
from thunder_fuser.ir.domain import Extent
from thunder_fuser.ir.fusion import Fusion, Scalar, TensorView, ViewOp
from thunder_fuser.ir.polynomial import SMALLEST, Polynomial, polynomial
from thunder_fuser.ir.rebuild import rebound
from thunder_fuser.ir.symbolic import polynomial_of, size_variables, variable_of
from thunder_fuser.ir.symint import Form
from thunder_fuser.runtime.sizes import check_agreement, meetings
from thunder_fuser.segment.partition import partition
from thunder_fuser.segment.plan import OpenSizes, SegmentedFusion

_STEP = 256
_FIRST = 8
"""Representative sizes are 2048, 2304, 2560, ...: large, and as divisible as sizes tend to be."""


def plan_open(
    fusion: Fusion,
    optimise: Callable[[Fusion], Fusion],
    device: DeviceInfo,
    wanted: Mapping[str, int] | None = None,
) -> SegmentedFusion:
    """The plan of a fusion with open sizes, at representative ones that know their formulas.

    `wanted` are values for some of the sizes, by name. Raises FuserValueError where the sizes that
    fit the definition cannot be told without inputs, or are not those that are wanted.
    """
    known = _solved(fusion)
    free = dict.fromkeys(name for p in known.values() for name in p.names())
    renamed = {name: polynomial(f"i{k}") for k, name in enumerate(free)}
    known = {name: p.replaced(renamed) for name, p in known.items()}
    names = [str(p) for p in renamed.values()]
    values = _values(fusion, names, dict(wanted or {}))
    check_agreement(fusion, {name: p.at(values) for name, p in known.items()})

    def bound(extent: Extent) -> Extent:
        if isinstance(extent, Form):
            return count(polynomial_of(extent).replaced(known), values)
        return extent

    optimised = optimise(rebound(fusion, bound))
    places: dict[str, tuple[str, ...]] = dict.fromkeys(values, ())
    for variable, place in _places(fusion, optimised):
        if str(known[variable]) in places:
            places[str(known[variable])] += (place,)
    return replace(partition(optimised, device=device), sizes=OpenSizes(places, values))


def _values(fusion: Fusion, names: Sequence[str], wanted: Mapping[str, int]) -> dict[str, int]:
    """The representative sizes: those that are wanted, and others."""
    for name, value in wanted.items():
        if name not in names:
            raise FuserValueError(
                f"sizes: {name} is no size of this definition; it has {', '.join(names)}"
            )
        if value < SMALLEST:
            raise FuserValueError(
                f"sizes: {name} is {value}; formulas are for sizes of at least {SMALLEST}: pass "
                "inputs (fake tensors will do) for a smaller one"
            )
    domains = [v.domain for v in fusion.values() if isinstance(v, TensorView)]
    taken = {n for domain in domains for n in domain.shape if isinstance(n, int)}
    taken |= set(wanted.values())
    others = (n for n in counting(_FIRST * _STEP, _STEP) if n not in taken)
    return {name: wanted[name] if name in wanted else next(others) for name in names}


def _places(fusion: Fusion, planned: Fusion) -> Iterator[tuple[str, str]]:
    """Variables that are sizes of inputs, and whose, as the plan names them."""
    variables = size_variables(fusion)
    for value, shown in zip(fusion.inputs, planned.inputs, strict=True):
        if isinstance(value, Scalar):
            if value.name in variables:
                yield value.name, shown.name
            continue
        for k, dim in enumerate(value.domain.root):
            variable = variable_of(dim.size)
            if variable is not None:
                yield variable.name, f"{shown.name}.size({k})"


def _solved(fusion: Fusion) -> dict[str, Polynomial]:
    """Every variable in terms of those that are free."""
    known = {name: polynomial(name) for name in size_variables(fusion)}
    for where, left, right in _equations(fusion):
        some, other = left.replaced(known), right.replaced(known)
        difference = some - other
        if not difference.terms:
            continue
        if difference.constant is not None:
            raise FuserValueError(
                f"{where}: sizes are in conflict: {some} and {other} meet in one dimension; no "
                "inputs fit this definition"
            )
        found = _solution(difference)
        if found is None:
            raise FuserValueError(
                f"{where}: the sizes of the inputs that make {left} and {right} one size cannot be "
                "told from the definition; pass inputs (fake tensors will do)"
            )
        known = {name: p.replaced(dict([found])) for name, p in known.items()}
    return known


def _equations(fusion: Fusion) -> Iterator[tuple[str, Polynomial, Polynomial]]:
    for expr in fusion.exprs:
        for first, *others in meetings(expr):
            for other in others:
                yield expr.op, polynomial_of(first), polynomial_of(other)
        if isinstance(expr, ViewOp) and expr.op == "reshape":
            yield (
                expr.op,
                _product(expr.input.domain.shape),
                _product(expr.output.domain.shape),
            )
    for update in fusion.updates:
        shapes = zip(update.target.domain.shape, update.value.domain.shape, strict=True)
        for some, others_ in shapes:
            yield "add_output", polynomial_of(some), polynomial_of(others_)


def _product(shape: Sequence[Extent]) -> Polynomial:
    total = polynomial(1)
    for extent in shape:
        total = total * polynomial_of(extent)
    return total


def _solution(difference: Polynomial) -> tuple[str, Polynomial] | None:
    """A size that is 0 of this equation, and its value: the last of those that are a sum of
    others, or the last; None where none is known from the others."""
    shared = [set(monomial) for monomial, _ in difference.terms]
    content = math.gcd(*(c for _, c in difference.terms))
    for name in set.intersection(*shared):
        difference = divmod(difference, Polynomial((((name,), 1),)))[0]
    difference = divmod(difference, polynomial(content))[0]
    found: list[tuple[bool, int, str, Polynomial]] = []
    for k, name in enumerate(difference.names()):
        alone = ((name,), 1) in difference.terms or ((name,), -1) in difference.terms
        (rest, unit) = difference, 1
        if alone:
            unit = dict(difference.terms)[(name,)]
            rest = (difference - Polynomial((((name,), unit),))) * polynomial(-unit)
        if alone and name not in rest.names():
            is_sum = all(c > 0 for _, c in rest.terms)
            found.append((is_sum, k, name, rest))
    if not found:
        return None
    *_, name, value = max(found, key=lambda x: x[:2])
    return name, value
