"""Iteration domain mapping of a reduction kernel: the index of each tensor at a row and column.

A kernel has one set of rows and columns; tensors may have the same points in other shapes. Two
shapes are one iteration space if they are equal up to merges and splits of adjacent dimensions that
are both kept or both reduced, and up to dimensions of size 1. A result may be any bijective view of
the kernel's points, such as one with permuted heads: pulling it then shows whether reductions are
available where it needs them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence

from thunder_fuser.analysis.layout import unflatten
from thunder_fuser.ir.domain import Index, dense_strides
from thunder_fuser.ir.fusion import CopyOp, PointwiseOp, ReductionOp, TensorView, Val, ViewOp
from thunder_fuser.ir.index_maps import push
from thunder_fuser.ir.integer.symint import Form
from thunder_fuser.lower.body import KernelBody
from thunder_fuser.lower.rows.row_space import Space, iteration_space
from thunder_fuser.lower.vectors.lane_windows import ACCESS_BYTES
from thunder_fuser.lower.vectors.vectorize import SECTOR_BYTES

_MAX_STEPS = 64
"""Most tensors visited in the search from a result to a tensor of the kernel's shape."""
Place = tuple[Sequence[Form], bool]
"""Index of a tensor, and True if it has an element at every point, False if one per row."""


class RowPoints:
    """Indices of tensors at the point `row`, `column` of a space."""

    def __init__(self, space: Space, row: Form, column: Form, lane: Form | None = None) -> None:
        """`lane`: number of the lane where it is neither the row nor the column."""
        place = unflatten(row, space.sizes, space.kept)
        # A single reduced dimension takes the column as it is: vectors that are aligned in memory
        # begin before it.
        only = len(space.folded) == 1
        place |= {space.folded[0]: column} if only else unflatten(column, space.sizes, space.folded)
        self.space = space
        along = row if space.is_outer else column
        self._lane = along if lane is None else lane
        self.index: tuple[Form, ...] = tuple(place[k] for k in range(len(space.sizes)))
        self._zero = row.context.const(0)
        # The index in the dimensions of the reduction's input.
        self._whole = tuple(flat(self.index, space.sizes, p, self._zero) for p in space.parts)

    def of_elements(self, fold: ReductionOp) -> tuple[Form, ...]:
        """Return the index of the element of a reduction over these rows or these columns."""
        sizes, space = fold.input.sizes, self.space
        if sizes == space.shape:
            return self._whole
        of_fold = _rows_and_columns(fold, space)
        found: dict[int, Form] = {}
        for ours, theirs in zip((space.kept, space.folded), of_fold, strict=True):
            found |= unflatten(self._flat(ours), sizes, theirs)
        return tuple(found[k] for k in range(len(sizes)))

    def of_result(self, fold: ReductionOp) -> tuple[Form, ...]:
        """Return the index of the result of a reduction over these columns."""
        index = self.of_elements(fold)
        return tuple(i for k, i in enumerate(index) if k not in fold.dims)

    def of_rows(self, tensor: TensorView) -> tuple[Form, ...] | None:
        """Return the index of a tensor with one element per row; None if it has no such shape."""
        return placed(tensor, self.space, {k: self.index[k] for k in self.space.kept}, self._zero)

    def of_output(self, tensor: TensorView) -> Place | None:
        """Return the place of a tensor with the shape of the kernel's points or of its rows, up to
        dimensions of size 1; None for other shapes.
        """
        space = self.space
        if tensor.sizes == space.shape:
            return self._whole, True
        ways = [(space.shape, self._whole, space.whole(space.kept))]
        if space.sizes != space.shape:
            ways.append((space.sizes, self.index, space.kept))
        for sizes, index, kept in ways:
            for dims, is_element in ((kept, False), (range(len(index)), True)):
                moving = [k for k in sorted(dims) if sizes[k] != 1]
                if _moving(tensor.sizes) == [sizes[k] for k in moving]:
                    ahead = iter(moving)
                    place = (self._zero if n == 1 else index[next(ahead)] for n in tensor.sizes)
                    return tuple(place), is_element
        return None

    def of_views(self, tensor: TensorView, body: KernelBody) -> Iterator[Place]:
        """Yield places of a tensor of another shape: through the views between it and a tensor of
        the kernel's shape; without such views in row-major order.

        A transposed tensor has none, since its stores would not be coalesced.
        """
        points = math.prod(self.space.sizes)
        if tensor.numel not in (points, self.space.rows):
            return
        found = self._through_views(tensor, body)
        if found is not None:
            if self.writes_neighbours(tensor, found[0], body):
                yield found
            return
        every = range(len(self.index))
        for dims, is_element in ((every, True), (self.space.kept, False)):
            place = {k: self.index[k] for k in dims}
            index = placed(tensor, self.space, place, self._zero)
            if index is not None:
                yield index, is_element

    def writes_neighbours(
        self, tensor: TensorView, index: Sequence[Form], body: KernelBody
    ) -> bool:
        """True if a tensor is stored by whole accesses or, if both its memory and the rows have
        another than the logical order, by whole sectors. True if its layout is decided already.
        """
        if tensor in body.stores:
            return True
        layout = body.expected.get(tensor)
        steps = dense_strides(tensor.sizes, range(tensor.rank))
        in_order = self._is_run(index, steps, ACCESS_BYTES // tensor.dtype.itemsize)
        if layout is None or layout.strides == steps or not self.space.run:
            return in_order
        if self._is_run(index, layout.strides, SECTOR_BYTES // tensor.dtype.itemsize):
            return True
        return in_order and not self.space.has_parts

    def _is_run(self, index: Sequence[Form], strides: Sequence[int], count: int) -> bool:
        """True if `count` consecutive lanes are consecutive in memory."""
        address = sum((i * s for i, s in zip(index, strides, strict=True)), self._zero)
        if self._lane.hi is not None:
            count = min(count, self._lane.hi + 1)
        at = {v.name: 0 for v in address.variables()}
        lane = [v.name for v in self._lane.variables()]
        first = address.evaluate(at)
        return all(address.evaluate(at | dict.fromkeys(lane, k)) == first + k for k in range(count))

    def _through_views(self, tensor: TensorView, body: KernelBody) -> Place | None:
        """Return the place through the nearest producer that has the kernel's shape, or None."""
        way: dict[TensorView, TensorView | None] = {tensor: None}
        queue = [tensor]
        for source in queue:
            place = self.of_output(source)
            if place is not None:
                return self._pushed(source, place, way, body)
            for operand in _alike(source, body):
                if operand not in way and len(queue) < _MAX_STEPS:
                    way[operand] = source
                    queue.append(operand)
        return None

    def _pushed(
        self,
        source: TensorView,
        place: Place,
        way: Mapping[TensorView, TensorView | None],
        body: KernelBody,
    ) -> Place | None:
        """Return the place of the last tensor of the path `way` from `source`, or None."""
        index: Sequence[Index] | None = place[0]
        after = way[source]
        while after is not None and index is not None:
            expr = body.producer(after)
            if isinstance(expr, ViewOp | CopyOp):
                domain = after.domain
                index = push(index, domain.root, domain.transforms, self._zero)
            after = way[after]
        return None if index is None else (index, place[1])

    def _flat(self, dims: Collection[int]) -> Form:
        return flat(self.index, self.space.sizes, sorted(dims), self._zero)


def have_places(body: KernelBody) -> bool:
    """True if each output has the shape of the points or rows of each reduction, up to dimensions
    of size 1, so that `RowPoints.of_output` has its place in every arrangement. Scans have no other
    places.
    """
    shapes = {_shapes(fold) for fold in body.folds}
    stored = {tuple(_moving(t.sizes)) for t in body.outputs}
    return all(sizes in both for sizes in stored for both in shapes)


def _shapes(fold: ReductionOp) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the sizes of a reduction's points and of its rows, without those of 1."""
    sizes = fold.input.sizes
    kept = [n for k, n in enumerate(sizes) if k not in fold.dims]
    return tuple(_moving(sizes)), tuple(_moving(kept))


def is_over(fold: ReductionOp, space: Space, dims: Collection[int]) -> bool:
    """True if a reduction reduces the dimensions `dims` of a space, up to merges and splits."""
    return iteration_space(fold.input.sizes, fold.dims) == iteration_space(space.sizes, dims)


def placed(
    tensor: TensorView, space: Space, place: Mapping[int, Form], zero: Form
) -> tuple[Form, ...] | None:
    """Return the index of a tensor whose elements are the points of the space's dimensions `place`
    in row-major order; None if their number differs.
    """
    dims = sorted(place)
    if _moving(tensor.sizes) == _moving([space.sizes[k] for k in dims]):
        ahead = iter(place[k] for k in dims if space.sizes[k] != 1)
        return tuple(zero if n == 1 else next(ahead) for n in tensor.sizes)
    if tensor.numel != math.prod(space.sizes[k] for k in dims):
        return None
    index = unflatten(flat(place, space.sizes, dims, zero), tensor.sizes, range(tensor.rank))
    return tuple(index[k] for k in range(tensor.rank))


def flat(
    index: Mapping[int, Form] | Sequence[Form],
    sizes: Sequence[int],
    dims: Sequence[int],
    zero: Form,
) -> Form:
    """Return the row-major linear index of a point in some dimensions."""
    number = zero
    for k in dims:
        number = number * sizes[k] + index[k]
    return number


def _rows_and_columns(fold: ReductionOp, space: Space) -> tuple[list[int], list[int]]:
    """Return the dimensions of a reduction's input that are the space's rows, and its columns."""
    others = [k for k in range(fold.input.rank) if k not in fold.dims]
    folded = sorted(fold.dims)
    is_of_rows = is_over(fold, space, space.folded)
    return (others, folded) if is_of_rows else (folded, others)


def _alike(tensor: TensorView, body: KernelBody) -> list[TensorView]:
    """Return the operands of equally many elements of a pointwise operation or view."""
    expr = body.producer(tensor)
    operands: Sequence[Val] = expr.inputs if isinstance(expr, PointwiseOp | ViewOp | CopyOp) else ()
    tensors = [v for v in operands if isinstance(v, TensorView)]
    return [t for t in tensors if t.numel == tensor.numel]


def _moving(sizes: Sequence[int]) -> list[int]:
    return [n for n in sizes if n != 1]
