"""The operations that select a part of a tensor: triangles, and one index of a dimension."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import Any

from thunder_fuser.errors import FuserTypeError, FuserValueError
from thunder_fuser.frontends.definition.operations.arguments import integer, tensor
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.domain import Extent
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import Scalar, TensorView, Val


def triu(b: FusionBuilder, arg: TensorView, diagonal: Scalar | int = 0) -> Val:
    """`arg` with zeros below a diagonal of its last two dimensions; 0 is the main diagonal,
    positive ones are above it. FuserValueError for fewer than 2 dimensions.
    """
    return _triangle(b, arg, diagonal, "ge")


def tril(b: FusionBuilder, arg: TensorView, diagonal: Scalar | int = 0) -> Val:
    """`arg` with zeros above a diagonal of its last two dimensions; 0 is the main diagonal,
    positive ones are above it. FuserValueError for fewer than 2 dimensions.
    """
    return _triangle(b, arg, diagonal, "le")


def _triangle(b: FusionBuilder, x: TensorView, diagonal: Scalar | int, kept: str) -> Val:
    """where(column - row `kept` diagonal, x, 0): the mask is computed, not stored."""
    if tensor("arg", x).rank < 2:
        raise FuserValueError(f"arg: expected a tensor of at least 2 dimensions, got {x}")
    rows, columns = (_counted(b, x, dim) for dim in (-2, -1))
    offset = b.pointwise("sub", columns, b.broadcast(rows, [False, True]))
    inside = b.pointwise(kept, offset, _whole("diagonal", diagonal))
    return b.pointwise("where", inside, x, b.scalar(0, x.dtype))


def _counted(b: FusionBuilder, x: TensorView, dim: int) -> TensorView:
    """[0, 1, ...] of the size of dimension `dim`, as Int."""
    zero, one = b.scalar(0), b.scalar(1)
    return b.iota(b.size(x, dim), zero, one, DataType.Int)


def select(b: FusionBuilder, arg: TensorView, index: Scalar | int, dim: int) -> TensorView:
    """`arg` at one index of dimension `dim`, which is removed: a view if index and size are known.

    A negative constant counts from the end. A constant out of the range of a known size is a
    FuserValueError. Any other index is read by the kernel, so that calls with different ones share
    it, and is checked there (see indexing.py).
    """
    axis, place = integer("dim", dim), _whole("index", index)
    size = b.extent(b.size(tensor("arg", arg), axis))
    chosen = place.value if isinstance(place, Scalar) and place.value is not None else place
    if isinstance(chosen, int) and isinstance(size, int):
        return _sliced(b, arg, chosen, axis, size)
    where = chosen if isinstance(chosen, Scalar) else b.scalar(_from_start(size, chosen))
    return b.squeeze(b.gather("index_select", arg, axis, b.full([1], where, where.dtype)), [axis])


def _sliced(b: FusionBuilder, x: TensorView, index: int, axis: int, size: int) -> TensorView:
    if not -size <= index < size:
        raise FuserValueError(
            f"index {index} is out of bounds for dimension {axis} with size {size}"
        )
    starts: list[Any] = [0] * x.rank
    ends: list[Any] = [b.size(x, k) for k in range(x.rank)]
    starts[axis], ends[axis] = index % size, index % size + 1
    return b.squeeze(b.slice(x, starts, ends), [axis])


def _from_start(size: Extent, index: Any) -> Any:
    """The index from the start for a constant index, which may count from the end."""
    return size + index if isinstance(index, int) and index < 0 else index


def _whole(what: str, value: Scalar | int) -> Scalar | int:
    if not isinstance(value, Scalar):
        return integer(what, value)
    if not value.dtype.is_integral:
        raise FuserTypeError(f"{what}: expected an integer, got {value}")
    return value


SELECTIONS: MappingProxyType[str, Callable[..., Any]] = MappingProxyType(
    {function.__name__: function for function in (triu, tril, select)}
)
"""Selections by name; each takes the builder first."""
