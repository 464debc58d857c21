"""The operations that move data or make it, with nvFuser's signatures. Each is one builder call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Any

from thunder_fuser.errors import FuserTypeError, FuserValueError
from thunder_fuser.frontends.definition.arguments import (
    flag,
    flags,
    integer,
    integers,
    sizes,
    storage,
)
from thunder_fuser.ir.builder import FusionBuilder, allocation_order
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import Scalar, TensorView, Val
from thunder_fuser.ir.view_arguments import transform_of


def cast(b: FusionBuilder, arg: Val, dtype: DataType) -> Val:
    """`arg` stored as `dtype`."""
    return b.cast(arg, storage("dtype", dtype))


def set(b: FusionBuilder, arg: TensorView) -> TensorView:
    """A copy; as an output it may share the memory of `arg`."""
    return b.set(_tensor(arg))


def segment_set(b: FusionBuilder, arg: TensorView) -> TensorView:
    """A copy at which the plan cuts: nothing is fused across it."""
    return b.segment_set(_tensor(arg))


def permute(b: FusionBuilder, arg: TensorView, dims: Sequence[int]) -> TensorView:
    """Dimension k of the result is dimension dims[k] of `arg`."""
    return b.permute(_tensor(arg), integers("dims", dims))


def stride_order(b: FusionBuilder, arg: TensorView, stride_order: Sequence[int]) -> TensorView:
    """`arg` in memory such that dimension i is the stride_order[i]-th from the innermost."""
    return b.stride_order(_tensor(arg), integers("stride_order", stride_order))


def broadcast(b: FusionBuilder, arg: TensorView, is_broadcast_dim: Sequence[bool]) -> TensorView:
    """A new dimension of size 1 wherever a flag is set."""
    return b.broadcast(_tensor(arg), flags("is_broadcast_dim", is_broadcast_dim))


def broadcast_in_dim(
    b: FusionBuilder, arg: TensorView, shape: Sequence[Any], broadcast_dims: Sequence[int]
) -> TensorView:
    """`arg` in a larger shape, its dimension k at position broadcast_dims[k]; -1 keeps a size."""
    return b.broadcast_in_dim(
        _tensor(arg), sizes("shape", shape), integers("broadcast_dims", broadcast_dims)
    )


def expand(b: FusionBuilder, arg: TensorView, shape: Sequence[Any]) -> TensorView:
    """Dimensions of size 1 shown as larger ones; -1 keeps a size."""
    return b.expand(_tensor(arg), sizes("shape", shape))


def squeeze(
    b: FusionBuilder, arg: TensorView, dims: Sequence[int], squeeze_expanded: bool = False
) -> TensorView:
    """Dimensions of size 1 removed; expanded ones only if asked for."""
    return b.squeeze(
        _tensor(arg), integers("dims", dims), flag("squeeze_expanded", squeeze_expanded)
    )


def reshape(b: FusionBuilder, arg: TensorView, new_shape: Sequence[Any]) -> TensorView:
    """The elements in row-major order in another shape; one size may be -1."""
    return b.reshape(_tensor(arg), sizes("new_shape", new_shape))


def slice(
    b: FusionBuilder,
    arg: TensorView,
    start_indices: Sequence[Any],
    end_indices: Sequence[Any],
    strides: Sequence[Any] | None = None,
    manual_normalization: bool = False,
) -> TensorView:
    """arg[start:end:stride, ...], clamped as Python clamps.

    `manual_normalization` promises indices that need no clamping; clamping these costs nothing.
    """
    flag("manual_normalization", manual_normalization)
    starts, ends = sizes("start_indices", start_indices), sizes("end_indices", end_indices)
    steps = [1] * len(starts) if strides is None else sizes("strides", strides)
    rank = _tensor(arg).rank
    if not len(starts) == len(ends) == len(steps) == rank:
        raise FuserValueError(
            f"expected {rank} start indices, end indices and strides, got {len(starts)}, "
            f"{len(ends)} and {len(steps)}"
        )
    return b.slice(_tensor(arg), starts, ends, steps)


def pad(
    b: FusionBuilder, arg: TensorView, pad_widths: Sequence[Any], value: Val | None = None
) -> TensorView:
    """`value` (default 0) before and after; widths last dimension first; negative ones cut off."""
    return b.pad(_tensor(arg), sizes("pad_widths", pad_widths), _number("value", value))


def cat(
    b: FusionBuilder, tensors: Sequence[TensorView], dim: int = 0, manual_padding: bool = False
) -> TensorView:
    """Tensors side by side along `dim`. `manual_padding` is nvFuser's and changes nothing."""
    flag("manual_padding", manual_padding)
    if not isinstance(tensors, (list, tuple)):
        raise FuserTypeError(f"tensors: expected a list of tensors, got {tensors!r}")
    return b.cat(tensors, integer("dim", dim))


def full(b: FusionBuilder, shape: Sequence[Any], fill_value: Val, dtype: DataType) -> TensorView:
    """A tensor whose elements are all `fill_value`."""
    return b.full(sizes("shape", shape), _number("fill_value", fill_value), storage("dtype", dtype))


def iota(
    b: FusionBuilder,
    length: Any,
    start: Val | None = None,
    step: Val | None = None,
    dtype: DataType = DataType.Int,
) -> TensorView:
    """start, start + step, ...: `length` elements, by default 0, 1, ..."""
    return b.iota(length, _number("start", start), _number("step", step), storage("dtype", dtype))


def size(b: FusionBuilder, arg: TensorView, dim: int) -> Scalar:
    """The size of a dimension."""
    return b.size(_tensor(arg), integer("dim", dim))


def shape(b: FusionBuilder, arg: TensorView) -> list[Scalar]:
    """All sizes."""
    return [b.size(_tensor(arg), k) for k in range(_tensor(arg).rank)]


def at(b: FusionBuilder, vector: Sequence[Val], index: int) -> Val:
    """An element of a vector."""
    return vector[integer("index", index)]


def view(
    b: FusionBuilder,
    arg: TensorView,
    op: str,
    transforms: Sequence[tuple[Any, ...]],
    value: Val | None = None,
    stride_order: Sequence[int] = (),
) -> TensorView:
    """Any view: a domain program, such as [("merge", 0), ("split", 0, 4, 8)], applied to `arg`.

    `op` is the name that it goes by. This is how a chain of views prints after it was joined.
    """
    program = [transform_of(*step) for step in transforms]
    order = integers("stride_order", stride_order)
    if value is not None and getattr(value, "dtype", None) is not _tensor(arg).dtype:
        value = b.cast(value, arg.dtype)
    return b.view(op, arg, program, fill=value, allocation=allocation_order(order) or None)


def _tensor(arg: Val) -> TensorView:
    if not isinstance(arg, TensorView):
        raise FuserTypeError(f"arg: expected a tensor, got {arg!r}")
    return arg


def _number(what: str, value: Any) -> Any:
    if isinstance(value, TensorView) and value.rank:
        raise FuserTypeError(f"{what}: expected a number or a 0-dim tensor, got {value}")
    return value


VIEWS: MappingProxyType[str, Callable[..., Any]] = MappingProxyType(
    {
        function.__name__: function
        for function in (
            cast, set, segment_set, permute, stride_order, broadcast, broadcast_in_dim, expand,
            squeeze, reshape, slice, pad, cat, full, iota, size, shape, at, view,
        )
    }
)  # fmt: skip
"""By name; each takes the builder first."""
