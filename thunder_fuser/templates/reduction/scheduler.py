"""Heuristics of the reduction template: candidates of arrangement, lane axis and vector width, each
mapped to threads and scheduled on a GPU (gpu_schedule.py) or on a host (host_schedule.py).

The iteration space is rows x columns. A kernel works in stages. Each stage passes over the columns
of a row and reduces them to values that later stages, and the stores, read at the same row; that
nothing reads them elsewhere makes a segment legal, and is checked, not matched by patterns.

The V lanes of a vector are consecutive columns (threads share a row) or consecutive rows. Of rows,
a thread owns its own, or shares them in an outer reduction with other threads of its block. On a
host, where columns are runs of other lengths, such as the pixels of channels, vectors begin anew
with each run (`RunLanes`), and only partial vectors have tests of lanes (`tail_apart`).

Grid reductions need more than one block: reductions over the rows, or over columns that several
blocks share because the rows are few. Each block writes a partial result to a workspace; after a
grid barrier all blocks combine these, in a fixed order, and run the epilogue.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from thunder_fuser.device import WARP_SIZE, DeviceInfo
from thunder_fuser.errors import Refusal
from thunder_fuser.ir.dag import backward_slice
from thunder_fuser.ir.fusion import ReductionOp, TensorView
from thunder_fuser.ir.integer.symint import Form
from thunder_fuser.kernel_ir import WORD
from thunder_fuser.lower.body import KernelBody
from thunder_fuser.lower.points.point_rows import row_length
from thunder_fuser.lower.register_budget import (
    DOUBLE_REGISTERS,
    HOST_ACCUMULATORS,
    MAX_ACCUMULATORS,
)
from thunder_fuser.lower.rows.online_reductions import exact_variances, in_one_pass
from thunder_fuser.lower.rows.roles import accumulator_words, has_column_totals, role_of
from thunder_fuser.lower.rows.row_program import (
    PulledEpilogue,
    PulledGridReduction,
    PulledRows,
    pull_rows,
)
from thunder_fuser.lower.rows.row_space import Arrangement, LaneAxis, alternatives, arrangements
from thunder_fuser.lower.scalar_graph import Load, Value, forms
from thunder_fuser.lower.store import Store, streams
from thunder_fuser.lower.vectors.lane_windows import VectorAccess
from thunder_fuser.lower.vectors.lanes import Lanes, RunLanes
from thunder_fuser.lower.vectors.vectorize import plan_accesses, plan_store
from thunder_fuser.templates.reduction.cost import cheapest, wastes
from thunder_fuser.templates.reduction.gpu_schedule import schedule_on_gpu
from thunder_fuser.templates.reduction.host_schedule import schedule_on_host
from thunder_fuser.templates.reduction.mapping.accumulations import (
    GridEpilogue,
    GridReduction,
    Reductions,
    RowReduction,
)
from thunder_fuser.templates.reduction.mapping.alignment import is_aligned, may_align
from thunder_fuser.templates.reduction.mapping.clusters import in_tiles
from thunder_fuser.templates.reduction.mapping.gpu import map_on_gpu
from thunder_fuser.templates.reduction.mapping.host import map_on_host
from thunder_fuser.templates.reduction.mapping.mapped_rows import MappedRows, Writes
from thunder_fuser.templates.reduction.mapping.stages import (
    stages_of,
    store_passes,
    words_of_stages,
)
from thunder_fuser.templates.reduction.mapping.thread_mapping import RowWork, ThreadMapping
from thunder_fuser.templates.reduction.schedule import ReductionSchedule


def considered(body: KernelBody, device: DeviceInfo) -> list[ReductionSchedule] | Refusal:
    """Return the schedules among which the fastest is for a body with reductions, those first whose
    cost is least; or a refusal.
    """
    made: list[ReductionSchedule | Refusal] = []
    folds = tuple(body.folds)

    def consider(folds: Sequence[ReductionOp]) -> None:
        made.extend(candidates(replace(body, folds=folds), device))

    single = in_one_pass(body)
    exact = exact_variances(folds, single, body.outputs) if device.threads_are_serial else folds
    if exact != folds:
        consider(exact)
        if found := cheapest(made, device):
            return found
    consider(folds)
    found = cheapest(made, device)
    if single != folds and (not found or wastes(found[0], device)):
        consider(single)
        found = cheapest(made, device)
    return found or next(refusal for refusal in made if isinstance(refusal, Refusal))


def candidates(body: KernelBody, device: DeviceInfo) -> Iterator[ReductionSchedule | Refusal]:
    """Yield a schedule, or a refusal, for each way to schedule the reductions of a body."""
    for arrangement in (*arrangements(body), *alternatives(body)):
        for axis, outer_shared in _ways(arrangement, device):
            yield _Candidate(arrangement, axis, outer_shared, body, device).schedule()


def _ways(arrangement: Arrangement, device: DeviceInfo) -> Iterator[tuple[LaneAxis, bool]]:
    """Yield (lane axis, outer reduction with several threads per row) for an arrangement."""
    yield "columns", False
    # Column accumulators are in registers of the threads that own the columns.
    if arrangement.grid_split == "none":
        yield "rows", False
        if arrangement.space.is_outer and not device.threads_are_serial:
            yield "rows", True


@dataclass(frozen=True, slots=True)
class _Candidate:
    """One combination of arrangement, lane axis and sharing of rows."""

    arrangement: Arrangement
    axis: LaneAxis
    outer_shared: bool
    body: KernelBody
    device: DeviceInfo

    def schedule(self) -> ReductionSchedule | Refusal:
        vector = self._lanes_of_vector()
        pulled = pull_rows(self.axis, vector, self.arrangement, self.body)
        if isinstance(pulled, Refusal):
            return pulled
        if may_align(self.arrangement, self.axis, vector, self.device):
            aligned = pull_rows(self.axis, vector, self.arrangement, self.body, is_aligned=True)
            pulled = aligned if is_aligned(aligned) else pulled
        if length := self._length_of_runs(pulled):
            narrower = min(vector, 1 << length.bit_length() - 1)
            run = length if length % narrower else 0
            in_runs = pull_rows(self.axis, narrower, self.arrangement, self.body, run=run)
            if isinstance(in_runs, PulledRows):
                pulled, vector = in_runs, narrower
        if self.outer_shared and not (
            pulled.element_stores or any(stages_of(pulled.folds).values())
        ):
            return Refusal(
                "grid_split", "nothing waits for the rows: blocks share them, line by line"
            )
        lanes = self._lanes(pulled, vector)
        mapping = self._mapping(pulled, lanes)
        if isinstance(mapping, Refusal):
            return mapping
        mapped = self._mapped(pulled, lanes, mapping)
        if self.device.threads_are_serial:
            return schedule_on_host(mapped, self.device)

        def mapping_of(cluster: int, clusters: int) -> ThreadMapping | Refusal:
            return self._mapping(pulled, lanes, cluster, clusters)

        return schedule_on_gpu(mapped, mapping_of, self.device)

    def _lanes(self, pulled: PulledRows, vector: int) -> Lanes:
        if pulled.run is not None:
            return RunLanes(pulled.lane_index, pulled.extent, pulled.run, vector)
        # With gathers, whose addresses depend on data, elements wait for each other one by one.
        is_kept = self.axis == "columns" and not pulled.graph.checks
        return Lanes(pulled.lane_index, pulled.extent, 0, vector, is_kept=is_kept)

    def _length_of_runs(self, pulled: PulledRows) -> int:
        """Return the columns after which vectors of a core begin anew: those of a channel of an
        image, after which memory goes on elsewhere, or with other weights. 0: vectors divide them,
        or would be far from full.
        """
        space, graph = self.arrangement.space, pulled.graph
        if not self.device.threads_are_serial or self.axis == "rows" or graph.checks:
            return 0
        # Accumulators of columns are numbered by these; others are neighbours, or far apart.
        if self.arrangement.grid_split == "rows" or space.is_outer or space.run:
            return 0
        lanes = self._lanes(pulled, self._whole_vector())
        addresses = [address for _, _, address in pulled.element_stores]
        indices = [form for node in graph for form in forms(node)]
        length = row_length([*indices, *addresses], lanes) or 0
        return length if 2 * length >= lanes.vector and space.columns % length == 0 else 0

    def _mapping(
        self, pulled: PulledRows, lanes: Lanes, cluster: int = 1, clusters: int = 0
    ) -> ThreadMapping | Refusal:
        """Map threads to rows, each of one block, or of one of `clusters` clusters."""
        space, split = self.arrangement.space, self.arrangement.grid_split
        of_stages = words_of_stages(pulled.folds)
        of_totals = sum(accumulator_words(t.fold) for t in pulled.totals if t.at != "one")
        words = sum(of_stages) + of_totals
        most_words = max(of_stages, default=0) + of_totals
        columns = [total.fold for total in pulled.totals if total.at in ("column", "group")]
        # Where no vector divides rows, a thread has as many columns, which are not contiguous.
        each = self._whole_vector() if self._owns_columns else lanes.vector
        of_rows = sum(map(_bytes_of_rows, pulled.graph.loads))
        work = RowWork(
            -(-lanes.vectors * lanes.vector // (each * cluster)),
            space.rows,
            space.columns,
            has_stages=bool(pulled.folds),
            accumulators=words * each + self._double_registers,
            at_a_time=most_words * each + self._double_registers,
            column_accumulators=sum(map(accumulator_words, columns)) * each,
            of_rows=of_rows * each // WORD,
            of_columns=sum(map(_bytes_of_columns, pulled.graph.loads)) * each // WORD,
            row_groups=self.arrangement.groups,
            reads_once=not pulled.element_stores and not any(stages_of(pulled.folds).values()),
            is_narrow=lanes.vector < each,
        )
        if self.device.threads_are_serial:
            mapping = map_on_host(work, self.axis, split)
        else:
            device = replace(self.device, sm_count=clusters) if clusters else self.device
            mapping = map_on_gpu(work, self.axis, self.outer_shared, split, device)
        if mapping is None:
            return Refusal("grid_split", "one block has all there is to do")
        if cluster > 1:
            if mapping.threads_per_row <= WARP_SIZE:
                text = f"{mapping.threads_per_row} threads of each of {cluster} blocks share a row"
                return Refusal(
                    "grid_split", f"{text}: more than {WARP_SIZE} exchange what they fold"
                )
            mapping = in_tiles(mapping, cluster)
        spills = words * each > MAX_ACCUMULATORS
        if spills and not (pulled.folds or mapping.is_alone):
            return Refusal("registers", f"{words} accumulators of {each} lanes spill")
        return mapping

    def _mapped(self, pulled: PulledRows, lanes: Lanes, mapping: ThreadMapping) -> MappedRows:
        space, grid_split = self.arrangement.space, self.arrangement.grid_split
        serial = self.device.threads_are_serial and mapping.blocks_per_row == 1
        tail_apart = serial and bool(pulled.inside)
        # Lanes of rows are guarded one by one; vectors of columns are stored whole.
        vectorized = self.axis == "columns" or not pulled.inside
        row_stores = self._stores(pulled.row_stores, lanes, vectorized and self.axis == "rows")
        rows = MappedRows(
            rows=space.rows,
            columns=space.columns,
            lane_axis=self.axis,
            grid_split=grid_split,
            lanes=lanes,
            inside=pulled.inside,
            graph=pulled.graph,
            accesses=plan_accesses(pulled.graph, lanes, self.body.memory(self.device, tail_apart)),
            reductions=Reductions(
                of_rows=tuple(_row_reductions(pulled)),
                of_grid=tuple(map(_grid_reduction, pulled.totals)),
                epilogues=tuple(map(self._epilogue, pulled.epilogues)),
            ),
            writes=Writes(
                elements=tuple(self._stores(pulled.element_stores, lanes, vectorized, tail_apart)),
                passes=tuple(store_passes(pulled, grid_split, self.body.updates)),
                rows=tuple(row_stores),
            ),
            mapping=mapping,
            tail_apart=tail_apart,
        )
        return rows.on(mapping)

    @property
    def _owns_columns(self) -> bool:
        """True if threads have the same columns in all rows, and accumulators for them."""
        serial = self.device.threads_are_serial
        return not serial and has_column_totals(self.arrangement, self.body)

    @property
    def _double_registers(self) -> int:
        """Registers of a thread for fp64 arithmetic, whose division is a subroutine."""
        wide = (f.accumulate.itemsize > WORD and f.accumulate.is_floating for f in self.body.folds)
        return DOUBLE_REGISTERS if any(wide) else 0

    def _lanes_of_vector(self) -> int:
        """Return the lanes that fill an access, or fewer where rows end within vectors."""
        space = self.arrangement.space
        extent = space.columns if self.axis == "columns" else space.rows
        whole = vector = self._whole_vector()
        while extent % whole:
            whole //= 2
        if self._owns_columns:
            # Their vectors are not aligned in every row; lanes that are loaded one by one are
            # coalesced if they are neighbours of other threads' lanes.
            return whole
        # An extent that only a much narrower vector divides gets a partial last vector.
        return whole if 2 * whole >= vector else vector

    def _whole_vector(self) -> int:
        """Return the lanes that fill an access, unless there are fewer points."""
        space = self.arrangement.space
        wide = [t for t in self.body.outputs if t.numel == space.rows * space.columns]
        itemsizes = [t.dtype.itemsize for t in (*wide, *self._wide_sources())]
        itemsizes = itemsizes or [self.body.folds[0].input.dtype.itemsize]
        extent = space.columns if self.axis == "columns" else space.rows
        widest = self.device.vector_bytes // min(itemsizes)
        if self.device.threads_are_serial and widest * self._column_words > HOST_ACCUMULATORS:
            widest //= 2
        vector = 1
        while vector * 2 <= widest and vector * 2 <= extent:
            vector *= 2
        # Lanes of a vector are neighbours in memory.
        if self.axis == "columns" and not space.is_outer:
            vector = math.gcd(vector, space.run)
        return vector

    @property
    def _column_words(self) -> int:
        """Words of the accumulators of a column."""
        roles = ((fold, role_of(fold, self.arrangement)) for fold in self.body.folds)
        return sum(accumulator_words(fold) for fold, role in roles if role in ("column", "group"))

    def _wide_sources(self) -> Iterator[TensorView]:
        """Yield tensors in memory that reductions read and that have a value for most points."""
        points = max(self.arrangement.space.rows * self.arrangement.space.columns, 1)

        def producers(tensor: TensorView) -> list[TensorView]:
            return [v for v in self.body.operands(tensor) if isinstance(v, TensorView)]

        for tensor in backward_slice([fold.input for fold in self.body.folds], producers):
            if tensor in self.body.loads and 2 * tensor.numel > points:
                yield tensor

    def _stores(
        self,
        stores: Sequence[tuple[TensorView, Value, Form]],
        lanes: Lanes,
        vectorized: bool,
        tail_apart: bool = False,
    ) -> Iterator[Store]:
        """Yield stores; `vectorized`: all lanes of a vector are stored at once, if all exist, and
        with their `tail_apart` in one piece or one by one.
        """
        for tensor, value, address in stores:
            windows: tuple[VectorAccess, ...] = ()
            if vectorized:
                aligned = self.body.stores[tensor].alignment
                windows = plan_store(address, lanes, tensor.dtype.itemsize, aligned)
            if tail_apart and len(windows) > 1:
                windows = ()
            past = streams(tensor, self.body, self.device)
            yield Store(tensor, value, address, windows, past)

    def _epilogue(self, found: PulledEpilogue) -> GridEpilogue:
        lanes = Lanes(found.index, max(found.points, 1), 0, 1)
        return GridEpilogue(
            found.at,
            found.points,
            found.graph,
            plan_accesses(found.graph, lanes, self.body.memory(self.device)),
            lanes,
            tuple(self._stores(found.stores, lanes, vectorized=True)),
        )


def _bytes_of_rows(load: Load) -> int:
    """Return bytes of a lane of a load of one element for each column of each row; else 0."""
    names = {variable.name for variable in load.address.variables()}
    return load.dtype.itemsize if "c" in names and names != {"c"} else 0


def _bytes_of_columns(load: Load) -> int:
    """Return bytes of a lane of a row-invariant load; else 0."""
    names = {variable.name for variable in load.address.variables()}
    return load.dtype.itemsize if names == {"c"} and not load.positions else 0


def _row_reductions(pulled: PulledRows) -> Iterator[RowReduction]:
    stages = stages_of(pulled.folds)
    for fold, value, position in pulled.folds:
        stage = stages[fold.output]
        yield RowReduction(fold.output, fold.op, fold.accumulate, value, position, stage)


def _grid_reduction(total: PulledGridReduction) -> GridReduction:
    fold = total.fold
    return GridReduction(
        fold.output, fold.op, fold.accumulate, total.value, total.position, total.at
    )
