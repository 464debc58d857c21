"""One value of the DAG as a C++ expression over the names of its operands."""

from __future__ import annotations

from collections.abc import Callable

from thunder_fuser.analysis.value import Compute, Literal, Value
from thunder_fuser.codegen.literals import literal
from thunder_fuser.ir import ops
from thunder_fuser.ir.dtypes import DataType, compute_dtype

Name = Callable[[Value], str]


def convert(text: str, source: DataType, target: DataType) -> str:
    """`text` of type `source` as `target`: tf::cast has torch's conversion rules."""
    return text if source is target else f"tf::cast<{target.ctype}>({text})"


def operand(value: Value, dtype: DataType, name: Name) -> str:
    """An operand in the type that an operation wants it in."""
    if isinstance(value, Literal):
        text = literal(value.value, dtype)
        return f"({text})" if text.startswith("-") else text
    return convert(name(value), value.dtype, dtype)


def compute(node: Compute, name: Name) -> str:
    """The row's spelling on converted operands, converted to the node's dtype."""
    row = ops.lookup(node.op)
    if row.rule is ops.Rule.CAST:
        return operand(node.operands[0], node.dtype, name)
    args = [
        operand(value, dtype, name)
        for value, dtype in zip(node.operands, node.operand_dtypes, strict=True)
    ]
    return convert(row.spelling.format(*args), raw_dtype(row, node), node.dtype)


def raw_dtype(row: ops.Op, node: Compute) -> DataType:
    """The type that the spelling yields: the result's compute type, for results are
    rounded last.
    """
    return compute_dtype(node.dtype)


def argument_type(dtype: DataType) -> DataType:
    """Scalars travel in a type that Python numbers convert to exactly: no 16-bit parameters."""
    return compute_dtype(dtype)
