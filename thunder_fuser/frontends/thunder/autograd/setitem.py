"""Grad transforms of `x[index] = value` in a region, whose value may have been repeated, and of
`slice_scatter`, which gives zeros to what it overwrites, though it be all of `x`.

Thunder's rule reads the gradient at the index. If that is a mask, the result has one element for
each True; if it is a list, a tensor of indices is needed to read it.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import thunder.torch as ltorch
from thunder.core import dtypes, prims
from thunder.core.prims import PrimIDs, get_grad, put_grad
from thunder.core.proxies import TensorProxy
from thunder.core.transforms import _copy_with_setitem_grad

from thunder_fuser.frontends.thunder.autograd.rules import Rule, put_to
from thunder_fuser.frontends.thunder.claims.operands import is_static
from thunder_fuser.frontends.thunder.claims.setitem import mask_in, region_of, stripped
from thunder_fuser.frontends.thunder.claims.write_region import MOST_BOXES, Box, Region
from thunder_fuser.frontends.thunder.composites.arguments import cut
from thunder_fuser.frontends.thunder.composites.movement import SLICE_SCATTER


def _setitem(x: TensorProxy, index: Any, value: Any) -> TensorProxy:
    into = region_of(x, index)
    is_fixed = into is None or is_static(x.shape) or all(box.is_whole for box in into.boxes)
    if into is None or len(into.boxes) > MOST_BOXES or not is_fixed:
        found: TensorProxy = _copy_with_setitem_grad(x, index, value)
        return found
    result: TensorProxy = prims.copy_with_setitem(x, index, value)
    g = get_grad(result)
    put_grad(x, prims.copy_with_setitem(g, index, 0))
    if isinstance(value, TensorProxy):
        part = _read(g, index, into)
        # Torch writes a value without its leading ones.
        ones = value.ndim - len(stripped(value.shape, part.ndim))
        if into.mask is not None and into.points is not None:
            axis = into.points + value.ndim - part.ndim
            count = value.shape[axis] if axis >= 0 else 1
            part = _chosen(part, into.points, mask_in(index), count)
        put_to(value, ltorch.reshape(part, ((1,) * ones + tuple(part.shape))))
    return result


def _read(g: TensorProxy, index: object, into: Region) -> TensorProxy:
    """Return the gradient of what is written, with the axes of `x[index]`: those of a mask's
    dimensions are one, in which places that are not chosen have zeros.
    """
    chosen = range(0)
    if into.mask is not None:
        mask = mask_in(index)
        chosen = range(into.mask, into.mask + mask.ndim)
        shape = [g.shape[d] if d in chosen else 1 for d in range(g.ndim)]
        g = ltorch.where(ltorch.reshape(mask, shape), g, 0.0)
    parts = [_part(g, box, into, chosen) for box in into.boxes]
    if not parts:
        return ltorch.zeros(*into.sizes, dtype=g.dtype, device=g.device)
    return parts[0] if len(parts) == 1 else ltorch.cat(parts, into.points)


def _chosen(g: TensorProxy, axis: int, mask: TensorProxy, count: int) -> TensorProxy:
    """Return the places along an axis where the mask is true, if `count` values were written to
    them one by one, and not one to all.
    """
    if count == 1:
        return g
    unchosen = ltorch.to(ltorch.reshape(ltorch.logical_not(mask), (-1,)), dtypes.uint8)
    order = ltorch.argsort(unchosen, 0, False, stable=True)
    return ltorch.index_select(g, axis, order[:count])


def _part(g: TensorProxy, box: Box, into: Region, chosen: range) -> TensorProxy:
    """Return a tensor's elements in a box, with the axes of `x[index]`."""
    starts, ends, steps = ([getattr(r, of) for r in box.runs] for of in ("start", "end", "step"))
    inside = g if box.is_whole else prims.slice_prim(g, starts, ends, steps)
    axes: list[tuple[int, ...]] = [() if dim is None else (dim,) for dim in box.dims]
    if into.mask is not None and into.points is not None:
        axes[into.points] = tuple(chosen)
    order = [dim for axis in axes for dim in axis]
    fixed = [dim for dim in range(g.ndim) if dim not in order]
    sizes = [prod(inside.shape[dim] for dim in axis) for axis in axes]
    return ltorch.reshape(ltorch.permute(inside, (*order, *fixed)), sizes)


def _slice_scatter(
    x: TensorProxy, src: TensorProxy, axis: int, first: int, last: int
) -> TensorProxy:
    result: TensorProxy = SLICE_SCATTER(x, src, axis, first, last)
    g = get_grad(result)
    put_grad(x, SLICE_SCATTER(g, ltorch.zeros_like(src), axis, first, last))
    put_grad(src, cut(g, axis, first, max(first, last)))
    return result


RULES: Mapping[PrimIDs | str, Rule] = {
    PrimIDs.COPY_WITH_SETITEM: _setitem,
    SLICE_SCATTER.id: _slice_scatter,
}
