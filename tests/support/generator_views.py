"""Views and factories in a random program."""

from __future__ import annotations

import math
from collections.abc import Callable

from tests.support.generator_program import Program
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import TensorView


def factory_step(p: Program) -> None:
    dtype = p.rng.choice(p.dtypes)
    like = p.rng.choice(p.pool)
    if p.chance(0.5) or dtype.is_complex or dtype is DataType.Bool or not like.rank:
        p.keep(p.builder.full(like.sizes, p.constant(dtype), dtype))
        return
    start, step = p.constant(DataType.Int), p.constant(DataType.Int)
    if dtype.is_floating:
        start, step = p.constant(dtype), p.constant(dtype)
    p.keep(p.builder.iota(like.sizes[-1], start, step, dtype))


def _permuted(p: Program, x: TensorView) -> TensorView:
    return p.builder.permute(x, p.rng.sample(range(x.rank), x.rank))


def _reordered(p: Program, x: TensorView) -> TensorView:
    return p.builder.stride_order(x, p.rng.sample(range(x.rank), x.rank))


def _reshaped(p: Program, x: TensorView) -> TensorView:
    """Neighbours joined, dimensions divided, ones put in and taken out."""
    sizes = list(x.sizes)
    for _ in range(p.rng.randint(1, 3)):
        k = p.rng.randrange(len(sizes) + 1)
        if k == len(sizes) or p.chance(0.2):
            sizes.insert(k, 1)
        elif k + 1 < len(sizes) and p.chance(0.5):
            sizes[k : k + 2] = [sizes[k] * sizes[k + 1]]
        else:
            factor = p.rng.choice([f for f in (1, 2, 3, 4, 8, 13) if sizes[k] % f == 0])
            sizes[k : k + 1] = p.rng.sample([factor, sizes[k] // factor], 2)
    if p.chance(0.3) and math.prod(sizes):
        sizes[p.rng.randrange(len(sizes))] = -1
    return p.builder.reshape(x, sizes)


def _sliced(p: Program, x: TensorView) -> TensorView:
    starts, ends, strides = [], [], []
    for size in x.sizes:
        start = p.rng.randint(0, size) if p.chance(0.5) else 0
        starts.append(start)
        ends.append(p.rng.randint(start, size) if p.chance(0.5) else size)
        strides.append(p.rng.choice((2, 3)) if p.chance(0.15) else 1)
    return p.builder.slice(x, starts, ends, strides)


def _padded(p: Program, x: TensorView) -> TensorView:
    widths: list[int] = []
    for size in reversed(x.sizes[p.rng.randint(0, x.rank) :]):
        left = p.rng.randint(-min(2, size), 3)
        widths += [left, p.rng.randint(-min(2, size + min(left, 0)), 3)]
    value = None if p.chance(0.5) else p.constant(x.dtype)
    return p.builder.pad(x, widths, value)


def _joined(p: Program, x: TensorView) -> TensorView | None:
    if not x.rank:
        return None
    dim = p.rng.randrange(x.rank)
    parts = [x]
    for _ in range(p.rng.randint(1, 3)):
        same = [y for y in p.pool if y.dtype is x.dtype and _joins(x, y, dim)]
        part = p.rng.choice(same)
        parts.append(_sliced_along(p, part, dim) if p.chance(0.5) else part)
    p.rng.shuffle(parts)
    return p.builder.cat(parts, p.rng.choice((dim, dim - x.rank)))


def _sliced_along(p: Program, x: TensorView, dim: int) -> TensorView:
    start = p.rng.randint(0, x.sizes[dim])
    starts = [start if k == dim else 0 for k in range(x.rank)]
    return p.pooled(p.builder.slice(x, starts, list(x.sizes)))


def _broadcast(p: Program, x: TensorView) -> TensorView:
    flags = [False] * x.rank + [True] * p.rng.randint(1, 2)
    p.rng.shuffle(flags)
    return p.builder.broadcast(x, flags)


def _broadcast_in_dim(p: Program, x: TensorView) -> TensorView:
    rank = x.rank + p.rng.randint(0, 2)
    dims = sorted(p.rng.sample(range(rank), x.rank))
    sizes = [p.rng.choice((1, 2, 3, 8)) for _ in range(rank)]
    for k, dim in enumerate(dims):
        if not _expandable(x, k):
            sizes[dim] = x.sizes[k]
    return p.builder.broadcast_in_dim(x, sizes, dims)


def _expanded(p: Program, x: TensorView) -> TensorView:
    sizes = [
        p.rng.choice((-1, 2, 5)) if _expandable(x, k) else size for k, size in enumerate(x.sizes)
    ]
    return p.builder.expand(x, sizes)


def _squeezed(p: Program, x: TensorView) -> TensorView:
    ones = [k for k in range(x.rank) if _expandable(x, k)]
    return p.builder.squeeze(x, p.rng.sample(ones, p.rng.randint(0, len(ones))))


def _joins(x: TensorView, y: TensorView, dim: int) -> bool:
    return x.rank == y.rank and all(
        a == b or k == dim for k, (a, b) in enumerate(zip(x.sizes, y.sizes, strict=True))
    )


def _expandable(x: TensorView, k: int) -> bool:
    dim = x.domain.logical[k]
    return dim.is_broadcast and dim.expanded is None


_MAKERS: tuple[Callable[[Program, TensorView], TensorView | None], ...] = (
    *(_permuted, _reordered, _reshaped, _sliced, _padded, _joined),
    *(_broadcast, _broadcast_in_dim, _expanded, _squeezed),
    lambda p, x: p.builder.set(x),
    lambda p, x: p.builder.segment_set(x),
)


def view_step(p: Program) -> None:
    p.keep(p.rng.choice(_MAKERS)(p, p.recent()))
