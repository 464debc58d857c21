"""Row program: values that one kernel computes over an arrangement of rows and columns, or the
reason why it cannot.

A reduction over the columns is available at its row, while the kernel runs, and nowhere else. One
over the rows (a grid reduction) needs all rows: it is available when all blocks are done, and then
only values of a column can be computed from it (the epilogue). A kernel is legal if everything that
it is to compute can be pulled at such points: no pattern matching is involved.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

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
from thunder_fuser.lower.rows.row_points import RowPoints, is_over, placed
from thunder_fuser.lower.rows.row_space import Arrangement, LaneAxis, Space
from thunder_fuser.lower.scalar_graph import Conjunction, ScalarGraph, Value

Point = Literal["column", "group", "row", "one"]
"""Points of a grid reduction's result: each column, each column of each group of rows, each row, or
a single point.
"""
Role = Literal["fold"] | Point
"""Role of a reduction in an arrangement: complete at each row ("fold"), or a grid reduction, with
the points of its result.
"""
Roles = Mapping[TensorView, Role | None]
PulledReduction = tuple[ReductionOp, Value, Value | None]
"""A reduction that is complete at each row, with the values of its elements and their positions."""
MANY_GROUPS, FEWEST_ROWS = 512, 32
"""More groups of rows than `MANY_GROUPS` have partial results that do not stay in caches: then each
group needs `FEWEST_ROWS` rows, so that they are small beside the rows.
"""
ALONE = "its blocks would have nothing to share"


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
    stores: tuple[tuple[TensorView, Value, Form], ...]


@dataclass(frozen=True, slots=True)
class PulledRows:
    """Values of a reduction kernel: elements of reductions, with positions if these are reduced
    too, and stores with addresses. `extent`: points along the lane axis, padding included.
    """

    graph: ScalarGraph
    folds: tuple[PulledReduction, ...]
    totals: tuple[PulledGridReduction, ...]
    wide: tuple[tuple[TensorView, Value, Form], ...]
    narrow: tuple[tuple[TensorView, Value, Form], ...]
    epilogues: tuple[PulledEpilogue, ...]
    lane_index: Form
    extent: int
    inside: Conjunction


def has_column_totals(arrangement: Arrangement, body: KernelBody) -> bool:
    """True if there are column accumulators: threads own columns over all rows of a block."""
    return any(role_of(fold, arrangement) in ("column", "group") for fold in body.folds)


def pull_rows(
    axis: LaneAxis,
    vector: int,
    arrangement: Arrangement,
    body: KernelBody,
    *,
    is_aligned: bool = False,
) -> PulledRows | Refusal:
    """Pull all values at a row and a column; a Refusal if a stage lacks a value that it needs.

    is_aligned  vectors are aligned in memory, not to the row: the first lanes of a row's first
                vector may lie before the row
    """
    roles = {fold.output: role_of(fold, arrangement) for fold in body.folds}
    refusal = _refuse_roles(roles, arrangement, body)
    if refusal is not None:
        return refusal
    space, context = arrangement.space, Context()
    lanes = _lane_points(axis, vector, space, body, context, is_aligned)
    points = RowPoints(space, lanes.row, lanes.column)
    pull = Pull(body, context, lanes.inside, lanes.lane)
    totals = {t for t, role in roles.items() if role != "fold"}
    wide: list[tuple[TensorView, Value, Form]] = []
    narrow: list[tuple[TensorView, Value, Form]] = []
    late: dict[TensorView, None] = {}
    try:
        made, accumulated = _pull_folds(roles, points, pull, body)
        for tensor in body.outputs:
            found = _found(tensor, points, pull, totals, body)
            if found is not None:
                value, index, is_wide = found
                kind = wide if is_wide else narrow
                address = _store_address(index, body.stores.get(tensor), context)
                kind.append((tensor, value, address))
            elif _reads(tensor, totals, body):
                late[tensor] = None
            else:
                return Refusal("shape", _other_space(tensor, space), tensor.name)
        finishes = tuple(_finishes(late, arrangement, roles, body))
    except Unreadable as error:
        return Refusal("stage", str(error), error.tensor.name)
    left = [t for t in late if not any(t is s[0] for f in finishes for s in f.stores)]
    if left:
        return Refusal("total", _waits_for_blocks(left[0], totals, body), left[0].name)
    return PulledRows(
        pull.graph,
        made,
        accumulated,
        tuple(wide),
        tuple(narrow),
        finishes,
        lanes.lane,
        lanes.extent,
        lanes.inside,
    )


class _LanePoints(NamedTuple):
    """Point of each lane of a kernel's vectors.

    lane    number of the lane along the lane axis, in 0..extent
    inside  predicate of lanes that have a point
    """

    row: Form
    column: Form
    lane: Form
    extent: int
    inside: Conjunction


def _lane_points(
    axis: LaneAxis, vector: int, space: Space, body: KernelBody, context: Context, is_aligned: bool
) -> _LanePoints:
    many = {"columns": space.columns, "rows": space.rows}
    count = many[axis]
    before = vector - 1 if is_aligned else 0
    extent = many[axis] = -(-(max(count, 1) + before) // vector) * vector
    row = context.var("r", 0, max(many["rows"] - 1, 0))
    column = context.var("c", 0, max(many["columns"] - 1, 0))
    if is_aligned:
        own = column - _begin(row, vector, space, body)
        return _LanePoints(row, own, column, extent, (own, count - 1 - own))
    index = column if axis == "columns" else row
    return _LanePoints(row, column, index, extent, () if extent == count else (count - 1 - index,))


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


def _refuse_roles(roles: Roles, arrangement: Arrangement, body: KernelBody) -> Refusal | None:
    """Return why the roles of a body's reductions do not fit the arrangement, or None."""
    space, folds = arrangement.space, body.folds
    for fold in folds:
        if roles[fold.output] is None:
            text = (
                f"it reduces {_reduced(fold)}, {folds[0].output.name} reduces {_reduced(folds[0])}"
            )
            way_out = "a kernel has one set of rows, so that each needs its own"
            return Refusal("space", f"{text}: {way_out}", fold.output.name)
    has_totals = any(role != "fold" for role in roles.values())
    if (arrangement.grid_split == "none") == has_totals:
        return Refusal("grid_split", ALONE, folds[0].output.name)
    of_columns = [f for f in folds if roles[f.output] in ("column", "group")]
    of_group = space.rows // max(arrangement.groups, 1)
    if arrangement.groups > MANY_GROUPS and of_group < FEWEST_ROWS:
        text = (
            f"{arrangement.groups:,} groups of {of_group} rows have column accumulators of their "
            f"own, which one kernel keeps in memory until all of its blocks are ready: that pays "
            f"for {FEWEST_ROWS} rows or more; what reads them is in another kernel"
        )
        return Refusal("grid_split", text, of_columns[-1].output.name)
    return None


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


def _reduced(fold: ReductionOp) -> str:
    """Return a text that names the dimensions a reduction reduces."""
    dims = ", ".join(map(str, fold.dims))
    return f"dimension{'s' if len(fold.dims) > 1 else ''} {dims} of {shape_text(fold.input.sizes)}"


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


def _found(
    tensor: TensorView, points: RowPoints, pull: Pull, totals: set[TensorView], body: KernelBody
) -> tuple[Value, Sequence[Form], bool] | None:
    """Return an output's value, its index, and True if it has an element at every point; None if it
    does not match the kernel's points, or needs a grid reduction, which is complete later.
    """
    place = points.of_output(tensor)
    if place is not None:
        index, is_wide = place
        asks = is_wide and points.space.has_parts and tensor in body.expected
        if asks and not points.writes_neighbours(tensor, index, body):
            return None
        value = _value_at(tensor, index, pull, totals)
        return None if value is None else (value, *place)
    for index, is_wide in points.of_views(tensor, body):
        try:
            return pull.emit(tensor, index), index, is_wide
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


def role_of(fold: ReductionOp, arrangement: Arrangement) -> Role | None:
    """Return the role of a reduction in an arrangement; None if it has none."""
    space = arrangement.space
    if is_over(fold, space, space.folded):
        return "row" if arrangement.grid_split == "columns" else "fold"
    if arrangement.grid_split != "rows":
        return None
    if is_over(fold, space, space.kept):
        return "column"
    within = set(space.kept) - set(arrangement.grouped)
    is_alike = arrangement.grouped and fold.input.sizes == space.shape
    if is_alike and set(space.parts_of(fold.dims)) == within:
        return "group"
    is_whole = fold.output.numel == 1
    return "one" if is_whole and fold.input.numel == space.rows else None


def accumulator_words(fold: ReductionOp) -> int:
    """Return the 32-bit registers of a reduction's accumulator."""
    each = max(1, fold.accumulate.itemsize // 4)
    return each * reductions.lookup(fold.op).accumulator.words


def _finishes(
    late: Mapping[TensorView, None],
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
        return () if value in totals else body.operands(value)

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
