"""Reproducible values: the same bits, whoever computes them from the same operands.

A copy, a comparison or a sum of two numbers has one right answer; an exponential is as good as the
library that has it, a sum of many hangs on its order, and a compiler may round x * y + z once where
torch rounds twice.
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
from thunder_fuser.ir.tables.pointwise import Fact, Rule


def reproducible_values(fusion: Fusion) -> set[Val]:
    """What a kernel for the whole fusion and torch's operations compute alike."""
    found: set[Val] = set()
    products: set[Val] = set()  # that may be computed as a part of what reads them
    for expr in fusion.exprs:
        part = any(v in products for v in expr.inputs)
        rounds = _rounds(expr)
        if part or rounds:
            products.add(expr.output)
        if not (part and rounds) and _has_one_answer(expr):
            found.add(expr.output)
    return found


def is_ieee(expr: PointwiseOp) -> bool:
    """Whether the operation has one right answer for such operands, each rounding for itself."""
    types = [v.dtype for v in expr.inputs]
    if expr.op == "div" and expr.output.dtype.category <= Category.INT:
        return False
    if expr.op == "cast" and expr.output.dtype.is_integral and types[0].category > Category.INT:
        return False  # outside of the integer's range it is what an instruction makes of it
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
    """Whether it is arithmetic that a compiler may contract with what reads the result."""
    if not isinstance(expr, PointwiseOp) or not _is_real_or_complex(expr.output):
        return False
    row = pointwise.lookup(expr.op)
    return not (row.has(Fact.EXACT) or row.rule is Rule.CAST)


def _is_real_or_complex(value: Val) -> bool:
    return value.dtype.category > Category.INT
