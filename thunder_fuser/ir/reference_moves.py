"""Reference semantics of gathers and views, in torch."""

from __future__ import annotations

import torch

from thunder_fuser.errors import FuserIndexError
from thunder_fuser.ir.domain import (
    Expand,
    Merge,
    NewBroadcast,
    Reorder,
    Resize,
    Split,
    Squeeze,
    Transform,
    replay,
    static,
)
from thunder_fuser.ir.fusion import GatherOp, TensorView
from thunder_fuser.ir.tables import indexing


def gathered(expr: GatherOp, value: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """`value`, of the input's sizes, read at the index; FuserIndexError for one out of bounds."""
    extent, index = value.shape[expr.dim], index.to(torch.int64)
    outside = index[(index < 0) | (index >= extent)]
    if outside.numel():
        raise FuserIndexError(f"{expr}: index {int(outside[0])} {indexing.bounds_text(extent)}")
    return indexing.lookup(expr.op).reference(value, expr.dim, index)


def moved(value: torch.Tensor, view: TensorView, fill: torch.Tensor | None) -> torch.Tensor:
    """`value`, of the root's sizes, transformed to the logical sizes."""
    dims = view.domain.root
    for step in view.domain.transforms:
        dims = replay(dims, (step,))
        value = _step(value, step, tuple(static(d.size) for d in dims), fill)
    return value


def _step(
    x: torch.Tensor, step: Transform, sizes: tuple[int, ...], fill: torch.Tensor | None
) -> torch.Tensor:
    match step:
        case Split() | Merge():
            return x.reshape(sizes)
        case Resize(axis, left, right):
            return _resized(x, axis, static(left), static(right), fill)
        case NewBroadcast(axis):
            return x.unsqueeze(axis)
        case Squeeze(axis):
            return x.select(axis, 0)
        case Expand():
            return x.expand(sizes)
        case Reorder(order):
            return x.permute(order)


def _resized(
    x: torch.Tensor, axis: int, left: int, right: int, fill: torch.Tensor | None
) -> torch.Tensor:
    size = x.shape[axis]
    begin, end = max(0, -left), min(size, size + right)
    if left <= 0 and right <= 0:
        return x.narrow(axis, begin, end - begin)
    shape = list(x.shape)
    shape[axis] = size + left + right
    # Without a fill (the slack of a strided slice) the padding is never read.
    out = x.new_zeros(shape) if fill is None else fill.expand(shape).clone()
    if begin < end:
        out.narrow(axis, begin + left, end - begin).copy_(x.narrow(axis, begin, end - begin))
    return out
