"""Values of the scalar graph as kernel IR expressions over their operands, in register types.

A 16- or 8-bit float is held in a register as an fp32 value: rounding to its dtype is one operation
on that value, widening it again is free, and it is narrowed once, at a store.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence

import torch

from thunder_fuser import kernel_ir as ir
from thunder_fuser.ir.dtypes import DataType, Number, compute_dtype
from thunder_fuser.ir.tables import pointwise
from thunder_fuser.ir.tables.pointwise import Fact
from thunder_fuser.lower.index.constant_division import reciprocal
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

Name = Callable[[Value], ir.Expr]
"""Returns the expression that holds a value in its register type."""
Exact = frozenset[DataType]
"""Reduced-precision floats that represent a value exactly."""

_NARROW = (DataType.BFloat16, DataType.Half)


def register_dtype(dtype: DataType) -> DataType:
    """Return the type in which registers hold values of a dtype."""
    return compute_dtype(dtype)


def rounded(value: Number, dtype: DataType) -> Number:
    """Return `value` rounded to `dtype`; unchanged if `dtype` or `value` is no real float."""
    if not dtype.is_floating or isinstance(value, complex):
        return value
    # The cache key is hexadecimal digits, since 0.0 and -0.0 are equal.
    return _rounded(float(value).hex(), dtype)


@functools.lru_cache(1024)
def _rounded(digits: str, dtype: DataType) -> float:
    wide = torch.tensor(float.fromhex(digits), dtype=torch.float64, device="cpu")
    number: float = wide.to(dtype.torch).item()
    return number


def convert(value: ir.Expr, source: DataType, target: DataType) -> ir.Expr:
    """Convert a value from dtype `source` to `target`, by torch's rules."""
    return value if source is target else ir.Convert(value, source, target)


def round_to(value: ir.Expr, dtype: DataType) -> ir.Expr:
    """Round a value in the register type of `dtype` to the precision of `dtype`."""
    return ir.Round(value, dtype) if dtype.is_reduced_precision else value


def narrow(value: ir.Expr, dtype: DataType) -> ir.Expr:
    """Convert a value from its register type to its storage type; it is rounded already."""
    return ir.Narrow(value, dtype) if dtype.is_reduced_precision else value


def operand(value: Value, dtype: DataType, name: Name) -> ir.Expr:
    """Return an operand converted to the dtype that an operation takes."""
    if isinstance(value, Literal):
        return ir.Literal(rounded(value.value, value.dtype), dtype)
    return convert(name(value), register_dtype(value.dtype), dtype)


def compute(
    node: Compute, name: Name, known: Mapping[int, Exact], brief: Collection[int] = ()
) -> ir.Expr:
    """Return the operation on converted operands, rounded to the node's dtype. `known`: result of
    `find_exact`; `brief`: result of `find_brief`.
    """
    row = pointwise.lookup(node.op)
    if row.rule is pointwise.Rule.CAST:
        found = operand(node.operands[0], register_dtype(node.dtype), name)
    else:
        typed = zip(node.operands, node.operand_dtypes, strict=True)
        args = tuple([operand(value, dtype, name) for value, dtype in typed])
        # The operation yields the result's compute type: results are rounded last.
        found = _by_constant(node, args[0]) or ir.Apply(node.op, args, node.order in brief)
    if not node.dtype.is_reduced_precision or node.dtype in _exact_before_rounding(node, known):
        return found
    return ir.Round(found, node.dtype)


def copied(node: Compute, known: Mapping[int, Exact]) -> Value | None:
    """Return the operand of a cast that changes nothing in registers; None for other nodes."""
    if pointwise.lookup(node.op).rule is not pointwise.Rule.CAST:
        return None
    (value,) = node.operands
    if register_dtype(value.dtype) is not register_dtype(node.dtype):
        return None
    rounds = node.dtype.is_reduced_precision
    return value if not rounds or node.dtype in _exact_before_rounding(node, known) else None


def leaving(value: ir.Expr, dtype: DataType) -> ir.Expr:
    """Return a value that is computed for a store only, in its storage type: a GPU converts a pair
    by one instruction, whereas rounding in a register takes one per value.
    """
    if isinstance(value, ir.Round):
        return ir.Convert(value.value, register_dtype(dtype), dtype)
    return narrow(value, dtype)


def _power(node: Compute, base: ir.Expr) -> ir.Expr | None:
    """Return torch's product form of a power with an exponent of `POWERS`, else None."""
    exponent = node.operands[1]
    is_float = node.operand_dtypes[0] in (DataType.Float, DataType.Double)
    if not (is_float and isinstance(exponent, Literal)):
        return None
    if isinstance(exponent.value, complex):
        return None
    power = pointwise.POWERS.get(float(exponent.value))
    if power is None:
        return None
    product = base
    for _ in range(power.factors - 1):
        product = ir.Apply("mul", (product, base))
    return ir.Apply(power.op, (product,)) if power.op else product


def _by_constant(node: Compute, dividend: ir.Expr) -> ir.Expr | None:
    """Return a division by a constant as multiplications, if its bits are the same, or a power as a
    product; else None.
    """
    if node.op == "pow":
        return _power(node, dividend)
    if node.op not in pointwise.QUOTIENTS or node.operand_dtypes[1] is not DataType.Float:
        return None
    divisor = node.operands[1]
    if not isinstance(divisor, Literal):
        return None
    value = rounded(divisor.value, DataType.Float)
    parts = None if isinstance(value, complex) else reciprocal(float(value))
    if parts is None:
        return None
    high, low = (ir.Literal(part, DataType.Float) for part in parts)
    return ir.DivideByConstant(dividend, high, low)


def _exact_before_rounding(node: Compute, known: Mapping[int, Exact]) -> Exact:
    """Return the reduced floats that represent the unrounded result exactly. `known`: by order, for
    the operands.
    """
    row = pointwise.lookup(node.op)
    if row.rule is pointwise.Rule.CAST and node.dtype.is_floating:
        return known[node.operands[0].order]
    if row.has(Fact.EXACT) and node.dtype.is_floating:
        return frozenset.intersection(*(known[node.operands[k].order] for k in row.promoted))
    return frozenset()


def find_exact(nodes: Sequence[Value]) -> dict[int, Exact]:
    """Return for each node, by order, the reduced floats that represent its value exactly; empty if
    no computed value has a reduced dtype. `nodes`: operands first.
    """
    known: dict[int, Exact] = {}
    if not any(isinstance(n, Compute) and n.dtype.is_reduced_precision for n in nodes):
        return known
    for node in nodes:
        own = frozenset({node.dtype} & set(_NARROW))
        match node:
            case Literal() if node.dtype.is_floating:
                value = rounded(node.value, node.dtype)
                known[node.order] = frozenset(d for d in _NARROW if rounded(value, d) == value)
            case Compute():
                found = _exact_before_rounding(node, known)
                fits = not own or own <= found
                known[node.order] = own | (found if fits else frozenset())
            case Select():
                known[node.order] = own | (known[node.inside.order] & known[node.outside.order])
            case Load() | Argument() | Folded() | Random():
                known[node.order] = own
            case _:
                known[node.order] = frozenset()
    return known
