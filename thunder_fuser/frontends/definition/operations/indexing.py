"""The operations with data-dependent indices, with nvFuser's signatures.

Index tensors are Int or Int32 and count from 0. A negative index, or one not below the size of its
dimension, is an error at execution: on a CPU a FuserIndexError, raised before any input is updated
in place; on a GPU the kernel traps, as torch's do. Results have the dtype of `arg` or `weight`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from types import MappingProxyType
from typing import Any

from thunder_fuser.errors import FuserValueError
from thunder_fuser.frontends.definition.operations.arguments import integer
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.dtypes import compute_dtype
from thunder_fuser.ir.fusion import Scalar, TensorView, Val


def index_select(b: FusionBuilder, arg: TensorView, index: TensorView, dim: int) -> TensorView:
    """The elements of `arg` along `dim` that the one-dimensional `index` lists.

    The result has the sizes of `arg`, except along `dim`, where it has the size of `index`. An
    index without dimensions counts as one of a single element.
    """
    return b.gather("index_select", arg, integer("dim", dim), index)


def take_along_axis(b: FusionBuilder, arg: TensorView, index: TensorView, dim: int) -> TensorView:
    """result[.., i, ..] = arg[.., index[.., i, ..], ..], with i at `dim`.

    `arg` and `index` have equal rank and broadcast to each other in the dimensions other than
    `dim`.
    """
    return b.gather("take_along_axis", arg, integer("dim", dim), index)


def gather(b: FusionBuilder, arg: TensorView, index: TensorView, dim: int) -> TensorView:
    """As `take_along_axis`, but the result has the sizes of `index`, which may be smaller than
    those of `arg` in the dimensions other than `dim`; larger ones are a FuserValueError.
    """
    return b.gather("gather", arg, integer("dim", dim), index)


def embedding_fwd(
    b: FusionBuilder, input: TensorView, weight: TensorView, padding_idx: Any = None,
    max_norm: Any = None, norm_type: Any = None, scale_grad_by_freq: Any = None, sparse: Any = None,
) -> Val:  # fmt: skip
    """The rows of the matrix `weight` at the indices `input`, of any rank: sizes (*input, columns).

    A row whose norm (of order `norm_type`, default 2) exceeds `max_norm` is scaled to it. The
    weight itself is not changed, where torch would write the scaled rows back. padding_idx,
    scale_grad_by_freq and sparse only matter to the gradient.
    """
    rows = b.gather("embedding_fwd", weight, 0, input)
    if max_norm is None:
        return rows
    norm = _norm(b, rows, _order(2.0 if norm_type is None else norm_type))
    scale = b.pointwise("div", max_norm, b.pointwise("add", norm, 1e-7))
    scaled = b.cast(b.pointwise("mul", rows, scale), rows.dtype)
    return b.pointwise("where", b.pointwise("gt", norm, max_norm), scaled, rows)


def _norm(b: FusionBuilder, rows: TensorView, order: float) -> TensorView:
    """The norm of each row, rounded as torch rounds it, broadcast to the rank of the rows."""
    wide = b.cast_tensor(rows, compute_dtype(rows.dtype))
    sizes = b.pointwise("abs", wide)
    if order == math.inf:
        norm: Any = b.reduce("max", _tensor(sizes), [-1], keepdim=True)
    elif order == 0:
        norm = b.reduce(
            "sum", _tensor(b.cast(b.pointwise("ne", wide, 0), wide.dtype)), [-1], keepdim=True
        )
    else:
        powers = b.pointwise("mul", wide, wide) if order == 2 else b.pointwise("pow", sizes, order)
        total = b.reduce("sum", _tensor(sizes if order == 1 else powers), [-1], keepdim=True)
        root = b.pointwise("sqrt", total) if order == 2 else b.pointwise("pow", total, 1 / order)
        norm = total if order == 1 else root
    return b.cast_tensor(_tensor(norm), rows.dtype)


def _order(value: Any) -> float:
    constant = value.value if isinstance(value, Scalar) else value
    if isinstance(constant, bool) or not isinstance(constant, (int, float)) or not constant >= 0:
        raise FuserValueError(
            f"norm_type: expected a constant number of at least 0, got {value}; the order of a "
            "norm decides which operations it is made of"
        )
    return float(constant)


def _tensor(value: Val) -> TensorView:
    assert isinstance(value, TensorView)
    return value


INDEXING: MappingProxyType[str, Callable[..., Any]] = MappingProxyType(
    {op.__name__: op for op in (index_select, take_along_axis, gather, embedding_fwd)}
)
"""Indexed reads by name; each takes the builder first."""
