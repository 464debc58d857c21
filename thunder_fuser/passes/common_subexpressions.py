"""common_subexpressions: equal expressions of equal operands are computed once.

Requires: nothing; finds more after the other passes have brought expressions into one form.
Result: no two equal expressions, except segment_sets and results with memory of their own.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace

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
    Scalar,
    ScanOp,
    TensorView,
    Val,
    ViewOp,
)
from thunder_fuser.ir.tables import opaque, pointwise
from thunder_fuser.ir.tables.pointwise import Fact
from thunder_fuser.passes.rewrite import Precision, Rewrite


def common_subexpressions(fusion: Fusion, _precision: Precision = "strict") -> Fusion:
    rewrite = Rewrite(fusion)
    known: dict[Hashable, Val] = {}
    calls: dict[Hashable, int] = {}
    for expr in rewrite.walk():
        key = _key(expr, rewrite)
        if isinstance(expr, OpaqueOp) and key not in known:
            # Equal calls become one call, whose results are those that any of them has.
            call = calls.setdefault(_call(expr, rewrite), expr.call)
            expr = replace(expr, call=call)
        found = known.get(key)
        if found is not None and _is_replaceable(expr, found, rewrite):
            rewrite.replace(expr.output, found)
        else:
            known.setdefault(key, rewrite.copy(expr))
    return rewrite.result()


def _is_replaceable(expr: Expr, found: Val, rewrite: Rewrite) -> bool:
    if isinstance(expr.output, Scalar) or isinstance(found, Scalar):
        return True
    # The user asked for each cut.
    return not isinstance(expr, CutOp) and rewrite.may_become(expr.output, found)


def _key(expr: Expr, rewrite: Rewrite) -> Hashable:
    """Key of the computation: equal keys give equal values."""
    operands = [_operand(rewrite[v]) for v in expr.inputs]
    commutes = isinstance(expr, PointwiseOp) and pointwise.lookup(expr.op).has(Fact.COMMUTATIVE)
    if commutes and not any(v.dtype.is_complex for v in expr.inputs):
        operands.sort(key=repr)
    out = expr.output
    common = (expr.op, *operands, out.dtype)
    match expr:
        case PointwiseOp():
            return common
        case ViewOp() | CopyOp() | CutOp() | PadOp():
            return (*common, expr.output.domain.transforms, expr.output.domain.allocation)
        case CatOp():
            return (*common, expr.dim)
        case FullOp() | IotaOp() | RandomOp():
            return (*common, expr.output.domain.shape)
        case ReductionOp() | ScanOp():
            return (*common, expr.accumulate, expr.dims)
        case GatherOp():
            return (*common, expr.dim)
        case OpaqueOp():
            return (*common, _call(expr, rewrite), expr.result)


def _call(expr: OpaqueOp, rewrite: Rewrite) -> Hashable:
    """Key of a call. Calls that run in program order are never equal: one of them draws other
    random numbers than the next, and a collective that is equal on this rank may not be on others.
    """
    operands = tuple(_operand(rewrite[v]) for v in expr.inputs)
    attributes = tuple((name, repr(value)) for name, value in expr.attributes)
    order = opaque.lookup(expr.op).order(dict(expr.attributes))
    return expr.op, operands, expr.parameters, attributes, None if order is None else expr.call


def _operand(value: Val) -> Hashable:
    """Constants are compared by value; `repr` distinguishes -0.0 from 0.0 and 1 from True."""
    if isinstance(value, TensorView) or not value.is_constant:
        return value.name if isinstance(value, TensorView) or value.value is None else value.value
    return (value.dtype, repr(value.value))
