"""One value of the DAG as a C++ expression over its operands, in the type that registers hold.

A 16- or 8-bit float lives in a register as the fp32 number that it stands for: rounding to its type
is one operation on that number, widening it again is none, and narrowing happens once, at a store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from thunder_fuser.codegen.constant_division import reciprocal
from thunder_fuser.codegen.literals import literal, rounded
from thunder_fuser.ir.dtypes import DataType, compute_dtype
from thunder_fuser.ir.tables import pointwise
from thunder_fuser.ir.tables.pointwise import Fact
from thunder_fuser.lower.scalar_graph import (
    Argument,
    Compute,
    Folded,
    Literal,
    Load,
    Random,
    Select,
    Value,
)

Name = Callable[[Value], str]
"""The text of a value in its register type."""
Exact = frozenset[DataType]
"""Reduced floats that hold a value exactly."""

_NARROW = (DataType.BFloat16, DataType.Half)
_DIVISIONS = ("div", "truediv")


def register_dtype(dtype: DataType) -> DataType:
    """The type in which registers hold values of a dtype."""
    return compute_dtype(dtype)


def convert(text: str, source: DataType, target: DataType) -> str:
    """`text` of type `source` as `target`: tf::cast has torch's conversion rules."""
    return text if source is target else f"tf::cast<{target.ctype}>({text})"


def round_to(text: str, dtype: DataType) -> str:
    """`text`, which has the register type of `dtype`, rounded to what `dtype` can hold."""
    return f"tf::rounded<{dtype.ctype}>({text})" if dtype.is_reduced_precision else text


def narrow(text: str, dtype: DataType) -> str:
    """A value from its register type to the type that memory holds; it fits already."""
    return f"tf::narrow<{dtype.ctype}>({text})" if dtype.is_reduced_precision else text


def operand(value: Value, dtype: DataType, name: Name) -> str:
    """An operand in the type that an operation wants it in."""
    if isinstance(value, Literal):
        text = literal(rounded(value.value, value.dtype), dtype)
        return f"({text})" if text.startswith("-") else text
    return convert(name(value), register_dtype(value.dtype), dtype)


def compute(node: Compute, name: Name, exact: Exact) -> str:
    """The row's spelling on converted operands, rounded to the node's dtype.

    `exact` is what holds the result before it is rounded (see `exact_before_rounding`).
    """
    row = pointwise.lookup(node.op)
    if row.rule is pointwise.Rule.CAST:
        text = operand(node.operands[0], register_dtype(node.dtype), name)
    else:
        args = [
            operand(value, dtype, name)
            for value, dtype in zip(node.operands, node.operand_dtypes, strict=True)
        ]
        # The spelling yields the result's compute type: results are rounded last.
        text = _by_constant(node, args[0]) or row.spelling.format(*args)
    return text if node.dtype in exact else round_to(text, node.dtype)


def _by_constant(node: Compute, dividend: str) -> str | None:
    """A division by a constant without dividing, where bits stay the same."""
    if node.op not in _DIVISIONS or node.operand_dtypes[1] is not DataType.Float:
        return None
    divisor = node.operands[1]
    if not isinstance(divisor, Literal):
        return None
    value = rounded(divisor.value, DataType.Float)
    parts = None if isinstance(value, complex) else reciprocal(float(value))
    if parts is None:
        return None
    return f"tf::div_by({dividend}, {', '.join(literal(p, DataType.Float) for p in parts)})"


def exact_before_rounding(node: Compute, known: dict[int, Exact]) -> Exact:
    """Which reduced floats hold the result without rounding; `known`: for its operands by order."""
    row = pointwise.lookup(node.op)
    if row.rule is pointwise.Rule.CAST and node.dtype.is_floating:
        return known[node.operands[0].order]
    if row.has(Fact.EXACT) and node.dtype.is_floating:
        return frozenset.intersection(*(known[node.operands[k].order] for k in row.promoted))
    return frozenset()


def find_exact(nodes: Iterable[Value]) -> dict[int, Exact]:
    """For each node (by order; operands come first) the reduced floats that hold its value."""
    known: dict[int, Exact] = {}
    for node in nodes:
        own = frozenset({node.dtype} & set(_NARROW))
        match node:
            case Literal() if node.dtype.is_floating:
                value = rounded(node.value, node.dtype)
                known[node.order] = frozenset(d for d in _NARROW if rounded(value, d) == value)
            case Compute():
                found = exact_before_rounding(node, known)
                fits = not own or own <= found
                known[node.order] = own | (found if fits else frozenset())
            case Select():
                known[node.order] = own | (known[node.inside.order] & known[node.outside.order])
            case Load() | Argument() | Folded() | Random():
                known[node.order] = own
            case _:
                known[node.order] = frozenset()
    return known


def argument_type(dtype: DataType) -> DataType:
    """Scalars travel in a type that Python numbers convert to exactly: no 16-bit parameters."""
    return compute_dtype(dtype)
