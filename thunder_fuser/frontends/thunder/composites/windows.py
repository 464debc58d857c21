"""Window geometry of pools: windows by element offset, and elements by the windows that hold them.

An element of a window is identified by its offset from the window's start, which may be in the
padding. An element is in few windows, each with another offset; so its gradient is gathered from
the windows that hold it, in order, without atomics.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

import thunder.torch as ltorch
from thunder.core import dtypes, prims
from thunder.core.proxies import TensorProxy

from thunder_fuser.frontends.thunder.claims.table import MOST_TAPS
from thunder_fuser.frontends.thunder.composites.arguments import Unusual

Offset = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Windows:
    """Windows along one dimension of an image.

    size   size of the image
    taps   elements of a window
    step   stride from window to window
    pad    padding before the image, where the first window begins
    gap    dilation: distance of neighbouring elements of a window
    count  number of windows
    """

    size: int
    taps: int
    step: int
    pad: int
    gap: int
    count: int

    @property
    def reach(self) -> int:
        """Extent of a window: positions from its first element to its last one, inclusive."""
        return self.gap * (self.taps - 1) + 1

    @property
    def turns(self) -> int:
        """Most windows that may hold an element: extent of a window in steps, rounded up."""
        return -(-self.reach // self.step)

    @property
    def blocks(self) -> int:
        """Extent of the image with its leading padding in steps, rounded up."""
        return -(-(self.pad + self.size) // self.step)

    @property
    def behind(self) -> int:
        """Positions behind the image that windows reach into; negative for image elements behind
        the last window.
        """
        return (self.count - 1) * self.step + self.reach - self.pad - self.size

    @property
    def is_outside_somewhere(self) -> bool:
        return self.pad > 0 or self.behind > 0

    def holds(self, turn: int) -> bool:
        """True if the window that began `turn` steps before an element's own may hold it, which a
        dilation can exclude.
        """
        offsets = range(turn * self.step, min((turn + 1) * self.step, self.reach))
        return any(offset % self.gap == 0 for offset in offsets)


class Pool(NamedTuple):
    """Windows along each of the trailing spatial dimensions of an image."""

    along: tuple[Windows, ...]

    @property
    def taps(self) -> list[Offset]:
        """Offsets of a window's elements, in memory order."""
        return list(product(*(range(0, w.reach, w.gap) for w in self.along)))

    @property
    def turns(self) -> list[Offset]:
        """Windows that may hold an element, in order, as the number of steps by which each began
        before the element's own.
        """
        each = ([t for t in range(w.turns) if w.holds(t)][::-1] for w in self.along)
        return list(product(*each))

    @property
    def strides(self) -> tuple[int, ...]:
        """Strides of the numbering of offsets, over window extents rounded up to whole steps."""
        whole = [w.turns * w.step for w in self.along]
        return tuple(math.prod(whole[k + 1 :]) for k in range(len(whole)))

    @property
    def numbers(self) -> int:
        return math.prod(w.turns * w.step for w in self.along)

    def number(self, offset: Offset) -> int:
        return sum(n * stride for n, stride in zip(offset, self.strides, strict=True))


def pool_of(
    x: TensorProxy,
    spatial: int,
    kernel_size: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    ceil_mode: Any,
    most: float = MOST_TAPS,
) -> Pool:
    """Return the windows for torch's arguments. Unusual for arguments that torch raises an error
    for, and for windows of more than `most` elements.
    """
    channels_and_image = x.shape[x.ndim - spatial - 1 :]
    is_image = x.ndim in (spatial + 1, spatial + 2) and 0 not in channels_and_image
    if not is_image or type(ceil_mode) is not bool:
        raise Unusual
    sizes = x.shape[x.ndim - spatial :]
    taps = _each(kernel_size, spatial)
    steps = taps if stride is None or stride == [] or stride == () else _each(stride, spatial)
    pads, gaps = _each(padding, spatial), _each(dilation, spatial)
    along = tuple(
        Windows(n, k, s, p, d, _count(n, k, s, p, d, ceil_mode))
        for n, k, s, p, d in zip(sizes, taps, steps, pads, gaps, strict=True)
    )
    pool = Pool(along)
    if math.prod(taps) > most or len(pool.turns) > most:
        raise Unusual
    return pool


def _each(given: Any, spatial: int) -> tuple[int, ...]:
    numbers = tuple(given) if isinstance(given, Sequence) else (given,)
    if len(numbers) == 1:
        numbers *= spatial
    if len(numbers) != spatial or not all(type(n) is int for n in numbers):
        raise Unusual
    return numbers


def _count(size: int, taps: int, step: int, pad: int, gap: int, ceil_mode: bool) -> int:
    if taps < 1 or step < 1 or gap < 1 or not 0 <= pad <= taps // 2:
        raise Unusual
    room = size + 2 * pad - gap * (taps - 1) - 1
    count = (-(-room // step) if ceil_mode else room // step) + 1
    if ceil_mode and (count - 1) * step >= size + pad:
        count -= 1
    if count < 1:
        raise Unusual
    return count


def shown(x: TensorProxy, pool: Pool, outside: float) -> Iterator[TensorProxy]:
    """Yield for each offset the elements of all windows there; `outside` in the padding."""
    lead = x.ndim - len(pool.along)
    if any(w.is_outside_somewhere for w in pool.along):
        ends = [(w.pad, max(w.behind, 0), 0) for w in pool.along]
        x = prims.pad(x, outside, [*[(0, 0, 0)] * lead, *ends])
    for offset in pool.taps:
        pairs = list(zip(offset, pool.along, strict=True))
        starts = [*[0] * lead, *(n for n, _ in pairs)]
        stops = [*x.shape[:lead], *(n + (w.count - 1) * w.step + 1 for n, w in pairs)]
        yield prims.slice_prim(x, starts, stops, [*[1] * lead, *(w.step for w in pool.along)])


def along(k: int, pool: Pool, x: TensorProxy, start: int = 0, step: int = 1) -> TensorProxy:
    """Return start + step * number for the number of each window along dimension `k`, broadcastable
    to tensors of windows.
    """
    count = pool.along[k].count
    numbers = ltorch.arange(start, start + count * step, step, device=x.device, dtype=dtypes.int32)
    return ltorch.reshape(numbers, [-1 if j == k else 1 for j in range(len(pool.along))])


def held(
    pool: Pool, share: Callable[[tuple[TensorProxy, ...]], TensorProxy], device: Any
) -> TensorProxy:
    """Sum for each element of an image the contributions of the windows that hold it, in window
    order.

    `share` maps offsets of elements within a window along each dimension, [step, 1, 1] and [step],
    to the contribution of a window to each, [..., count, step, count, step].
    """
    total = None
    for turn in pool.turns:
        ranges = (
            ltorch.arange(t * w.step, (t + 1) * w.step, device=device, dtype=dtypes.int32)
            for t, w in zip(turn, pool.along, strict=True)
        )
        rest = len(pool.along) - 1
        given = share(
            tuple(ltorch.reshape(t, [-1, *[1] * (2 * (rest - k))]) for k, t in enumerate(ranges))
        )
        # In blocks of one step: every block begins at the start of an actual or virtual window.
        lead = given.ndim - 2 * len(pool.along)
        config = [(0, 0, 0)] * lead
        for t, w in zip(turn, pool.along, strict=True):
            config += [(t, w.blocks - w.count - t, 0), (0, 0, 0)]
        part = prims.pad(given, 0.0, config) if any(map(any, config)) else given
        total = part if total is None else total + part
    assert total is not None
    return _of_image(total, pool)


def by_window(x: TensorProxy, pool: Pool) -> TensorProxy:
    """Reshape a value of each window for `held`: [..., count, 1, count, 1]."""
    lead = x.ndim - len(pool.along)
    return ltorch.reshape(x, [*x.shape[:lead], *(n for w in pool.along for n in (w.count, 1))])


def _of_image(blocks: TensorProxy, pool: Pool) -> TensorProxy:
    """Convert values in blocks [..., blocks, step, blocks, step] to the shape of the image."""
    lead = blocks.ndim - 2 * len(pool.along)
    outer = list(blocks.shape[:lead])
    whole = ltorch.reshape(blocks, [*outer, *(w.blocks * w.step for w in pool.along)])
    starts = [*[0] * lead, *(w.pad for w in pool.along)]
    return prims.slice_prim(whole, starts, [*outer, *(w.pad + w.size for w in pool.along)])
