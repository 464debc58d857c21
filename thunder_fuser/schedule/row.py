"""The row template: reductions of one tensor shape, and everything that is computed around them.

The iteration space is rows x columns: rows are the dimensions that reductions keep, columns those
that they fold. A kernel works in stages. Each stage passes over the columns of a row and leaves
folded values, which later stages, and the stores, read at the row where they were made; that this
is the only place where they are wanted is what makes a segment legal, and it is checked, not
matched by patterns.

`lanes` says what the V lanes of a vector are: consecutive columns (an inner reduction: some threads
share a row) or consecutive rows (an outer one: a thread owns its rows and walks down the columns).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from thunder_fuser.analysis.access import Access, Window, plan_accesses, plan_store
from thunder_fuser.analysis.lanes import Lanes
from thunder_fuser.analysis.space import LaneAxis, Space, pull_rows, refuse_rows
from thunder_fuser.analysis.value import Conjunction, Folded, Value, ValueGraph, reachable
from thunder_fuser.device import DeviceInfo
from thunder_fuser.errors import Refusal
from thunder_fuser.ir.domain import Layout
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import Expr, ReductionOp, TensorView, Val
from thunder_fuser.ir.symint import Form
from thunder_fuser.schedule.store import Store

MAX_THREADS = 1024
WARP = 32
HELD_REGISTERS = 96
"""32-bit registers of a thread that may hold its part of a row between stages."""
VECTORS_PER_THREAD = 4
LONGEST_CHAIN = 128
"""Values that go into one accumulator one after the other. Rounding errors grow with the length of
a chain, so that longer ones are folded in parts, and the parts' results then.
"""


@dataclass(frozen=True, slots=True)
class Fold:
    """One reduction: `value` at every column of a row, folded with `op` in stage `stage`."""

    tensor: TensorView
    op: str
    accumulate: DataType
    value: Value
    stage: int


@dataclass(frozen=True, slots=True)
class RowSchedule:
    """A row kernel.

    wide, narrow    stores at every point, and at every row
    inside          holds for columns that exist, where the last vector has lanes too many
    threads         that share a row (a power of two); 1 where lanes are rows
    rows_per_block  rows that a block works on (vectors of rows where lanes are rows)
    is_held         a thread keeps its part of the row in registers instead of reading it in each
                    stage
    """

    rows: int
    columns: int
    lane_axis: LaneAxis
    folds: tuple[Fold, ...]
    wide: tuple[Store, ...]
    narrow: tuple[Store, ...]
    graph: ValueGraph
    accesses: tuple[Access, ...]
    lanes: Lanes
    inside: Conjunction
    threads: int
    rows_per_block: int
    is_held: bool

    @property
    def graphs(self) -> tuple[ValueGraph, ...]:
        return (self.graph,)

    @property
    def stores(self) -> tuple[Store, ...]:
        return (*self.wide, *self.narrow)

    @property
    def block_threads(self) -> int:
        return self.threads * self.rows_per_block

    @property
    def blocks(self) -> int:
        owned = self.rows_per_block
        if self.lane_axis == "rows":
            return -(-self.lanes.vectors // owned)
        return -(-self.rows // owned)

    @property
    def steps(self) -> int:
        """Vectors of a row that one thread works on."""
        if self.lane_axis == "rows":
            return self.columns
        return -(-self.lanes.vectors // self.threads)

    @property
    def is_folded_in_parts(self) -> bool:
        return self.steps > LONGEST_CHAIN and not self.is_held

    @property
    def stages(self) -> int:
        return 1 + max(f.stage for f in self.folds)

    def __str__(self) -> str:
        held = "held in registers" if self.is_held else "read in every stage"
        return (
            f"row: {self.rows} rows x {self.columns} columns, lanes are {self.lane_axis}, vector "
            f"{self.lanes.vector}, {self.threads} threads a row, {self.rows_per_block} rows a "
            f"block, {self.stages} stages, {held}"
        )


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
    refused = refuse_rows(outputs, folds, definitions, memory)
    if refused is not None:
        return refused
    space = Space.of(folds[0], memory)
    candidates = [
        _schedule(axis, space, outputs, folds, definitions, memory, destinations, device)
        for axis in ("columns", "rows")
    ]
    found = [c for c in candidates if isinstance(c, RowSchedule)]
    if not found:
        return candidates[0]
    return min(found, key=lambda s: _instructions_per_point(s) / _share_of(s, device))


def _schedule(
    axis: LaneAxis,
    space: Space,
    outputs: Sequence[TensorView],
    folds: Sequence[ReductionOp],
    definitions: Mapping[Val, Expr],
    memory: Mapping[TensorView, Layout],
    destinations: Mapping[TensorView, Layout],
    device: DeviceInfo,
) -> RowSchedule | Refusal:
    extent = space.columns if axis == "columns" else space.rows
    itemsizes = [t.dtype.itemsize for t in outputs if t.sizes == space.sizes]
    itemsizes += [fold.input.dtype.itemsize for fold in folds]
    vector = _vector(extent, device.vector_bytes // min(itemsizes))
    pulled = pull_rows(axis, vector, space, outputs, folds, definitions, memory, destinations)
    if isinstance(pulled, Refusal):
        return pulled
    lanes = Lanes(pulled.lane_index, -(-max(extent, 1) // vector) * vector, 0, vector)
    alignment = {t.id: layout.alignment for t, layout in memory.items()}
    accesses = plan_accesses(pulled.graph, lanes, alignment)
    threads, rows_per_block = _threads(axis, lanes.vectors, device)

    def store(tensor: TensorView, value: Value, address: Form, in_lanes: bool) -> Store:
        windows: tuple[Window, ...] = ()
        if in_lanes and not pulled.inside:
            aligned = destinations[tensor].alignment
            windows = plan_store(address, lanes, tensor.dtype.itemsize, aligned)
        return Store(tensor, value, address, windows)

    stages = _stages(pulled.folds)
    return RowSchedule(
        space.rows,
        space.columns,
        axis,
        tuple(
            Fold(f.output, f.op, f.accumulate, value, stages[f.output]) for f, value in pulled.folds
        ),
        tuple(store(*s, in_lanes=True) for s in pulled.wide),
        tuple(store(*s, in_lanes=axis == "rows") for s in pulled.narrow),
        pulled.graph,
        accesses,
        lanes,
        pulled.inside,
        threads,
        rows_per_block,
        axis == "columns" and _fits_registers(accesses, lanes, threads),
    )


def _vector(extent: int, widest: int) -> int:
    """Lanes: as many as fill an access, unless there are fewer points."""
    vector = 1
    while vector * 2 <= widest and vector * 2 <= extent:
        vector *= 2
    whole = vector
    while extent % whole:
        whole //= 2
    # An extent that only a much narrower vector divides gets a last vector with lanes too many.
    return whole if 2 * whole >= vector else vector


def _threads(axis: LaneAxis, vectors: int, device: DeviceInfo) -> tuple[int, int]:
    """(threads that share a row, rows of a block). A host core runs one thread after the other."""
    if axis == "rows":
        return 1, (16 if device.kind == "host" else 128)
    if device.kind == "host":
        return 1, 8
    threads = 1
    while threads < MAX_THREADS and threads * VECTORS_PER_THREAD < vectors:
        threads *= 2
    threads = max(threads, min(WARP, 1 << max(vectors - 1, 0).bit_length()))
    return threads, max(1, 128 // threads) if threads <= WARP else 1


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


def _instructions_per_point(schedule: RowSchedule) -> float:
    vector = schedule.lanes.vector
    stored = sum(
        sum(w.instructions(s.tensor.dtype.itemsize) for w in s.windows) or vector
        for s in schedule.wide
    )
    return (stored + sum(a.instructions(vector) for a in schedule.accesses)) / vector


def _share_of(schedule: RowSchedule, device: DeviceInfo) -> float:
    """The share of the device that the kernel keeps busy; a host core is busy with one block."""
    if device.kind == "host":
        return min(1.0, schedule.blocks / device.sm_count)
    enough = device.sm_count * device.threads_per_sm / 2
    return min(1.0, schedule.blocks * schedule.block_threads / enough)
