"""The symbolic sizes of a Fusion, and extents in terms of them.

Constraints between sizes are equations (`size_equations.py`). Formulas of a plan's bytes are counts
(`integer/counts.py`); `runtime/binding/open_sizes.py` makes such a plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields

from thunder_fuser.errors import FuserValueError
from thunder_fuser.ir.domain import Extent
from thunder_fuser.ir.fusion import Fusion, Scalar, TensorView
from thunder_fuser.ir.integer.forms import plain_variable
from thunder_fuser.ir.integer.guard import provable
from thunder_fuser.ir.integer.symint import Form, Variable


def variable_of(extent: Extent) -> Variable | None:
    """The variable of an extent that is a plain variable, else None."""
    if isinstance(extent, int):
        return None
    try:
        return plain_variable(extent)
    except FuserValueError:
        return None


def size_variables(fusion: Fusion) -> Mapping[str, Form]:
    """The variables that sizes and symbolic scalars depend on, by name, in order of appearance."""
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


def variables_by_name(form: Form) -> list[Variable]:
    """The variables of a form in numeric order of their names: T2 before T10."""
    return sorted(form.variables(), key=lambda v: (len(v.name), v.name))


def is_at_most(x: Extent, y: Extent) -> bool:
    """True if x <= y is proven for all sizes."""
    if isinstance(x, int) and isinstance(y, int):
        return x <= y
    difference = y - x
    assert isinstance(difference, Form)
    return provable(difference, 0, None)


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
