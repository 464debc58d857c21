"""Max and average pools: each output element reads the elements of its window.

Thunder decomposes them into convolutions. The symbols here have Thunder's ids, so that a pool that
is not fused still runs torch's kernel if Thunder has one. A maximum is chosen as by torch's
kernels: the first of equal ones, and NaN before all others. Averages are summed in memory order,
16-bit ones in fp32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

import thunder.torch as ltorch
from thunder.core import dtypes
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import Symbol

from thunder_fuser.frontends.thunder.claims.table import MOST_TAPS
from thunder_fuser.frontends.thunder.composites.arguments import (
    Unusual,
    cut,
    floats,
    rounded,
    wide,
)
from thunder_fuser.frontends.thunder.composites.windows import (
    Pool,
    along,
    by_window,
    held,
    pool_of,
    shown,
)

_TYPES = (dtypes.float16, dtypes.bfloat16, dtypes.float32, dtypes.float64)


def _taken(x: Any, spatial: int, options: Sequence[Any], most: float = MOST_TAPS) -> Pool:
    floats(x)
    if dtypes.to_strong_dtype(x.dtype) not in _TYPES:
        raise Unusual
    kernel_size, stride, padding, dilation, ceil_mode = options
    return pool_of(x, spatial, kernel_size, stride, padding, dilation, ceil_mode, most)


# ---- max pools


def largest(x: TensorProxy, pool: Pool) -> TensorProxy:
    """Return the maximum of each window."""
    first, *others = shown(x, pool, -math.inf)
    return reduce(lambda best, value: ltorch.where(_beats(value, best), value, best), others, first)


def largest_and_places(x: TensorProxy, pool: Pool) -> tuple[TensorProxy, TensorProxy]:
    """Return the maximum of each window, and the number of its offset in the window."""
    dtype = dtypes.uint8 if pool.numbers <= 256 else dtypes.int32
    best, *others = shown(x, pool, -math.inf)
    place = _first_places(x, pool)
    found = ltorch.to(ltorch.expand(place, best.shape), dtype)
    for offset, value in zip(pool.taps[1:], others, strict=True):
        beats = _beats(value, best)
        # The place comes first, so that a kernel alternates between both: the comparison is a
        # predicate, and a thread has seven of them.
        place = ltorch.where(beats, pool.number(offset), place)
        found = ltorch.to(place, dtype)
        best = ltorch.where(beats, value, best)
    return best, found


def _beats(value: TensorProxy, best: TensorProxy) -> TensorProxy:
    return (value > best) | (value != value)


def _first_places(x: TensorProxy, pool: Pool) -> TensorProxy:
    """Return the offset number of each window's first element inside the image, which is the place
    of the maximum of a window of -inf.
    """
    place = ltorch.zeros(*[1] * len(pool.along), device=x.device, dtype=dtypes.int32)
    for k, (w, stride) in enumerate(zip(pool.along, pool.strides, strict=True)):
        number = along(k, pool, x)
        first: TensorProxy | int = 0
        for window, begin in enumerate(range(-w.pad, 0, w.step)):
            offset = -(begin // w.gap) * w.gap
            first = ltorch.where(number == window, offset * stride, first)
        place = place if isinstance(first, int) else place + first
    return place


def of_largest(g: TensorProxy, places: TensorProxy, pool: Pool) -> TensorProxy:
    """Gradient of a max pool's input: each element sums those of the windows that it is the maximum
    of.
    """
    gradient, place = by_window(wide(g), pool), by_window(ltorch.to(places, dtypes.int32), pool)

    def share(offsets: tuple[TensorProxy, ...]) -> TensorProxy:
        numbers = reduce(ltorch.add, (t * n for t, n in zip(offsets, pool.strides, strict=True)))
        is_place = place == numbers
        if pool.along[-1].turns * pool.along[-1].step != pool.along[-1].reach:
            # Known at compile time: lanes of a vector that are in no window at this offset.
            is_place = is_place & (offsets[-1] < pool.along[-1].reach)
        return ltorch.where(is_place, gradient, 0.0)

    return rounded(held(pool, share, g.device), g)


def indices(places: TensorProxy, pool: Pool) -> TensorProxy:
    """Return the indices of maxima in the image as torch does: flattened, in memory order."""
    left, index = ltorch.to(places, dtypes.int64), None
    for k, (w, stride) in enumerate(zip(pool.along, pool.strides, strict=True)):
        offset = ltorch.div(left, stride, rounding_mode="floor")
        left = left - offset * stride
        place = offset + along(k, pool, places, -w.pad, w.step)
        index = place if index is None else index * w.size + place
    assert index is not None
    return index


# ---- average pools


def average(x: TensorProxy, pool: Pool, counts_pads: bool, divisor: int | None) -> TensorProxy:
    """Return the average of each window."""
    total = reduce(ltorch.add, map(wide, shown(x, pool, 0.0)))
    return rounded(total / _divisor(x, pool, counts_pads, divisor), x)


def average_of_tiles(x: TensorProxy, pool: Pool, divisor: int | None) -> TensorProxy:
    """Return averages of adjacent, disjoint windows of any size, by a reduction."""
    outer = x.shape[: x.ndim - len(pool.along)]
    for k, w in enumerate(pool.along, len(outer)):
        x = cut(x, k, 0, w.count * w.taps)
    tiles = [n for w in pool.along for n in (w.count, w.taps)]
    axes = [len(outer) + 2 * k + 1 for k in range(len(pool.along))]
    total = ltorch.sum(ltorch.reshape(wide(x), (*outer, *tiles)), axes)
    return rounded(total / (divisor or math.prod(w.taps for w in pool.along)), x)


def of_average(g: TensorProxy, pool: Pool, counts_pads: bool, divisor: int | None) -> TensorProxy:
    """Gradient of an average pool's input: each element sums its shares of windows that hold it."""
    by = _divisor(g, pool, counts_pads, divisor)
    is_one = not isinstance(by, TensorProxy)
    each = by_window(wide(g) if is_one else wide(g) / by, pool)
    blocks = (n for w in pool.along for n in (w.count, w.step))
    shape = [*g.shape[: g.ndim - len(pool.along)], *blocks]

    def share(offsets: tuple[TensorProxy, ...]) -> TensorProxy:
        inside = [
            t < w.reach
            for t, w in zip(offsets, pool.along, strict=True)
            if w.turns * w.step != w.reach
        ]
        if not inside:
            return ltorch.expand(each, shape)
        return ltorch.expand(ltorch.where(reduce(ltorch.logical_and, inside), each, 0.0), shape)

    image = held(pool, share, g.device)
    return rounded(image / by if is_one else image, g)


def _divisor(
    x: TensorProxy, pool: Pool, counts_pads: bool, divisor: int | None
) -> TensorProxy | float:
    """Return the divisor of each window's sum: a number if it is equal for all windows."""
    if divisor is not None:
        return float(divisor)
    number, product = 1.0, None
    for k, w in enumerate(pool.along):
        low, high = (-w.pad, w.size + w.pad) if counts_pads else (0, w.size)
        starts = range(-w.pad, -w.pad + w.count * w.step, w.step)
        counts = {min(n + w.taps, high) - max(n, low) for n in starts}
        if len(counts) == 1:
            number *= counts.pop()
            continue
        first = along(k, pool, x, -w.pad, w.step)
        length = _at_most(first + w.taps, high) - _at_least(first, low)
        count = ltorch.to(length, wide(x).dtype)
        product = count if product is None else product * count
    return number if product is None else product * number


def _at_least(numbers: TensorProxy, low: int) -> TensorProxy:
    return ltorch.where(numbers < low, low, numbers)


def _at_most(numbers: TensorProxy, high: int) -> TensorProxy:
    return ltorch.where(numbers > high, high, numbers)


# ---- calls


def _symbol(function: Callable[..., Any], name: str, id: str) -> Symbol:
    return Symbol(name, meta=function, id=id)


def _largest_of(spatial: int, with_places: bool) -> Callable[..., Any]:
    def function(
        a: TensorProxy,
        /,
        kernel_size: int | Sequence[int],
        stride: int | Sequence[int] | None = None,
        padding: int | Sequence[int] = 0,
        dilation: int | Sequence[int] = 1,
        return_indices: bool = False,
        ceil_mode: bool = False,
    ) -> Any:
        pool = pool_of(a, spatial, kernel_size, stride, padding, dilation, ceil_mode)
        if not (with_places or return_indices):
            return largest(a, pool)
        best, places = largest_and_places(a, pool)
        return best, places if with_places else indices(places, pool)

    return function


def _average_of(spatial: int) -> Callable[..., TensorProxy]:
    def function(
        a: TensorProxy,
        /,
        kernel_size: int | Sequence[int],
        stride: int | Sequence[int] | None = None,
        padding: int | Sequence[int] = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> TensorProxy:
        pool = pool_of(a, spatial, kernel_size, stride, padding, 1, ceil_mode)
        return average(a, pool, count_include_pad, divisor_override)

    return function


_SPATIAL = (1, 2, 3)
_F = "torch.nn.functional"

LARGEST = {
    k: _symbol(_largest_of(k, False), f"max_pool{k}d", f"{_F}.max_pool{k}d") for k in _SPATIAL
}
"""Max pools by spatial rank, with Thunder's ids, by which they run torch's kernel if not fused."""
OTHERS = {
    k: _symbol(_largest_of(k, False), f"max_pool{k}d", f"max_pool{k}d_in_parts") for k in _SPATIAL
}
"""Max pools by spatial rank with options that Thunder does not pass to torch's kernel (`ceil_mode`,
`return_indices`).
"""
WITH_PLACES = {
    k: _symbol(_largest_of(k, True), f"max_pool{k}d_with_places", f"max_pool{k}d_with_places")
    for k in _SPATIAL
}
"""Max pools by spatial rank that also return the place of each maximum, which the gradient reads:
one byte per window for small windows.
"""
AVERAGE = {k: _symbol(_average_of(k), f"avg_pool{k}d", f"{_F}.avg_pool{k}d") for k in _SPATIAL}
CALLS = (LARGEST, OTHERS, WITH_PLACES, AVERAGE)


def _max_pool(spatial: int) -> Callable[..., Any]:
    def function(
        input: TensorProxy,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> Any:
        _taken(input, spatial, (kernel_size, stride, padding, dilation, ceil_mode))
        if type(return_indices) is not bool:
            raise Unusual
        symbol = (OTHERS if ceil_mode or return_indices else LARGEST)[spatial]
        return symbol(input, kernel_size, stride, padding, dilation, return_indices, ceil_mode)

    return function


def _avg_pool(spatial: int) -> Callable[..., TensorProxy]:
    def function(
        input: TensorProxy,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> TensorProxy:
        windows = (kernel_size, stride, padding, 1, ceil_mode)
        pool = _taken(input, spatial, windows, math.inf)
        is_known = divisor_override is None or (type(divisor_override) is int and divisor_override)
        is_whole = divisor_override is None or spatial > 1
        if type(count_include_pad) is not bool or not (is_known and is_whole):
            raise Unusual
        if math.prod(w.taps for w in pool.along) > MOST_TAPS:
            if not all(w.step == w.taps and not w.pad and w.behind <= 0 for w in pool.along):
                raise Unusual
            return average_of_tiles(input, pool, divisor_override)
        found: TensorProxy = AVERAGE[spatial](
            input, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override
        )
        return found

    return function


PARTS: Mapping[str, Callable[..., Any]] = {
    **{f"nn.functional.max_pool{k}d": _max_pool(k) for k in _SPATIAL},
    **{f"max_pool{k}d": _max_pool(k) for k in _SPATIAL},
    **{f"nn.functional.avg_pool{k}d": _avg_pool(k) for k in _SPATIAL},
}
