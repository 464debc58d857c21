"""The operations that move or create data, with nvFuser's signatures. Each is one builder call.

Results have the dtype of `arg` unless stated. Impossible sizes and dimensions are a
FuserValueError, arguments of the wrong type a FuserTypeError.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Any

from thunder_fuser.analysis.region import everything, leaves
from thunder_fuser.errors import FuserTypeError, FuserValueError
from thunder_fuser.frontends.definition.operations.arguments import (
    flag,
    flags,
    integer,
    integers,
    sizes,
    storage,
    tensor,
    transform_program,
)
from thunder_fuser.ir.builder import FusionBuilder, allocation_order
from thunder_fuser.ir.domain import (
    Merge,
    NewBroadcast,
    Reorder,
    Resize,
    Split,
    Transform,
    constant_if_known,
    replay,
)
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import Scalar, TensorView, Val
from thunder_fuser.ir.symbolic import is_at_most
from thunder_fuser.ir.verify.moves import VIEW_STEPS


def cast(b: FusionBuilder, arg: Val, dtype: DataType) -> Val:
    """`arg` converted to `dtype`, elementwise; a scalar remains a scalar."""
    return b.cast(arg, storage("dtype", dtype))


def set(b: FusionBuilder, arg: TensorView) -> TensorView:
    """A copy; as an output it may share the memory of `arg`."""
    return b.set(tensor("arg", arg))


def segment_set(b: FusionBuilder, arg: TensorView) -> TensorView:
    """A copy at which the plan is cut: nothing is fused across it."""
    return b.segment_set(tensor("arg", arg))


def permute(b: FusionBuilder, arg: TensorView, dims: Sequence[int]) -> TensorView:
    """Dimension k of the result is dimension dims[k] of `arg`. `dims` must be a permutation."""
    return b.permute(tensor("arg", arg), integers("dims", dims))


def stride_order(b: FusionBuilder, arg: TensorView, stride_order: Sequence[int]) -> TensorView:
    """`arg`, stored so that dimension i is the stride_order[i]-th from the innermost."""
    return b.stride_order(tensor("arg", arg), integers("stride_order", stride_order))


def broadcast(b: FusionBuilder, arg: TensorView, is_broadcast_dim: Sequence[bool]) -> TensorView:
    """`arg` with a new dimension of size 1 wherever a flag is set. One flag per dimension of the
    result; as many unset flags as `arg` has dimensions.
    """
    return b.broadcast(tensor("arg", arg), flags("is_broadcast_dim", is_broadcast_dim))


def broadcast_in_dim(
    b: FusionBuilder, arg: TensorView, shape: Sequence[Any], broadcast_dims: Sequence[int]
) -> TensorView:
    """`arg` broadcast to `shape`, its dimension k at position broadcast_dims[k]; -1 keeps a size.
    Positions must increase; only dimensions of size 1 can change their size.
    """
    return b.broadcast_in_dim(
        tensor("arg", arg), sizes("shape", shape), integers("broadcast_dims", broadcast_dims)
    )


def expand(b: FusionBuilder, arg: TensorView, shape: Sequence[Any]) -> TensorView:
    """`arg` with dimensions of size 1 expanded to `shape`, of the same rank; -1 keeps a size."""
    return b.expand(tensor("arg", arg), sizes("shape", shape))


def squeeze(
    b: FusionBuilder, arg: TensorView, dims: Sequence[int], squeeze_expanded: bool = False
) -> TensorView:
    """`arg` without the dimensions `dims`, which have size 1; expanded ones only with
    `squeeze_expanded`.
    """
    return b.squeeze(
        tensor("arg", arg), integers("dims", dims), flag("squeeze_expanded", squeeze_expanded)
    )


def reshape(b: FusionBuilder, arg: TensorView, new_shape: Sequence[Any]) -> TensorView:
    """`arg` in row-major order with the sizes `new_shape`, one of which may be -1."""
    return b.reshape(tensor("arg", arg), sizes("new_shape", new_shape))


def slice(
    b: FusionBuilder,
    arg: TensorView,
    start_indices: Sequence[Any],
    end_indices: Sequence[Any],
    strides: Sequence[Any] | None = None,
    manual_normalization: bool = False,
) -> TensorView:
    """arg[start:end:stride, ...], indices clamped to the sizes as Python clamps.

    One start, end and stride per dimension. Negative ends count from the end; strides are positive
    constants. FuserValueError for negative starts, and for an end before its start, where Python
    has an empty slice. `manual_normalization` promises indices that need no clamping; it is
    accepted and changes nothing.
    """
    flag("manual_normalization", manual_normalization)
    starts, ends = sizes("start_indices", start_indices), sizes("end_indices", end_indices)
    steps = [1] * len(starts) if strides is None else sizes("strides", strides)
    rank = tensor("arg", arg).rank
    if not len(starts) == len(ends) == len(steps) == rank:
        raise FuserValueError(
            f"expected {rank} start indices, end indices and strides, got {len(starts)}, "
            f"{len(ends)} and {len(steps)}"
        )
    return b.slice(tensor("arg", arg), starts, ends, steps)


def pad(
    b: FusionBuilder, arg: TensorView, pad_widths: Sequence[Any], value: Val | None = None
) -> TensorView:
    """`arg` with `value` (default 0) before and after; (before, after) widths of the last dimension
    first, as torch. Negative widths remove elements.
    """
    return b.pad(tensor("arg", arg), sizes("pad_widths", pad_widths), _number("value", value))


def cat(
    b: FusionBuilder, tensors: Sequence[TensorView], dim: int = 0, manual_padding: bool = False
) -> TensorView:
    """Tensors of one dtype concatenated along `dim`; the other sizes are equal.

    The size along `dim` is the sum of theirs. FuserTypeError if `tensors` is no list of tensors,
    FuserValueError for an empty list or unequal dtypes, ranks or sizes. `manual_padding` is
    nvFuser's and changes nothing.
    """
    flag("manual_padding", manual_padding)
    if not isinstance(tensors, (list, tuple)):
        raise FuserTypeError(f"tensors: expected a list of tensors, got {tensors!r}")
    return b.cat(tensors, integer("dim", dim))


def full(b: FusionBuilder, shape: Sequence[Any], fill_value: Val, dtype: DataType) -> TensorView:
    """A tensor of sizes `shape` and `dtype`, all elements `fill_value`: a number or 0-dim tensor,
    converted to `dtype`. FuserValueError for negative sizes.
    """
    return b.full(sizes("shape", shape), _number("fill_value", fill_value), storage("dtype", dtype))


def iota(
    b: FusionBuilder,
    length: Any,
    start: Val | None = None,
    step: Val | None = None,
    dtype: DataType = DataType.Int,
) -> TensorView:
    """[start, start + step, ...] of size [length] and `dtype`; start defaults to 0, step to 1.

    FuserTypeError for Bool or complex dtypes, FuserValueError for a negative length.
    """
    return b.iota(length, _number("start", start), _number("step", step), storage("dtype", dtype))


def size(b: FusionBuilder, arg: TensorView, dim: int) -> Scalar:
    """The size of a dimension as a scalar of dtype Int."""
    return b.size(tensor("arg", arg), integer("dim", dim))


def shape(b: FusionBuilder, arg: TensorView) -> list[Scalar]:
    """All sizes, in the order of dimensions, as scalars of dtype Int."""
    return [b.size(tensor("arg", arg), k) for k in range(tensor("arg", arg).rank)]


def at(b: FusionBuilder, vector: Sequence[Val], index: int) -> Val:
    """Element `index` of a vector (a list of values)."""
    place = integer("index", index)
    if not isinstance(vector, (list, tuple)):
        raise FuserTypeError(f"vector: expected a list of values, got {vector!r}")
    if not -len(vector) <= place < len(vector):
        raise FuserValueError(f"index {place} is out of range for {len(vector)} values")
    found: Val = vector[place]
    return found


def view(
    b: FusionBuilder,
    arg: TensorView,
    op: str,
    transforms: Sequence[tuple[Any, ...]],
    value: Val | None = None,
    stride_order: Sequence[int] = (),
) -> TensorView:
    """`arg` under any domain transforms, such as [("merge", 0), ("split", 0, 4, 8)].

    `op` is the printed name of the operation, `value` the fill of padded elements, converted to the
    dtype of `arg`; of a pad, 0 by default. Joined chains of views print as this operation.
    FuserValueError for transforms that do not fit the dimensions of `arg`, and for a resize that
    adds elements that no `value` fills.
    """
    program = transform_program("transforms", transforms)
    if op not in VIEW_STEPS:
        raise FuserValueError(f"op: there is no view {op!r}; there are {', '.join(VIEW_STEPS)}")
    _check_program(tensor("arg", arg), program)
    order = allocation_order(integers("stride_order", stride_order)) or None
    if value is None and op == "pad":
        value = b.cast(0, arg.dtype)
    if value is None:
        _check_reads(arg, program)
    elif getattr(_number("value", value), "dtype", None) is not arg.dtype:
        value = b.cast(value, arg.dtype)
    return b.view(op, arg, program, fill=value, allocation=order)


def _check_program(x: TensorView, program: Sequence[Transform]) -> None:
    """FuserValueError for transforms of dimensions that are not there, and for a split into sizes
    that are not known to be those of its dimension.
    """
    dims = x.domain.logical
    for step in program:
        if isinstance(step, Reorder):
            fits = sorted(step.order) == list(range(len(dims)))
        else:
            most = len(dims) - isinstance(step, Merge) + isinstance(step, NewBroadcast)
            fits = 0 <= step.axis < most
        if not fits:
            raise FuserValueError(f"view of {x}: {step} does not fit {len(dims)} dimensions")
        if isinstance(step, Split):
            made = constant_if_known(step.outer * step.inner)
            is_negative = any(isinstance(n, int) and n < 0 for n in (step.outer, step.inner))
            if is_negative or made != dims[step.axis].size:
                raise FuserValueError(
                    f"view of {x}: {step} makes {made} of dimension {step.axis}, whose size is "
                    f"{dims[step.axis].size}; where sizes are open, use fd.ops.reshape"
                )
        dims = replay(dims, (step,))


def _check_reads(x: TensorView, program: Sequence[Transform]) -> None:
    """FuserValueError for a resize that adds elements of the result, which lie outside of the
    memory of `x`. Those that round a dimension up to a multiple of a stride are dropped again.
    """
    dims = x.domain.logical
    result = replay(dims, program)
    known = all(isinstance(d.size, int) for d in (*dims, *result))
    if known and not leaves(everything(result), dims, program):
        return
    grown = [
        step
        for step in program
        if isinstance(step, Resize) and not (is_at_most(step.left, 0) and is_at_most(step.right, 0))
    ]
    if grown:
        raise FuserValueError(
            f"view of {x}: {grown[0]} adds elements to dimension {grown[0].axis}; give their "
            "value, or use fd.ops.pad"
        )


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
"""Views by name; each takes the builder first."""
