"""Tensors of one known value in all elements, found by evaluating single elements.

A `full` is one, and so is any result computed from such tensors and constants. The reference
evaluator computes the value, so it is the one that the fusion itself would get.
"""

from __future__ import annotations

import math

import torch

from thunder_fuser.analysis.reproducible import is_ieee
from thunder_fuser.ir.dtypes import Category, DataType, Number
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
    Scalar,
    ScanOp,
    TensorView,
    Val,
    ViewOp,
)
from thunder_fuser.ir.reference import Evaluator
from thunder_fuser.ir.tables import pointwise
from thunder_fuser.passes.rewrite import Precision


class Uniform:
    """Known uniform values of a fusion; `learn` must be called with the expressions in order."""

    def __init__(self, precision: Precision) -> None:
        self._precision = precision
        self._evaluator = Evaluator(False, torch.device("cpu"))

    def __contains__(self, value: Val) -> bool:
        return value in self._evaluator.values or (isinstance(value, Scalar) and value.is_constant)

    def number(self, value: Val) -> Number:
        """The value of a uniform tensor, as rounded to its dtype."""
        stored = self._evaluator.from_carrier(self._evaluator[value], value.dtype)
        found: Number = stored.item()
        return found

    def is_operand(self, expr: PointwiseOp, place: int, number: Number) -> bool:
        """True if that uniform operand, converted as by its operation, is this number bitwise."""
        seen, dtype = self._seen(expr, place)
        return _same_bits(seen, self._evaluator.constant(number, dtype))

    def passed_on(self, expr: PointwiseOp, place: int) -> Number:
        """The result of the operation if it returns that uniform operand."""
        seen, dtype = self._seen(expr, place)
        evaluator = self._evaluator
        returned = evaluator.convert(seen, dtype, expr.output.dtype)
        found: Number = evaluator.from_carrier(returned, expr.output.dtype).item()
        return found

    def _seen(self, expr: PointwiseOp, place: int) -> tuple[torch.Tensor, DataType]:
        value = expr.inputs[place]
        dtype = pointwise.lookup(expr.op).operand_dtypes(pointwise.operands_of(expr.inputs))[place]
        return self._evaluator.convert(self._evaluator[value], value.dtype, dtype), dtype

    def learn(self, expr: Expr) -> bool:
        """Record the expression's output if it is uniform; True if so."""
        out = expr.output
        if not isinstance(out, TensorView) or not self._is_uniform(expr):
            return False
        if isinstance(expr, PointwiseOp):
            self._evaluator.run(expr)
        else:
            self._evaluator.values[out] = self._evaluator[expr.inputs[0]]
        return True

    def _is_uniform(self, expr: Expr) -> bool:
        match expr:
            case PointwiseOp():
                return all(v in self for v in expr.inputs) and self._is_reproducible(expr)
            case ViewOp() | CopyOp() | PadOp() | CatOp():
                first = expr.inputs[0]
                return all(
                    v in self and _same_bits(self._evaluator[v], self._evaluator[first])
                    for v in expr.inputs
                )
            # A cut is what the user asked for: nothing is known of its result.
            case CutOp():
                return False
            case FullOp():
                return expr.fill in self
            # An index that is out of range must stay an error.
            case IotaOp() | RandomOp() | ReductionOp() | ScanOp() | GatherOp() | OpaqueOp():
                return False

    def _is_reproducible(self, expr: PointwiseOp) -> bool:
        """True if one element evaluated here has the bits of a kernel's and torch's result."""
        source, result = expr.inputs[0].dtype, expr.output.dtype
        if expr.op == "cast" and result.is_integral and source.category > Category.INT:
            return self._fits(expr)
        if self._precision == "fast" and result.category > Category.INT:
            return True
        return is_ieee(expr)

    def _fits(self, expr: PointwiseOp) -> bool:
        """Out of the integer's range, a conversion's result depends on the instruction."""
        number = self.number(expr.inputs[0])
        if isinstance(number, complex) or not math.isfinite(number):
            return False
        range_ = torch.iinfo(expr.output.dtype.torch)
        return bool(range_.min <= math.trunc(number) <= range_.max)


def is_negative_zero(number: Number) -> bool:
    return isinstance(number, float) and number == 0 and math.copysign(1.0, number) < 0


def _same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.is_complex():
        return _same_bits(a.real, b.real) and _same_bits(a.imag, b.imag)
    if not a.is_floating_point():
        return bool(a == b)
    return bool(((a == b) & (a.signbit() == b.signbit())) | (a.isnan() & b.isnan()))
