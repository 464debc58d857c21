"""short_sums: a sum over a few elements with a large stride becomes additions of slices.

Requires: static sizes.
Result: no sum of 2 to `_MOST` elements, if they do not depend on a reduction, the result is large
and the dimension that is innermost in memory is kept.

Gradients of heads that share a key or value are summed over a group of 2 to 8 of them, gradients of
experts over the few that were chosen. A reduction there separates its producers from its consumers:
it has its own rows and columns, and a kernel has one set of them. Additions are pointwise:
rotations and sums of gradients after them share their kernel, and an outer reduction computes them
in its prologue. Where the innermost dimension is reduced, the slices would be elements apart, and
where the result is small, the reduced dimension has most of the parallelism.

Additions are in the order of the elements and begin with 0, as in torch's kernels for a few
elements: a sum is never -0.0.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from thunder_fuser.ir.domain import Reorder, Resize, Squeeze, Transform, static
from thunder_fuser.ir.fusion import (
    Fusion,
    OpaqueOp,
    PointwiseOp,
    ReductionOp,
    ScanOp,
    TensorView,
    Val,
    ViewOp,
)
from thunder_fuser.passes.rewrite import Precision, Rewrite, where

_MOST = 8
"""Most elements of a sum that becomes additions: each is a load in flight and a register."""
_LEAST = 1 << 16
"""Fewest elements of a result that keep a GPU busy: a quarter of an H200's threads, one each."""


@where(lambda expr: isinstance(expr, ReductionOp))
def short_sums(fusion: Fusion, _precision: Precision = "strict") -> Fusion:
    rewrite = Rewrite(fusion)
    folded: set[Val] = set()
    for expr in rewrite.walk():
        is_folded = not folded.isdisjoint(expr.inputs)
        if isinstance(expr, ReductionOp) and not is_folded and _is_short(expr, rewrite):
            value = _added(expr, rewrite)
            if rewrite.may_become(expr.output, value):
                rewrite.replace(expr.output, value)
                continue
        if not isinstance(expr, OpaqueOp) and (is_folded or isinstance(expr, ReductionOp | ScanOp)):
            folded.add(expr.output)
        rewrite.copy(expr)
    return rewrite.result()


def _is_short(expr: ReductionOp, rewrite: Rewrite) -> bool:
    domain = expr.input.domain
    dims = domain.logical
    if expr.op != "sum" or expr.accumulate.is_complex or not domain.is_static:
        return False
    if any(dims[k].is_broadcast for k in expr.dims):
        return False
    sizes = domain.sizes
    count = math.prod(sizes[k] for k in expr.dims)
    if not 2 <= count <= _MOST or math.prod(sizes) < count * _LEAST:
        return False
    last = _innermost(expr.input, rewrite)
    return last not in expr.dims and sizes[last] > count


def _innermost(x: TensorView, rewrite: Rewrite) -> int:
    """The dimension with the smallest stride in memory, as far as it can be traced through
    permutations and pointwise operations.
    """
    expr = rewrite.producer(x)
    if isinstance(expr, PointwiseOp):
        same = [v for v in expr.inputs if isinstance(v, TensorView) and v.sizes == x.sizes]
        if same:
            return _innermost(same[0], rewrite)
    if isinstance(expr, ViewOp) and len(expr.output.domain.transforms) == 1:
        (step,) = expr.output.domain.transforms
        if isinstance(step, Reorder):
            return step.order.index(_innermost(expr.input, rewrite))
    order = [k for k in x.domain.allocation if x.sizes[k] != 1]
    return order[-1]


def _added(expr: ReductionOp, rewrite: Rewrite) -> TensorView:
    b, x = rewrite.builder, rewrite.tensor(expr.input)
    sizes = x.domain.sizes
    wide = expr.accumulate
    total: TensorView | None = None
    for at in itertools.product(*(range(sizes[k]) for k in expr.dims)):
        term = _element(x, expr.dims, at, rewrite)
        if term.dtype is not wide:
            term = b.cast_tensor(term, wide)
        total = b.apply("add", (term, b.scalar(0, wide) if total is None else total), wide)
    assert total is not None
    return total if total.dtype is expr.output.dtype else b.cast_tensor(total, expr.output.dtype)


def _element(x: TensorView, dims: Sequence[int], at: Sequence[int], rewrite: Rewrite) -> TensorView:
    """The slice of `x` at one position of the reduced dimensions."""
    sizes = x.domain.sizes
    cut: list[Transform] = [
        Resize(k, -place, place + 1 - static(sizes[k])) for k, place in zip(dims, at, strict=True)
    ]
    part = rewrite.view("slice", x, cut)
    return rewrite.view("squeeze", part, [Squeeze(k) for k in sorted(dims, reverse=True)])
