"""Interpolation to nearest elements, and linear, at the places where torch's kernels read.

The elements are views of the image where they are at exact quotients (`lines.py`), which rounding
leaves alone but for a few sizes, and else read by an index.

Thunder's decompositions read elsewhere where sizes do not divide, and have another size for some.
The symbols have Thunder's id, so that an interpolation that is not fused runs torch's kernel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import thunder.torch as ltorch
import torch
from thunder import clang
from thunder.core import dtypes
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import Symbol
from thunder.core.utils import get_computation_dtype
from thunder.executors.torchex import _always_executable, ex
from torch.nn import functional
from torch.utils._python_dispatch import _disable_current_modes

from thunder_fuser.frontends.thunder.claims.table import MOST_TAPS
from thunder_fuser.frontends.thunder.composites.arguments import Unusual, known, rounded, wide
from thunder_fuser.frontends.thunder.composites.lines import (
    Line,
    ReadingWindows,
    expanded,
)


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
            a = _picked(a, dim, indices, mode)
        shape.append(len(indices))
    return ltorch.reshape(expanded(a, repeated), shape)


def _picked(a: TensorProxy, dim: int, indices: Sequence[int], mode: str) -> TensorProxy:
    """Return elements along a dimension: by their line, if rounding leaves it as it is."""
    line = line_of(a.shape[dim], len(indices), mode)
    if line is not None and [*indices] == line.elements(len(indices)):
        return line.of(a, dim, len(indices))
    return clang.take(a, ltorch.tensor([*indices], device=a.device), dim=dim)


def line_of(n: int, count: int, mode: str, align_corners: bool | None = None) -> Line | None:
    """Return where `count` results read n elements, in exact numbers; for linear modes, the
    elements below, which may be -1. None where all read one.
    """
    if mode == "nearest":
        return Line(n, 0, count)
    if mode == "nearest-exact":
        return Line(2 * n, n, 2 * count)
    if align_corners:
        return Line(n - 1, 0, count - 1) if min(n, count) > 1 else None
    return Line(2 * n, n - count, 2 * count)


class Along(NamedTuple):
    """Linear interpolation along one dimension.

    dim            the dimension
    n, results     its size before and behind
    step, start    result k is at place `(k + start) * step - start`
    align_corners  the first and last elements are the first and last results
    """

    dim: int
    n: int
    results: int
    step: float
    start: float
    align_corners: bool

    def places(self, like: TensorProxy) -> TensorProxy:
        """Return the place of each result, in the dtype of `like`; below 0 there are none."""
        at = ltorch.to(ltorch.arange(self.results, device=like.device), like.dtype)
        return ltorch.clamp((at + self.start) * self.step - self.start, 0.0, None)

    def known_places(self, dtype: dtypes.dtype) -> list[float]:
        """Return what `places` computes in a dtype."""
        with _disable_current_modes():
            at = torch.arange(self.results, dtype=dtypes.to_torch_dtype(dtype), device="cpu")
            places: list[float] = ((at + self.start) * self.step - self.start).clamp(0.0).tolist()
        return places

    @property
    def line(self) -> Line | None:
        return line_of(self.n, self.results, "linear", self.align_corners)

    def read(self, x: TensorProxy) -> tuple[TensorProxy, TensorProxy, TensorProxy]:
        """Return the elements of x below and above each place, and the share of those above.

        By a line, they are of the dimension with its ends repeated. The share counts from the
        element that is read: a compiler may contract what gives the place, which is then rounded
        to the other side of an element than here.
        """
        dim, n, place = self.dim, self.n, self.places(x)
        if self.line is None or not self.is_exact(x.dtype):
            below = ltorch.trunc(place)
            under = ltorch.to(below, dtypes.int64)
            above = ltorch.where(under < n - 1, under + 1, under)
            lower, upper = (clang.take(x, at, dim=dim) for at in (under, above))
            return lower, upper, place - below
        line = self.line.moved(1)
        elements = ltorch.arange(n + 1, device=x.device) - 1
        below = ltorch.clamp(line.of(elements, 0, self.results), 0, None)
        first, second, last = (
            clang.slice_in_dim(x, k, k + 1, dim=dim) for k in (0, min(1, n - 1), n - 1)
        )
        inner = [clang.slice_in_dim(x, 1, n, dim=dim)] if n > 1 else []
        lower, upper = (
            line.of(ltorch.cat(ends, dim), dim, self.results)
            for ends in ((first, x), (second, *inner, last))
        )
        return lower, upper, place - below

    def is_exact(self, dtype: dtypes.dtype) -> bool:
        """True if rounding leaves the elements below as they are in exact numbers."""
        line = self.line
        exact = line and [max(element, 0) for element in line.elements(self.results)]
        return exact == [int(place) for place in self.known_places(dtype)]


def alongs(
    shape: Sequence[int],
    size: Sequence[int] | None,
    scale_factor: Sequence[float] | None,
    align_corners: bool | None,
) -> list[Along]:
    """Return how linear interpolation goes along each dimension behind the channels."""
    found = []
    for k, n in enumerate(shape[2:]):
        scale = 1.0 if scale_factor is None else scale_factor[k]
        count = int(n * scale) if size is None else size[k]
        if align_corners:
            step, start = (n - 1) / (count - 1) if count > 1 else 0.0, 0.0
        else:
            step, start = n / count if scale_factor is None else 1 / scale, 0.5
        found.append(Along(k + 2, n, count, step, start, bool(align_corners)))
    return found


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
    for along in alongs(a.shape, size, scale_factor, align_corners):
        if along.results == along.n:
            # Whatever the factor, torch reads each element, with weights of 1 and 0.
            x = x + x * 0.0
            continue
        lower, upper, share = along.read(x)
        share = ltorch.reshape(share, [-1 if d == along.dim else 1 for d in range(a.ndim)])
        x = lower * (1 - share) + upper * share
    return rounded(x, a)


class Gathering(NamedTuple):
    """How elements along one dimension gather their gradient.

    dim      the dimension
    n        its size
    windows  the results that read each element
    along    places and weights of linear interpolation; None for nearest elements
    indices  the element that each result reads; none for linear interpolation
    """

    dim: int
    n: int
    windows: ReadingWindows
    along: Along | None
    indices: Sequence[int] = ()
    mode: str = ""

    def elements(self, like: TensorProxy) -> TensorProxy:
        """Return the element that each result reads, as a tensor of one dimension."""
        elements: TensorProxy = ltorch.arange(self.n, device=like.device)
        return _picked(elements, 0, self.indices, self.mode)


def gatherings(
    a: TensorProxy,
    size: Sequence[int] | None,
    scale: Sequence[float] | None,
    mode: str,
    align_corners: bool | None,
) -> list[Gathering] | None:
    """Return how the gradient of an interpolation is gathered, by dimension. None if by sums of
    repeated elements, as of nearest elements by whole factors, or of many results.
    """
    found = []
    if mode in _SPATIAL:
        for along in alongs(a.shape, size, scale, align_corners):
            if along.results == along.n:
                continue
            places = along.known_places(get_computation_dtype(a.dtype))
            last = along.n - 1
            read = [{min(math.floor(x), last), min(math.ceil(x), last)} for x in places]
            if along.line is None:
                return None
            windows = ReadingWindows.of(along.line, read, along.n)
            found.append(Gathering(along.dim, along.n, windows, along))
    else:
        taken = _taken(a, size, scale, mode)
        if all(len(indices) % n == 0 for indices, n in zip(taken, a.shape[2:], strict=True)):
            return None
        for dim, indices in enumerate(taken, start=2):
            n = a.shape[dim]
            if indices == [*range(n)]:
                continue
            line = line_of(n, len(indices), mode)
            assert line is not None
            windows = ReadingWindows.of(line, [(k,) for k in indices], n)
            found.append(Gathering(dim, n, windows, None, indices, mode))
    is_short = math.prod(each.windows.taps for each in found) <= MOST_TAPS
    return found if found and is_short else None


_ID_OF_GATHERED = "interpolate_with_gathered_gradient"

_in_torch = ex.register_operator(
    "interpolate_in_torch",
    meta=ltorch.meta_adaptor(functional.interpolate),
    fn=functional.interpolate,
)
# Thunder states the result of torch's kernel for fewer modes than it has.
for _id in (ltorch.interpolate.id, _ID_OF_GATHERED):
    ex.register_implementation(_id, _in_torch, checker=_always_executable)


def _symbols(function: Callable[..., TensorProxy]) -> tuple[Symbol, Symbol]:
    """Return the symbol whose gradient is that of its parts, and the one whose gradient is
    gathered, which has a rule.
    """
    return (
        Symbol("interpolate", meta=function, id=ltorch.interpolate.id),
        Symbol("interpolate", meta=function, id=_ID_OF_GATHERED),
    )


_CALLS = {
    **dict.fromkeys(("nearest", "nearest-exact"), _symbols(_nearest)),
    **dict.fromkeys(("linear", "bilinear", "trilinear"), _symbols(_linear)),
}
GATHERED = {mode: gathered for mode, (_, gathered) in _CALLS.items()}
"""Interpolations whose gradient is gathered, by mode."""
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
    of_parts, gathered = _CALLS[mode]
    is_gathered = gatherings(input, sizes, scale, mode, align_corners) is not None
    call = gathered if is_gathered else of_parts
    found: TensorProxy = call(input, sizes, scale, mode, *options)
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
