"""Where a result lies in memory, said in a Fusion: by operands that it is laid out by.

A result lies as the operands of its expression do, the first one first. So a select that always
takes the other side adds tensors to those: its layout is decided before passes remove it.
"""

from __future__ import annotations

from collections.abc import Sequence

from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.fusion import TensorView


def lying_as(b: FusionBuilder, x: TensorView, leaders: Sequence[TensorView]) -> TensorView:
    """`x`, laid out as a pointwise result of `leaders` is: whatever broadcasts to its sizes."""
    for leader in reversed([t for t in leaders if t.dtype.is_complex <= x.dtype.is_complex]):
        missing = x.rank - leader.rank
        same = _of(b.cast(leader, x.dtype))
        wide = b.broadcast_in_dim(same, list(x.domain.shape), range(missing, x.rank))
        x = _of(b.cast(b.pointwise("where", False, wide, x), x.dtype))
    return x


def _of(value: object) -> TensorView:
    assert isinstance(value, TensorView)
    return value
