"""Row program: what can be computed over an arrangement of rows and columns in one kernel, and why
the rest cannot.

A reduction along the columns is ready at its row, while the kernel runs, and nowhere else. One
along the rows (a total) needs all rows: it is ready when all blocks have done their part, and only
values of a column can be computed from it then. Whether everything that a kernel is to compute can
be pulled at such points is what makes it legal. It is asked, not matched by patterns.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from thunder_fuser.analysis.layout import address_at, unflatten
from thunder_fuser.errors import Refusal
from thunder_fuser.ir.dag import backward_slice
from thunder_fuser.ir.domain import Layout
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import ReductionOp, TensorView, Val, shape_text
from thunder_fuser.ir.integer.symint import Context, Form
from thunder_fuser.ir.tables import reductions
from thunder_fuser.lower.body import KernelBody
from thunder_fuser.lower.pull import Pull, Unreadable
from thunder_fuser.lower.row_points import RowPoints, is_over, placed
from thunder_fuser.lower.row_space import Arrangement, LaneAxis, Space
from thunder_fuser.lower.scalar_graph import Conjunction, ScalarGraph, Value

Point = Literal["column", "group", "row", "one"]
"""Where a total has its value: at each column, at each column of a group of rows, at each row, or
once.
"""
Role = Literal["fold"] | Point
"""What a reduction is to an arrangement: ready at each row, or a total, and of what."""
Roles = Mapping[TensorView, Role | None]
PulledReduction = tuple[ReductionOp, Value, Value | None]
"""A reduction that is ready at each row, and what it folds: elements, and their positions."""
MANY_GROUPS, FEWEST_ROWS = 512, 32
"""Groups of rows whose parts of totals leave the caches, and the rows of each that are much more
than its parts.
"""
ALONE = "its blocks would have nothing to share"


@dataclass(frozen=True, slots=True)
class PulledGridReduction:
    """A reduction that is ready when all blocks have done their part, and what it folds."""

    fold: ReductionOp
    value: Value
    position: Value | None
    at: Point


@dataclass(frozen=True, slots=True)
class PulledEpilogue:
    """What is computed from totals: stores, as functions of `index` below `points`."""

    at: Point
    points: int
    index: Form
    graph: ScalarGraph
    stores: tuple[tuple[TensorView, Value, Form], ...]


@dataclass(frozen=True, slots=True)
class PulledRows:
    """What a reduction kernel computes: values of reductions' elements (and their positions, where
    these are folded too) and of stores, with addresses. `extent`: points along the lane's axis,
    those that do not exist with the others.
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
    """Whether threads accumulate totals of columns, which they own in all rows then."""
    return any(role_of(fold, arrangement) in ("column", "group") for fold in body.folds)


def pull_rows(
    axis: LaneAxis,
    vector: int,
    arrangement: Arrangement,
    body: KernelBody,
    *,
    is_aligned: bool = False,
) -> PulledRows | Refusal:
    """Pull everything at a row and a column; a Refusal where a stage has not what is wanted.

    is_aligned  vectors of a row are those of memory: where a row begins within one, so does what
                the lanes of its first vector see of it
    """
    roles = {fold.output: role_of(fold, arrangement) for fold in body.folds}
    refusal = _refuse_roles(roles, arrangement, body)
    if refusal is not None:
        return refusal
    space = arrangement.space
    context = Context()
    many = {"columns": space.columns, "rows": space.rows}
    extent = many[axis]
    before = vector - 1 if is_aligned else 0
    many[axis] = -(-(max(extent, 1) + before) // vector) * vector
    row = context.var("r", 0, max(many["rows"] - 1, 0))
    column = context.var("c", 0, max(many["columns"] - 1, 0))
    lane_index = column if axis == "columns" else row
    inside: Conjunction = () if many[axis] == extent else (extent - 1 - lane_index,)
    if is_aligned:
        column = column - _begin(row, vector, space, body)
        inside = (column, extent - 1 - column)
    points = RowPoints(space, row, column)
    pull = Pull(body, context, inside, lane_index)
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
        lane_index,
        many[axis],
        inside,
    )


def _begin(row: Form, vector: int, space: Space, body: KernelBody) -> Form:
    """Where a row of the largest tensor that is folded begins within a vector of memory."""
    fold = body.folds[0]
    pull = Pull(body, row.context)
    pull.emit(fold.input, RowPoints(space, row, row.context.const(0)).of_elements(fold))
    found = [load for load in pull.graph.loads if not load.positions]
    largest = max(found, key=lambda load: load.tensor.numel, default=None)
    return row.context.const(0) if largest is None else largest.address % vector


def _refuse_roles(roles: Roles, arrangement: Arrangement, body: KernelBody) -> Refusal | None:
    """Why an arrangement has no place for what the reductions of a body are to it, or None."""
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
    """The elements that are folded: of reductions that are ready at each row, which is where they
    can be read then, and of totals.
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
    """Which dimensions a reduction folds, in words."""
    dims = ", ".join(map(str, fold.dims))
    return f"dimension{'s' if len(fold.dims) > 1 else ''} {dims} of {shape_text(fold.input.sizes)}"


def _waits_for_blocks(tensor: TensorView, totals: set[TensorView], body: KernelBody) -> str:
    """Why a tensor of the kernel's own size is not computed in it."""
    named = ", ".join(
        f.output.name for f in body.folds if f.output in totals and _reads(tensor, {f.output}, body)
    )
    return (
        f"every element waits for {named}, which all blocks fold together; it needs a kernel of "
        "its own, which reads that"
    )


def _other_space(tensor: TensorView, space: Space) -> str:
    """Why a tensor is not computed where a kernel has its rows and columns."""
    rows = [space.shape[k] for k in space.whole(space.kept)]
    return (
        f"iteration space {shape_text(tensor.sizes)} differs from the kernel's "
        f"{shape_text(space.shape)} and from its rows {shape_text(rows)}; it needs a kernel of its "
        "own"
    )


def _found(
    tensor: TensorView, points: RowPoints, pull: Pull, totals: set[TensorView], body: KernelBody
) -> tuple[Value, Sequence[Form], bool] | None:
    """The value of an output, its index, and whether that is at every point; None where it has no
    place, or where that takes a total, which comes later.
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
            # Not where reductions are ready: another place, or another kernel.
            continue
    return None


def _value_at(
    tensor: TensorView, point: Sequence[Form], pull: Pull, totals: set[TensorView]
) -> Value | None:
    """The tensor at a point, or None where that takes a total, which comes later."""
    try:
        return pull.emit(tensor, point)
    except Unreadable as error:
        if error.tensor in totals:
            return None
        raise


def role_of(fold: ReductionOp, arrangement: Arrangement) -> Role | None:
    """What a reduction is to an arrangement: ready at each row, or a total; None: neither."""
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
    """32-bit registers that a reduction's accumulator takes."""
    each = max(1, fold.accumulate.itemsize // 4)
    return each * reductions.lookup(fold.op).accumulator.words


def _finishes(
    late: Mapping[TensorView, None],
    arrangement: Arrangement,
    roles: Roles,
    body: KernelBody,
) -> Iterator[PulledEpilogue]:
    """What is left to do at each column, at each row and once, when the totals are there."""
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
    """Whether a tensor is computed from one of `totals`."""

    def producers(value: Val) -> tuple[Val, ...]:
        return () if value in totals else body.operands(value)

    needed = backward_slice(list[Val]((tensor,)), producers) if totals else ()
    return not totals.isdisjoint(needed)


def _position(fold: ReductionOp, index: Sequence[Form], pull: Pull) -> Value | None:
    """An element's number in the order of the folded dimensions, where the reduction asks."""
    if not reductions.lookup(fold.op).accumulator.takes_position:
        return None
    position = pull.context.const(0)
    for k in fold.dims:
        position = position * fold.input.sizes[k] + index[k]
    count = math.prod(fold.input.sizes[k] for k in fold.dims)
    return pull.graph.index(position, DataType.Int32 if count < 2**31 else DataType.Int)


def _store_address(point: Sequence[Form], layout: Layout | None, context: Context) -> Form:
    """Where a store goes; nowhere in particular while only legality is asked about."""
    return context.const(0) if layout is None else address_at(point, layout, context)
