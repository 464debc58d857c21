"""Composites: data movement (flips, cats, shuffles, scatters), channel dropout, adaptive pools."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import thunder.torch as ltorch
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import Symbol
from thunder.core.utils import canonicalize_dim, canonicalize_dims

from thunder_fuser.frontends.thunder.claims.operands import is_static
from thunder_fuser.frontends.thunder.composites import views
from thunder_fuser.frontends.thunder.composites.arguments import (
    Unusual,
    cut,
    floats,
    known,
    places,
)


def _rot90(x: TensorProxy, k: int = 1, dims: Sequence[int] = (0, 1)) -> TensorProxy:
    known(x)
    if type(k) is not int or len(dims) != 2 or x.ndim < 2:
        raise Unusual
    first, second = canonicalize_dims(x.ndim, tuple(dims))
    turns = k % 4
    if first == second:
        raise Unusual
    if turns == 2:
        return ltorch.flip(x, (first, second))
    if turns == 0:
        return ltorch.clone(x)
    return ltorch.transpose(ltorch.flip(x, (second if turns == 1 else first,)), first, second)


def _flip_along(dim: int) -> Callable[[TensorProxy], TensorProxy]:
    def function(x: TensorProxy) -> TensorProxy:
        known(x)
        if x.ndim <= dim:
            raise Unusual
        return ltorch.flip(x, (dim,))

    return function


def _meshgrid(*tensors: Any, indexing: str | None = None) -> tuple[TensorProxy, ...]:
    given = tensors[0] if len(tensors) == 1 and isinstance(tensors[0], Sequence) else tensors
    known(*given)
    if indexing not in ("ij", "xy") or not all(t.ndim == 1 for t in given):
        raise Unusual
    order = list(range(len(given)))
    if indexing == "xy" and len(given) > 1:
        order[:2] = [1, 0]
    shape = [0] * len(given)
    for t, place in zip(given, order, strict=True):
        shape[place] = t.shape[0]
    return tuple(
        ltorch.expand(
            ltorch.reshape(t, [-1 if k == place else 1 for k in range(len(given))]), shape
        )
        for t, place in zip(given, order, strict=True)
    )


def _stacked(axis: int, least: int) -> Callable[[Any], TensorProxy]:
    """Make a cat along `axis`; tensors of fewer than `least` dimensions are unsqueezed first."""

    def function(tensors: Any) -> TensorProxy:
        known(*tensors)
        if not all(tensors[0].ndim == t.ndim > 0 for t in tensors):
            raise Unusual
        if tensors[0].ndim >= least:
            return ltorch.cat(list(tensors), min(axis, tensors[0].ndim - 1))
        return ltorch.cat([ltorch.unsqueeze(t, axis) for t in tensors], axis)

    return function


def _ravel(x: TensorProxy) -> TensorProxy:
    known(x)
    return ltorch.contiguous(ltorch.reshape(x, (-1,)))


def _sum_to_size(x: TensorProxy, *size: Any) -> TensorProxy:
    floats(x)
    shape = tuple(size[0]) if len(size) == 1 and isinstance(size[0], Sequence) else size
    missing = x.ndim - len(shape)
    if missing < 0 or not is_static(shape):
        raise Unusual
    wanted = (1,) * missing + shape
    dims = [k for k, (n, m) in enumerate(zip(x.shape, wanted, strict=True)) if m == 1 != n]
    if any(m not in (1, n) for n, m in zip(x.shape, wanted, strict=True)):
        raise Unusual
    return ltorch.reshape(ltorch.sum(x, dims, True) if dims else x, shape)


def _pixel_shuffle(x: TensorProxy, upscale_factor: int) -> TensorProxy:
    known(x)
    r = upscale_factor
    if x.ndim < 3 or type(r) is not int or r < 1 or x.shape[-3] % (r * r):
        raise Unusual
    found: TensorProxy = PIXEL_SHUFFLE(x, r)
    return found


def _shuffled_pixels(x: TensorProxy, r: int) -> TensorProxy:
    *batch, channels, height, width = x.shape
    n, c = len(batch), channels // (r * r)
    parts = ltorch.reshape(x, (*batch, c, r, r, height, width))
    order = (*range(n), n, n + 3, n + 1, n + 4, n + 2)
    return ltorch.reshape(ltorch.permute(parts, order), (*batch, c, height * r, width * r))


def _pixel_unshuffle(x: TensorProxy, downscale_factor: int) -> TensorProxy:
    known(x)
    r = downscale_factor
    if x.ndim < 3 or type(r) is not int or r < 1 or x.shape[-1] % r or x.shape[-2] % r:
        raise Unusual
    found: TensorProxy = PIXEL_UNSHUFFLE(x, r)
    return found


def _unshuffled_pixels(x: TensorProxy, r: int) -> TensorProxy:
    *batch, channels, height, width = x.shape
    n, h, w = len(batch), height // r, width // r
    parts = ltorch.reshape(x, (*batch, channels, h, r, w, r))
    order = (*range(n), n, n + 2, n + 4, n + 1, n + 3)
    return ltorch.reshape(ltorch.permute(parts, order), (*batch, channels * r * r, h, w))


def _channel_shuffle(x: TensorProxy, groups: int) -> TensorProxy:
    known(x)
    if x.ndim < 3 or type(groups) is not int or groups < 1 or x.shape[1] % groups:
        raise Unusual
    found: TensorProxy = CHANNEL_SHUFFLE(x, groups)
    return found


def _shuffled_channels(x: TensorProxy, groups: int) -> TensorProxy:
    parts = ltorch.reshape(x, (x.shape[0], groups, x.shape[1] // groups, *x.shape[2:]))
    return ltorch.reshape(ltorch.transpose(parts, 1, 2), x.shape)


def _select_scatter(x: TensorProxy, src: TensorProxy, dim: int, index: int) -> TensorProxy:
    known(x, src)
    if type(dim) is not int or type(index) is not int or not x.ndim or x.dtype != src.dtype:
        raise Unusual
    axis = canonicalize_dim(x.ndim, dim)
    size = x.shape[axis]
    if not -size <= index < size or src.shape != (*x.shape[:axis], *x.shape[axis + 1 :]):
        raise Unusual
    return ltorch.where(places(x, axis) == index % size, ltorch.unsqueeze(src, axis), x)


def _slice_scatter(
    x: TensorProxy,
    src: TensorProxy,
    dim: int = 0,
    start: Any = None,
    end: Any = None,
    step: int = 1,
) -> TensorProxy:
    known(x, src)
    if step != 1 or type(dim) is not int or not x.ndim or x.dtype != src.dtype:
        raise Unusual
    axis = canonicalize_dim(x.ndim, dim)
    if not all(n is None or type(n) is int for n in (start, end)):
        raise Unusual
    first, last, _ = slice(start, end).indices(x.shape[axis])
    if src.shape != (*x.shape[:axis], max(last - first, 0), *x.shape[axis + 1 :]):
        raise Unusual
    found: TensorProxy = SLICE_SCATTER(x, src, axis, first, last)
    return found


def _scattered(x: TensorProxy, src: TensorProxy, axis: int, first: int, last: int) -> TensorProxy:
    parts = [cut(x, axis, 0, first), src, cut(x, axis, max(first, last), None)]
    return ltorch.cat([t for t in parts if t.shape[axis]], axis)


def _dropout_of_channels(spatial: int) -> Callable[..., TensorProxy]:
    """Make a dropout of whole channels."""

    def function(
        input: TensorProxy, p: float = 0.5, training: bool = True, inplace: bool = False
    ) -> TensorProxy:
        floats(input)
        if (not training or p == 0) and input.ndim in (spatial + 1, spatial + 2):
            return input
        if inplace or input.ndim != spatial + 2:
            raise Unusual
        shape = (*input.shape[:2], *(1,) * spatial)
        kept = ltorch.ones(shape, device=input.device, dtype=input.dtype)
        return input * ltorch.dropout(kept, p)

    return function


def _adaptive_average(spatial: int) -> Callable[..., TensorProxy]:
    """Make an adaptive average pool for sizes that divide evenly: a mean over equal windows."""

    def function(input: TensorProxy, output_size: Any) -> TensorProxy:
        floats(input)
        sizes = output_size if isinstance(output_size, Sequence) else (output_size,) * spatial
        outer, image = input.shape[: input.ndim - spatial], input.shape[input.ndim - spatial :]
        if not len(outer) or len(sizes) != spatial or not input.numel:
            raise Unusual
        sizes = [n if m is None else m for n, m in zip(image, sizes, strict=True)]
        if any(type(m) is not int or m < 1 or n % m for n, m in zip(image, sizes, strict=True)):
            raise Unusual
        found: TensorProxy = ADAPTIVE_AVERAGE(input, tuple(sizes))
        return found

    return function


def _averages(x: TensorProxy, sizes: Sequence[int]) -> TensorProxy:
    outer, image = x.shape[: -len(sizes)], x.shape[-len(sizes) :]
    windows = [k for n, m in zip(image, sizes, strict=True) for k in (m, n // m)]
    axes = [len(outer) + 2 * k + 1 for k in range(len(sizes))]
    return ltorch.mean(ltorch.reshape(x, (*outer, *windows)), axes)


def _stack(tensors: Any, dim: int = 0) -> TensorProxy:
    """A cat along `dim`, whose result is split, as in torch: that has the cat's memory format."""
    known(*tensors)
    first = tensors[0]
    axis = canonicalize_dim(first.ndim + 1, dim)
    if axis == first.ndim or any((t.shape, t.dtype) != (first.shape, first.dtype) for t in tensors):
        raise Unusual
    found: TensorProxy = STACK(list(tensors), axis)
    return found


def _split_cat(tensors: Sequence[TensorProxy], dim: int = 0) -> TensorProxy:
    shape = list(tensors[0].shape)
    joined = ltorch.cat(list(tensors), dim)
    return ltorch.reshape(joined, (*shape[:dim], len(tensors), *shape[dim:]))


def _dstack(tensors: Any) -> TensorProxy:
    known(*tensors)
    if not all(t.ndim for t in tensors):
        raise Unusual
    deep = [ltorch.unsqueeze(t, 0) if t.ndim == 1 else t for t in tensors]
    return ltorch.cat([ltorch.unsqueeze(t, 2) if t.ndim == 2 else t for t in deep], 2)


def _diagonal(x: TensorProxy, offset: int) -> TensorProxy:
    """True on a diagonal of the last two dimensions."""
    return places(x, x.ndim - 1) - places(x, x.ndim - 2) == offset


def _diag(x: TensorProxy, diagonal: int = 0) -> TensorProxy:
    floats(x)
    if type(diagonal) is not int or x.ndim > 2:
        raise Unusual
    if x.ndim != 2:
        return _diag_embed(x, diagonal)
    return ltorch.clone(views.diagonal(ltorch.diagonal, x, diagonal))


def _diag_embed(x: TensorProxy, offset: int = 0, dim1: int = -2, dim2: int = -1) -> TensorProxy:
    floats(x)
    if not x.ndim or type(offset) is not int:
        raise Unusual
    axes = canonicalize_dims(x.ndim + 1, (dim1, dim2))
    if axes[0] == axes[1]:
        raise Unusual
    before, behind = max(-offset, 0), max(offset, 0)
    rows = ltorch.unsqueeze(ltorch.pad(x, (before, behind)), -1)
    square = ltorch.expand(rows, (*rows.shape[:-1], rows.shape[-2]))
    whole = ltorch.where(_diagonal(square, offset), square, 0.0)
    moved = ltorch.movedim(whole, (-2, -1), tuple(axes))
    return ltorch.contiguous(moved)


def _trace(x: TensorProxy) -> TensorProxy:
    floats(x)
    if x.ndim != 2:
        raise Unusual
    return ltorch.sum(views.diagonal(ltorch.diagonal, x))


def _symbol(name: str, function: Callable[..., TensorProxy], id: str = "") -> Symbol:
    """A call in parts, whose result's memory format `trace/origin.py` finds by its id."""
    return Symbol(name, meta=function, id=id or f"{name}_in_parts")


PIXEL_SHUFFLE = _symbol("pixel_shuffle", _shuffled_pixels)
PIXEL_UNSHUFFLE = _symbol("pixel_unshuffle", _unshuffled_pixels)
CHANNEL_SHUFFLE = _symbol("channel_shuffle", _shuffled_channels)
SLICE_SCATTER = _symbol("slice_scatter", _scattered)
ADAPTIVE_AVERAGE = _symbol("adaptive_avg_pool", _averages)
STACK = _symbol("stack", _split_cat, ltorch.stack.id)


def _tile(x: TensorProxy, *dims: Any) -> TensorProxy:
    """Repeat, with as many leading ones as are missing."""
    known(x)
    times = dims[0] if len(dims) == 1 and isinstance(dims[0], Sequence) else dims
    if not all(type(n) is int for n in times):
        raise Unusual
    return ltorch.repeat(x, (*[1] * (x.ndim - len(times)), *times))


PARTS: Mapping[str, Callable[..., Any]] = {
    "rot90": _rot90,
    "flipud": _flip_along(0),
    "fliplr": _flip_along(1),
    "meshgrid": _meshgrid,
    "hstack": _stacked(1, 1),
    "vstack": _stacked(0, 2),
    "column_stack": _stacked(1, 2),
    "row_stack": _stacked(0, 2),
    "dstack": _dstack,
    "stack": _stack,
    "diag": _diag,
    "diag_embed": _diag_embed,
    "trace": _trace,
    "ravel": _ravel,
    "tile": _tile,
    "sum_to_size": _sum_to_size,
    "nn.functional.pixel_shuffle": _pixel_shuffle,
    "nn.functional.pixel_unshuffle": _pixel_unshuffle,
    "nn.functional.channel_shuffle": _channel_shuffle,
    "select_scatter": _select_scatter,
    "slice_scatter": _slice_scatter,
    **{f"nn.functional.dropout{k}d": _dropout_of_channels(k) for k in (1, 2, 3)},
    **{f"nn.functional.adaptive_avg_pool{k}d": _adaptive_average(k) for k in (1, 2, 3)},
}
