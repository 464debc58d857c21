"""The row template: reductions of one tensor shape, and everything that is computed around them.

The iteration space is rows x columns. A kernel works in stages. Each stage passes over the columns
of a row and leaves folded values, which later stages, and the stores, read at the row where they
were made; that this is the only place where they are wanted is what makes a segment legal, and it
is checked, not matched by patterns.

`lanes` says what the V lanes of a vector are: consecutive columns (some threads share a row) or
consecutive rows (a thread owns its rows and walks down the columns).

Totals need more than a block sees: reductions along the rows, or along columns that several blocks
share because the rows are few. Each block leaves its part of them in a workspace; after a grid
barrier all blocks add the parts up, in a fixed order, and store what is computed from them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from thunder_fuser.analysis.access import Access, Lanes, Window, plan_accesses, plan_store
from thunder_fuser.analysis.space import (
    Arrangement,
    LaneAxis,
    Point,
    PulledFinish,
    PulledRows,
    Sharing,
    alternatives,
    arrangements,
    pull_rows,
)
from thunder_fuser.analysis.value import Conjunction, Folded, Value, ValueGraph, reachable
from thunder_fuser.device import DeviceInfo
from thunder_fuser.errors import Refusal
from thunder_fuser.ir.domain import Layout
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import Expr, ReductionOp, TensorView, Val
from thunder_fuser.ir.symint import Form
from thunder_fuser.schedule.crew import HOST_PARTS, Crew, choose_crew
from thunder_fuser.schedule.store import Store

HELD_REGISTERS = 96
"""32-bit registers of a thread that may hold its part of a row between stages."""
LONGEST_CHAIN = 128
"""Values that go into one accumulator one after the other. Rounding errors grow with the length of
a chain, so that longer ones are folded in parts, and the parts' results then.
"""
_BARRIER_SECONDS = {"cuda": 4e-6, "host": 2e-5}
"""What a kernel pays for a grid barrier and for adding up parts."""
_SECTOR = 32
"""Bytes that an access moves at least."""
_JUMP = 128
"""Bytes that an access costs at least where a core jumps from row to row: nothing is prefetched."""


@dataclass(frozen=True, slots=True)
class Fold:
    """One reduction: `value` at every column of a row, folded with `op` in stage `stage`."""

    tensor: TensorView
    op: str
    accumulate: DataType
    value: Value
    stage: int


@dataclass(frozen=True, slots=True)
class Total:
    """One reduction that needs all blocks: `value` at every point that a block visits.

    at      where it has a result: at each column, at each row, or once
    points  results, rounded up to whole vectors of columns
    offset  bytes before its parts in the workspace, which are [parts, points]
    """

    tensor: TensorView
    op: str
    accumulate: DataType
    value: Value
    at: Point
    points: int
    offset: int


@dataclass(frozen=True, slots=True)
class Finish:
    """Stores that read totals, at each of `points` points: one thread does one point."""

    at: Point
    points: int
    graph: ValueGraph
    accesses: tuple[Access, ...]
    lanes: Lanes
    stores: tuple[Store, ...]


@dataclass(frozen=True, slots=True)
class RowSchedule:
    """A row kernel.

    wide, narrow    stores at every point, and at every row
    inside          holds for columns that exist, where the last vector has lanes too many
    crew            how threads and blocks divide the work
    is_held         a thread keeps its part of the row in registers instead of reading it in each
                    stage
    """

    rows: int
    columns: int
    lane_axis: LaneAxis
    sharing: Sharing
    folds: tuple[Fold, ...]
    totals: tuple[Total, ...]
    wide: tuple[Store, ...]
    narrow: tuple[Store, ...]
    finishes: tuple[Finish, ...]
    graph: ValueGraph
    accesses: tuple[Access, ...]
    lanes: Lanes
    inside: Conjunction
    crew: Crew
    is_held: bool

    @property
    def graphs(self) -> tuple[ValueGraph, ...]:
        return (self.graph, *(f.graph for f in self.finishes))

    @property
    def stores(self) -> tuple[Store, ...]:
        return (*self.wide, *self.narrow, *(s for f in self.finishes for s in f.stores))

    @property
    def reductions(self) -> tuple[Fold | Total, ...]:
        return (*self.folds, *self.totals)

    @property
    def threads(self) -> int:
        """Threads that share a row."""
        return self.crew.threads

    @property
    def rows_per_block(self) -> int:
        return self.crew.rows

    @property
    def block_threads(self) -> int:
        return self.crew.threads * self.crew.rows

    @property
    def blocks(self) -> int:
        return self.crew.blocks

    @property
    def steps(self) -> int:
        """Vectors of a row that one thread works on."""
        if self.lane_axis == "rows":
            return self.columns
        return -(-self.lanes.vectors // (self.crew.threads * self.crew.tiles * self.crew.splits))

    @property
    def is_folded_in_parts(self) -> bool:
        return self.steps > LONGEST_CHAIN and not self.is_held

    @property
    def rows_per_thread(self) -> int:
        """Rows that go into one accumulator of a total."""
        return -(-self.rows // (self.crew.parts * self.crew.rows))

    @property
    def stages(self) -> int:
        return 1 + max((f.stage for f in self.folds), default=0)

    @property
    def workspace_bytes(self) -> int:
        """Global memory for the parts of totals; each byte is written once and read once."""
        return sum(total_bytes(t, self.crew.parts) for t in self.totals)

    def __str__(self) -> str:
        held = "held in registers" if self.is_held else "read in every stage"
        text = (
            f"row: {self.rows} rows x {self.columns} columns, lanes are {self.lane_axis}, vector "
            f"{self.lanes.vector}, {self.threads} threads a row, {self.rows_per_block} rows a "
            f"block, {self.stages} stages, {held}"
        )
        if not self.totals:
            return text
        return (
            f"{text}; blocks share {self.sharing}: {len(self.totals)} totals in {self.crew.parts} "
            f"parts, {self.workspace_bytes:,} B of workspace"
        )


def total_bytes(total: Total, parts: int) -> int:
    """Bytes of a total's parts, in whole 16-byte vectors."""
    return -(-parts * total.points * max(total.accumulate.itemsize, 4) // 16) * 16


def schedule_rows(
    outputs: Sequence[TensorView],
    folds: Sequence[ReductionOp],
    definitions: Mapping[Val, Expr],
    memory: Mapping[TensorView, Layout],
    destinations: Mapping[TensorView, Layout],
    device: DeviceInfo,
) -> RowSchedule | Refusal:
    """A schedule for `outputs` and the reductions that they need, in SSA order, or why
    there is none.
    """
    candidates = [
        _Candidate(arrangement, axis, outputs, folds, definitions, memory, destinations, device)
        for arrangement in (*arrangements(folds, memory), *alternatives(folds, memory))
        for axis in _axes(arrangement)
    ]
    made = [candidate.schedule() for candidate in candidates]
    found = [schedule for schedule in made if isinstance(schedule, RowSchedule)]
    if not found:
        return next(refusal for refusal in made if isinstance(refusal, Refusal))
    return min(found, key=lambda schedule: _seconds(schedule, device))


def _axes(arrangement: Arrangement) -> tuple[LaneAxis, ...]:
    """Totals of columns live in the registers of the threads that own the columns."""
    return ("columns", "rows") if arrangement.sharing == "nothing" else ("columns",)


@dataclass(frozen=True, slots=True)
class _Candidate:
    """One way to schedule a segment."""

    arrangement: Arrangement
    axis: LaneAxis
    outputs: Sequence[TensorView]
    folds: Sequence[ReductionOp]
    definitions: Mapping[Val, Expr]
    memory: Mapping[TensorView, Layout]
    destinations: Mapping[TensorView, Layout]
    device: DeviceInfo

    def schedule(self) -> RowSchedule | Refusal:
        space = self.arrangement.space
        vector = self._lanes_of_vector()
        pulled = pull_rows(
            self.axis,
            vector,
            self.arrangement,
            self.outputs,
            self.folds,
            self.definitions,
            self.memory,
            self.destinations,
        )
        if isinstance(pulled, Refusal):
            return pulled
        extent = space.columns if self.axis == "columns" else space.rows
        lanes = Lanes(pulled.lane_index, -(-max(extent, 1) // vector) * vector, 0, vector)
        accesses = plan_accesses(pulled.graph, lanes, self._alignment)
        crew = choose_crew(
            self.axis,
            self.arrangement.sharing,
            lanes.vectors,
            space.rows,
            bool(pulled.folds),
            self.device,
        )
        if crew is None:
            return Refusal("sharing", "one block has all there is to do")
        return RowSchedule(
            space.rows,
            space.columns,
            self.axis,
            self.arrangement.sharing,
            tuple(_folds(pulled)),
            tuple(_totals(pulled, lanes, crew.parts)),
            tuple(self._stores(pulled.wide, lanes, plain=not pulled.inside)),
            tuple(
                self._stores(pulled.narrow, lanes, plain=not pulled.inside and self.axis == "rows")
            ),
            tuple(self._finish(finish) for finish in pulled.finishes),
            pulled.graph,
            accesses,
            lanes,
            pulled.inside,
            crew,
            self.axis == "columns"
            and self.arrangement.sharing != "columns"
            and _fits_registers(accesses, lanes, crew.threads * crew.tiles),
        )

    @property
    def _alignment(self) -> dict[int, int]:
        return {t.id: layout.alignment for t, layout in self.memory.items()}

    def _lanes_of_vector(self) -> int:
        """As many as fill an access, unless there are fewer points."""
        space = self.arrangement.space
        wide = [t for t in self.outputs if t.sizes == space.sizes]
        itemsizes = [t.dtype.itemsize for t in (*wide, *self._wide_sources())]
        itemsizes = itemsizes or [self.folds[0].input.dtype.itemsize]
        extent = space.columns if self.axis == "columns" else space.rows
        widest = self.device.vector_bytes // min(itemsizes)
        vector = 1
        while vector * 2 <= widest and vector * 2 <= extent:
            vector *= 2
        whole = vector
        while extent % whole:
            whole //= 2
        # An extent that only a much narrower vector divides gets a last vector with lanes too many.
        return whole if 2 * whole >= vector else vector

    def _wide_sources(self) -> Iterator[TensorView]:
        """Tensors in memory that reductions read, which have a value for most points."""
        points = max(self.arrangement.space.rows * self.arrangement.space.columns, 1)
        seen: set[Val] = set()
        stack: list[Val] = [fold.input for fold in self.folds]
        while stack:
            value = stack.pop()
            if value in seen or not isinstance(value, TensorView):
                continue
            seen.add(value)
            if value in self.memory:
                if 2 * value.numel > points:
                    yield value
            elif value in self.definitions:
                stack.extend(self.definitions[value].inputs)

    def _stores(
        self, stores: Sequence[tuple[TensorView, Value, Form]], lanes: Lanes, plain: bool
    ) -> Iterator[Store]:
        """`plain`: every lane of every vector is stored."""
        for tensor, value, address in stores:
            windows: tuple[Window, ...] = ()
            if plain:
                aligned = self.destinations[tensor].alignment
                windows = plan_store(address, lanes, tensor.dtype.itemsize, aligned)
            yield Store(tensor, value, address, windows)

    def _finish(self, finish: PulledFinish) -> Finish:
        lanes = Lanes(finish.index, max(finish.points, 1), 0, 1)
        return Finish(
            finish.at,
            finish.points,
            finish.graph,
            plan_accesses(finish.graph, lanes, self._alignment),
            lanes,
            tuple(self._stores(finish.stores, lanes, plain=True)),
        )


def _folds(pulled: PulledRows) -> Iterator[Fold]:
    stages = _stages(pulled.folds)
    for fold, value in pulled.folds:
        yield Fold(fold.output, fold.op, fold.accumulate, value, stages[fold.output])


def _totals(pulled: PulledRows, lanes: Lanes, parts: int) -> Iterator[Total]:
    offset = 0
    for found in pulled.totals:
        fold = found.fold
        points = {
            "column": lanes.vectors * lanes.vector,
            "row": fold.output.numel,
            "one": 1,
        }[found.at]
        total = Total(fold.output, fold.op, fold.accumulate, found.value, found.at, points, offset)
        yield total
        offset += total_bytes(total, parts)


def _fits_registers(accesses: Sequence[Access], lanes: Lanes, threads: int) -> bool:
    steps = -(-lanes.vectors // threads)
    held = sum(a.loads[0].dtype.itemsize * lanes.vector for a in accesses if not a.is_uniform)
    return steps <= 8 and steps * held <= 4 * HELD_REGISTERS


def _stages(made: Sequence[tuple[ReductionOp, Value]]) -> dict[TensorView, int]:
    """A fold comes one stage after the latest fold that its elements are computed from."""
    stages: dict[TensorView, int] = {}
    for fold, value in made:
        needed = [n.tensor for n in reachable([value]) if isinstance(n, Folded)]
        stages[fold.output] = max((stages[t] + 1 for t in needed), default=0)
    return stages


def _seconds(schedule: RowSchedule, device: DeviceInfo) -> float:
    """Estimated time: bytes that accesses move over the bandwidth that the threads can use."""
    vectors = max(schedule.rows * schedule.columns, 1) / schedule.lanes.vector
    each = sum(_bytes_per_vector(schedule, device.kind == "host"))
    moved = vectors * each + 2 * schedule.workspace_bytes
    seconds = moved / (device.bandwidth * _share_of(schedule, device))
    return seconds + (_BARRIER_SECONDS[device.kind] if schedule.totals else 0.0)


def _bytes_per_vector(schedule: RowSchedule, is_host: bool) -> Iterator[int]:
    lanes = schedule.lanes
    least = _JUMP if is_host and schedule.lane_axis == "rows" else 0
    addresses = [(a.loads[0].address, a.loads[0].dtype) for a in schedule.accesses]
    addresses += [(store.address, store.tensor.dtype) for store in schedule.wide]
    for address, dtype in addresses:
        # Lanes that lie apart move a sector each.
        each = dtype.itemsize if lanes.are_neighbours(address) else _SECTOR
        yield max(lanes.vector * each, least)


def _share_of(schedule: RowSchedule, device: DeviceInfo) -> float:
    """The share of the device that the kernel keeps busy; a host core is busy with one block."""
    if device.kind == "host":
        # As many as there could be: results must not depend on how many there are.
        return min(1.0, schedule.blocks / HOST_PARTS)
    enough = device.sm_count * device.threads_per_sm / 2
    return min(1.0, schedule.blocks * schedule.block_threads / enough)
