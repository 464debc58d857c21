"""Lowering of a scan kernel: a loop over the tiles of a row, in which each scan is loads, elements
and their prefix reductions, followed by the stores.

Names beyond those of `lanes_to_ir`: r is the row, t the thread's number within it, g the row's
number within the block, first the first vector of a tile; e<n> are the elements of the n-th scan,
which become its results, b<n> is the prefix of the threads before this one, a<n> that of the tiles
before this one.
"""

from __future__ import annotations

from collections.abc import Sequence

from thunder_fuser import kernel_ir as ir
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.tables import reductions
from thunder_fuser.kernel_ir import LoopKind, Var, add, equal, times
from thunder_fuser.lower import values
from thunder_fuser.lower.frame import Frame
from thunder_fuser.lower.index.index_arithmetic import IndexArithmetic, fits
from thunder_fuser.lower.scalar_graph import Folded, Load, Value, forms, reachable
from thunder_fuser.lower.store import Store
from thunder_fuser.lower.vectors.lane_loads import ONE, Copy, V
from thunder_fuser.lower.vectors.lanes_to_ir import LaneLowering
from thunder_fuser.templates.scan.schedule import RowScan, ScanSchedule, schedule_scan
from thunder_fuser.templates.template import Lowered, Template

_T, _G, _R, _U, _OWN, _AT, _FIRST, _TURN, _SMEM = (
    Var(name) for name in ("t", "g", "r", "u", "own", "at", "first", "turn", "smem")
)
_INT = DataType.Int32


def fits_int32(schedule: ScanSchedule) -> bool:
    """True if every index of the kernel, and all steps towards it, fit into an Int32."""
    mentioned = [schedule.lanes(f) for node in schedule.graph for f in forms(node)]
    mentioned += [schedule.lanes(s.address) for s in schedule.stores]
    rows = schedule.blocks * schedule.rows_per_block
    points = rows * schedule.tiles * schedule.threads * schedule.lanes.vector
    return points < 2**31 and all(fits(form) for form in mentioned)


class ScanLowering(LaneLowering):
    """Lowers the body of a scan kernel."""

    def __init__(self, schedule: ScanSchedule, frame: Frame) -> None:
        scanned = [s.value for s in schedule.scans]
        stores = schedule.stores
        super().__init__(schedule.graph, schedule.accesses, schedule.lanes, stores, frame, scanned)
        self.schedule = schedule
        self._scans = {scan.tensor: n for n, scan in enumerate(schedule.scans)}
        self._read: set[int] = set()

    def body(self) -> list[ir.Stmt]:
        schedule = self.schedule
        found: list[ir.Stmt] = [ir.Shared("smem")] if schedule.shared_bytes else []
        found += self._row()
        for n, scan in enumerate(schedule.scans):
            one = _reducer(scan)
            found.append(ir.Let(f"a{n}", one, ir.InitAccumulator(one, is_zero=True), variable=True))
        if schedule.tiles == 1:
            return [*found, *self._vector_of_tile(None), *self._tile()]
        if schedule.takes_turns:
            found.append(ir.Let("turn", _INT, ir.Int(1), variable=True))
        turn = [ir.Flip("turn")] if schedule.takes_turns else []
        alone = schedule.threads == 1
        inside = [*turn, *([] if alone else self._vector_of_tile(_FIRST)), *self._tile()]
        axis, end = "u" if alone else "first", ir.Int(schedule.lanes.vectors)
        tiles = ir.Loop(axis, end, tuple(inside), step=schedule.threads, type=self._index)
        return [*found, tiles]

    # ---- row and vector of a thread

    def _row(self) -> list[ir.Stmt]:
        """Declare the row of a thread; threads beyond the last compute that one."""
        schedule, thread = self.schedule, ir.LaunchIndex.THREAD
        threads, owned = schedule.threads, schedule.rows_per_block
        found: list[ir.Stmt] = []
        if threads > 1:
            number = ir.UnsignedBinary("%", thread, ir.Int(threads)) if owned > 1 else thread
            found.append(ir.Let("t", _INT, number))
        row: ir.Expr = ir.IntCast(ir.LaunchIndex.BLOCK, self._index)
        if owned > 1:
            group = ir.UnsignedBinary("/", thread, ir.Int(threads)) if threads > 1 else thread
            found.append(ir.Let("g", _INT, group))
            row = add(times(row, ir.Int(owned)), _G)
        if not self._has_spare_rows:
            return [*found, self._let("r", row)]
        last = ir.Min(_OWN, ir.Int(schedule.rows - 1))
        return [*found, self._let("own", row), self._let("r", last)]

    def _vector_of_tile(self, first: ir.Expr | None) -> list[ir.Stmt]:
        """Declare the vector of a thread; the last one for threads beyond the row's end, which come
        after all others. `first`: that of the tile, if there are several.
        """
        own = _T if self.schedule.threads > 1 else ir.Int(0)
        number = own if first is None else add(first, own)
        if not self._has_spare_vectors:
            return [self._let("u", number)]
        last = ir.Min(_AT, ir.Int(self.schedule.lanes.vectors - 1))
        return [self._let("at", number), self._let("u", last)]

    def _let(self, name: str, value: ir.Expr) -> ir.Let:
        return ir.Let(name, self._index, value)

    @property
    def _has_spare_rows(self) -> bool:
        return self.schedule.rows % self.schedule.rows_per_block != 0

    @property
    def _has_spare_vectors(self) -> bool:
        return self.schedule.lanes.vectors % self.schedule.threads != 0

    # ---- a tile

    def _tile(self) -> list[ir.Stmt]:
        """Lower the vector of a thread."""
        found: list[ir.Stmt] = []
        indices, done = self._arithmetic(), set[Value]()
        for n in range(len(self.schedule.scans)):
            found += self._scan(n, indices, done)
        return [*found, *self._stores(indices, done)]

    def _scan(self, n: int, indices: IndexArithmetic, done: set[Value]) -> list[ir.Stmt]:
        """Lower the n-th scan of a tile, from its elements to its results."""
        scan, lanes = self.schedule.scans[n], self.lanes.vector
        one, elements = _reducer(scan), Var(f"e{n}")
        value = values.operand(scan.value, scan.accumulate, lambda node: self._name(node, ONE))
        element = ir.Assign(ir.Element(elements, V), ir.AsElement(one, value))
        found: list[ir.Stmt] = [
            self._frame.section(f"scan {n}: {scan.op}", scan.tensor),
            ir.Registers(f"e{n}", one.element, (lanes,)),
            *self._lane_section([scan.value], [element], indices, done),
        ]
        if lanes > 1:
            before = ir.Element(elements, ir.Binary("-", V, ir.Int(1)))
            both = ir.Combine(one, before, ir.Element(elements, V))
            step = ir.Assign(ir.Element(elements, V), both)
            found.append(ir.Loop("v", ir.Int(lanes), (step,), LoopKind.UNROLLED, begin=ir.Int(1)))
        threads = self.schedule.threads
        thread = _T if threads > 1 else ir.Int(0)
        whole, slots = ir.Element(elements, ir.Int(lanes - 1)), self._slots(n)
        found.append(ir.BlockScan(f"b{n}", one, threads, whole, f"a{n}", slots, thread))
        both = ir.Combine(one, Var(f"b{n}"), ir.Element(elements, V))
        result = ir.Assign(ir.Element(elements, V), both)
        return [*found, self._lane_loop([result], LoopKind.VECTOR)]

    def _slots(self, n: int) -> ir.Expr | None:
        """Return the shared memory in which the warps of a row exchange the n-th scan."""
        schedule = self.schedule
        if not schedule.slot_bytes:
            return None
        place: ir.Expr = add(_SMEM, ir.Int(schedule.slot_offset(n))) if n else _SMEM
        row = schedule.slot_bytes
        if schedule.rows_per_block > 1:
            place = add(place, times(_G, ir.Int(row * (2 if schedule.takes_turns else 1))))
        return add(place, times(_TURN, ir.Int(row))) if schedule.takes_turns else place

    def _lane_section(
        self,
        roots: Sequence[Value],
        lane: Sequence[ir.Stmt],
        indices: IndexArithmetic,
        done: set[Value],
    ) -> list[ir.Stmt]:
        """Lower the loads that no section before has done, and `lane` with its operands."""
        accesses = {self._access[node] for node in reachable(roots) if isinstance(node, Load)}
        new = sorted(accesses - self._read)
        self._read.update(new)
        found: list[ir.Stmt] = [self._array(k) for k in new]
        found += self._loads(new, ONE, indices, done)
        computed = reachable(roots, loaded=True)
        nodes = [node for node in self._live_nodes if node in computed]
        found += self._definitions(nodes, ONE, indices, done)
        inside: list[ir.Stmt] = []
        of_lane = indices.child()
        for node in nodes:
            if node.order in self._varying:
                inside += self._defined(node, ONE, of_lane)
        return [*found, self._lane_loop([*inside, *lane], LoopKind.VECTOR)]

    def _define(self, node: Value, copy: Copy, indices: IndexArithmetic) -> ir.Stmt | None:
        if not isinstance(node, Folded):
            return super()._define(node, copy, indices)
        n = self._scans[node.tensor]
        scan = self.schedule.scans[n]
        lane = V if node.order in self._varying else ir.Int(0)
        result = ir.Element(Var(f"e{n}"), lane)
        folded = reductions.lookup(scan.fold).folded_dtype(scan.accumulate)
        held = values.register_dtype(node.dtype)
        found = values.round_to(values.convert(result, folded, held), node.dtype)
        return ir.Let(f"t{node.order}", held, found)

    # ---- stores

    def _stores(self, indices: IndexArithmetic, done: set[Value]) -> list[ir.Stmt]:
        stores = self.schedule.stores
        found: list[ir.Stmt] = [self._section("results", stores)]
        lane: list[ir.Stmt] = []
        for n, store in enumerate(stores):
            found.append(ir.Registers(f"y{n}", store.tensor.dtype, (self.lanes.vector,)))
            lane.append(ir.Assign(ir.Element(Var(f"y{n}"), V), self._stored(store, ONE)))
        found += self._lane_section([store.value for store in stores], lane, indices, done)
        inner = indices.child()
        ends = [s for n, store in enumerate(stores) for s in self._guarded(n, store, inner)]
        tests = [equal(_OWN, _R)] if self._has_spare_rows else []
        tests += [equal(_AT, _U)] if self._has_spare_vectors else []
        return [*found, ir.If(tuple(tests), tuple(ends))] if tests else [*found, *ends]

    def _guarded(self, n: int, store: Store, indices: IndexArithmetic) -> list[ir.Stmt]:
        """Store the lanes that exist."""
        if not self.schedule.inside:
            return self._store(n, store, indices)
        inner = indices.child()
        address = inner.value(self.lanes(store.address), self._names)
        guard = self._disjunction((tuple(map(self.lanes, self.schedule.inside)),), inner)
        target = ir.Element(Var(self._target(store).name), address)
        one = ir.Assign(target, ir.Element(Var(f"y{n}"), V))
        body: list[ir.Stmt] = [*inner.taken(), ir.If((guard,), (one,))]
        return [*indices.taken(), self._lane_loop(body, LoopKind.UNROLLED)]


def _reducer(scan: RowScan) -> ir.Reducer:
    return ir.Reducer(scan.fold, scan.accumulate)


def _lower(schedule: ScanSchedule, frame: Frame) -> Lowered:
    return Lowered(
        tuple(ScanLowering(schedule, frame).body()),
        schedule.shared_bytes,
        reductions=tuple(scan.op for scan in schedule.scans),
    )


SCAN = Template("scan", "scan", schedule_scan, fits_int32, _lower)
