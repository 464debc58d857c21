"""broadcast_reductions: what was folded is not folded again over dimensions that hold one element.

Needs: static sizes.
Leaves: reductions of reductions only over dimensions that hold several elements.

Gradients are full of the others: a norm's sums, kept with size 1, are summed again where they were
broadcast. Such a fold is a stage more, and often a kernel of its own. One that is no further stage
stays: it goes along with folds of its shape. An expanded dimension holds one element too, and is
dropped where showing it several times changes nothing (the largest, whether any).
"""

from __future__ import annotations

from collections.abc import Sequence

from thunder_fuser.ir import reductions
from thunder_fuser.ir.domain import Squeeze
from thunder_fuser.ir.fusion import Fusion, ReductionOp, TensorView, Val
from thunder_fuser.passes.rewrite import Precision, Rewrite

_IDEMPOTENT = frozenset({"max", "min", "any", "all"})


def broadcast_reductions(fusion: Fusion, _precision: Precision = "strict") -> Fusion:
    rewrite = Rewrite(fusion)
    staged: set[Val] = set()
    for expr in rewrite.walk():
        is_staged = not staged.isdisjoint(expr.inputs)
        if is_staged or isinstance(expr, ReductionOp):
            staged.add(expr.output)
        if not (is_staged and isinstance(expr, ReductionOp)) or not (dropped := _dropped(expr)):
            rewrite.copy(expr)
            continue
        squeezed = [Squeeze(k) for k in reversed(dropped)]
        x = rewrite.view("squeeze", rewrite.tensor(expr.input), squeezed)
        new = _folded(expr, x, dropped, rewrite)
        if new is x and not rewrite.may_share(expr.output, x):
            rewrite.copy(expr)
        else:
            rewrite.replace(expr.output, new)
    return rewrite.result()


def _dropped(expr: ReductionOp) -> list[int]:
    """Dimensions that need not be folded."""
    dims = expr.input.domain.logical
    several = expr.op in _IDEMPOTENT
    found = [k for k in expr.dims if dims[k].is_broadcast and (several or dims[k].size == 1)]
    if any(dims[k].size == 0 for k in expr.dims):
        return []
    # Where one element is, is a constant; nothing is gained by writing it otherwise.
    positions = reductions.lookup(expr.op).accumulator.takes_position
    return [] if positions and len(found) == len(expr.dims) else found


def _folded(
    expr: ReductionOp, x: TensorView, dropped: Sequence[int], rewrite: Rewrite
) -> TensorView:
    """The dimensions that are left, folded; or the one element as the fold would leave it."""
    b, dtype = rewrite.builder, expr.output.dtype
    left = [k - sum(d < k for d in dropped) for k in expr.dims if k not in dropped]
    if left:
        return b.fold(expr.op, x, left, expr.accumulate, dtype)
    value = x if x.dtype is expr.accumulate else b.cast_tensor(x, expr.accumulate)
    if expr.op == "sum" and expr.accumulate.is_floating:
        # Folding starts from 0.0, and 0.0 + -0.0 is 0.0.
        value = b.apply("add", (value, b.scalar(0.0)), expr.accumulate)
    return value if dtype is expr.accumulate else b.cast_tensor(value, dtype)
