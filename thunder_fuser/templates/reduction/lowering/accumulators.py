"""Lowering of one row reduction: its accumulators, and the warp or block reduction that combines
them to one value of the row.

a<n> are the accumulators of the n-th reduction, one a lane, p<n> those of a part of the row, m<n>
their combination over the block, f<n> the result. g is the row's number within the block.
"""

from __future__ import annotations

from collections.abc import Sequence

from thunder_fuser import kernel_ir as ir
from thunder_fuser.device import WARP_SIZE
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.tables import reductions
from thunder_fuser.kernel_ir import LoopKind
from thunder_fuser.lower import values
from thunder_fuser.lower.scalar_graph import Compute, Value
from thunder_fuser.lower.vectors.lane_loads import V, lane_loop
from thunder_fuser.templates.reduction.mapping.accumulations import Accumulation
from thunder_fuser.templates.reduction.mapping.mapped_rows import MappedRows
from thunder_fuser.templates.reduction.on_chip.shared_memory import (
    row_slot_bytes,
    slot_offset,
    takes_turns,
)

SMEM, G, T, TILE, TURN = (ir.Var(name) for name in ("smem", "g", "t", "tile", "turn"))


def reducer(fold: Accumulation) -> ir.Reducer:
    """Return the kernel IR reducer of a reduction, which is also the type of its accumulator."""
    position = None if fold.position is None else fold.position.dtype
    is_fp32 = fold.accumulate is DataType.Float
    brief = fold.op == "sum_exp" and is_fp32 and _has_few_digits(fold.value)
    return ir.Reducer(fold.op, fold.accumulate, position, brief)


def _has_few_digits(value: Value) -> bool:
    """True if a value has 16 bits or less, in a register of any type."""
    while isinstance(value, Compute) and value.op == "cast":
        (value,) = value.operands
        if value.dtype.is_reduced_precision:
            return True
    return value.dtype.is_reduced_precision


def lanes_type(fold: Accumulation, lanes: int) -> ir.Type:
    """Return the type of a struct of `lanes` accumulators, or of one scalar accumulator."""
    one = reducer(fold)
    return ir.ReducerLanes(one, lanes) if fold.is_struct and lanes > 1 else one


def declared(name: str, fold: Accumulation, lanes: int, *steps: int) -> ir.Registers:
    """Declare accumulators of `lanes` lanes."""
    sizes = steps if fold.is_struct else (*steps, lanes)
    return ir.Registers(name, lanes_type(fold, lanes), sizes)


def get(place: ir.Expr, fold: Accumulation, lanes: int, v: ir.Expr = V) -> ir.Expr:
    """Return the accumulator of a lane."""
    if not fold.is_struct:
        return ir.Element(place, v)
    return place if lanes == 1 else ir.Lane(place, v)


def put(place: ir.Expr, fold: Accumulation, lanes: int, value: ir.Expr, v: ir.Expr = V) -> ir.Stmt:
    """Assign the accumulator of a lane."""
    if fold.is_struct and lanes > 1:
        return ir.SetLane(place, v, value)
    return ir.Assign(get(place, fold, lanes, v), value)


def for_lanes(statement: ir.Stmt, fold: Accumulation, lanes: int, kind: LoopKind) -> ir.Stmt:
    """Loop a statement over the accumulators of all lanes."""
    if fold.is_struct and lanes == 1:
        return statement
    return lane_loop(lanes, (statement,), kind)


def started(place: ir.Expr, fold: Accumulation, lanes: int, *, is_zero: bool = False) -> ir.Stmt:
    """Initialise accumulators to the identity."""
    nothing = put(place, fold, lanes, ir.InitAccumulator(reducer(fold), is_zero))
    return for_lanes(nothing, fold, lanes, LoopKind.UNROLLED)


def accumulators(name: str, fold: Accumulation, lanes: int, *, is_zero: bool) -> list[ir.Stmt]:
    """Declare accumulators and initialise them."""
    return [declared(name, fold, lanes), started(ir.Var(name), fold, lanes, is_zero=is_zero)]


def with_element(value: ir.Expr, fold: Accumulation, name: values.Name) -> ir.Expr:
    """Return an accumulator with the present element added to it."""
    element = values.operand(fold.value, fold.accumulate, name)
    position = None if fold.position is None else name(fold.position)
    return ir.Accumulate(reducer(fold), value, element, position)


def takes_vectors(fold: Accumulation, lanes: int) -> bool:
    """True if one accumulator takes the elements of all lanes at once."""
    return lanes == 1 and bool(reductions.lookup(fold.op).accumulator.vector)


def pads(fold: Accumulation) -> bool:
    """True if the identity can stand for an element that does not exist."""
    return reductions.lookup(fold.op).accumulator.pads


def identity(fold: Accumulation) -> ir.Expr:
    """Return the identity of a reduction, as an element."""
    start = reductions.lookup(fold.op).identity(fold.accumulate)
    return ir.AsElement(reducer(fold), ir.Literal(start, fold.accumulate))


def element(fold: Accumulation, name: values.Name) -> ir.Expr:
    """Return the present element in the type of the reduction."""
    return ir.AsElement(reducer(fold), values.operand(fold.value, fold.accumulate, name))


def combination(fold: Accumulation, first: ir.Expr, second: ir.Expr) -> ir.Expr:
    return ir.Combine(reducer(fold), first, second)


def joined(
    place: ir.Expr, part: ir.Expr, fold: Accumulation, lanes: int, kind: LoopKind
) -> ir.Stmt:
    """Combine accumulators with those of a part."""
    both = combination(fold, get(place, fold, lanes), get(part, fold, lanes))
    return for_lanes(put(place, fold, lanes, both), fold, lanes, kind)


def combined(mapped: MappedRows, n: int) -> list[ir.Stmt]:
    """Combine the lanes' accumulators of the n-th reduction to a value of the row, in a fixed
    order.
    """
    fold = mapped.reductions.of_rows[n]
    vector = mapped.lanes.vector
    dtype = values.register_dtype(fold.tensor.dtype)
    if mapped.lane_axis == "rows":
        done = finished(get(ir.Var(f"a{n}"), fold, mapped.lanes_of(fold)), fold)
        each = ir.Assign(ir.Element(ir.Var(f"f{n}"), V), done)
        found = ir.Registers(f"f{n}", dtype, (vector,))
        loop = lane_loop(vector, (each,), LoopKind.VECTOR)
        return [*_outer_block_reduce(mapped, n), found, loop]
    before, value = reduced(mapped, n)
    return [*before, ir.Let(f"f{n}", dtype, finished(value, fold))]


def combined_together(mapped: MappedRows, folds: Sequence[int]) -> list[ir.Stmt]:
    """Combine the accumulators of all reductions of a stage: where several warps share a row, they
    exchange partial results of all of these at once.
    """
    exchanged = mapped.lane_axis == "columns" and mapped.threads > WARP_SIZE
    if len(folds) < 2 or not exchanged:
        return [s for n in folds for s in combined(mapped, n)]
    before: list[ir.Stmt] = []
    lets: list[ir.Let] = []
    after: list[ir.Stmt] = []
    for n in folds:
        fold = mapped.reductions.of_rows[n]
        statements, value = reduced(mapped, n)
        before += statements
        lets.append(ir.Let(f"m{n}", reducer(fold), value))
        dtype = values.register_dtype(fold.tensor.dtype)
        after.append(ir.Let(f"f{n}", dtype, finished(ir.Var(f"m{n}"), fold)))
    return [*before, ir.GroupedReduce(tuple(lets)), *after]


def _outer_block_reduce(mapped: MappedRows, n: int) -> list[ir.Stmt]:
    """Block reduction of an outer reduction with several threads per row."""
    if not mapped.is_outer_shared:
        return []
    threads, owned = mapped.block_threads, mapped.rows_per_block
    # One warp exchanges nothing through shared memory.
    slots = ir.add(SMEM, ir.Int(slot_offset(mapped, n))) if threads > WARP_SIZE else None
    one = reducer(mapped.reductions.of_rows[n])
    return [ir.OuterBlockReduce(one, threads, owned, mapped.lanes.vector, f"a{n}", slots)]


def reduced(mapped: MappedRows, n: int) -> tuple[list[ir.Stmt], ir.Expr]:
    """Return statements, and the combined accumulators of all lanes of all threads of a row."""
    fold = mapped.reductions.all[n]
    lanes, threads = mapped.lanes_of(fold), mapped.threads
    place = ir.Var(f"a{n}")
    found: list[ir.Stmt] = []
    for half in _halves(lanes):
        both = [get(place, fold, lanes, v) for v in (V, ir.add(V, ir.Int(half)))]
        found.append(lane_loop(half, (put(place, fold, lanes, combination(fold, *both)),)))
    value = get(place, fold, lanes, ir.Int(0))
    if 1 < threads <= WARP_SIZE:
        value = ir.WarpReduce(reducer(fold), threads, value)
    elif threads > WARP_SIZE:
        at = slot_offset(mapped, n)
        over = reducer(fold), threads, value, _slots(mapped), at, T
        if mapped.mapping.shares_rows:
            return found, ir.BlockReduce(*over, blocks=mapped.mapping.cluster, rank=TILE)
        value = ir.BlockReduce(*over, mapped.rows_per_block)
    return found, value


def _slots(mapped: MappedRows) -> ir.Expr:
    """Return the shared memory in which the warps of a row exchange partial results."""
    place: ir.Expr = SMEM
    row, turns = row_slot_bytes(mapped), takes_turns(mapped)
    if mapped.rows_per_block > 1:
        place = ir.add(place, ir.times(G, ir.Int(row * (2 if turns else 1))))
    return ir.add(place, ir.times(TURN, ir.Int(row))) if turns else place


def is_first_thread(mapped: MappedRows) -> tuple[ir.Expr, ...]:
    """Return the predicate of one of the threads that share a row, if several do."""
    first = (ir.equal(T, 0),) if mapped.threads > 1 else ()
    return (*first, ir.equal(TILE, 0)) if mapped.mapping.shares_rows else first


def finished(accumulator: ir.Expr, fold: Accumulation) -> ir.Expr:
    """Return the result of a reduction from its accumulator, in its register type."""
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
