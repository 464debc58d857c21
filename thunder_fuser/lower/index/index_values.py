"""Integers computed from indices, as `arange` and `tril` do: their sums and products are forms, and
their comparisons take 32 bits.

A mask compares the positions of queries and keys, which torch has in int64: a vector has half the
lanes for these, and a GPU two instructions for each, where the bounds of both are known and small.
"""

from __future__ import annotations

from collections.abc import Sequence

from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.integer.symint import Form
from thunder_fuser.lower.index.index_arithmetic import fits
from thunder_fuser.lower.index.index_forms import WIDE, computed
from thunder_fuser.lower.scalar_graph import IndexValue, Literal, ScalarGraph, Value

_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")


def compute(
    graph: ScalarGraph,
    op: str,
    args: tuple[Value, ...],
    operand_dtypes: tuple[DataType, ...],
    dtype: DataType,
) -> Value:
    """Return the node of a computation; for integers of indices that fit into 32 bits, with all
    intermediates, in as many bits.
    """
    forms = _forms(args)
    if forms is not None and all(operand in WIDE for operand in operand_dtypes):
        if op in _COMPARISONS:
            narrow = DataType.Int32
            args = tuple(graph.index(form, narrow) for form in forms)
            return graph.compute(op, args, (narrow,) * len(args), dtype)
        found = computed(op, forms)
        if found is not None and dtype in WIDE and fits(found):
            return graph.index(found, dtype)
    return graph.compute(op, args, operand_dtypes, dtype)


def _forms(values: Sequence[Value]) -> list[Form] | None:
    """Return the forms of values that are indices or integer constants; None if some are others, or
    too large, or if there is no index among them.
    """
    context = next((v.form.context for v in values if isinstance(v, IndexValue)), None)
    if context is None:
        return None
    found: list[Form] = []
    for value in values:
        match value:
            case IndexValue(form=form) if value.dtype in WIDE:
                found.append(form)
            case Literal(value=int(number)) if not isinstance(number, bool):
                found.append(context.const(number))
            case _:
                return None
    return found if all(map(fits, found)) else None
