"""empty_calls: a torch call whose results have no elements becomes constants.

Requires: static sizes.
Result: every call but a collective, in which other ranks wait, has a result with elements.

Nothing computes what has no elements, so that a plan has no step for such a call.
"""

from __future__ import annotations

from thunder_fuser.ir.fusion import Expr, Fusion, OpaqueOp, TensorView
from thunder_fuser.ir.tables import opaque
from thunder_fuser.passes.rewrite import Precision, Rewrite, where


@where(lambda expr: _may_go(expr))
def empty_calls(fusion: Fusion, _precision: Precision = "strict") -> Fusion:
    calls = fusion.calls()
    rewrite = Rewrite(fusion)
    for expr in rewrite.walk():
        if isinstance(expr, OpaqueOp) and all(map(_may_go, calls[expr.call])):
            rewrite.replace(expr.output, _nothing(rewrite, expr.output))
        else:
            rewrite.copy(expr)
    return rewrite.result()


def _may_go(expr: Expr) -> bool:
    if not isinstance(expr, OpaqueOp) or expr.output.numel:
        return False
    return not opaque.lookup(expr.op).is_collective


def _nothing(rewrite: Rewrite, like: TensorView) -> TensorView:
    """A tensor without elements of those sizes, in that memory order."""
    builder = rewrite.builder
    made = builder.full(like.domain.shape, builder.scalar(0, like.dtype), like.dtype)
    order = like.domain.allocation
    if order == made.domain.allocation:
        return made
    return rewrite.view("stride_order", made, (), allocation=order)
