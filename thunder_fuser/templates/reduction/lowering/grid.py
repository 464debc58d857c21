"""Lowering of grid reductions: column accumulators of a block, and the epilogue that combines the
partial results of all blocks (partial_results.py) after the grid barrier.

s<n> are the accumulators of the n-th grid reduction: one for each vector and lane of a thread where
it has a result at each column, else one. q<n> are those of a part of the rows, b<n> those of one
vector while they are in registers. Partial results are [parts, points] in the workspace W<n>.
"""

from __future__ import annotations

from collections.abc import Sequence

from thunder_fuser import kernel_ir as ir
from thunder_fuser.device import WARP_SIZE
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.kernel_ir import LoopKind, add, less, times
from thunder_fuser.lower import values
from thunder_fuser.lower.frame import Frame
from thunder_fuser.lower.index.index_arithmetic import IndexArithmetic, fits
from thunder_fuser.lower.scalar_graph import Folded, Value, forms
from thunder_fuser.lower.vectors.lane_loads import ONE, Copy, K, V
from thunder_fuser.lower.vectors.lanes_to_ir import LaneLowering
from thunder_fuser.templates.reduction.lowering import accumulators as lowered
from thunder_fuser.templates.reduction.lowering.accumulators import SMEM, TILE
from thunder_fuser.templates.reduction.lowering.partial_results import (
    each_step,
    place_of_part,
    vectors_of_part,
)
from thunder_fuser.templates.reduction.mapping.accumulations import GridEpilogue, GridReduction
from thunder_fuser.templates.reduction.mapping.mapped_rows import MappedRows
from thunder_fuser.templates.reduction.on_chip.shared_memory import parts_offset
from thunder_fuser.templates.reduction.schedule import ReductionSchedule

WORKSPACE = "workspace"
"""Kernel parameter of the memory for partial results of grid reductions."""
_C, _AT, _FIRST = ir.Var("c"), ir.Var("at"), ir.Var("first")
_INT = DataType.Int32
_PARTS_AHEAD = 8
"""Partial results of one point that a thread has in flight at a time (reduce.cuh)."""


def declared(mapped: MappedRows, name: str, totals: Sequence[int]) -> list[ir.Stmt]:
    """Declare the accumulators of some grid reductions and initialise them."""
    found: list[ir.Stmt] = []
    lanes = mapped.lanes.vector
    for n in totals:
        total = mapped.reductions.of_grid[n]
        if not total.is_of_columns:
            one = lowered.reducer(total)
            start = ir.InitAccumulator(one, is_zero=True)
            found.append(ir.Let(f"{name}{n}", one, start, variable=True))
            continue
        place = ir.Element(ir.Var(f"{name}{n}"), K)
        each = lowered.started(place, total, lanes, is_zero=True)
        found += [_array(mapped, total, name, n), each_step(mapped, each)]
    return found


def _array(mapped: MappedRows, total: GridReduction, name: str, n: int) -> ir.Stmt:
    """Declare column accumulators: registers, or the part of the workspace that they become."""
    lanes, mapping = mapped.lanes.vector, mapped.mapping
    if not mapping.is_alone:
        return lowered.declared(f"{name}{n}", total, lanes, mapped.steps)
    part: ir.Expr = ir.IntCast(place_of_part(mapped, n), DataType.Int)
    if name == "q":
        part = add(part, ir.Int(total.parts))
    place = add(ir.Var(f"W{n}"), vectors_of_part(mapped, total, part))
    if mapping.column_tiles > 1:
        place = add(place, times(TILE, ir.Int(mapped.steps * (1 if total.is_struct else lanes))))
    row = None if total.is_struct else lanes
    return ir.LetPointer(f"{name}{n}", lowered.lanes_type(total, lanes), place, row)


def _place_of_column(schedule: ReductionSchedule, column: ir.Expr) -> ir.Expr:
    """Return the index of a column's accumulator among those of all columns."""
    if not schedule.paired:
        return column
    lanes = schedule.lanes.vector
    lane = ir.UnsignedBinary("%", column, ir.Int(lanes))
    is_odd = ir.UnsignedBinary("%", column, ir.Int(2))
    place = add(ir.UnsignedBinary("/", lane, ir.Int(2)), times(is_odd, ir.Int(lanes // 2)))
    return add(ir.Binary("-", column, lane), place)


def joined(mapped: MappedRows) -> list[ir.Stmt]:
    """Combine the accumulators of a part of the rows with those of the rows before it."""
    found: list[ir.Stmt] = []
    lanes = mapped.lanes.vector
    for n, total in enumerate(mapped.reductions.of_grid):
        sum_, part = ir.Var(f"s{n}"), ir.Var(f"q{n}")
        if not total.is_of_columns:
            found.append(ir.Assign(sum_, lowered.combination(total, sum_, part)))
            continue
        places = ir.Element(sum_, K), ir.Element(part, K)
        both = lowered.joined(*places, total, lanes, LoopKind.VECTOR)
        found.append(each_step(mapped, both))
    return found


def taken_up(mapped: MappedRows, name: str) -> list[ir.Stmt]:
    """Bring accumulators of the k-th vector of columns into registers. Scalars begin again, so that
    no chain of roundings is longer than a block of rows; structs go on.
    """
    lanes = mapped.lanes.vector
    found: list[ir.Stmt] = []
    for n, total in enumerate(mapped.reductions.of_grid):
        place = ir.Var(f"b{n}")
        found.append(lowered.declared(f"b{n}", total, lanes))
        if total.is_struct:
            found.append(_move(total, place, ir.Element(ir.Var(f"{name}{n}"), K), lanes))
        else:
            found.append(lowered.started(place, total, lanes))
    return found


def put_back(mapped: MappedRows, name: str) -> list[ir.Stmt]:
    """Write accumulators of the k-th vector of columns back."""
    lanes = mapped.lanes.vector
    found: list[ir.Stmt] = []
    for n, total in enumerate(mapped.reductions.of_grid):
        place = ir.Element(ir.Var(f"{name}{n}"), K)
        if total.is_struct:
            found.append(_move(total, place, ir.Var(f"b{n}"), lanes))
        else:
            vector = LoopKind.VECTOR
            found.append(lowered.joined(place, ir.Var(f"b{n}"), total, lanes, vector))
    return found


def _move(total: GridReduction, to: ir.Expr, place: ir.Expr, lanes: int) -> ir.Stmt:
    """Copy accumulators of a vector from one place to another."""
    value = lowered.get(place, total, lanes)
    return lowered.for_lanes(lowered.put(to, total, lanes, value), total, lanes, LoopKind.VECTOR)


def workspaces(mapped: MappedRows) -> list[ir.Stmt]:
    """Declare pointers to the partial results of each grid reduction."""
    found: list[ir.Stmt] = []
    for n, total in enumerate(mapped.reductions.of_grid):
        type_: ir.Type = lowered.reducer(total)
        if total.is_of_columns and total.is_struct:
            type_ = lowered.lanes_type(total, mapped.lanes.vector)
        place = ir.Reinterpret(type_, add(ir.Var(WORKSPACE), ir.Int(total.offset)))
        found.append(ir.LetPointer(f"W{n}", type_, place))
    return found


def epilogue_fits_int32(epilogue: GridEpilogue) -> bool:
    """True if every index of the epilogue fits into an Int32."""
    mentioned = [epilogue.lanes(f) for node in epilogue.graph for f in forms(node)]
    mentioned += [epilogue.lanes(s.address) for s in epilogue.stores]
    return all(fits(form) for form in mentioned)


class EpilogueLowering(LaneLowering):
    """Lowers the epilogue at one point of one thread, after the grid barrier."""

    def __init__(
        self,
        schedule: ReductionSchedule,
        epilogue: GridEpilogue,
        frame: Frame,
    ) -> None:
        super().__init__(epilogue.graph, epilogue.accesses, epilogue.lanes, epilogue.stores, frame)
        self._names = {"u": _C}
        self.schedule = schedule
        self.epilogue = epilogue
        self._totals = {t.tensor: n for n, t in enumerate(schedule.reductions.of_grid)}

    def body(self, before: int) -> list[ir.Stmt]:
        """Loop over tiles of points, a block each. The first block that works is the one after
        `before` tiles of other epilogues.
        """
        head = self._section("epilogue of grid reductions", self.epilogue.stores)
        blocks = self.schedule.blocks
        if before % blocks == 0:
            return [head, self._points(ir.LaunchIndex.BLOCK)]
        behind = add(ir.LaunchIndex.BLOCK, ir.Int(blocks - before % blocks))
        first = ir.Let(_FIRST.name, _INT, ir.UnsignedBinary("%", behind, ir.Int(blocks)))
        return [head, ir.Scope((first, self._points(_FIRST)))]

    @property
    def tiles(self) -> int:
        """Number of tiles of points."""
        return self._tiles(self._width)

    def _tiles(self, width: int) -> int:
        return -(-self.epilogue.points // width)

    def _points(self, block: ir.Expr) -> ir.Stmt:
        schedule, points = self.schedule, self.epilogue.points
        width, tiles = self._width, self.tiles
        alone = tiles <= schedule.blocks
        own: ir.Expr = ir.IntCast(block, self._index) if alone else TILE
        own = times(own, ir.Int(width))
        if width > 1:
            own = add(own, ir.UnsignedBinary("%", ir.LaunchIndex.THREAD, ir.Int(width)))
        mine: list[ir.Expr] = []
        if schedule.block_threads > width:
            mine.append(less(ir.LaunchIndex.THREAD, width))
        body: list[ir.Stmt] = [ir.Let("c", self._index, own)]
        if points % width:
            last = ir.Int(points - 1)
            body = [ir.Let("at", self._index, own), ir.Let("c", self._index, ir.Min(_AT, last))]
            mine.append(less(_AT, points))
        body += self._summed()
        stores = tuple(self._stored_point(self._arithmetic()))
        body.append(ir.If(tuple(mine), stores) if mine else ir.Scope(stores))
        if alone:
            return ir.If((less(block, tiles),), tuple(body))
        return ir.Loop(
            "tile",
            ir.Int(tiles),
            tuple(body),
            begin=block,
            step=ir.LaunchIndex.BLOCKS,
            type=self._index,
        )

    @property
    def _width(self) -> int:
        """Points of a tile: as few as make whole cache lines, so that many threads share the
        partial results of one; more where these are few and blocks would have more than a tile
        each.
        """
        threads, blocks = self.schedule.block_threads, self.schedule.blocks
        most = max(self._parts_of_point(total) for total, _ in self._wanted())
        width = min(WARP_SIZE, threads)

        def at_once(width: int) -> bool:
            return threads // width * _PARTS_AHEAD >= most

        while width < threads and at_once(2 * width) and self._tiles(width) > blocks:
            width *= 2
        return width

    def _parts_of_point(self, total: GridReduction) -> int:
        """Return how many partial results are combined at a point."""
        return self.schedule.mapping.parts_of_group if total.at == "group" else total.parts

    def _wanted(self) -> Sequence[tuple[GridReduction, int]]:
        read = {n.tensor for n in self._live if isinstance(n, Folded)}
        return [(t, n) for n, t in enumerate(self.schedule.reductions.of_grid) if t.tensor in read]

    def _summed(self) -> list[ir.Stmt]:
        """Combine the partial results of each grid reduction; at the same points, at once."""
        sums: list[ir.Let] = []
        results: list[ir.Stmt] = []
        wanted = self._wanted()
        for total, n in wanted:
            one, dtype = lowered.reducer(total), values.register_dtype(total.tensor.dtype)
            both: ir.Expr = self._sum_of_parts(total, n)
            if len(wanted) > 1:
                sums.append(ir.Let(f"m{n}", one, both))
                both = ir.Var(f"m{n}")
            results.append(ir.Let(f"g{n}", dtype, lowered.finished(both, total)))
        return [*([ir.GroupedReduce(tuple(sums))] if sums else []), *results]

    def _sum_of_parts(self, total: GridReduction, n: int) -> ir.ReducePartials:
        schedule = self.schedule
        one = lowered.reducer(total)
        slots = ir.Reinterpret(one, add(SMEM, ir.Int(parts_offset(schedule, n))))
        parts: ir.Expr = ir.Var(f"W{n}")
        point: ir.Expr = _C
        count = self._parts_of_point(total)
        if total.at == "group":
            # Partial results of a row group are contiguous; its points are the columns.
            columns = ir.Int(schedule.columns)
            group = ir.IntCast(ir.Binary("/", _C, columns), DataType.Int)
            parts = add(parts, vectors_of_part(schedule, total, times(group, ir.Int(count))))
            point = ir.Binary("%", _C, columns)
        if total.is_of_columns:
            point = _place_of_column(schedule, point)
        threads, stride = schedule.block_threads, ir.Int(total.points)
        return ir.ReducePartials(one, threads, self._width, count, parts, stride, point, slots)

    def _stored_point(self, indices: IndexArithmetic) -> list[ir.Stmt]:
        found: list[ir.Stmt] = []
        done: set[Value] = set()
        for k, access in enumerate(self.accesses):
            if self._is_live(access):
                found += [self._array(k), *self._loads([k], ONE, indices, done)]
        inside: list[ir.Stmt] = []
        for node in self._live_nodes:
            if node not in done:
                inside += self._defined(node, ONE, indices)
        after: list[ir.Stmt] = []
        for n, store in enumerate(self.epilogue.stores):
            found.append(ir.Registers(f"y{n}", store.tensor.dtype, (1,)))
            inside.append(ir.Assign(ir.Element(ir.Var(f"y{n}"), V), self._stored(store, ONE)))
            after += self._store(n, store, indices)
        return [*found, ir.Let("v", _INT, ir.Int(0)), *inside, *after]

    def _name(self, value: Value, copy: Copy) -> ir.Expr:
        if isinstance(value, Folded):
            return ir.Var(f"g{self._totals[value.tensor]}")
        return super()._name(value, copy)
