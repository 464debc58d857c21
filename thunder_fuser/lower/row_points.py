"""Iteration domain mapping of a reduction kernel: the index of each tensor at a row and column.

A kernel has one set of rows and columns; tensors may show the same points in other shapes. Two
shapes are one iteration space if they are equal but for merges and splits of neighbouring
dimensions that are both kept or both folded, and for dimensions of one element. A result may be any
view of the kernel's points that repeats none and leaves none out, heads that are moved among it:
what it is computed from then says whether that is where reductions are ready.
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
from thunder_fuser.lower.lane_windows import ACCESS_BYTES
from thunder_fuser.lower.row_space import Space, iteration_space
from thunder_fuser.lower.vectorize import SECTOR_BYTES

_MAX_STEPS = 64
"""Operations between a result and a tensor that has the kernel's shape."""
Place = tuple[Sequence[Form], bool]
"""The index of a tensor, and whether it has an element at every point; it has one a row if not."""


class RowPoints:
    """Indices of tensors at the point `row`, `column` of a space."""

    def __init__(self, space: Space, row: Form, column: Form) -> None:
        place = unflatten(row, space.sizes, space.kept)
        # Lanes that are no points of the row may be before it, or behind.
        only = len(space.folded) == 1
        place |= {space.folded[0]: column} if only else unflatten(column, space.sizes, space.folded)
        self.space = space
        self._lane = row if space.is_outer else column
        self.index: tuple[Form, ...] = tuple(place[k] for k in range(len(space.sizes)))
        self._zero = row.context.const(0)
        # The same in the dimensions of the reduction's input.
        self._whole = tuple(flat(self.index, space.sizes, p, self._zero) for p in space.parts)

    def of_elements(self, fold: ReductionOp) -> tuple[Form, ...]:
        """Where a reduction of these rows, or of these columns, has the element that it folds."""
        sizes, space = fold.input.sizes, self.space
        if sizes == space.shape:
            return self._whole
        of_fold = _rows_and_columns(fold, space)
        found: dict[int, Form] = {}
        for ours, theirs in zip((space.kept, space.folded), of_fold, strict=True):
            found |= unflatten(self._flat(ours), sizes, theirs)
        return tuple(found[k] for k in range(len(sizes)))

    def of_result(self, fold: ReductionOp) -> tuple[Form, ...]:
        """Where a reduction of these columns has its result."""
        index = self.of_elements(fold)
        return tuple(i for k, i in enumerate(index) if k not in fold.dims)

    def of_rows(self, tensor: TensorView) -> tuple[Form, ...] | None:
        """The index of a tensor that has one element a row."""
        return placed(tensor, self.space, {k: self.index[k] for k in self.space.kept}, self._zero)

    def of_output(self, tensor: TensorView) -> Place | None:
        """Where a tensor is written from, if its shape says so: its sizes are those of the kernel's
        points, or of its rows.
        """
        space = self.space
        if tensor.sizes == space.shape:
            return self._whole, True
        ways = [(space.shape, self._whole, space.whole(space.kept))]
        if space.sizes != space.shape:
            ways.append((space.sizes, self.index, space.kept))
        for sizes, index, kept in ways:
            for dims, is_wide in ((kept, False), (range(len(index)), True)):
                moving = [k for k in sorted(dims) if sizes[k] != 1]
                if _moving(tensor.sizes) == [sizes[k] for k in moving]:
                    ahead = iter(moving)
                    place = (self._zero if n == 1 else index[next(ahead)] for n in tensor.sizes)
                    return tuple(place), is_wide
        return None

    def of_views(self, tensor: TensorView, body: KernelBody) -> Iterator[Place]:
        """Where a tensor of another shape may be written from: as the views between it and tensors
        of the kernel's shape have it; without such views in row-major order.

        What is turned on the way is another kernel's: neighbours would write far apart.
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
        for dims, is_wide in ((every, True), (self.space.kept, False)):
            place = {k: self.index[k] for k in dims}
            index = placed(tensor, self.space, place, self._zero)
            if index is not None:
                yield index, is_wide

    def writes_neighbours(
        self, tensor: TensorView, index: Sequence[Form], body: KernelBody
    ) -> bool:
        """Whether a tensor is written whole accesses at a time, or, where its memory has another
        order and so have the rows, whole sectors. Asked of kernels that may be, not of those of
        a plan.
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
        """Whether so many lanes are neighbours in memory."""
        address = sum((i * s for i, s in zip(index, strides, strict=True)), self._zero)
        if self._lane.hi is not None:
            count = min(count, self._lane.hi + 1)
        at = {v.name: 0 for v in address.variables()}
        lane = [v.name for v in self._lane.variables()]
        first = address.evaluate(at)
        return all(address.evaluate(at | dict.fromkeys(lane, k)) == first + k for k in range(count))

    def _through_views(self, tensor: TensorView, body: KernelBody) -> Place | None:
        """The index by way of the nearest tensor that has the kernel's shape."""
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
        """The index of the tensor at the end of a way from `source`."""
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


def is_over(fold: ReductionOp, space: Space, dims: Collection[int]) -> bool:
    """Whether a reduction folds these dimensions of a space, up to merges and splits."""
    return iteration_space(fold.input.sizes, fold.dims) == iteration_space(space.sizes, dims)


def placed(
    tensor: TensorView, space: Space, place: Mapping[int, Form], zero: Form
) -> tuple[Form, ...] | None:
    """The index of a tensor whose elements are those of the dimensions `place` of the space, in
    row-major order; None where they are more or fewer.
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
    """The number of a point in row-major order of some dimensions."""
    number = zero
    for k in dims:
        number = number * sizes[k] + index[k]
    return number


def _rows_and_columns(fold: ReductionOp, space: Space) -> tuple[list[int], list[int]]:
    """The dimensions of a reduction's elements that are the space's rows, and its columns."""
    others = [k for k in range(fold.input.rank) if k not in fold.dims]
    folded = sorted(fold.dims)
    is_of_rows = is_over(fold, space, space.folded)
    return (others, folded) if is_of_rows else (folded, others)


def _alike(tensor: TensorView, body: KernelBody) -> list[TensorView]:
    """What a tensor is computed from element by element."""
    expr = body.producer(tensor)
    operands: Sequence[Val] = expr.inputs if isinstance(expr, PointwiseOp | ViewOp | CopyOp) else ()
    tensors = [v for v in operands if isinstance(v, TensorView)]
    return [t for t in tensors if t.numel == tensor.numel]


def _moving(sizes: Sequence[int]) -> list[int]:
    return [n for n in sizes if n != 1]
