"""Lowering of partial results of grid reductions, which blocks write to the workspace: accumulators
of a block's rows are combined in its shared memory, those of a cluster in distributed shared
memory.

s<n> are the accumulators of the n-th grid reduction, W<n> its partial results as [parts, points],
meeting<n> the accumulators of a block's rows in shared memory.
"""

from __future__ import annotations

from collections.abc import Sequence

from thunder_fuser import kernel_ir as ir
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.kernel_ir import LoopKind, add, equal, less, times
from thunder_fuser.lower.vectors.lane_loads import K, V, lane_loop
from thunder_fuser.templates.reduction.lowering import accumulators as lowered
from thunder_fuser.templates.reduction.lowering.accumulators import SMEM, TILE, G, T
from thunder_fuser.templates.reduction.mapping.accumulations import GridReduction
from thunder_fuser.templates.reduction.mapping.mapped_rows import MappedRows
from thunder_fuser.templates.reduction.on_chip.shared_memory import (
    meeting_offset,
    owned_points,
)
from thunder_fuser.templates.reduction.schedule import ReductionSchedule

PART, PORTION, SPAN = (ir.Var(name) for name in ("part", "portion", "span"))
_U, _J, _MEETING = (ir.Var(name) for name in ("u", "j", "meeting"))
_B, _OTHER, _COLUMN, _SUM = (ir.Var(name) for name in ("b", "other", "column", "sum"))
_INT = DataType.Int32


def portion(mapped: MappedRows) -> ir.Var:
    """Return the number of the portion of the rows that a block works on."""
    return PORTION if mapped.mapping.walks_portions else PART


def place_of_part(mapped: MappedRows, n: int) -> ir.Expr:
    """Return the number of the partial result that a block writes: they are ordered as if all
    blocks wrote theirs together, with the same number of portions each time.
    """
    if mapped.mapping.meets_in_clusters:
        return ir.Binary("/", PART, ir.Int(mapped.mapping.cluster))
    if n in mapped.totals_of_portions:
        return PORTION
    if not mapped.leaves_spans:
        return PART
    before = ir.Binary("-", SPAN, PART)
    return add(ir.Binary("/", before, ir.Int(mapped.portions_together)), PART)


def vectors_of_part(mapped: MappedRows, total: GridReduction, part: ir.Expr) -> ir.Expr:
    """Return the offset of a partial result of columns in the workspace."""
    lanes = mapped.lanes.vector
    return times(part, ir.Int(total.points // lanes if total.is_struct else total.points))


def each_step(mapped: MappedRows, *body: ir.Stmt) -> ir.Loop:
    return ir.Loop("k", ir.Int(mapped.steps), body, LoopKind.UNROLLED)


def left_by_rows(
    schedule: ReductionSchedule, totals: Sequence[int], vector_of_step: ir.Expr
) -> list[ir.Stmt]:
    """Write the accumulators of a block's rows to the workspace as its partial result."""
    if schedule.mapping.meets_in_clusters:
        return [_met(schedule, totals)] if totals else []
    found: list[ir.Stmt] = []
    columns = [n for n in totals if schedule.reductions.of_grid[n].is_of_columns]
    if schedule.rows_per_block > 1:
        batches = [columns] if schedule.meets_at_once else [[n] for n in columns]
        found += [_met(schedule, batch) for batch in batches if batch]
    elif not schedule.mapping.is_alone:
        found += [
            _left_by_one_row(schedule, schedule.reductions.of_grid[n], n, vector_of_step)
            for n in columns
        ]
    for n in totals:
        if n not in columns:
            found += _left_by_block(schedule, schedule.reductions.of_grid[n], n)
    return found


def _left_by_one_row(
    mapped: MappedRows, total: GridReduction, n: int, vector_of_step: ir.Expr
) -> ir.Stmt:
    """Write the column accumulators of a block that has one row at a time."""
    lanes, workspace = mapped.lanes.vector, ir.Var(f"W{n}")
    part = _part_of_block(mapped, total, n)
    own = ir.Element(ir.Var(f"s{n}"), K)
    store: ir.Stmt = ir.VectorStore(lanes, add(add(workspace, part), times(_U, ir.Int(lanes))), own)
    if total.is_struct:
        store = ir.Assign(ir.Element(workspace, add(part, _U)), own)
    vectors = mapped.lanes.vectors
    guarded = store if _owns_all(mapped) else ir.If((less(_U, vectors),), (store,))
    return each_step(mapped, ir.Let("u", _INT, vector_of_step), guarded)


def _met(schedule: ReductionSchedule, totals: Sequence[int]) -> ir.Scope:
    """Combine column accumulators of all rows of a block, or of those of a cluster's blocks, each
    reduction's at its own place in shared memory. There threads take a column each: those of one
    row would do as much as all of them, one row after the other.
    """
    brought: list[ir.Stmt] = []
    for n in totals:
        total, meeting = schedule.reductions.of_grid[n], _meeting_of(n)
        brought.append(_meeting(schedule, meeting, lowered.reducer(total), n))
        brought.append(_brought(schedule, total, n, meeting))
    summed = [_summed(schedule, schedule.reductions.of_grid[n], n) for n in totals]
    if not schedule.mapping.meets_in_clusters:
        return ir.Scope((ir.Barrier(), *brought, ir.Barrier(), *summed))
    return ir.Scope(
        (*brought, ir.ClusterArrive(), ir.ClusterWait(schedule.mapping.cluster), *summed)
    )


def _summed(mapped: MappedRows, total: GridReduction, n: int) -> ir.Loop:
    """Combine a block's columns of what its rows have written to shared memory, or its share of the
    columns of all blocks of its cluster.
    """
    owned, points, meeting = mapped.rows_per_block, owned_points(mapped), _meeting_of(n)
    one, cluster = lowered.reducer(total), mapped.mapping.cluster

    def from_rows(first: int, place: ir.Var, kind: LoopKind) -> list[ir.Stmt]:
        element = ir.Element(place, add(times(_J, ir.Int(points)), _COLUMN))
        more = ir.Assign(_SUM, lowered.combination(total, _SUM, element))
        return [ir.Loop("j", ir.Int(owned), (more,), kind, ir.Int(first))] * (first < owned)

    def brought_by(rank: ir.Expr) -> ir.LetPointer:
        return ir.LetPointer(_OTHER.name, one, ir.MappedRank(meeting, rank))

    def first_of(place: ir.Var) -> ir.Let:
        return ir.Let("sum", one, ir.Element(place, _COLUMN), variable=True)

    put = _put_in_workspace(mapped, total, n)
    if not mapped.mapping.meets_in_clusters:
        # A block has very many short rows.
        added = [first_of(meeting), *from_rows(1, meeting, LoopKind.SERIAL)]
        return _over_own_columns(mapped, points, ir.Int(0), [*added, *put])
    others = (brought_by(_B), *from_rows(0, _OTHER, LoopKind.UNROLLED))
    added = [
        *(brought_by(ir.Int(0)), first_of(_OTHER)),
        *from_rows(1, _OTHER, LoopKind.UNROLLED),
        ir.Loop("b", ir.Int(cluster), others, LoopKind.UNROLLED, ir.Int(1)),
    ]
    share = points // cluster
    first = times(ir.UnsignedBinary("%", ir.LaunchIndex.BLOCK, ir.Int(cluster)), ir.Int(share))
    return _over_own_columns(mapped, share, first, [*added, *put])


def _brought(mapped: MappedRows, total: GridReduction, n: int, meeting: ir.Var) -> ir.Stmt:
    """Write a thread's accumulators to shared memory, which is [rows, columns]."""
    lanes, points = mapped.lanes.vector, owned_points(mapped)
    vector = add(times(K, ir.Int(mapped.threads)), T) if mapped.threads > 1 else K
    column = add(times(vector, ir.Int(lanes)), V)
    if mapped.rows_per_block > 1:
        column = add(times(G, ir.Int(points)), column)
    value = lowered.get(ir.Element(ir.Var(f"s{n}"), K), total, lanes)
    return _each(mapped, total, ir.Assign(ir.Element(meeting, column), value))


def _over_own_columns(
    mapped: MappedRows, count: int, first: ir.Expr, body: Sequence[ir.Stmt]
) -> ir.Loop:
    """`body` for `count` columns from the `first` on: a thread takes one after the other."""
    threads, lanes = mapped.block_threads, mapped.lanes.vector
    number = add(times(ir.Var("i"), ir.Int(threads)), ir.LaunchIndex.THREAD)
    mine: list[ir.Expr] = []
    if count % threads:
        mine.append(less(number, count))
    if not _owns_all(mapped):
        mine.append(less(_column_of_row(mapped), mapped.lanes.vectors * lanes))
    column = number if first == ir.Int(0) else add(first, number)
    summed = [ir.If(tuple(mine), tuple(body))] if mine else body
    each = (ir.Let("column", _INT, column), *summed)
    return ir.Loop("i", ir.Int(-(-count // threads)), each, LoopKind.UNROLLED)


def _put_in_workspace(mapped: MappedRows, total: GridReduction, n: int) -> list[ir.Stmt]:
    """Write the combined value of one column to the partial result of the block."""
    lanes, column = mapped.lanes.vector, _column_of_row(mapped)
    workspace, part = ir.Var(f"W{n}"), _part_of_block(mapped, total, n)
    if not total.is_struct or lanes == 1:
        return [ir.Assign(ir.Element(workspace, add(part, column)), _SUM)]
    vector = ir.Element(workspace, add(part, ir.UnsignedBinary("/", column, ir.Int(lanes))))
    lane = ir.Let("v", _INT, ir.UnsignedBinary("%", column, ir.Int(lanes)))
    return [lane, lowered.put(vector, total, lanes, _SUM)]


def _column_of_row(mapped: MappedRows) -> ir.Expr:
    """Return the number in the row of one of the block's columns."""
    if mapped.mapping.column_tiles == 1:
        return _COLUMN
    return add(times(TILE, ir.Int(owned_points(mapped))), _COLUMN)


def _part_of_block(mapped: MappedRows, total: GridReduction, n: int) -> ir.Expr:
    """Return the offset of a block's partial result in the workspace of a column reduction."""
    return vectors_of_part(mapped, total, ir.IntCast(place_of_part(mapped, n), DataType.Int))


def _owns_all(mapped: MappedRows) -> bool:
    """True if a row has every column that threads accumulate."""
    mapping = mapped.mapping
    owned = mapped.steps * mapping.threads_per_row * mapping.column_tiles
    return owned == mapped.lanes.vectors


def _left_by_block(schedule: ReductionSchedule, total: GridReduction, n: int) -> list[ir.Stmt]:
    """Combine one accumulator of each row of the block in that of the first, and write it."""
    rows = schedule.rows_per_block
    one, sum_ = lowered.reducer(total), ir.Var(f"s{n}")
    first = lowered.is_first_thread(schedule)
    left = ir.Assign(ir.Element(ir.Var(f"W{n}"), place_of_part(schedule, n)), sum_)
    if rows == 1:
        return [ir.If(first, (left,)) if first else left]
    other = ir.Element(_MEETING, ir.Binary("-", G, ir.Int(1)))
    added = ir.Assign(sum_, lowered.combination(total, sum_, ir.Element(_MEETING, _J)))
    owner = (*first, equal(G, 0))
    met = ir.Scope(
        (
            _meeting(schedule, _MEETING, one, n),
            ir.Barrier(),
            ir.If((*first, ir.Binary(">", G, ir.Int(0))), (ir.Assign(other, sum_),)),
            ir.Barrier(),
            ir.If(owner, (ir.Loop("j", ir.Int(rows - 1), (added,)),)),
        )
    )
    return [met, ir.If(owner, (left,))]


def _meeting_of(n: int) -> ir.Var:
    return ir.Var(f"meeting{n}")


def _meeting(schedule: ReductionSchedule, name: ir.Var, one: ir.Type, n: int) -> ir.LetPointer:
    """Declare the shared memory for accumulators of a reduction."""
    place = ir.Reinterpret(one, add(SMEM, ir.Int(meeting_offset(schedule, n))))
    return ir.LetPointer(name.name, one, place)


def _each(mapped: MappedRows, total: GridReduction, statement: ir.Stmt) -> ir.Stmt:
    if not total.is_of_columns:
        return statement
    lanes = lane_loop(mapped.lanes.vector, (statement,), LoopKind.UNROLLED)
    return each_step(mapped, lanes)


def left_by_columns(mapped: MappedRows, n: int) -> list[ir.Stmt]:
    """Reduce a row's columns of this block and write them as its partial result."""
    before, value = lowered.reduced(mapped, n)
    total = mapped.reductions.of_grid[n]
    place = times(ir.IntCast(PART, DataType.Int), ir.Int(total.points))
    element = ir.Element(ir.Var(f"W{n}"), add(place, ir.Var("r")))
    store: ir.Stmt = ir.Assign(element, ir.Var(f"s{n}"))
    if mapped.threads > 1:
        store = ir.If((equal(T, 0),), (store,))
    return [*before, ir.Let(f"s{n}", lowered.reducer(total), value), store]
