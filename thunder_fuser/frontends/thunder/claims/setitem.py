"""The claim of `x[index] = value`: of windows, and of masks with one value for all their places.

What is written is computed where it is, so that a kernel writes each point once: a select between
the value and `x`. Where indices are data, or as many values are given as a mask has places, torch
writes them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from thunder.core.prims import PrimIDs
from thunder.core.proxies import TensorProxy

from thunder_fuser.errors import Refusal
from thunder_fuser.frontends.thunder.claims.claim import Claim
from thunder_fuser.frontends.thunder.claims.operands import data_type, refuse_symbolic
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.dtypes import Category, DataType
from thunder_fuser.ir.fusion import TensorView, Val
from thunder_fuser.segment.regions.joint_graph import Role


def _window(x: TensorProxy | TensorView, index: object) -> list[tuple[int, int, bool]] | None:
    """Return start, end and whether the dimension is kept for each dimension of `x[index]`; None
    for an index that is no window: tensors, lists, None, steps, and positions out of range.
    """
    shape = list(map(int, x.sizes if isinstance(x, TensorView) else x.shape))
    entries = list(index) if isinstance(index, tuple) else [index]
    if entries.count(Ellipsis) > 1 or len(entries) - (Ellipsis in entries) > len(shape):
        return None
    here = entries.index(Ellipsis) if Ellipsis in entries else len(entries)
    rest = [slice(None)] * (len(shape) - len(entries) + (Ellipsis in entries))
    entries[here : here + 1] = rest
    found = []
    for entry, size in zip(entries, shape, strict=True):
        if isinstance(entry, slice) and entry.step in (None, 1):
            start, end, _ = entry.indices(size)
            found.append((start, max(start, end), True))
        elif type(entry) is int and -size <= entry < size:
            found.append((entry % size, entry % size + 1, False))
        else:
            return None
    return found


def mask_of(x: TensorProxy, index: object) -> TensorProxy | None:
    """Return the mask of an index that is one: a bool for each element of the first dimensions."""
    mask = index[0] if isinstance(index, tuple) and len(index) == 1 else index
    if not isinstance(mask, TensorProxy) or data_type(mask.dtype) is not DataType.Bool:
        return None
    fits = 0 < mask.ndim <= x.ndim and tuple(mask.shape) == tuple(x.shape[: mask.ndim])
    return mask if fits and mask.device == x.device else None


def _refuse(x: TensorProxy, index: object, value: object) -> Refusal | None:
    flat = [index] if not isinstance(index, tuple) else [*index]
    bounds = [n for e in flat if isinstance(e, slice) for n in (e.start, e.stop, e.step)]
    if refused := refuse_symbolic(*bounds, *(e for e in flat if not isinstance(e, slice)), value):
        return refused
    where = f"x[{_spelled(index)}] = .. of a tensor {list(x.shape)}"
    mask = mask_of(x, index)
    if mask is not None:
        sizes = list(x.shape[mask.ndim :])
        return _refuse_value(x, value, sizes, "what a mask selects, which is", same_dtype=True)
    if any(isinstance(e, TensorProxy) for e in flat):
        text = f"{where} writes where a tensor says; use ints and slices of step 1, or a mask of"
        return Refusal("unclaimed", f"{text} the first dimensions' sizes")
    window = _window(x, index)
    if window is None:
        text = f"{where} is no window of it; use ints and slices of step 1 that lie inside"
        return Refusal("index", text)
    sizes = [end - start for start, end, stays in window if stays]
    return _refuse_value(x, value, sizes, "a window", same_dtype=False)


def _refuse_value(
    x: TensorProxy, value: object, sizes: Sequence[int], place: str, *, same_dtype: bool
) -> Refusal | None:
    """Return why torch writes a value to a place of these sizes. `same_dtype`: torch converts no
    tensors there.
    """
    target = data_type(x.dtype)
    if not isinstance(value, TensorProxy):
        return _refuse_number(value, target)
    shape, last = list(value.shape), list(sizes[max(len(sizes) - value.ndim, 0) :])
    if len(shape) > len(sizes) or any(n not in (1, m) for n, m in zip(shape, last, strict=True)):
        text = f"a value {shape} does not broadcast to {place} {list(sizes)}"
        return Refusal("shape", f"{text}; reshape the value to {list(sizes)}")
    source = data_type(value.dtype)
    if same_dtype and source is not target:
        text = f"torch raises an error for a value of {source.name} in a tensor of {target.name}"
        return Refusal("dtype", f"{text} where a mask says; cast the value")
    if source.category > max(target.category, Category.FLOAT):
        text = f"torch warns of a value of {source.name} in a tensor of {target.name}"
        return Refusal("dtype", f"{text}; write value.real")
    return None


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
    mask = index[0] if isinstance(index, tuple) and len(index) == 1 else index
    return _masked(b, x, mask, value) if isinstance(mask, TensorView) else _put(b, x, index, value)


def _masked(b: FusionBuilder, x: TensorView, mask: TensorView, value: Val) -> Val:
    """A copy of `x` with `value` where a mask of its first dimensions is True."""
    chosen = b.broadcast_in_dim(mask, x.sizes, range(mask.rank))
    if isinstance(value, TensorView):
        value = b.broadcast_in_dim(value, x.sizes, range(x.rank - value.rank, x.rank))
    else:
        value = b.full(x.sizes, value, x.dtype)
    return b.pointwise("where", chosen, value, x)


def _put(b: FusionBuilder, x: TensorView, index: object, value: Val) -> Val:
    """A copy of `x` with `value` in a window: a select by a padded mask, from the padded value."""
    window = _window(x, index)
    assert window is not None
    sizes = [end - start for start, end, _ in window]
    if 0 in sizes:
        return b.set(x)
    if isinstance(value, TensorView):
        kept = [k for k, (*_, stays) in enumerate(window) if stays]
        cast = b.cast_tensor(value, x.dtype)
        inside = b.broadcast_in_dim(cast, sizes, kept[len(kept) - value.rank :])
    else:
        inside = b.full(sizes, value, x.dtype)
    ends = [(start, n - end) for (start, end, _), n in zip(window, x.domain.shape, strict=True)]
    widths = [width for pair in reversed(ends) for width in pair]
    mask = b.pad(b.full(sizes, True, DataType.Bool), widths, False)
    return b.pointwise("where", mask, b.pad(inside, widths), x)


CLAIMS = {PrimIDs.COPY_WITH_SETITEM: Claim(Role.JOIN, _refuse, _build)}
