"""Row program: values that one kernel computes over an arrangement of rows and columns, or the
reason why it cannot.

A reduction over the columns is available at its row, while the kernel runs, and nowhere else. One
over the rows (a grid reduction) needs all rows: it is available when all blocks are done, and then
only values of a column can be computed from it (the epilogue). A kernel is legal if everything that
it is to compute can be pulled at such points: no pattern matching is involved.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from thunder_fuser.analysis.layout import address_at, unflatten
from thunder_fuser.errors import Refusal
from thunder_fuser.ir.dag import backward_slice
from thunder_fuser.ir.domain import Layout, shape_text
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import ReductionOp, TensorView, Val
from thunder_fuser.ir.integer.symint import Context, Form
from thunder_fuser.ir.tables import reductions
from thunder_fuser.lower.body import KernelBody
from thunder_fuser.lower.pull import Pull, Unreadable
from thunder_fuser.lower.rows.roles import Point, Roles, refuse_roles, role_of
from thunder_fuser.lower.rows.row_points import RowPoints, placed
from thunder_fuser.lower.rows.row_space import Arrangement, LaneAxis, Space
from thunder_fuser.lower.scalar_graph import Conjunction, ScalarGraph, Value

PulledReduction = tuple[ReductionOp, Value, Value | None]
"""A reduction that is complete at each row, with the values of its elements and their positions."""
PulledStore = tuple[TensorView, Value, Form]
"""An output, its value at a point, and the address of the store."""


@dataclass(frozen=True, slots=True)
class PulledGridReduction:
    """A reduction that is complete when all blocks are done, with the values that it reduces."""

    fold: ReductionOp
    value: Value
    position: Value | None
    at: Point


@dataclass(frozen=True, slots=True)
class PulledEpilogue:
    """Epilogue of grid reductions: stores as functions of `index` in 0..points."""

    at: Point
    points: int
    index: Form
    graph: ScalarGraph
    stores: tuple[PulledStore, ...]


@dataclass(frozen=True, slots=True)
class PulledRows:
    """Values of a reduction kernel.

    folds           reductions that are complete at each row
    totals          grid reductions
    element_stores  stores of an element at every point of the iteration space
    row_stores      stores of an element for each row
    epilogues       what is computed from grid reductions
    extent          points along the lane axis, padding included; of one run, if there are runs
    inside          predicate of lanes that have a point
    run             number of the run
    """

    graph: ScalarGraph
    folds: tuple[PulledReduction, ...]
    totals: tuple[PulledGridReduction, ...]
    element_stores: tuple[PulledStore, ...]
    row_stores: tuple[PulledStore, ...]
    epilogues: tuple[PulledEpilogue, ...]
    lane_index: Form
    extent: int
    inside: Conjunction
    run: Form | None


def pull_rows(
    axis: LaneAxis,
    vector: int,
    arrangement: Arrangement,
    body: KernelBody,
    *,
    is_aligned: bool = False,
    run: int = 0,
) -> PulledRows | Refusal:
    """Pull all values at a row and a column; a Refusal if a stage lacks a value that it needs.

    is_aligned  vectors are aligned in memory, not to the row: the first lanes of a row's first
                vector may lie before the row
    run         columns of which vectors begin anew, a divisor of all; 0: in one row all follow
    """
    roles = {fold.output: role_of(fold, arrangement) for fold in body.folds}
    refusal = refuse_roles(roles, arrangement, body)
    if refusal is not None:
        return refusal
    space, context = arrangement.space, Context()
    if run:
        lanes = _points_in_runs(run, vector, space, context)
    else:
        lanes = _lane_points(axis, vector, space, body, context, is_aligned)
    points = RowPoints(space, lanes.row, lanes.column, lanes.lane if run else None)
    pull = Pull(body, context, lanes.inside, lanes.lane)
    totals = {t for t, role in roles.items() if role != "fold"}
    try:
        folds, grid_reductions = _pull_folds(roles, points, pull, body)
        stores = _pull_stores(points, pull, totals, body)
        if isinstance(stores, Refusal):
            return stores
        epilogues = tuple(_pull_epilogues(stores.late, arrangement, roles, body))
    except Unreadable as error:
        return Refusal("stage", str(error), error.tensor.name)
    stored = {tensor for epilogue in epilogues for tensor, _, _ in epilogue.stores}
    left = next((t for t in stores.late if t not in stored), None)
    if left is not None:
        return Refusal("total", _waits_for_blocks(left, totals, body), left.name)
    return PulledRows(
        pull.graph,
        folds,
        grid_reductions,
        tuple(stores.elements),
        tuple(stores.rows),
        epilogues,
        lanes.lane,
        lanes.extent,
        lanes.inside,
        lanes.run,
    )


class _LanePoints(NamedTuple):
    """Point of each lane of a kernel's vectors.

    lane    number of the lane along the lane axis, or within its run, in 0..extent
    inside  predicate of lanes that have a point
    run     number of the run
    """

    row: Form
    column: Form
    lane: Form
    extent: int
    inside: Conjunction
    run: Form | None = None


def _lane_points(
    axis: LaneAxis, vector: int, space: Space, body: KernelBody, context: Context, is_aligned: bool
) -> _LanePoints:
    """Return the points of lanes along an axis. No value is needed beyond its end, so that bounds
    and digits are those of the points that exist.
    """
    count = space.columns if axis == "columns" else space.rows
    before = vector - 1 if is_aligned else 0
    extent = -(-(max(count, 1) + before) // vector) * vector
    row = context.var("r", 0, max(space.rows - 1, 0))
    if is_aligned:
        lane = context.var("c", 0, extent - 1)
        own = lane - _begin(row, vector, space, body)
        return _LanePoints(row, own, lane, extent, (own, count - 1 - own))
    column = context.var("c", 0, max(space.columns - 1, 0))
    index = column if axis == "columns" else row
    return _LanePoints(row, column, index, extent, () if extent == count else (count - 1 - index,))


def _points_in_runs(length: int, vector: int, space: Space, context: Context) -> _LanePoints:
    """Return the points of lanes that are columns of runs of `length`."""
    row = context.var("r", 0, max(space.rows - 1, 0))
    run = context.var("run", 0, space.columns // length - 1)
    within = context.var("c", 0, length - 1)
    extent = -(-length // vector) * vector
    return _LanePoints(row, run * length + within, within, extent, (length - 1 - within,), run)


def _begin(row: Form, vector: int, space: Space, body: KernelBody) -> Form:
    """Return the offset within an aligned vector at which a row of the largest reduced tensor
    begins.
    """
    fold = body.folds[0]
    pull = Pull(body, row.context)
    pull.emit(fold.input, RowPoints(space, row, row.context.const(0)).of_elements(fold))
    found = [load for load in pull.graph.loads if not load.positions]
    largest = max(found, key=lambda load: load.tensor.numel, default=None)
    return row.context.const(0) if largest is None else largest.address % vector


def _pull_folds(
    roles: Roles, points: RowPoints, pull: Pull, body: KernelBody
) -> tuple[tuple[PulledReduction, ...], tuple[PulledGridReduction, ...]]:
    """Pull the elements of all reductions: those complete at each row, whose results can then be
    read there, and grid reductions.
    """
    made: list[PulledReduction] = []
    accumulated: list[PulledGridReduction] = []
    for fold in body.folds:
        role = roles[fold.output]
        assert role is not None
        rows = points.of_rows(fold.input) if role == "one" else None
        point = points.of_elements(fold) if rows is None else rows
        value = pull.emit(fold.input, point)
        position = _position(fold, point, pull)
        if role == "fold":
            made.append((fold, value, position))
            pull.fold_at(fold.output, points.of_result(fold))
        else:
            accumulated.append(PulledGridReduction(fold, value, position, role))
    return tuple(made), tuple(accumulated)


def _waits_for_blocks(tensor: TensorView, totals: set[TensorView], body: KernelBody) -> str:
    """Return why a tensor that needs a grid reduction at every element is not computed here."""
    named = ", ".join(
        f.output.name for f in body.folds if f.output in totals and _reads(tensor, {f.output}, body)
    )
    return (
        f"every element waits for {named}, which all blocks fold together; it needs a kernel of "
        "its own, which reads that"
    )


def _other_space(tensor: TensorView, space: Space) -> str:
    """Return why a tensor does not match the kernel's iteration space."""
    rows = [space.shape[k] for k in space.whole(space.kept)]
    return (
        f"iteration space {shape_text(tensor.sizes)} differs from the kernel's "
        f"{shape_text(space.shape)} and from its rows {shape_text(rows)}; it needs a kernel of its "
        "own"
    )


class _PulledStores(NamedTuple):
    """Stores at every point and at each row; `late`: outputs left to epilogues."""

    elements: list[PulledStore]
    rows: list[PulledStore]
    late: list[TensorView]


def _pull_stores(
    points: RowPoints, pull: Pull, totals: set[TensorView], body: KernelBody
) -> _PulledStores | Refusal:
    """Pull the outputs; a Refusal for one that does not match the kernel's points or rows."""
    stores = _PulledStores([], [], [])
    for tensor in body.outputs:
        pulled = _pull_output(tensor, points, pull, totals, body)
        if pulled is not None:
            value, index, is_element = pulled
            address = _store_address(index, body.stores.get(tensor), pull.context)
            kind = stores.elements if is_element else stores.rows
            kind.append((tensor, value, address))
        elif _reads(tensor, totals, body):
            stores.late.append(tensor)
        else:
            return Refusal("shape", _other_space(tensor, points.space), tensor.name)
    return stores


def _pull_output(
    tensor: TensorView, points: RowPoints, pull: Pull, totals: set[TensorView], body: KernelBody
) -> tuple[Value, Sequence[Form], bool] | None:
    """Return an output's value, its index, and True if it has an element at every point; None if it
    does not match the kernel's points, or needs a grid reduction, which is complete later.
    """
    place = points.of_output(tensor)
    if place is not None:
        index, is_element = place
        asks = is_element and points.space.has_parts and tensor in body.expected
        if asks and not points.writes_neighbours(tensor, index, body):
            return None
        value = _value_at(tensor, index, pull, totals)
        return None if value is None else (value, *place)
    for index, is_element in points.of_views(tensor, body):
        try:
            return pull.emit(tensor, index), index, is_element
        except Unreadable:
            # A reduction is not available at this point: try the next one, or leave it to another
            # kernel.
            continue
    return None


def _value_at(
    tensor: TensorView, point: Sequence[Form], pull: Pull, totals: set[TensorView]
) -> Value | None:
    """Return a tensor at a point, or None if that needs a grid reduction, complete later."""
    try:
        return pull.emit(tensor, point)
    except Unreadable as error:
        if error.tensor in totals:
            return None
        raise


def _pull_epilogues(
    late: Sequence[TensorView],
    arrangement: Arrangement,
    roles: Roles,
    body: KernelBody,
) -> Iterator[PulledEpilogue]:
    """Yield the epilogues at columns, groups, rows and the single point, after grid reductions."""
    space = arrangement.space
    kinds: tuple[tuple[Point, tuple[int, ...]], ...] = (
        ("column", space.folded),
        ("group", arrangement.grouped + space.folded),
        ("row", space.kept),
        ("one", ()),
    )
    for at, dims in kinds:
        ready = [t for t, role in roles.items() if role == at]
        mine = [t for t in late if _reads(t, set(ready), body)]
        if not mine:
            continue
        points = math.prod(space.sizes[k] for k in dims)
        context = Context()
        variable = context.var("c", 0, max(points - 1, 0))
        place = unflatten(variable, space.sizes, dims)
        pull = Pull(body, context)
        for tensor in ready:
            made = placed(tensor, space, place, variable * 0)
            assert made is not None
            pull.fold_at(tensor, made)
        stores = []
        for tensor in mine:
            point = placed(tensor, space, place, variable * 0)
            if point is not None:
                address = _store_address(point, body.stores.get(tensor), context)
                stores.append((tensor, pull.emit(tensor, point), address))
        yield PulledEpilogue(at, points, variable, pull.graph, tuple(stores))


def _reads(tensor: TensorView, totals: set[TensorView], body: KernelBody) -> bool:
    """True if a tensor is computed from one of the grid reductions `totals`."""

    def producers(value: Val) -> tuple[Val, ...]:
        return () if value in totals or value in body.given else body.operands(value)

    needed = backward_slice(list[Val]((tensor,)), producers) if totals else ()
    return not totals.isdisjoint(needed)


def _position(fold: ReductionOp, index: Sequence[Form], pull: Pull) -> Value | None:
    """Return an element's row-major index in the reduced dimensions if the reduction takes it."""
    if not reductions.lookup(fold.op).accumulator.takes_position:
        return None
    position = pull.context.const(0)
    for k in fold.dims:
        position = position * fold.input.sizes[k] + index[k]
    count = math.prod(fold.input.sizes[k] for k in fold.dims)
    return pull.graph.index(position, DataType.Int32 if count < 2**31 else DataType.Int)


def _store_address(point: Sequence[Form], layout: Layout | None, context: Context) -> Form:
    """Return the address of a store; 0 while only legality is checked and there is no layout."""
    return context.const(0) if layout is None else address_at(point, layout, context)
