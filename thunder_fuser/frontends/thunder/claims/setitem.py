"""The claim of `x[index] = value`, for regions, and for masks with one value for all their places.

The value is computed at the position that it is written to, so that a kernel writes each point
once: a select between the value and `x`. Torch writes where indices are data, or where a mask has
its own value for each place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from thunder.core.prims import PrimIDs
from thunder.core.proxies import NumberProxy, TensorProxy

from thunder_fuser.errors import Refusal
from thunder_fuser.frontends.thunder.claims.claim import Claim
from thunder_fuser.frontends.thunder.claims.operands import (
    data_type,
    refuse_symbolic,
)
from thunder_fuser.frontends.thunder.claims.padding import padded
from thunder_fuser.frontends.thunder.claims.write_region import (
    MOST_BOXES,
    Box,
    Mask,
    Region,
    entries,
    region,
)
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.dtypes import Category, DataType
from thunder_fuser.ir.fusion import TensorView, Val
from thunder_fuser.segment.regions.joint_graph import Role


def region_of(x: TensorProxy, index: object) -> Region | None:
    """Return where an index writes into a tensor; None if that is data, or torch's error. With
    sizes that are unknown until the function runs: those of the call that is traced.
    """
    given = entries(index)
    if not all(_may_be_mask(e, x) for e in given if isinstance(e, TensorProxy)):
        return None
    return region(_known(x.shape), [_of_a_shape(entry) for entry in given])


def mask_in(index: object) -> Any:
    """Return the tensor among the entries of an index."""
    return next(entry for entry in entries(index) if isinstance(entry, TensorProxy | TensorView))


def _may_be_mask(entry: TensorProxy, x: TensorProxy) -> bool:
    return data_type(entry.dtype) is DataType.Bool and bool(entry.device == x.device)


def _known(shape: Sequence[Any]) -> tuple[int, ...]:
    return tuple(int(n.value if isinstance(n, NumberProxy) else n) for n in shape)


def _of_a_shape(entry: object) -> object:
    if isinstance(entry, TensorProxy | TensorView):
        return Mask(_known(entry.sizes if isinstance(entry, TensorView) else entry.shape))
    return entry


def _refuse(x: TensorProxy, index: object, value: object) -> Refusal | None:
    flat = entries(index)
    bounds = [n for e in flat if isinstance(e, slice) for n in (e.start, e.stop, e.step)]
    if refused := refuse_symbolic(*bounds, *(e for e in flat if not isinstance(e, slice)), value):
        return refused
    where = f"x[{_spelled(index)}] = .. of a tensor {list(x.shape)}"
    found = region_of(x, index)
    if found is None and any(isinstance(e, TensorProxy) for e in flat):
        text = f"{where} writes where a tensor says; use ints, slices and lists of ints, or one"
        return Refusal("unclaimed", f"{text} mask of some dimensions' sizes")
    if found is None:
        text = f"{where} is no region of it; use ints, lists of ints and slices that lie inside"
        return Refusal("index", text)
    if len(found.boxes) > MOST_BOXES:
        text = f"{where} writes {len(found.boxes)} windows, of which a kernel selects between"
        return Refusal("index", f"{text} {MOST_BOXES}; use a mask, or positions in even steps")
    return _refuse_value(x, value, found)


def stripped(shape: Sequence[int], rank: int) -> tuple[int, ...]:
    """Return the sizes that torch gives a value: without leading ones beyond a region's rank."""
    sizes = [*map(int, shape)]
    while len(sizes) > rank and sizes[0] == 1:
        del sizes[0]
    return tuple(sizes)


def _refuse_value(x: TensorProxy, value: object, into: Region) -> Refusal | None:
    """Return why torch writes a value to a region."""
    target = data_type(x.dtype)
    if not isinstance(value, TensorProxy):
        return _refuse_number(value, target)
    sizes = into.sizes
    shape = stripped(value.shape, len(sizes))
    last = sizes[max(len(sizes) - len(shape), 0) :]
    if len(shape) > len(sizes) or any(n not in (1, m) for n, m in zip(shape, last, strict=True)):
        place = "a window" if into.mask is None else "what a mask selects, which is"
        text = f"a value {list(value.shape)} does not broadcast to {place} {_shown(into)}"
        return Refusal("shape", f"{text}; reshape the value to {list(sizes)}")
    source = data_type(value.dtype)
    if into.points is not None and source is not target:
        text = f"torch raises an error for a value of {source.name} in a tensor of {target.name}"
        return Refusal("dtype", f"{text} where a mask or a list says; cast the value")
    if source.category > max(target.category, Category.FLOAT):
        text = f"torch warns of a value of {source.name} in a tensor of {target.name}"
        return Refusal("dtype", f"{text}; write value.real")
    return None


def _shown(into: Region) -> str:
    """Return the sizes of `x[index]`, of which a mask leaves one open."""
    sizes = [*map(str, into.sizes)]
    if into.mask is not None and into.points is not None:
        sizes[into.points] = "any number"
    return f"[{', '.join(sizes)}]"


def _refuse_number(value: object, target: DataType) -> Refusal | None:
    if isinstance(value, complex) and not target.is_complex:
        text = f"torch raises an error for {value} in a tensor of {target.name}; write its real"
        return Refusal("dtype", f"{text} part, or into a complex tensor")
    info = torch.iinfo(target.torch) if target.category is Category.INT else None
    if info is not None and not info.min <= value <= info.max:
        text = f"{value} is outside of {target.name}, {info.min} to {info.max}, and becomes what"
        return Refusal("overflow", f"{text} torch makes of it; write a number that it holds")
    return None


def _spelled(index: object) -> str:
    """Return an index in Python syntax."""
    if isinstance(index, tuple):
        return ", ".join(map(_spelled, index))
    if isinstance(index, slice):
        ends = ["" if e is None else str(e) for e in (index.start, index.stop)]
        return ":".join([*ends, *([] if index.step is None else [str(index.step)])])
    if isinstance(index, TensorProxy):
        return str(index.name)
    return "..." if index is Ellipsis else str(index)


def _build(b: FusionBuilder, x: TensorView, index: object, value: Val) -> Val:
    """A copy of `x` with `value` in a region: for each box a select, by a padded mask, of the
    padded value.
    """
    into = region(x.sizes, [_of_a_shape(entry) for entry in entries(index)])
    assert into is not None
    if isinstance(value, TensorView):
        shape, axes = stripped(value.sizes, len(into.sizes)), range(len(into.sizes))
        value = b.reshape(b.cast_tensor(value, x.dtype), shape)
        value = b.broadcast_in_dim(value, into.sizes, axes[len(axes) - len(shape) :])
    found = x
    for box in into.boxes:
        widths = [run.padding for run in box.runs]
        if isinstance(value, TensorView):
            inside = padded(b, _inside(b, into, box, value), widths)
        else:
            inside = b.full(x.sizes, value, x.dtype)
        mask = padded(b, _chosen(b, into, box, index), widths, False)
        found = _tensor(b.pointwise("where", mask, inside, found))
    return found if into.boxes else b.set(x)


def _inside(b: FusionBuilder, into: Region, box: Box, value: TensorView) -> TensorView:
    """The part of a value, broadcast to the region, that goes to one of its boxes."""
    if into.points is not None:
        start, end = [0] * value.rank, [*value.sizes]
        start[into.points], end[into.points] = box.points.start, box.points.stop
        value = b.slice(value, start, end)
    value = b.squeeze(value, [k for k, dim in enumerate(box.dims) if dim is None])
    dims = sorted(dim for dim in box.dims if dim is not None)
    return b.broadcast_in_dim(b.permute(value, box.order), box.sizes, dims)


def _chosen(b: FusionBuilder, into: Region, box: Box, index: object) -> TensorView:
    """Which points of a box are written."""
    if into.mask is None:
        return b.full(box.sizes, True, DataType.Bool)
    mask = _tensor(mask_in(index))
    return b.broadcast_in_dim(mask, box.sizes, range(into.mask, into.mask + mask.rank))


def _tensor(value: object) -> TensorView:
    assert isinstance(value, TensorView)
    return value


CLAIMS = {PrimIDs.COPY_WITH_SETITEM: Claim(Role.JOIN, _refuse, _build)}
