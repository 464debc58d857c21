"""One value of the scalar graph as an expression over its operands, in the type that registers
hold.

A 16- or 8-bit float lives in a register as the fp32 number that it stands for: rounding to its type
is one operation on that number, widening it again is none, and narrowing happens once, at a store.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence

import torch

from thunder_fuser.ir.dtypes import DataType, Number, compute_dtype
from thunder_fuser.ir.tables import pointwise
from thunder_fuser.ir.tables.pointwise import Fact
from thunder_fuser.lower import kernel_ir as ir
from thunder_fuser.lower.constant_division import reciprocal
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
"""What holds a value in its register type."""
Exact = frozenset[DataType]
"""Reduced floats that hold a value exactly."""

_NARROW = (DataType.BFloat16, DataType.Half)
_DIVISIONS = ("div", "truediv")


def register_dtype(dtype: DataType) -> DataType:
    """The type in which registers hold values of a dtype."""
    return compute_dtype(dtype)


def rounded(value: Number, dtype: DataType) -> Number:
    """The number that `dtype` holds for `value`; integers are left alone."""
    if not dtype.is_floating or isinstance(value, complex):
        return value
    # By their digits: 0.0 and -0.0 are equal.
    return _rounded(float(value).hex(), dtype)


@functools.lru_cache(1024)
def _rounded(digits: str, dtype: DataType) -> float:
    wide = torch.tensor(float.fromhex(digits), dtype=torch.float64, device="cpu")
    number: float = wide.to(dtype.torch).item()
    return number


def convert(value: ir.Expr, source: DataType, target: DataType) -> ir.Expr:
    """A value of type `source` as `target`, by torch's rules."""
    return value if source is target else ir.Convert(value, source, target)


def round_to(value: ir.Expr, dtype: DataType) -> ir.Expr:
    """A value in the register type of `dtype`, rounded to what `dtype` can hold."""
    return ir.Round(value, dtype) if dtype.is_reduced_precision else value


def narrow(value: ir.Expr, dtype: DataType) -> ir.Expr:
    """A value from its register type to the type that memory holds; it fits already."""
    return ir.Narrow(value, dtype) if dtype.is_reduced_precision else value


def operand(value: Value, dtype: DataType, name: Name) -> ir.Expr:
    """An operand in the type that an operation wants it in."""
    if isinstance(value, Literal):
        return ir.Literal(rounded(value.value, value.dtype), dtype)
    return convert(name(value), register_dtype(value.dtype), dtype)


def compute(
    node: Compute, name: Name, known: Mapping[int, Exact], brief: Collection[int] = ()
) -> ir.Expr:
    """The operation on converted operands, rounded to the node's dtype. `known`: what `find_exact`
    has found; `brief`: what `find_brief` has.
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


def leaving(value: ir.Expr, dtype: DataType) -> ir.Expr:
    """A value that is computed for a store, in the type that memory holds: converting a pair is one
    instruction of a GPU, where rounding a float in its register takes one for each.
    """
    if isinstance(value, ir.Round):
        return ir.Convert(value.value, register_dtype(dtype), dtype)
    return narrow(value, dtype)


_POWERS: Mapping[float, tuple[int, str]] = {
    0.5: (1, "sqrt"),
    -0.5: (1, "rsqrt"),
    -1: (1, "reciprocal"),
    2: (2, ""),
    -2: (2, "reciprocal"),
    3: (3, ""),
}
"""Exponents for which torch has no power, but a product of so many factors and a function of it."""


def _power(node: Compute, base: ir.Expr) -> ir.Expr | None:
    """A power as torch computes it, where that is none."""
    exponent = node.operands[1]
    is_float = node.operand_dtypes[0] in (DataType.Float, DataType.Double)
    if not (is_float and isinstance(exponent, Literal)):
        return None
    found = None if isinstance(exponent.value, complex) else _POWERS.get(float(exponent.value))
    if found is None:
        return None
    factors, op = found
    product = base
    for _ in range(factors - 1):
        product = ir.Apply("mul", (product, base))
    return ir.Apply(op, (product,)) if op else product


def _by_constant(node: Compute, dividend: ir.Expr) -> ir.Expr | None:
    """A division by a constant without dividing, where bits stay the same, or a power that is a
    product.
    """
    if node.op == "pow":
        return _power(node, dividend)
    if node.op not in _DIVISIONS or node.operand_dtypes[1] is not DataType.Float:
        return None
    divisor = node.operands[1]
    if not isinstance(divisor, Literal):
        return None
    value = rounded(divisor.value, DataType.Float)
    parts = None if isinstance(value, complex) else reciprocal(float(value))
    return None if parts is None else ir.DivideByConstant(dividend, *parts)


def _exact_before_rounding(node: Compute, known: Mapping[int, Exact]) -> Exact:
    """Which reduced floats hold the result without rounding; `known`: for its operands by order."""
    row = pointwise.lookup(node.op)
    if row.rule is pointwise.Rule.CAST and node.dtype.is_floating:
        return known[node.operands[0].order]
    if row.has(Fact.EXACT) and node.dtype.is_floating:
        return frozenset.intersection(*(known[node.operands[k].order] for k in row.promoted))
    return frozenset()


def find_exact(nodes: Sequence[Value]) -> dict[int, Exact]:
    """For each node (by order; operands come first) the reduced floats that hold its value; nothing
    where no value is rounded to one.
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
