"""Windows of a pool: where each begins, what it holds, and which windows hold an element.

A window's element is named by its offset from the window's first place, which an image may begin
after. An element is in few windows, of which each has it at another offset; so a gradient is
gathered: of each element from the windows that hold it, in order, without atomics.
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
    """Along one dimension of an image.

    size   of the image
    taps   elements of a window
    step   between the beginnings of two windows
    pad    places before the image, where the first window begins
    gap    between two elements of a window
    count  windows
    """

    size: int
    taps: int
    step: int
    pad: int
    gap: int
    count: int

    @property
    def reach(self) -> int:
        """Places from a window's first element to behind its last one."""
        return self.gap * (self.taps - 1) + 1

    @property
    def turns(self) -> int:
        """Windows that may hold an element: those that begin in the last so many steps."""
        return -(-self.reach // self.step)

    @property
    def blocks(self) -> int:
        """Steps that the image and the places before it take."""
        return -(-(self.pad + self.size) // self.step)

    @property
    def behind(self) -> int:
        """Places behind the image that windows reach into; where they do not, minus what is left
        of it.
        """
        return (self.count - 1) * self.step + self.reach - self.pad - self.size

    @property
    def is_outside_somewhere(self) -> bool:
        return self.pad > 0 or self.behind > 0

    def holds(self, turn: int) -> bool:
        """Whether any element is in the window that began so many steps before its own."""
        offsets = range(turn * self.step, min((turn + 1) * self.step, self.reach))
        return any(offset % self.gap == 0 for offset in offsets)


class Pool(NamedTuple):
    """Windows along each of the last dimensions of an image."""

    along: tuple[Windows, ...]

    @property
    def taps(self) -> list[Offset]:
        """The offsets of a window's elements, in memory's order."""
        return list(product(*(range(0, w.reach, w.gap) for w in self.along)))

    @property
    def turns(self) -> list[Offset]:
        """Windows that may hold an element, the first one first, by how many steps they began
        before the element's own.
        """
        each = ([t for t in range(w.turns) if w.holds(t)][::-1] for w in self.along)
        return list(product(*each))

    @property
    def strides(self) -> tuple[int, ...]:
        """Of a number for each offset within whole steps."""
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
    """As torch takes these arguments; Unusual for those that it has an error for, and for windows
    of more than so many elements.
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
    """For each offset, what every window has there; a number outside of the image."""
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
    """For each window its number along dimension `k`, or start + step * number: a tensor that
    broadcasts to those of windows.
    """
    count = pool.along[k].count
    numbers = ltorch.arange(start, start + count * step, step, device=x.device, dtype=dtypes.int32)
    return ltorch.reshape(numbers, [-1 if j == k else 1 for j in range(len(pool.along))])


def held(
    pool: Pool, share: Callable[[tuple[TensorProxy, ...]], TensorProxy], device: Any
) -> TensorProxy:
    """What the elements of an image have of all windows that hold them, summed in the order of
    these.

    `share`: given the offsets of elements within a window along each dimension, [step, 1, 1] and
    [step], what a window gives to each, [..., count, step, count, step].
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
        # In blocks of a step: every block begins where a window does, or would.
        lead = given.ndim - 2 * len(pool.along)
        config = [(0, 0, 0)] * lead
        for t, w in zip(turn, pool.along, strict=True):
            config += [(t, w.blocks - w.count - t, 0), (0, 0, 0)]
        part = prims.pad(given, 0.0, config) if any(map(any, config)) else given
        total = part if total is None else total + part
    assert total is not None
    return _of_image(total, pool)


def by_window(x: TensorProxy, pool: Pool) -> TensorProxy:
    """A value of each window as `held` wants it: [..., count, 1, count, 1]."""
    lead = x.ndim - len(pool.along)
    return ltorch.reshape(x, [*x.shape[:lead], *(n for w in pool.along for n in (w.count, 1))])


def _of_image(blocks: TensorProxy, pool: Pool) -> TensorProxy:
    """The elements of the image, of values in blocks [..., blocks, step, blocks, step]."""
    lead = blocks.ndim - 2 * len(pool.along)
    outer = list(blocks.shape[:lead])
    whole = ltorch.reshape(blocks, [*outer, *(w.blocks * w.step for w in pool.along)])
    starts = [*[0] * lead, *(w.pad for w in pool.along)]
    return prims.slice_prim(whole, starts, [*outer, *(w.pad + w.size for w in pool.along)])
