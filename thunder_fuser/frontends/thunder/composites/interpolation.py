"""Interpolation to nearest elements, and linear, at the places where torch's kernels read.

Thunder's decompositions read elsewhere where sizes do not divide, and have another size for some.
The symbols have Thunder's id, so that an interpolation that is not fused runs torch's kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import thunder.torch as ltorch
import torch
from thunder import clang
from thunder.core import dtypes
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import Symbol
from thunder.executors.torchex import _always_executable, ex
from torch.nn import functional
from torch.utils._python_dispatch import _disable_current_modes

from thunder_fuser.frontends.thunder.composites.arguments import Unusual, known, rounded, wide


def _taken(
    x: TensorProxy, size: Sequence[int] | None, scale: Sequence[float] | None, mode: str
) -> list[list[int]]:
    """Return the index of each result along each dimension behind the channels, as torch has it in
    as many dimensions: a factor that leaves a size as it is copies elements in two, not in one.
    """
    is_wide = x.dtype == dtypes.float64 and x.device.type == "cpu"
    found = []
    for k, n in enumerate(x.shape[2:]):
        line = torch.arange(n, dtype=torch.float64 if is_wide else torch.float32, device="cpu")
        dims = range(x.ndim - 2)
        own = size and [size[k] if d == k else 2 for d in dims]
        by = scale and [scale[k] if d == k else 1.0 for d in dims]
        # Two elements along the others, and two channels: a layout that is not ambiguous.
        shape = [1, 2, *(n if d == k else 2 for d in dims)]
        whole = line.reshape([n if d == k else 1 for d in dims]).expand(shape).contiguous()
        with _disable_current_modes(), torch.no_grad():
            picked = functional.interpolate(whole, own, by, mode)[0, 0].movedim(k, -1)
        found.append([int(n) for n in picked.reshape(-1, picked.shape[-1])[0].tolist()])
    return found


def _nearest(
    a: TensorProxy,
    /,
    size: Sequence[int] | None = None,
    scale_factor: Sequence[float] | None = None,
    mode: str = "nearest",
    align_corners: None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> TensorProxy:
    shape: list[int] = [*a.shape[:2]]
    repeated: dict[int, int] = {}
    for indices in _taken(a, size, scale_factor, mode):
        n, dim = a.shape[len(shape)], len(shape)
        times, step = len(indices) // n, indices[1] - indices[0] if len(indices) > 1 else 1
        if indices == [k // max(times, 1) for k in range(n * times)]:
            if times > 1:
                repeated[dim] = times
        elif step > 0 and indices == [indices[0] + k * step for k in range(len(indices))]:
            a = clang.slice_in_dim(a, indices[0], indices[-1] + 1, stride=step, dim=dim)
        else:
            a = clang.take(a, _index(indices, n, mode, a), dim=dim)
        shape.append(len(indices))
    return ltorch.reshape(_expanded(a, repeated), shape)


def _expanded(a: TensorProxy, repeated: Mapping[int, int]) -> TensorProxy:
    """Return a view with a dimension of `times` equal elements behind each key of `repeated`.

    All are expanded at once, so that the gradient is one sum, rounded once, as in torch's kernel.
    """
    if not repeated:
        return a
    sizes = [(n, repeated.get(k)) for k, n in enumerate(a.shape)]
    apart = [m for n, times in sizes for m in ((n,) if times is None else (n, 1))]
    whole = [m for n, times in sizes for m in ((n,) if times is None else (n, times))]
    return ltorch.expand(ltorch.reshape(a, apart), whole)


def _index(indices: list[int], n: int, mode: str, like: TensorProxy) -> TensorProxy:
    """Return the indices as a tensor: computed, where the quotient of integers has them."""
    count = len(indices)
    twice, half = (2, 1) if mode == "nearest-exact" else (1, 0)
    if indices == [(twice * k + half) * n // (twice * count) for k in range(count)]:
        places = ltorch.arange(count, device=like.device) * (twice * n) + half * n
        return ltorch.div(places, twice * count, rounding_mode="floor")
    return ltorch.tensor(indices, device=like.device)


def _linear(
    a: TensorProxy,
    /,
    size: Sequence[int] | None = None,
    scale_factor: Sequence[float] | None = None,
    mode: str = "bilinear",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> TensorProxy:
    x = wide(a)
    for k, n in enumerate(a.shape[2:]):
        dim, scale = k + 2, 1.0 if scale_factor is None else scale_factor[k]
        count = int(n * scale) if size is None else size[k]
        if count == n:
            # Whatever the factor, torch reads each element, with weights of 1 and 0.
            x = x + x * 0.0
            continue
        if align_corners:
            step, start = (n - 1) / (count - 1) if count > 1 else 0.0, 0.0
        else:
            step, start = n / count if scale_factor is None else 1 / scale, 0.5
        places = ltorch.to(ltorch.arange(count, device=a.device), x.dtype)
        place = ltorch.clamp((places + start) * step - start, 0.0, None)
        below = ltorch.to(place, dtypes.int64)
        share = ltorch.reshape(place - below, [-1 if d == dim else 1 for d in range(a.ndim)])
        times = count // n
        is_exact = times > 1 and times.bit_count() == 1 and step * times == 1
        if is_exact and not align_corners and count == n * times:
            lower, upper = _neighbours(x, dim, times)
        else:
            above = ltorch.where(below < n - 1, below + 1, below)
            lower, upper = (clang.take(x, at, dim=dim) for at in (below, above))
        x = lower * (1 - share) + upper * share
    return rounded(x, a)


def _neighbours(x: TensorProxy, dim: int, times: int) -> tuple[TensorProxy, TensorProxy]:
    """Neighbours below and above each place of linear upsampling along `dim` by `times`, a power of
    two, so that the places are exact.

    They are views of the dimension with its ends repeated, which vectors read, where a computed
    index is read lane by lane; their gradients are sums.
    """
    n = x.shape[dim]
    first, second, last = (
        clang.slice_in_dim(x, k, k + 1, dim=dim) for k in (0, min(1, n - 1), n - 1)
    )
    inner = [clang.slice_in_dim(x, 1, n, dim=dim)] if n > 1 else []
    shape = [m * times if d == dim else m for d, m in enumerate(x.shape)]
    shape[dim] += times

    def repeated(*ends: TensorProxy) -> TensorProxy:
        whole = ltorch.reshape(_expanded(ltorch.cat(ends, dim), {dim: times}), shape)
        return clang.slice_in_dim(whole, times // 2, times // 2 + n * times, dim=dim)

    return repeated(first, x), repeated(second, *inner, last)


_in_torch = ex.register_operator(
    "interpolate_in_torch",
    meta=ltorch.meta_adaptor(functional.interpolate),
    fn=functional.interpolate,
)
# Thunder states the result of torch's kernel for fewer modes than it has.
ex.register_implementation(ltorch.interpolate.id, _in_torch, checker=_always_executable)


def _symbol(function: Callable[..., TensorProxy]) -> Symbol:
    return Symbol("interpolate", meta=function, id=ltorch.interpolate.id)


_CALLS = {
    **dict.fromkeys(("nearest", "nearest-exact"), _symbol(_nearest)),
    **dict.fromkeys(("linear", "bilinear", "trilinear"), _symbol(_linear)),
}
_SPATIAL = {"linear": 1, "bilinear": 2, "trilinear": 3}


def _interpolate(
    input: TensorProxy,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> TensorProxy:
    known(input)
    spatial = input.ndim - 2
    sizes, scale = _numbers(size, spatial, int), _numbers(scale_factor, spatial, float)
    is_linear = mode in _SPATIAL
    is_plain = align_corners is None or (is_linear and type(align_corners) is bool)
    is_float = dtypes.is_float_dtype(input.dtype)
    if recompute_scale_factor or antialias or not is_plain or (is_linear and not is_float):
        raise Unusual
    if mode not in _CALLS or not _SPATIAL.get(mode, 1) <= spatial <= _SPATIAL.get(mode, 3):
        raise Unusual
    if (sizes is None) == (scale is None) or not input.numel:
        raise Unusual
    options = (align_corners, recompute_scale_factor, antialias)
    found: TensorProxy = _CALLS[mode](input, sizes, scale, mode, *options)
    return found


def _numbers(value: Any, count: int, kind: type) -> Any:
    """Return the numbers of an option, one a dimension; None for None. Unusual for others."""
    if value is None:
        return None
    each = value if isinstance(value, Sequence) else (value,) * count
    if len(each) != count or not all(type(n) in (int, kind) and n > 0 for n in each):
        raise Unusual
    return tuple(map(kind, each))


PARTS: Mapping[str, Callable[..., Any]] = {"nn.functional.interpolate": _interpolate}
