"""Reproducible values: bitwise equal in every correct implementation, given equal operands.

A copy, a comparison or a sum of two numbers has one correct result; an exponential depends on the
math library, a sum of many on its order, and a compiler may contract x * y + z to one rounding
where torch rounds twice.
"""

from __future__ import annotations

from thunder_fuser.ir.dtypes import Category
from thunder_fuser.ir.fusion import (
    CatOp,
    CopyOp,
    CutOp,
    Expr,
    FullOp,
    Fusion,
    GatherOp,
    IotaOp,
    OpaqueOp,
    PadOp,
    PointwiseOp,
    RandomOp,
    ReductionOp,
    ScanOp,
    Val,
    ViewOp,
)
from thunder_fuser.ir.tables import pointwise, random
from thunder_fuser.ir.tables.pointwise import ROUNDED, Fact, Rule


def reproducible_values(fusion: Fusion) -> set[Val]:
    """Values that a kernel for the whole fusion and torch's operations compute bitwise equally."""
    found: set[Val] = set()
    products: set[Val] = set()  # may be contracted with the operations that read them
    for expr in fusion.exprs:
        part = any(v in products for v in expr.inputs)
        rounds = _rounds(expr)
        if part or rounds:
            products.add(expr.output)
        if not (part and rounds) and _has_one_answer(expr):
            found.add(expr.output)
    return found


def is_ieee(expr: PointwiseOp) -> bool:
    """True if the operation is exact or correctly rounded for such operands, uncontracted."""
    types = [v.dtype for v in expr.inputs]
    if expr.op == "div" and expr.output.dtype.category <= Category.INT:
        return False
    if expr.op == "cast" and expr.output.dtype.is_integral and types[0].category > Category.INT:
        return False  # out of the integer's range it depends on the instruction
    is_complex = any(d.is_complex for d in types)
    return pointwise.lookup(expr.op).has(Fact.IEEE_COMPLEX if is_complex else Fact.IEEE)


def _has_one_answer(expr: Expr) -> bool:
    match expr:
        case PointwiseOp():
            return is_ieee(expr)
        case ViewOp() | CopyOp() | CutOp() | PadOp() | CatOp() | FullOp() | GatherOp():
            return True
        case IotaOp():
            return not _is_real_or_complex(expr.output)
        case RandomOp():
            return random.lookup(expr.op).reproducible
        case ReductionOp() | ScanOp() | OpaqueOp():
            return False


def _rounds(expr: Expr) -> bool:
    """True for arithmetic that a compiler may contract with a consumer."""
    if not isinstance(expr, PointwiseOp) or not _is_real_or_complex(expr.output):
        return False
    if expr.op in ROUNDED.values():
        return False
    row = pointwise.lookup(expr.op)
    return not (row.has(Fact.EXACT) or row.rule is Rule.CAST)


def _is_real_or_complex(value: Val) -> bool:
    return value.dtype.category > Category.INT
