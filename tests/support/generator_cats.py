"""Random cats of what several kernels compute: results of reductions, rows, views, pads, inputs.

`cat_case(seed)` is a function of its seed, and comes with its answer like those of generator.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from tests.support.generator import Case
from tests.support.generator_program import Program
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import TensorView, Val

WIDTHS = (0, 1, 1, 2, 3, 5, 8, 13, 16, 24, 33)


def cat_case(seed: int) -> Case:
    """One or two cats of 2 to 4 pieces along any dimension, some behind cuts, and what reads them.

    Pieces, and views of them, are now and then results as well.
    """
    p = Program(seed, 20_000, (), ())
    dtype = p.rng.choice((DataType.Float, DataType.BFloat16))
    for _ in range(p.rng.randint(1, 2)):
        sizes = [p.rng.choice((1, 2, 3, 5, 8, 13, 16, 31)) for _ in range(p.rng.randint(1, 4))]
        while math.prod(sizes) > 600:
            sizes.pop()
        joined = _cat(p, sizes, dtype, depth=1)
        _outputs(p, joined)
    return Case(seed, p.builder.build(), tuple(p.inputs), p.oracle)


def _cat(p: Program, sizes: Sequence[int], dtype: DataType, depth: int) -> TensorView:
    dim = p.rng.randrange(len(sizes))
    pieces = []
    for _ in range(p.rng.randint(2, 4)):
        if pieces and p.chance(0.1):
            pieces.append(p.rng.choice(pieces))
            continue
        shape = [p.rng.choice(WIDTHS) if k == dim else n for k, n in enumerate(sizes)]
        if depth and p.chance(0.15):
            inner = _cat(p, shape, dtype, 0)
            piece = inner if _agree(inner.sizes, shape, dim) else _piece(p, shape, dtype)
        else:
            piece = _piece(p, shape, dtype)
        pieces.append(p.pooled(p.builder.segment_set(piece)) if p.chance(0.25) else piece)
        if p.chance(0.12):
            p.builder.output(piece)
        elif p.chance(0.08):
            p.builder.output(p.pooled(p.builder.reshape(piece, [piece.numel])))
    return p.pooled(p.builder.cat(pieces, dim))


def _agree(a: Sequence[int], b: Sequence[int], dim: int) -> bool:
    return all(m == n or k == dim for k, (m, n) in enumerate(zip(a, b, strict=True)))


def _piece(p: Program, sizes: Sequence[int], dtype: DataType) -> TensorView:
    return p.rng.choice(_MAKERS)(p, sizes, dtype)


def _outputs(p: Program, joined: TensorView) -> None:
    """The cat, a view of it, or what another kernel makes of it."""
    b = p.builder
    x = p.pooled(b.segment_set(joined)) if p.chance(0.4) else joined
    kind = p.rng.choice((0, 1, 2, 2, 3, 4, 5))
    if kind == 0:
        x = p.pooled(b.permute(x, p.rng.sample(range(x.rank), x.rank)))
    elif kind == 1:
        x = p.pooled(b.reshape(x, [x.numel]))
    elif kind == 2:
        sizes = p.rng.choice((x.sizes, x.sizes[-1:], [*x.sizes[:-1], 1]))
        other = p.tensor(sizes, x.dtype)
        total = p.pooled(b.pointwise("add", p.pooled(b.pointwise("relu", x)), other))
        x = p.pooled(_narrow(p, b.pointwise("mul", total, x), x.dtype))
    elif kind == 3:
        x = _normalised(p, x)
    elif kind == 4:
        x = p.pooled(b.pad(x, [p.rng.randint(0, 3) for _ in range(2 * min(x.rank, 2))], 0.5))
    b.output(x)
    if p.chance(0.2):
        b.output(joined)


# ---- pieces


def _input(p: Program, sizes: Sequence[int], dtype: DataType) -> TensorView:
    return p.tensor(sizes, dtype)


def _computed(p: Program, sizes: Sequence[int], dtype: DataType) -> TensorView:
    return p.pooled(_narrow(p, p.builder.pointwise("mul", p.tensor(sizes, dtype), 0.5), dtype))


def _rotated(p: Program, sizes: Sequence[int], dtype: DataType) -> TensorView:
    """A tensor times an expanded one, as cosines are to all heads, which other pieces read, too."""
    alike = [x for x in p.input_views if (x.sizes, x.dtype) == (tuple(sizes), dtype)]
    factor = p.recent(alike) if alike and p.chance(0.5) else p.tensor(sizes, dtype, repeats=0.6)
    product = p.builder.pointwise("mul", p.tensor(sizes, dtype), factor)
    return p.pooled(_narrow(p, product, dtype))


def _constant(p: Program, sizes: Sequence[int], dtype: DataType) -> TensorView:
    return p.pooled(p.builder.full(sizes, 0.25, dtype))


def _folded(p: Program, sizes: Sequence[int], dtype: DataType) -> TensorView:
    """Of one dimension more, or of one that is left with a single element."""
    ones = [k for k, n in enumerate(sizes) if n == 1]
    length = p.rng.choice((2, 3, 17, 40))
    op = p.rng.choice(("sum", "max"))
    if ones and p.chance(0.7):
        k = p.rng.choice(ones)
        x = p.tensor([length if i == k else n for i, n in enumerate(sizes)], dtype)
        return p.pooled(_narrow(p, p.builder.reduce(op, x, [k], keepdim=True), dtype))
    k = p.rng.randint(0, len(sizes))
    x = p.tensor([*sizes[:k], length, *sizes[k:]], dtype)
    return p.pooled(_narrow(p, p.builder.reduce(op, x, [k]), dtype))


def _row(p: Program, sizes: Sequence[int], dtype: DataType) -> TensorView:
    return _normalised(p, p.tensor(sizes, dtype))


def _normalised(p: Program, x: TensorView) -> TensorView:
    if not x.numel:
        return x
    b = p.builder
    k = p.rng.randrange(x.rank)
    size = p.pooled(b.pointwise("abs", x))
    total = p.pooled(b.pointwise("add", p.pooled(b.reduce("sum", size, [k], keepdim=True)), 1.0))
    return p.pooled(_narrow(p, b.pointwise("div", x, total), x.dtype))


def _reshaped(p: Program, sizes: Sequence[int], dtype: DataType) -> TensorView:
    """Rows of which a view is the piece."""
    if p.chance(0.5) and len(sizes) > 1:
        k = p.rng.randrange(len(sizes) - 1)
        flat = [*sizes[:k], sizes[k] * sizes[k + 1], *sizes[k + 2 :]]
    else:
        flat = [*sizes, 1] if p.chance(0.3) else [1, *sizes]
    return p.pooled(p.builder.reshape(_row(p, flat, dtype), list(sizes)))


def _permuted(p: Program, sizes: Sequence[int], dtype: DataType) -> TensorView:
    order = p.rng.sample(range(len(sizes)), len(sizes))
    x = _row(p, [sizes[order.index(k)] for k in range(len(sizes))], dtype)
    return p.pooled(p.builder.permute(x, order))


def _sliced(p: Program, sizes: Sequence[int], dtype: DataType) -> TensorView:
    more = [p.rng.randint(0, 2) for _ in sizes]
    x = _row(p, [n + m for n, m in zip(sizes, more, strict=True)], dtype)
    starts = [p.rng.randint(0, m) for m in more]
    ends = [start + n for start, n in zip(starts, sizes, strict=True)]
    return p.pooled(p.builder.slice(x, starts, ends))


def _padded(p: Program, sizes: Sequence[int], dtype: DataType) -> TensorView:
    """Rows in a frame of one number."""
    frame = [[p.rng.randint(0, min(2, n)), 0] for n in sizes]
    for widths, n in zip(frame, sizes, strict=True):
        widths[1] = p.rng.randint(0, min(2, n - widths[0]))
    x = _row(p, [n - sum(widths) for n, widths in zip(sizes, frame, strict=True)], dtype)
    ends = [width for widths in reversed(frame) for width in widths]
    return p.pooled(p.builder.pad(x, ends, p.rng.choice((None, 0.5))))


def _narrow(p: Program, x: Val, dtype: DataType) -> Val:
    return p.builder.cast(p.pooled(x), dtype)


_MAKERS: tuple[Callable[[Program, Sequence[int], DataType], TensorView], ...] = (
    _input,
    *(_computed, _rotated, _constant, _folded, _folded),
    *(_row, _row, _reshaped, _permuted, _sliced, _padded),
)
