"""The part of FusionBuilder that adds indexed reads (indices are data)."""

from __future__ import annotations

from thunder_fuser.errors import FuserValueError
from thunder_fuser.ir.builder.values import broadcast_dim
from thunder_fuser.ir.builder.views import ViewBuilder
from thunder_fuser.ir.domain import IterDomain, broadcast, iteration, shape_text, tensor_domain
from thunder_fuser.ir.fusion import GatherOp, TensorView
from thunder_fuser.ir.tables import indexing
from thunder_fuser.ir.tables.indexing import Gather, Place


class IndexBuilder(ViewBuilder):
    """Indexed reads: `op` is a row of `indexing.TABLE`."""

    def gather(self, op: str, x: TensorView, dim: int, index: TensorView) -> TensorView:
        """`x` read along its dimension `dim` at the elements of `index`.

        A tensor without dimensions is one of a single element, as in torch. FuserValueError for
        shapes that do not fit, FuserTypeError for index dtypes other than the row's.
        """
        self._expect_tensor(op, x)
        self._expect_tensor(op, index)
        if x.rank == 0:
            return self._gather_number(op, x, dim, index)
        row = indexing.lookup(op)
        if index.rank == 0 and op != "embedding_fwd":
            index = self.reshape(index, [1] * (1 if row.place is Place.INSTEAD else x.rank))
        axis = self._axis(op, x, dim)
        dims = gathered_dims(row, x, axis, index)
        if x.domain.logical[axis].size == 0 and index.domain.is_static and index.numel:
            raise FuserValueError(
                f"{op} of {x}: dimension {axis} has no elements, and {index} asks for some"
            )
        out = TensorView(self._id(), x.dtype, tensor_domain(dims))
        self._append(GatherOp(op, x, axis, index, out, self.origin))
        return out

    def _gather_number(self, op: str, x: TensorView, dim: int, index: TensorView) -> TensorView:
        most = 1 if op == "gather" else 0
        if dim not in (0, -1) or index.rank > most:
            raise FuserValueError(
                f"{op} of {x}, which has no dimensions: expected dim 0 and an index of rank {most} "
                f"at most, got dim {dim} and {index}"
            )
        found = self.gather(op, self.reshape(x, [1]), 0, index)
        return self.squeeze(found, [0]) if index.rank == 0 else found


def gathered_dims(
    row: Gather, x: TensorView, dim: int, index: TensorView
) -> tuple[IterDomain, ...]:
    """The dimensions of the result; FuserError where input and index do not fit."""
    row.check_index(index.dtype)
    if row.place is Place.INSTEAD:
        _check_instead(row.name, x, dim, index)
        dims = x.domain.logical
        return (*dims[:dim], *index.domain.logical, *dims[dim + 1 :])
    if index.rank != x.rank:
        raise FuserValueError(
            f"{row.name} of {x}: the index must have as many dimensions, got {index}"
        )
    # Along `dim` the result has the index's size, whatever the input's.
    return tuple(
        index.domain.logical[k] if k == dim else _beside(row, x, k, index) for k in range(x.rank)
    )


def _beside(row: Gather, x: TensorView, k: int, index: TensorView) -> IterDomain:
    """Dimension `k` of the result, other than `dim`; input and index are read alike there."""
    if row.place is Place.BROADCAST:
        return broadcast_dim(row.name, k - x.rank, (x, index))
    ours, theirs = x.domain.logical[k], index.domain.logical[k]
    if isinstance(ours.size, int) and isinstance(theirs.size, int) and theirs.size > ours.size:
        raise FuserValueError(
            f"{row.name}: the index has size {theirs.size} in dimension {k}, where the input has "
            f"only {ours.size}; shapes are {shape_text(x.domain.shape)} and "
            f"{shape_text(index.domain.shape)}"
        )
    both = ours.is_broadcast and theirs.is_broadcast
    return broadcast(theirs.size) if both else iteration(theirs.size)


def _check_instead(op: str, x: TensorView, dim: int, index: TensorView) -> None:
    if op == "embedding_fwd":
        if x.rank != 2 or dim != 0:
            raise FuserValueError(f"{op}: the weight must be a matrix of rows, got {x}")
    elif index.rank > 1:
        raise FuserValueError(
            f"{op} of {x}: the index must have one dimension, got {index}; reshape it to one, and "
            "the result to what it shall have"
        )
