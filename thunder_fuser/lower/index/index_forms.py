"""Index forms: integer tensors whose elements are known forms of their position, without a load.

`flip` reads at n - 1 - i, `roll` at an index made of two aranges, a table of angles at consecutive
positions. A gather at such an index is a load whose address is a form: it vectorises and needs no
bounds check at run time.
"""

from __future__ import annotations

from collections.abc import Sequence

from thunder_fuser.ir.domain import Index
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import (
    CopyOp,
    CutOp,
    FullOp,
    IotaOp,
    PointwiseOp,
    Scalar,
    TensorView,
    Val,
    ViewOp,
)
from thunder_fuser.ir.index_maps import pull
from thunder_fuser.ir.integer.symint import Form
from thunder_fuser.lower.body import KernelBody

_MAX_DEPTH = 32
"""Longest chain of operations that is followed from an index."""
WIDE = frozenset({DataType.Int, DataType.Int32})
"""Dtypes whose wrapping sums and products are those of the integers, if the final result fits."""


def index_form(
    value: Val, index: Sequence[Index], body: KernelBody, zero: Form, depth: int = _MAX_DEPTH
) -> Form | None:
    """Return the element of an integer value at an index as a form; None if it depends on data or
    rounding.
    """
    if value.dtype not in WIDE or not depth:
        return None

    def known(operand: Val, at: Sequence[Index] = ()) -> Form | None:
        return index_form(operand, at, body, zero, depth - 1)

    if isinstance(value, Scalar):
        return zero + value.value if type(value.value) is int else None
    match body.producer(value):
        case IotaOp() as iota:
            start, step = known(iota.start), known(iota.step)
            return None if start is None or step is None else start + step * index[0]
        case FullOp() as full:
            return known(full.fill)
        case ViewOp() | CopyOp() | CutOp() as view:
            point, _ = pull(tuple(index), value.domain.root, value.domain.transforms, zero)
            return known(view.input, point)
        case PointwiseOp() as expr:
            return computed(
                expr.op,
                [
                    known(v, index[len(index) - v.rank :] if isinstance(v, TensorView) else ())
                    for v in expr.inputs
                ],
            )
    return None


def computed(op: str, operands: Sequence[Form | None]) -> Form | None:
    """Return the result of an operation on forms, if it is one; None for other operations, or if an
    operand is None.
    """
    match op, *operands:
        case "cast" | "set", Form() as a:
            return a
        case "neg", Form() as a:
            return -a
        case "add", Form() as a, Form() as b:
            return a + b
        case "sub", Form() as a, Form() as b:
            return a - b
        case "mul", Form() as a, Form() as b if a.is_constant or b.is_constant:
            return a * b
    return None
