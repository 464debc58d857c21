"""Lowering of one row reduction: its accumulators, and the warp or block reduction that makes one
value of the row of them.

a<n> are the accumulators of the n-th fold, one a lane, p<n> those of a part of the row, m<n> is
what they are for the whole block, f<n> the value that results. g is the row's number within the
block.
"""

from __future__ import annotations

from collections.abc import Sequence

from thunder_fuser.device import WARP_SIZE
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.tables import reductions
from thunder_fuser.lower import kernel_ir as ir
from thunder_fuser.lower import values
from thunder_fuser.lower.kernel_ir import LoopKind
from thunder_fuser.lower.lanes_to_ir import V, lane_loop
from thunder_fuser.lower.scalar_graph import Compute, Value
from thunder_fuser.templates.reduction.schedule import Accumulation, ReductionSchedule
from thunder_fuser.templates.reduction.shared_memory import row_slot_bytes, slot_offset, takes_turns

SMEM, G, T, TILE, TURN = (ir.Var(name) for name in ("smem", "g", "t", "tile", "turn"))


def reducer(fold: Accumulation) -> ir.Reducer:
    """What folds, as kernel IR knows it: a type, too, of what it carries along."""
    position = None if fold.position is None else fold.position.dtype
    is_fp32 = fold.accumulate is DataType.Float
    brief = fold.op == "sum_exp" and is_fp32 and _has_few_digits(fold.value)
    return ir.Reducer(fold.op, fold.accumulate, position, brief)


def _has_few_digits(value: Value) -> bool:
    """Whether a value is one of 16 bits or less, in whatever register."""
    while isinstance(value, Compute) and value.op == "cast":
        (value,) = value.operands
        if value.dtype.is_reduced_precision:
            return True
    return value.dtype.is_reduced_precision


def lanes_type(fold: Accumulation, lanes: int) -> ir.Type:
    """The type of what holds so many structs, or else of one of so many numbers."""
    one = reducer(fold)
    return ir.ReducerLanes(one, lanes) if fold.is_struct and lanes > 1 else one


def declared(name: str, fold: Accumulation, lanes: int, *steps: int) -> ir.Registers:
    """Accumulators of so many lanes."""
    sizes = steps if fold.is_struct else (*steps, lanes)
    return ir.Registers(name, lanes_type(fold, lanes), sizes)


def get(place: ir.Expr, fold: Accumulation, lanes: int, v: ir.Expr = V) -> ir.Expr:
    """The accumulator of a lane."""
    if not fold.is_struct:
        return ir.Element(place, v)
    return place if lanes == 1 else ir.Lane(place, v)


def put(place: ir.Expr, fold: Accumulation, lanes: int, value: ir.Expr, v: ir.Expr = V) -> ir.Stmt:
    """The statement that changes it."""
    if fold.is_struct and lanes > 1:
        return ir.SetLane(place, v, value)
    return ir.Assign(get(place, fold, lanes, v), value)


def for_lanes(statement: ir.Stmt, fold: Accumulation, lanes: int, kind: LoopKind) -> ir.Stmt:
    """A statement on the accumulators of all lanes."""
    if fold.is_struct and lanes == 1:
        return statement
    return lane_loop(lanes, (statement,), kind)


def started(place: ir.Expr, fold: Accumulation, lanes: int, *, is_zero: bool = False) -> ir.Stmt:
    """The statement after which accumulators have seen nothing."""
    nothing = put(place, fold, lanes, ir.InitAccumulator(reducer(fold), is_zero))
    return for_lanes(nothing, fold, lanes, LoopKind.UNROLLED)


def accumulators(name: str, fold: Accumulation, lanes: int, *, is_zero: bool) -> list[ir.Stmt]:
    """As folding starts."""
    return [declared(name, fold, lanes), started(ir.Var(name), fold, lanes, is_zero=is_zero)]


def with_element(value: ir.Expr, fold: Accumulation, name: values.Name) -> ir.Expr:
    """An accumulator that has seen what `value` has, and the present element."""
    element = values.operand(fold.value, fold.accumulate, name)
    position = None if fold.position is None else name(fold.position)
    return ir.Accumulate(reducer(fold), value, element, position)


def takes_vectors(fold: Accumulation, lanes: int) -> bool:
    """Whether one accumulator takes the elements of all lanes at once."""
    return lanes == 1 and bool(reductions.lookup(fold.op).accumulator.vector)


def pads(fold: Accumulation) -> bool:
    """Whether the identity can stand for an element that is not there."""
    return reductions.lookup(fold.op).accumulator.pads


def identity(fold: Accumulation) -> ir.Expr:
    """What folding starts from, as an element."""
    start = reductions.lookup(fold.op).identity(fold.accumulate)
    return ir.AsElement(reducer(fold), ir.Literal(start, fold.accumulate))


def element(fold: Accumulation, name: values.Name) -> ir.Expr:
    """The present element in the type that folds it."""
    return ir.AsElement(reducer(fold), values.operand(fold.value, fold.accumulate, name))


def combination(fold: Accumulation, first: ir.Expr, second: ir.Expr) -> ir.Expr:
    return ir.Combine(reducer(fold), first, second)


def joined(
    place: ir.Expr, part: ir.Expr, fold: Accumulation, lanes: int, kind: LoopKind
) -> ir.Stmt:
    """The statement that adds the accumulators of a part."""
    both = combination(fold, get(place, fold, lanes), get(part, fold, lanes))
    return for_lanes(put(place, fold, lanes, both), fold, lanes, kind)


def combined(schedule: ReductionSchedule, n: int) -> list[ir.Stmt]:
    """The lanes' accumulators of the n-th fold as one value of the row, in a fixed order."""
    fold = schedule.row_reductions[n]
    vector = schedule.lanes.vector
    dtype = values.register_dtype(fold.tensor.dtype)
    if schedule.lane_axis == "rows":
        done = finished(get(ir.Var(f"a{n}"), fold, schedule.lanes_of(fold)), fold)
        each = ir.Assign(ir.Element(ir.Var(f"f{n}"), V), done)
        found = ir.Registers(f"f{n}", dtype, (vector,))
        loop = lane_loop(vector, (each,), LoopKind.VECTOR)
        return [*_outer_block_reduce(schedule, n), found, loop]
    before, value = reduced(schedule, n)
    return [*before, ir.Let(f"f{n}", dtype, finished(value, fold))]


def combined_together(schedule: ReductionSchedule, folds: Sequence[int]) -> list[ir.Stmt]:
    """The same of all folds of a stage: where several warps have a row, they exchange what they
    have folded side by side.
    """
    exchanged = schedule.lane_axis == "columns" and schedule.threads > WARP_SIZE
    if len(folds) < 2 or not exchanged:
        return [s for n in folds for s in combined(schedule, n)]
    before: list[ir.Stmt] = []
    lets: list[ir.Let] = []
    after: list[ir.Stmt] = []
    for n in folds:
        fold = schedule.row_reductions[n]
        statements, value = reduced(schedule, n)
        before += statements
        lets.append(ir.Let(f"m{n}", reducer(fold), value))
        dtype = values.register_dtype(fold.tensor.dtype)
        after.append(ir.Let(f"f{n}", dtype, finished(ir.Var(f"m{n}"), fold)))
    return [*before, ir.GroupedReduce(tuple(lets)), *after]


def _outer_block_reduce(schedule: ReductionSchedule, n: int) -> list[ir.Stmt]:
    """Threads that share rows which lie side by side give each other what they have folded."""
    if not schedule.is_outer_shared:
        return []
    threads, rows = schedule.block_threads, schedule.rows_per_block
    # One warp has nobody to leave values for.
    slots = ir.add(SMEM, ir.Int(slot_offset(schedule, n))) if threads > WARP_SIZE else None
    one = reducer(schedule.row_reductions[n])
    return [ir.OuterBlockReduce(one, threads, rows, schedule.lanes.vector, f"a{n}", slots)]


def reduced(schedule: ReductionSchedule, n: int) -> tuple[list[ir.Stmt], ir.Expr]:
    """Statements, and then the accumulators of all lanes of all threads of a row as one value."""
    fold = schedule.reductions[n]
    lanes, threads = schedule.lanes_of(fold), schedule.threads
    place = ir.Var(f"a{n}")
    found: list[ir.Stmt] = []
    for half in _halves(lanes):
        both = [get(place, fold, lanes, v) for v in (V, ir.add(V, ir.Int(half)))]
        found.append(lane_loop(half, (put(place, fold, lanes, combination(fold, *both)),)))
    value = get(place, fold, lanes, ir.Int(0))
    if 1 < threads <= WARP_SIZE:
        value = ir.WarpReduce(reducer(fold), threads, value)
    elif threads > WARP_SIZE:
        at = slot_offset(schedule, n)
        over = reducer(fold), threads, value, _slots(schedule), at, T
        if schedule.mapping.shares_rows:
            return found, ir.BlockReduce(*over, blocks=schedule.mapping.cluster, rank=TILE)
        value = ir.BlockReduce(*over, schedule.rows_per_block)
    return found, value


def _slots(schedule: ReductionSchedule) -> ir.Expr:
    """Where the warps of a row exchange what they have folded."""
    place: ir.Expr = SMEM
    row, turns = row_slot_bytes(schedule), takes_turns(schedule)
    if schedule.rows_per_block > 1:
        place = ir.add(place, ir.times(G, ir.Int(row * (2 if turns else 1))))
    return ir.add(place, ir.times(TURN, ir.Int(row))) if turns else place


def is_first_thread(schedule: ReductionSchedule) -> tuple[ir.Expr, ...]:
    """What holds for one of the threads that share a row, where several do."""
    first = (ir.equal(T, 0),) if schedule.threads > 1 else ()
    return (*first, ir.equal(TILE, 0)) if schedule.mapping.shares_rows else first


def finished(accumulator: ir.Expr, fold: Accumulation) -> ir.Expr:
    """An accumulated value as the reduction's result, in its register type."""
    dtype = fold.tensor.dtype
    found = reductions.lookup(fold.op).folded_dtype(fold.accumulate)
    result = ir.FinalizeAccumulator(reducer(fold), accumulator)
    converted = values.convert(result, found, values.register_dtype(dtype))
    return values.round_to(converted, dtype)


def _halves(vector: int) -> list[int]:
    found = []
    while vector > 1:
        vector //= 2
        found.append(vector)
    return found
