"""broadcast_reductions: a reduction of copies of one element becomes arithmetic on that element.

Requires: static sizes.
Result: every reduction folds a dimension of different elements, and with it perhaps dimensions of
size 1; reductions of complex numbers are left as they are. A reduction only over dimensions of size
1 is removed, since it would be another stage or a kernel with rows of its own, and so is one over
dimensions of size 1 of another reduction's result. Gradients have many of these: the sums of a
norm, kept with size 1, are summed again where they were broadcast, and the heads of a batch of one
over the batch.

The sum of n equal numbers is n times the number, their product its n-th power, and their maximum,
minimum, any and all the number itself: a column of the table of reductions. One rounding replaces
many, so floats may differ from a reduction in the last bits, as do two reductions in different
order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.domain import Squeeze, static
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import Fusion, ReductionOp, TensorView, Val
from thunder_fuser.ir.tables import reductions
from thunder_fuser.ir.tables.reductions import Copies
from thunder_fuser.passes.rewrite import Precision, Rewrite, where


@where(lambda expr: isinstance(expr, ReductionOp))
def broadcast_reductions(fusion: Fusion, _precision: Precision = "strict") -> Fusion:
    rewrite = Rewrite(fusion)
    folded: set[Val] = set()
    for expr in rewrite.walk():
        of_folded = not folded.isdisjoint(expr.inputs)
        if of_folded or isinstance(expr, ReductionOp):
            folded.add(expr.output)
        if not isinstance(expr, ReductionOp) or not _replaced(expr, of_folded, rewrite):
            rewrite.copy(expr)
    return rewrite.result()


def _replaced(expr: ReductionOp, of_folded: bool, rewrite: Rewrite) -> bool:
    dims = expr.input.domain.logical
    folds_nothing = all(dims[k].is_broadcast for k in expr.dims)
    equal = [
        k
        for k in expr.dims
        if dims[k].is_broadcast and (of_folded or folds_nothing or static(dims[k].size) != 1)
    ]
    copies = math.prod(static(dims[k].size) for k in equal)
    # No value replaces a reduction of no copies, and inf * (n + 0i) is not inf.
    if not equal or not copies or expr.accumulate.is_complex:
        return False
    if not reductions.lookup(expr.op).accumulator.is_number:
        # A position, or a struct: of one element it is not that element.
        return False
    squeezes = [Squeeze(k) for k in reversed(equal)]
    value = rewrite.view("squeeze", rewrite.tensor(expr.input), squeezes)
    left = [k - sum(e < k for e in equal) for k in expr.dims if k not in equal]
    value = _folded(expr, value, left, copies, rewrite.builder)
    if not rewrite.may_become(expr.output, value):
        return False
    rewrite.replace(expr.output, value)
    return True


def _folded(
    expr: ReductionOp, value: TensorView, left: Sequence[int], copies: int, b: FusionBuilder
) -> TensorView:
    """`value` reduced over the dimensions `left`, combined with `copies` copies of the result."""
    wide, dtype = expr.accumulate, expr.output.dtype
    rule = reductions.lookup(expr.op).copies if copies > 1 or not left else Copies.SAME
    if rule is Copies.SAME:
        return b.fold(expr.op, value, left, wide, dtype) if left else _cast(b, value, dtype)
    value = b.fold(expr.op, value, left, wide, wide) if left else _cast(b, value, wide)
    # A power of a bool is the bool.
    if rule is Copies.POWER and copies > 1 and wide is not DataType.Bool:
        value = b.apply("pow", (value, b.scalar(copies, wide)), wide)
    if rule is Copies.MULTIPLE and copies > 1:
        value = b.apply("mul", (value, b.scalar(copies, wide)), wide)
    if rule is Copies.MULTIPLE and not left:
        # A sum starts from 0: it is never -0.0.
        value = b.apply("add", (value, b.scalar(0, wide)), wide)
    if rule is Copies.PARITY and copies % 2 == 0:
        value = b.apply("bitwise_xor", (value, value), wide)
    return _cast(b, value, dtype)


def _cast(b: FusionBuilder, value: TensorView, dtype: DataType) -> TensorView:
    return value if value.dtype is dtype else b.cast_tensor(value, dtype)
