"""Layout of results in a Fusion, expressed by additional operands that determine it.

A result has the layout of its expression's operands, with precedence of the first. So a select that
always takes the other side adds operands: the layout is decided before passes remove the select.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.dtypes import promote_pair
from thunder_fuser.ir.fusion import TensorView


def lying_as(b: FusionBuilder, x: TensorView, leaders: Sequence[TensorView]) -> TensorView:
    """Return `x` with the layout of a pointwise result of `leaders`, which broadcast to its sizes.

    Torch converts leaders of other dtypes than their common one, and converted tensors are dense.
    """
    leaders = [t for t in leaders if t.dtype.is_complex <= x.dtype.is_complex]
    dtypes = [t.dtype for t in leaders]
    for leader in reversed(leaders):
        common = reduce(promote_pair, dtypes)
        same = leader if leader.dtype is common else _of(b.cast(leader, common))
        dims = range(x.rank - leader.rank, x.rank)
        wide = b.broadcast_in_dim(same, list(x.domain.shape), dims)
        x = _of(b.cast(b.pointwise("where", False, b.cast(wide, x.dtype), x), x.dtype))
    return x


def in_format_of(b: FusionBuilder, x: TensorView, source: TensorView) -> TensorView:
    """Return `x` with its channels last if those of `source` are, else row-major.

    A cat has one of these formats, which a pad keeps, and a slice has the strides of the whole.
    Torch takes lines of a batch for images of one row.
    """
    if x.rank != source.rank or 0 in (*x.sizes, *source.sizes):
        return x
    if x.rank == 3:
        images = (b.reshape(t, [*t.sizes[:2], 1, t.sizes[2]]) for t in (x, source))
        return b.squeeze(in_format_of(b, *images), [2])
    pairs = list(zip(x.sizes, source.sizes, strict=True))
    widths = [width for n, m in reversed(pairs) for width in (0, max(n - m, 0))]
    padded = b.pad(b.cat([source]), widths)
    return lying_as(b, x, [_of(b.slice(padded, [0] * x.rank, x.domain.shape))])


def _of(value: object) -> TensorView:
    assert isinstance(value, TensorView)
    return value


def lying_as_indexed(
    b: FusionBuilder, x: TensorView, source: TensorView, dim: int, index: TensorView
) -> TensorView:
    """Return `x`, the result of indexing `dim` of `source` by `index`, with torch's layout."""
    if 0 in x.sizes or x.rank != source.rank - 1 + index.rank:
        return x
    within = range(dim, dim + index.rank)
    ends = [1 if k == dim else n for k, n in enumerate(source.domain.shape)]
    rest = b.squeeze(b.slice(source, [0] * source.rank, ends), [dim])
    sizes = list(x.domain.shape)
    shown = b.broadcast_in_dim(rest, sizes, [k for k in range(x.rank) if k not in within])
    return lying_as(b, lying_as(b, x, [b.broadcast_in_dim(index, sizes, within)]), [shown])
