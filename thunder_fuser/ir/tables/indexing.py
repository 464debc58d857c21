"""The table of indexed reads (indices are data): which dimensions the index replaces, and torch's
call.

All rows are one mechanism: along one dimension of a tensor the position is an element of an index
tensor, along the others it is the position in the result. A row says which dimensions of the result
stem from the index. An index is never negative and always below the size of its dimension: others
are an error, as in torch's kernels.
"""

from __future__ import annotations

import difflib
import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch

from thunder_fuser.errors import FuserTypeError, FuserValueError
from thunder_fuser.ir.dtypes import DataType

INDEX_DTYPES = (DataType.Int, DataType.Int32)


class Place(enum.Enum):
    """Dimensions of the result that stem from the index tensor."""

    BROADCAST = "all of them; index and input broadcast in the others than `dim`"
    WITHIN = "all of them; the index may be shorter than the input in the others than `dim`"
    INSTEAD = "those in the place of the input's `dim`"


@dataclass(frozen=True, slots=True)
class Gather:
    """One indexed read. `reference(input, dim, index)` is the read in torch; the index is Int."""

    name: str
    place: Place
    reference: Callable[[torch.Tensor, int, torch.Tensor], torch.Tensor]

    def index_axes(self, rank: int, dim: int, index_rank: int) -> range:
        """The dimensions of the result that stem from the index tensor, for an input of `rank`."""
        return range(dim, dim + index_rank) if self.place is Place.INSTEAD else range(rank)

    def input_axes(self, rank: int, dim: int, index_rank: int) -> tuple[int, ...]:
        """The dimensions of the result that stem from the input's others than `dim`, in order."""
        shift = index_rank - 1 if self.place is Place.INSTEAD else 0
        return tuple(k if k < dim else k + shift for k in range(rank) if k != dim)

    def check_index(self, dtype: DataType) -> None:
        """FuserTypeError for an index tensor of another dtype than INDEX_DTYPES."""
        if dtype not in INDEX_DTYPES:
            raise FuserTypeError(
                f"{self.name}: expected an index of dtype Int or Int32, got {dtype.name}; "
                "cast it first"
            )


def _embedding(table: torch.Tensor, dim: int, index: torch.Tensor) -> torch.Tensor:
    rows = torch.index_select(table, dim, index.flatten())
    return rows.reshape(*index.shape, *table.shape[1:])


def _along(x: torch.Tensor, dim: int, index: torch.Tensor) -> torch.Tensor:
    beside = list(torch.broadcast_shapes(_but(x.shape, dim), _but(index.shape, dim)))
    sizes = [[*beside[:dim], t.shape[dim], *beside[dim + 1 :]] for t in (x, index)]
    return torch.gather(x.expand(sizes[0]), dim, index.expand(sizes[1]))


def _but(shape: torch.Size, dim: int) -> list[int]:
    return [1 if k == dim else size for k, size in enumerate(shape)]


_ROWS = (
    Gather("take_along_axis", Place.BROADCAST, _along),
    Gather("gather", Place.WITHIN, torch.gather),
    Gather("index_select", Place.INSTEAD, torch.index_select),
    Gather("embedding_fwd", Place.INSTEAD, _embedding),
)

TABLE: Mapping[str, Gather] = MappingProxyType({row.name: row for row in _ROWS})
"""Every indexed read by name."""


def bounds_text(extent: int) -> str:
    """Tail of the error message for an index out of bounds, shared by all code that detects one."""
    return bounds_format(extent).replace("%lld", "{}").format(extent, extent - 1)


def bounds_format(extent: int) -> str:
    """`bounds_text` for printf: with places for the size and, if there are elements, the last."""
    expected = "expected 0 to %lld" if extent else "there is no element"
    return f"is out of bounds for size %lld; {expected}"


def lookup(name: str) -> Gather:
    """The row of that name; FuserValueError with the nearest names if there is none."""
    found = TABLE.get(name)
    if found is None:
        near = difflib.get_close_matches(name, TABLE, n=3)
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        raise FuserValueError(f"there is no indexed read {name!r}{hint}")
    return found
