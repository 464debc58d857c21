"""Strides that torch's TensorIterator gives a pointwise result, from those of its operands.

If the operands have one shape and one memory format, or the same strides, a fast path takes these
for the result. Otherwise dimensions are sorted by stride. The two differ only in the strides of
dimensions of one element, from which a cat of four or five dimensions infers its memory format.
"""

from __future__ import annotations

from collections.abc import Sequence

from thunder_fuser.ir.domain import dense_strides
from thunder_fuser.ir.fusion import PointwiseOp, TensorView

_Strides = tuple[int, ...]


def strides_of_operands_alike(
    expr: PointwiseOp, sizes: Sequence[int], operands: Sequence[_Strides]
) -> _Strides | None:
    """The result's strides by the fast setup: those of the format of all operands, or those that
    all share; a cast keeps those of its operand. None where shapes or layouts differ.

    A number is a tensor of no dimensions beside one other operand and in a select, else a
    parameter of the kernel.
    """
    shapes = [v.sizes if isinstance(v, TensorView) else () for v in expr.inputs]
    if len(shapes) == 3 and expr.op != "where":
        shapes = [s for s, v in zip(shapes, expr.inputs, strict=True) if isinstance(v, TensorView)]
    if not operands or any(tuple(shape) != tuple(sizes) for shape in shapes):
        return None
    formats = (range(len(sizes)), *([(0, 2, 3, 1)] if len(sizes) == 4 else []))
    for order in formats if expr.op != "cast" else ():
        dense = dense_strides(sizes, order)
        if all(_are_steps(sizes, strides, dense) for strides in operands):
            return dense
    first = operands[0]
    dense = dense_strides(sizes, iteration_order(sizes, [first]))
    return first if set(operands) == {first} and _are_steps(sizes, first, dense) else None


def _are_steps(sizes: Sequence[int], strides: Sequence[int], others: Sequence[int]) -> bool:
    """True if strides are equal but for those of dimensions of one element."""
    return all(n == 1 or a == b for n, a, b in zip(sizes, strides, others, strict=True))


def iteration_order(sizes: Sequence[int], operands: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Dimensions from the outermost to the innermost, as TensorIterator orders them.

    An insertion sort by strides, the first operand's first. A stride of 0 is no information, so the
    order is not transitive, and the algorithm is part of the rule.
    """
    inner_first = list(reversed(range(len(sizes))))
    for k in range(1, len(sizes)):
        moving = k
        for other in reversed(range(k)):
            side = _side(inner_first[other], inner_first[moving], sizes, operands)
            if side < 0:
                break
            if side > 0:
                inner_first[other], inner_first[moving] = inner_first[moving], inner_first[other]
                moving = other
    return tuple(reversed(inner_first))


def _side(a: int, b: int, sizes: Sequence[int], operands: Sequence[Sequence[int]]) -> int:
    """1 if dimension `a` is outside of `b`, -1 if inside, 0 if undecided."""
    for strides in operands:
        if strides[a] == 0 or strides[b] == 0:
            continue
        if strides[a] != strides[b]:
            return 1 if strides[a] > strides[b] else -1
        if sizes[a] > sizes[b]:
            return 1
    return 0
