"""rfactor_reductions: a reduction over rows that depend on row reductions is split into a reduction
per row and a reduction of the rows' results.

Requires: static sizes.
Result: no single-value reduction over the dimensions of a reduction that its elements depend on,
and others.

A loss over all elements of a softmax (a divergence, an entropy, a mean square) depends on each
row's maximum and sum. As one reduction over everything it has no row at which it is ready: a kernel
of its own reads all of it again. As a reduction per row it is one more stage of the kernel that has
the row, which reduces the rows' results after a grid barrier. The name is nvFuser's and Halide's
for a split of a reduction domain in two.

Elements are reduced in another order, so that floats may differ in the last bits, as two reductions
in different order do.
"""

from __future__ import annotations

from thunder_fuser.ir.domain import static
from thunder_fuser.ir.fusion import Fusion, OpaqueOp, ReductionOp, Val
from thunder_fuser.ir.tables import reductions
from thunder_fuser.passes.rewrite import Precision, Rewrite, where

Rows = tuple[tuple[int, ...], tuple[int, ...]]
"""(sizes of a reduction's operand, its reduced dimensions)."""


@where(lambda expr: isinstance(expr, ReductionOp))
def rfactor_reductions(fusion: Fusion, _precision: Precision = "strict") -> Fusion:
    rewrite = Rewrite(fusion)
    waits: dict[Val, frozenset[Rows]] = {}
    for expr in rewrite.walk():
        found = frozenset[Rows]().union(*(waits.get(v, ()) for v in expr.inputs))
        if isinstance(expr, ReductionOp):
            sizes = tuple(static(d.size) for d in expr.input.domain.logical)
            if _split(expr, sizes, found, rewrite):
                continue
            found |= {(sizes, expr.dims)}
        if found and not isinstance(expr, OpaqueOp):
            waits[expr.output] = found
        rewrite.copy(expr)
    return rewrite.result()


def _split(
    expr: ReductionOp, sizes: tuple[int, ...], waits: frozenset[Rows], rewrite: Rewrite
) -> bool:
    """Split a reduction whose elements depend on reductions over some of its dimensions; True if
    done.
    """
    own = set(expr.dims)
    rows = {dims for folded, dims in waits if folded == sizes and set(dims) < own}
    if len(rows) != 1 or not reductions.lookup(expr.op).accumulator.is_number:
        return False
    (dims,) = rows
    if all(sizes[k] == 1 for k in dims) or all(sizes[k] == 1 for k in own.difference(dims)):
        return False
    left = [k - sum(e < k for e in dims) for k in expr.dims if k not in dims]
    b, wide = rewrite.builder, expr.accumulate
    each = b.fold(expr.op, rewrite.tensor(expr.input), list(dims), wide, wide)
    value = b.fold(expr.op, each, left, wide, expr.output.dtype)
    if not rewrite.may_become(expr.output, value):
        return False
    rewrite.replace(expr.output, value)
    return True
