"""Online reductions: a reduction that depends on another one of the same elements, as one pass with
a larger accumulator (Welford's variance, online softmax).

A variance sums squared differences to the mean; a softmax sums exponentials of differences to the
maximum. Both read every element twice if a row is not persistent, and need a second kernel if
blocks share the elements. The online form reads them once. It takes more arithmetic, so it is an
alternative and no simplification: plans and schedules use it where it saves a kernel, or bytes.

Values are compared, not expressions: it does not matter how broadcasts and casts are written.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace

from thunder_fuser.analysis.layout import dense_layout
from thunder_fuser.ir.dag import topological_order
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import PointwiseOp, ReductionOp, TensorView, Val
from thunder_fuser.ir.integer.symint import Context
from thunder_fuser.ir.tables.pointwise import PRODUCTS
from thunder_fuser.lower.body import KernelBody
from thunder_fuser.lower.pull import Pull, Unreadable
from thunder_fuser.lower.scalar_graph import Compute, Folded, Literal, Value

_NEAR = 3
"""Most operations, besides casts and views, between two reductions that can be merged: the square
or the exponential, the difference, and the quotient that makes a mean.
"""
_ALIKE = 8
"""Depth in operations to which two values are compared; deeper operands must be the same tensor."""


def in_one_pass(body: KernelBody) -> tuple[ReductionOp, ...]:
    """Return the body's reductions, each in its online form if it has one."""
    known: dict[Val, bool] = {}
    return tuple(one_pass(fold, body, known) or fold for fold in body.folds)


def exact_variances(
    folds: Sequence[ReductionOp], single: Sequence[ReductionOp], outputs: Sequence[TensorView]
) -> tuple[ReductionOp, ...]:
    """Return the reductions with one-pass variances where nothing else reads the elements: torch
    adds up in fp64 on a CPU, and an fp32 mean is off by more than small deviations from a large
    mean.
    """
    found = []
    for fold, other in zip(folds, single, strict=True):
        elements = fold.input.numel
        wanted = all(out.numel < elements for out in outputs)
        found.append(other if other.op == "squared_deviations" and wanted else fold)
    return tuple(found)


def one_pass(fold: ReductionOp, body: KernelBody, known: dict[Val, bool]) -> ReductionOp | None:
    """Return the online form of `fold`, which depends on no other reduction, or None.

    known  value -> True if it depends on a reduction; filled in
    """
    if fold.op != "sum" or not fold.accumulate.is_floating:
        return None
    for other in _waited_for(fold, body):
        if _waits(other.input, body, known):
            continue
        op = _op(fold, other, body)
        if op is not None:
            return replace(fold, op=op, input=other.input)
    return None


def _waited_for(fold: ReductionOp, body: KernelBody) -> Iterator[ReductionOp]:
    """Yield reductions of equal shape and dimensions on which the elements depend, a few
    operations away.
    """
    for value in _below(fold.input, _NEAR, body, casts=0):
        expr = body.producer(value)
        if isinstance(expr, ReductionOp) and (
            (expr.input.sizes, expr.dims) == (fold.input.sizes, fold.dims)
        ):
            yield expr


def _waits(value: Val, body: KernelBody, known: dict[Val, bool]) -> bool:
    """True if a value depends on a reduction."""

    def producers(v: Val) -> tuple[Val, ...]:
        is_end = v in known or isinstance(body.producer(v), ReductionOp)
        return () if is_end else body.operands(v)

    for v in topological_order([value], producers):
        if v not in known:
            is_fold = isinstance(body.producer(v), ReductionOp)
            known[v] = is_fold or any(known[u] for u in body.operands(v))
    return known[value]


def _below(root: Val, most: int, body: KernelBody, *, casts: int) -> dict[Val, int]:
    """Return the values from which `root` is computed by at most `most` pointwise operations, with
    their distance; the search ends at reductions and loads. `casts`: distance of a cast, 0 or 1.
    """
    found: dict[Val, int] = {}
    waiting = deque([(root, 0)])
    while waiting:
        value, depth = waiting.popleft()
        if depth > most or found.get(value, most + 1) <= depth:
            continue
        found[value] = depth
        expr = body.producer(value)
        if expr is None or isinstance(expr, ReductionOp):
            continue
        price = casts if expr.op == "cast" else int(isinstance(expr, PointwiseOp))
        # The nearest ones first.
        for operand in expr.inputs:
            (waiting.append if price else waiting.appendleft)((operand, depth + price))
    return found


def _compared(roots: Sequence[Val], body: KernelBody) -> KernelBody:
    """Return the body for comparing some values: tensors at depth `_ALIKE` are treated as loads."""
    depths: dict[Val, int] = {}
    for root in roots:
        for value, depth in _below(root, _ALIKE, body, casts=1).items():
            depths[value] = min(depth, depths.get(value, depth))
    deepest = {
        value: dense_layout(value, range(value.rank))
        for value, depth in depths.items()
        if depth == _ALIKE and isinstance(value, TensorView) and value in body.definitions
    }
    return replace(body, loads={**deepest, **body.loads}) if deepest else body


def _op(fold: ReductionOp, other: ReductionOp, body: KernelBody) -> str | None:
    """Return the online reduction, a row of `reductions.ONE_PASS`, that computes `fold` from the
    elements of `other`; None if there is none.
    """
    context = Context()
    sizes = fold.input.sizes
    index = [context.var(f"i{k}", 0, max(n - 1, 0)) for k, n in enumerate(sizes)]
    pull = Pull(_compared((fold.input, other.input), body), context)
    pull.fold_at(other.output, [i for k, i in enumerate(index) if k not in fold.dims])
    try:
        element = _exactly(pull.emit(other.input, index))
        found = _exactly(pull.emit(fold.input, index))
    except Unreadable:
        return None
    count = math.prod(sizes[k] for k in fold.dims)
    if other.op == "sum" and _is_square(found):
        assert isinstance(found, Compute)
        mean = _subtrahend(found.operands[0], element, fold.accumulate)
        wide = other.accumulate is other.output.dtype is fold.accumulate
        if wide and mean is not None and _is_mean(mean, other.output, count):
            return "squared_deviations"
    if other.op == "max" and isinstance(found, Compute) and found.op == "exp":
        largest = _subtrahend(found.operands[0], element, fold.accumulate)
        if isinstance(largest, Folded) and found.dtype is fold.accumulate:
            return "sum_exp"
    return None


def _exactly(value: Value) -> Value:
    """Return the value before casts that are exact."""
    while isinstance(value, Compute) and value.op == "cast":
        (operand,) = value.operands
        widens = operand.dtype.is_floating and operand.dtype.itemsize < value.dtype.itemsize
        if not (widens or operand.dtype is value.dtype):
            break
        value = operand
    return value


def _subtrahend(value: Value, element: Value, dtype: DataType) -> Value | None:
    """Return what `value` subtracts from the element, in a dtype that rounds neither, or None."""
    if not (isinstance(value, Compute) and value.op == "sub" and value.dtype is dtype):
        return None
    minuend, subtrahend = value.operands
    return _exactly(subtrahend) if _exactly(minuend) is element else None


def _is_square(value: Value) -> bool:
    return (
        isinstance(value, Compute)
        and value.op in PRODUCTS
        and value.operands[0] is value.operands[1]
        and value.dtype is value.operands[0].dtype
    )


def _is_mean(value: Value, total: TensorView, count: int) -> bool:
    """True if a value is the sum `total` divided by `count`."""
    if not (isinstance(value, Compute) and value.op in ("div", *PRODUCTS)):
        return False
    of, by = value.operands
    if not (isinstance(of, Folded) and of.tensor is total and isinstance(by, Literal)):
        return False
    if value.dtype is not total.dtype or isinstance(by.value, complex) or not count:
        return False
    return by.value == (count if value.op == "div" else 1 / count)
