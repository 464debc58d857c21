"""Claims for data movement prims: views, concatenation, padding, copies, in-place updates."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from thunder.core.prims import PrimIDs
from thunder.core.proxies import TensorProxy

from thunder_fuser.errors import Refusal
from thunder_fuser.frontends.thunder.claims.claim import Claim
from thunder_fuser.frontends.thunder.claims.layout import lying_as
from thunder_fuser.frontends.thunder.claims.operands import data_type, refuse_symbolic
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.dtypes import Category, DataType
from thunder_fuser.ir.fusion import TensorView, Val
from thunder_fuser.segment.regions.joint_graph import Role


def _refuse_pad(x: object, value: object, config: Sequence[tuple[int, int, int]]) -> Refusal | None:
    if refused := refuse_symbolic(*config):
        return refused
    if any(dilation for _, _, dilation in config):
        return Refusal("dilation", "a pad that also inserts elements in between stays with torch")
    return None


def _refuse_clone(x: object, **options: object) -> Refusal | None:
    if any(value is not None for value in options.values()):
        return Refusal("memory-format", f"a clone with {', '.join(options)} stays with torch")
    return None


def _refuse_update(
    source: TensorProxy, target: TensorProxy, *, grad_enabled: bool
) -> Refusal | None:
    if grad_enabled and target.requires_grad:
        # It is an error if the tensor is a leaf, which torch checks at run time.
        return Refusal("grad", f"{target.name} requires grad: its update in place stays with torch")
    return None


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


def _refuse_setitem(x: TensorProxy, index: object, value: object) -> Refusal | None:
    flat = [index] if not isinstance(index, tuple) else [*index]
    bounds = [n for e in flat if isinstance(e, slice) for n in (e.start, e.stop, e.step)]
    if refused := refuse_symbolic(*bounds, *(e for e in flat if not isinstance(e, slice)), value):
        return refused
    where = f"x[{_spelled(index)}] = .. of a tensor {list(x.shape)}"
    if any(isinstance(e, TensorProxy) for e in flat):
        text = f"{where} writes where a tensor says; use ints and slices of step 1"
        return Refusal("unclaimed", text)
    window = _window(x, index)
    if window is None:
        text = f"{where} is no window of it; use ints and slices of step 1 that lie inside"
        return Refusal("index", text)
    target = data_type(x.dtype)
    if not isinstance(value, TensorProxy):
        if isinstance(value, complex) and not target.is_complex:
            text = f"torch raises an error for {value} in a tensor of {target.name}; write its real"
            return Refusal("dtype", f"{text} part, or into a complex tensor")
        info = torch.iinfo(target.torch) if target.category is Category.INT else None
        if info is not None and not info.min <= value <= info.max:
            text = (
                f"{value} is outside of {target.name}, {info.min} to {info.max}, and becomes what"
            )
            return Refusal("overflow", f"{text} torch makes of it; write a number that it holds")
        return None
    sizes = [end - start for start, end, stays in window if stays]
    shape, last = list(value.shape), sizes[max(len(sizes) - value.ndim, 0) :]
    if len(shape) > len(sizes) or any(n not in (1, m) for n, m in zip(shape, last, strict=True)):
        text = f"a value {shape} does not broadcast to a window {sizes}"
        return Refusal("shape", f"{text}; reshape the value to {sizes}")
    if data_type(value.dtype).category > max(target.category, Category.FLOAT):
        text = (
            f"torch warns of a value of {data_type(value.dtype).name} in a tensor of {target.name}"
        )
        return Refusal("dtype", f"{text}; write value.real")
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


def _setitem(b: FusionBuilder, x: TensorView, index: object, value: Val) -> Val:
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


def _broadcast(b: FusionBuilder, x: TensorView, shape: Sequence[int], dims: Sequence[int]) -> Val:
    return b.broadcast_in_dim(x, shape, dims)


def _cat(b: FusionBuilder, tensors: Sequence[TensorView], dim: int) -> Val:
    return b.cat(tensors, dim)


def _pad(
    b: FusionBuilder, x: TensorView, value: Val, config: Sequence[tuple[int, int, int]]
) -> Val:
    widths = [width for low, high, _ in reversed(config) for width in (low, high)]
    return b.pad(x, widths, value)


def _same(b: FusionBuilder, x: TensorView) -> Val:
    return x


def _detach(b: FusionBuilder, x: TensorView) -> Val:
    """A view of all of `x`: another tensor on its memory, as in torch, and not `x` itself."""
    return b.broadcast_in_dim(x, x.sizes, range(x.rank))


def _clone(b: FusionBuilder, x: TensorView, **options: object) -> Val:
    return b.set(x)


def _update(b: FusionBuilder, source: TensorView, target: TensorView, *, grad_enabled: bool) -> Val:
    sizes, missing = list(target.domain.shape), target.rank - source.rank
    if list(source.domain.shape) != sizes:
        source = b.broadcast_in_dim(source, sizes, range(missing, target.rank))
    # A copy: the source may be returned too, and must then not be the updated memory.
    return b.set(source)


def _slice(
    b: FusionBuilder,
    x: TensorView,
    starts: Sequence[int],
    ends: Sequence[int],
    strides: Sequence[int] | None = None,
) -> Val:
    return b.slice(x, starts, ends, strides)


def _view(build: Callable[..., Val]) -> Claim:
    return Claim(Role.VIEW, refuse_symbolic, build)


def _flip(b: FusionBuilder, x: TensorView, dims: Sequence[int]) -> Val:
    """Gather at descending indices, with the layout of `x`, as torch."""
    found = b.view("set", x, ())
    for dim in dims:
        size = x.sizes[dim]
        if size > 1:
            down = b.iota(size, size - 1, -1, DataType.Int)
            found = b.gather("index_select", found, dim, down)
    return lying_as(b, found, [x])


CLAIMS = {
    PrimIDs.BROADCAST_IN_DIM: _view(_broadcast),
    PrimIDs.RESHAPE: _view(lambda b, x, shape: b.reshape(x, shape)),
    PrimIDs.SLICE: _view(_slice),
    PrimIDs.SQUEEZE: _view(lambda b, x, dims: b.squeeze(x, dims)),
    PrimIDs.TRANSPOSE: _view(lambda b, x, permutation: b.permute(x, permutation)),
    PrimIDs.STRIDE_ORDER: _view(lambda b, x, order: b.stride_order(x, order)),
    PrimIDs.SHALLOW_COPY: Claim(Role.RENAME, refuse_symbolic, _same),
    "torch.detach": _view(_detach),
    PrimIDs.CLONE: Claim(Role.COPY, _refuse_clone, _clone),
    PrimIDs.CAT: Claim(Role.JOIN, refuse_symbolic, _cat),
    PrimIDs.FLIP: Claim(Role.JOIN, refuse_symbolic, _flip),
    PrimIDs.PAD: Claim(Role.JOIN, _refuse_pad, _pad),
    PrimIDs.COPY_WITH_SETITEM: Claim(Role.JOIN, _refuse_setitem, _setitem),
    PrimIDs.UPDATE_ALIASES: Claim(Role.RENAME, refuse_symbolic, lambda b, tensors: tensors[0]),
    PrimIDs.COPY_: Claim(Role.UPDATE, _refuse_update, _update),
}
