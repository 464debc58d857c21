"""Values that cannot be -0.0, so that adding 0.0 does not change them."""

from __future__ import annotations

from thunder_fuser.ir.dtypes import Category
from thunder_fuser.ir.fusion import (
    CatOp,
    CopyOp,
    CutOp,
    Expr,
    FullOp,
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
from thunder_fuser.ir.tables import pointwise
from thunder_fuser.ir.tables.pointwise import Fact
from thunder_fuser.passes.facts.exact_conversions import holds
from thunder_fuser.passes.facts.uniform_values import Uniform, is_negative_zero


class PositiveZeros:
    """Set of values without -0.0; `learn` must be called with the expressions in order."""

    def __init__(self, uniform: Uniform) -> None:
        self._uniform = uniform
        self._known: set[Val] = set()

    def __contains__(self, value: Val) -> bool:
        if value in self._uniform:
            return not is_negative_zero(self._uniform.number(value))
        return value in self._known or value.dtype.category <= Category.INT

    def learn(self, expr: Expr) -> None:
        if expr.output.dtype.is_floating and self._holds_for(expr):
            self._known.add(expr.output)

    def _holds_for(self, expr: Expr) -> bool:
        match expr:
            case PointwiseOp(op, operands):
                return self._holds_for_operation(op, operands, expr)
            case ViewOp() | CopyOp() | CutOp() | PadOp() | CatOp() | FullOp():
                return all(v in self for v in expr.inputs)
            case GatherOp():
                return expr.input in self
            case ReductionOp("sum"):
                # Sums start from 0.0. Rounding takes small negative ones to -0.0.
                return expr.output.dtype is expr.accumulate
            case IotaOp() | RandomOp() | ReductionOp() | ScanOp() | OpaqueOp():
                return False

    def _holds_for_operation(self, op: str, operands: tuple[Val, ...], expr: PointwiseOp) -> bool:
        match op:
            case "cast":
                # Rounding takes small negative numbers to -0.0.
                (x,) = operands
                return x in self and (
                    x.dtype.category <= Category.INT or holds(expr.output.dtype, x.dtype)
                )
            case "add":
                # Only -0.0 + -0.0 is -0.0: an exact cancellation gives 0.0.
                return any(v in self for v in operands)
            case "sub":
                return operands[0] in self
            case "mul" | "mul_rn":
                return operands[0] == operands[1]
            case "where":
                return all(v in self for v in operands[1:])
            case _:
                return pointwise.lookup(op).has(Fact.NO_NEGATIVE_ZERO)
