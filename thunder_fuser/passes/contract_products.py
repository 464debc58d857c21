"""contract_products: mul_rn and exp_rn become mul and exp where no reader is an addition, or under
precision "fast".

Requires: static sizes.
Result: every remaining mul_rn and exp_rn is added or subtracted, possibly through views.

What a torch call gives to another is rounded there: x * x - y * y is 0 of equal operands, and one
FMA would make it the rounding error of y * y, of either sign. Elsewhere the two operations have
equal results, and passes and schedules look for products and exponentials by their plain names.

A reduction is taken for no reader: the order of its additions is not torch's either. The pass comes
after short_sums, which gives additions in torch's order.
"""

from __future__ import annotations

from thunder_fuser.ir.fusion import Expr, Fusion, PointwiseOp, ReductionOp, TensorView, Val
from thunder_fuser.ir.tables import pointwise
from thunder_fuser.ir.tables.pointwise import PRODUCTS, ROUNDED, Rule
from thunder_fuser.passes.rewrite import Precision, Rewrite, where

_CONTRACTIBLE = {rounded: plain for plain, rounded in ROUNDED.items()}
_SCALES = PRODUCTS | {"div", "truediv", "reciprocal", "sqrt", "rsqrt"}
"""Functions that do not add to their operands as they are."""


@where(lambda expr: isinstance(expr, PointwiseOp) and expr.op in _CONTRACTIBLE)
def contract_products(fusion: Fusion, precision: Precision = "strict") -> Fusion:
    rewrite = Rewrite(fusion)
    added = set() if precision == "fast" else _added(fusion)
    for expr in rewrite.walk():
        plain = _CONTRACTIBLE.get(expr.op)
        old = expr.output
        if plain is not None and isinstance(old, TensorView) and old not in added:
            operands = tuple(rewrite[v] for v in expr.inputs)
            value = rewrite.builder.apply(plain, operands, old.dtype)
            if rewrite.may_become(old, value):
                rewrite.replace(old, value)
                continue
        rewrite.copy(expr)
    return rewrite.result()


def _added(fusion: Fusion) -> set[Val]:
    """Values that an expression may add to others, itself or after moving them."""
    return {v for expr in fusion.exprs if not _only_scales(expr) for v in expr.inputs}


def _only_scales(expr: Expr) -> bool:
    if isinstance(expr, ReductionOp):
        return True
    if not isinstance(expr, PointwiseOp):
        return False
    if expr.op == "cast":
        # Narrower floats and integers are rounded.
        (x,) = expr.inputs
        return expr.output.dtype.itemsize < x.dtype.itemsize or expr.output.dtype.is_integral
    return expr.op in _SCALES or pointwise.lookup(expr.op).rule is Rule.BOOL
