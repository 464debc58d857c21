"""Schedule of a reduction kernel: chosen by `scheduler.py`, lowered to kernel IR by `lower.py`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from thunder_fuser.kernel_ir import WORD
from thunder_fuser.lower.brief import is_rounded
from thunder_fuser.lower.lanes import Lanes
from thunder_fuser.lower.register_budget import BLOCK_ACCUMULATORS
from thunder_fuser.lower.row_space import GridSplit, LaneAxis
from thunder_fuser.lower.scalar_graph import Conjunction, ScalarGraph, Value, reachable
from thunder_fuser.lower.store import Store
from thunder_fuser.lower.vectorize import RegisterArray
from thunder_fuser.templates.reduction.accumulations import (
    LONGEST_CHAIN,
    LONGEST_TOTAL,
    Accumulation,
    GridEpilogue,
    GridReduction,
    RowReduction,
    is_summed_in_parts,
    longest_total,
    portions_together,
)
from thunder_fuser.templates.reduction.row_cache import MAX_STEPS, RowCache
from thunder_fuser.templates.reduction.thread_mapping import ThreadMapping


@dataclass(frozen=True, slots=True)
class ReductionSchedule:
    """Schedule of a reduction kernel.

    element_stores     stores at every point; `row_stores` are those once a row
    store_passes       for each store at every point, the first pass that has all its operands
    inside             predicate of columns that exist, where the last vector has lanes too many
    mapping            how threads and blocks divide the work
    unroll             for each pass, iterations whose loads are issued together
    row_cache          accesses and values of a row kept on chip until the last stage
    compiler_unrolled  passes whose loop compilers unroll, whatever `unroll` says
    portion_loads      vectors that all rows of a portion share, such as a batch's modulation
    portion_values     values of `portion_loads` alone, computed once before these rows
    prefetched         accesses whose next row is loaded before this one is computed
    async_prefetched   those of them whose next row cp.async copies to shared memory
    to_l2              those of them that are prefetched to the L2 cache one row earlier
    async_cached       accesses whose whole row cp.async copies into the row cache in shared memory
    not_hoisted        accesses loaded where they are used: row-invariant ones in each row, those
                       that only the last pass reads in that pass
    min_blocks_hint    resident blocks a multiprocessor should have, unless registers spill for it
    meets_at_once      a block's column accumulators of all grid reductions are combined in shared
                       memory at once, not one reduction after the other
    paired             lanes are in the register order of `lower/paired_lanes.py`
    """

    template: ClassVar[str] = "reduction"

    rows: int
    columns: int
    lane_axis: LaneAxis
    grid_split: GridSplit
    row_reductions: tuple[RowReduction, ...]
    grid_reductions: tuple[GridReduction, ...]
    element_stores: tuple[Store, ...]
    store_passes: tuple[int, ...]
    row_stores: tuple[Store, ...]
    epilogues: tuple[GridEpilogue, ...]
    graph: ScalarGraph
    accesses: tuple[RegisterArray, ...]
    lanes: Lanes
    inside: Conjunction
    mapping: ThreadMapping
    unroll: tuple[int, ...]
    row_cache: RowCache
    compiler_unrolled: tuple[int, ...] = ()
    portion_loads: tuple[int, ...] = ()
    portion_values: tuple[Value, ...] = ()
    prefetched: tuple[int, ...] = ()
    async_prefetched: tuple[int, ...] = ()
    to_l2: tuple[int, ...] = ()
    async_cached: tuple[int, ...] = ()
    not_hoisted: tuple[int, ...] = ()
    min_blocks_hint: int = 0
    meets_at_once: bool = False
    paired: bool = False

    @property
    def graphs(self) -> tuple[ScalarGraph, ...]:
        return (self.graph, *(f.graph for f in self.epilogues))

    @property
    def stores(self) -> tuple[Store, ...]:
        return (
            *self.element_stores,
            *self.row_stores,
            *(s for f in self.epilogues for s in f.stores),
        )

    @property
    def reductions(self) -> tuple[RowReduction | GridReduction, ...]:
        return (*self.row_reductions, *self.grid_reductions)

    @property
    def passes(self) -> tuple[tuple[Value, ...], ...]:
        """Roots of each pass over the columns: one pass for each stage, and the last."""
        roots: list[list[Value]] = [[] for _ in range(self.stages + 1)]
        for fold in self.row_reductions:
            roots[fold.stage] += fold.roots
        for number, store in zip(self.store_passes, self.element_stores, strict=True):
            roots[number].append(store.value)
        roots[-1] += [v for t in self.grid_reductions if t.at != "one" for v in t.roots]
        return tuple(map(tuple, roots))

    def stores_in_pass(self, number: int) -> tuple[Store, ...]:
        """Return the stores at every point that a pass does; -1 is the last."""
        passes = range(self.stages + 1)
        found = zip(self.store_passes, self.element_stores, strict=True)
        return tuple(store for n, store in found if n == passes[number])

    def moves(self, access: int) -> bool:
        """True if a thread has another vector of an access at each of its columns."""
        found = self.accesses[access]
        if found.is_uniform or self.lane_axis == "columns":
            return not found.is_uniform
        return any(v.name == "c" for v in found.loads[0].address.variables())

    def is_of_all_rows(self, access: int) -> bool:
        """True if an access differs from column to column and is row-invariant."""
        found = self.accesses[access]
        if found.is_uniform or any(load.positions for load in found.loads):
            return False
        mentioned = (self.lanes(load.address).variables() for load in found.loads)
        return all(v.name != "r" for variables in mentioned for v in variables)

    @property
    def row_invariant_smem(self) -> tuple[int, ...]:
        """Row-invariant accesses in shared memory, loaded once a block."""
        if self.grid_split != "rows":
            return ()
        return tuple(k for k in self.row_cache.shared if self.is_of_all_rows(k))

    def loads_in_pass(self, number: int) -> set[int]:
        """Return accesses that a pass loads from global memory, without those that an earlier pass,
        or the prologue of the block, left in shared memory.
        """
        wanted = [reachable(roots) for roots in self.passes[: number + 1]]
        found = {k for k, a in enumerate(self.accesses) if not wanted[-1].isdisjoint(a.loads)}
        return {
            k
            for k in found.difference(self.row_cache.registers, self.row_invariant_smem)
            if k not in self.row_cache.shared
            or all(before.isdisjoint(self.accesses[k].loads) for before in wanted[:-1])
        }

    @property
    def has_cached_rows(self) -> bool:
        """True if accesses of a row stay on chip until a later pass."""
        return bool(self.row_cache.registers or self.row_cache.shared)

    @property
    def has_crowded_totals(self) -> bool:
        """True if column accumulators exceed the registers that a block has for them."""
        words = sum(t.accumulator_bytes // WORD for t in self.grid_reductions if t.is_of_columns)
        return words * self.columns > BLOCK_ACCUMULATORS * self.mapping.column_tiles

    def streams_in_pass(self, number: int) -> bool:
        """True if a pass loads column-dependent data from global memory."""
        return any(map(self.moves, self.loads_in_pass(number)))

    @property
    def has_few_steps(self) -> bool:
        """True if threads pass over a row that is not in registers in a few steps, the same number
        for all threads, and reduce it in one part.
        """
        loops = self.walks_columns and self.grid_split == "none"
        few = self.steps <= min(MAX_STEPS, self.longest_chain)
        return loops and few and not self.row_cache.registers

    @property
    def has_steps(self) -> bool:
        """True if all threads take the same, constant number of steps through a row."""
        shared = self.grid_split == "rows" or self.mapping.shares_rows
        return bool(shared or self.row_cache.registers or self.has_few_steps)

    @property
    def has_whole_steps(self) -> bool:
        """True if all threads have a vector (where lanes are rows: a column) in each step."""
        end = self.columns if self.lane_axis == "rows" else self.lanes.vectors
        return self.steps * self.threads * self.mapping.column_tiles == end

    @property
    def has_spare_rows(self) -> bool:
        """True if some threads of the last block have no row of their own."""
        mapping = self.mapping
        if self.grid_split == "rows":
            return self.rows // mapping.row_groups % mapping.rows_per_block != 0
        side_by_side = mapping.blocks_per_row * mapping.column_tiles
        owned = mapping.blocks // side_by_side * mapping.rows_per_block
        if self.lane_axis == "rows":
            return self.is_outer_shared and owned != self.lanes.vectors
        return owned != self.rows

    @property
    def walks_columns(self) -> bool:
        """True if several threads share the columns of a row."""
        return self.threads > 1

    @property
    def is_outer_shared(self) -> bool:
        """True for an outer reduction with several threads per row."""
        return self.lane_axis == "rows" and self.threads > 1

    @property
    def block_vectors(self) -> int:
        """Vectors of one access that the threads of a block read together."""
        if self.is_outer_shared:
            return self.columns * self.rows_per_block
        return self.steps * self.threads if self.mapping.shares_rows else self.lanes.vectors

    @property
    def has_written_out(self) -> bool:
        """True if some passes are fully unrolled: steps are few or own registers."""
        shares = self.grid_split == "rows"
        columns = any(t.is_of_columns for t in self.grid_reductions)
        return bool(self.row_cache.registers or columns or (shares and self.steps <= MAX_STEPS))

    def is_before_totals(self, number: int) -> bool:
        """True if a pass reduces rows and no step keeps anything in registers of its own."""
        is_last = number in (-1, len(self.passes) - 1)
        few = self.grid_split == "rows" and self.steps <= MAX_STEPS
        return few and not (is_last or self.row_cache.registers)

    def is_written_out(self, number: int) -> bool:
        """True if a pass is fully unrolled: its steps own registers, or all loads fit."""
        if self.is_before_totals(number) and self.unroll[number] < self.steps:
            return False
        return self.has_written_out

    @property
    def threads(self) -> int:
        """Threads that share a row."""
        return self.mapping.threads_per_row

    @property
    def rows_per_block(self) -> int:
        return self.mapping.rows_per_block

    @property
    def block_threads(self) -> int:
        return self.mapping.threads_per_row * self.mapping.rows_per_block

    @property
    def blocks(self) -> int:
        return self.mapping.blocks

    @property
    def steps(self) -> int:
        """Vectors of a row (where lanes are rows: columns) that one thread works on."""
        if self.lane_axis == "rows":
            return -(-self.columns // self.threads)
        return self.mapping.steps(self.lanes.vectors)

    def lanes_of(self, fold: Accumulation) -> int:
        """Return the accumulators of a thread for a vector: one a lane. Where threads share a row
        and registers are few, one accumulator struct takes all lanes in turn.
        """
        shares = self.lane_axis == "columns" and self.threads > 1
        in_turn = shares and fold.is_struct and not fold.is_of_columns
        return 1 if in_turn else self.lanes.vector

    @property
    def longest_chain(self) -> int:
        """Most vectors of a row that the same accumulators take. Exponentials of a vector are added
        up before their sum is added; deviations from one origin, which cancel by as much as they
        are many, go in one by one.
        """
        vector = self.lanes.vector
        one_by_one = (f for f in self.reductions if f.op != "sum_exp")
        fewest = min((self.lanes_of(f) for f in one_by_one), default=vector)
        return max(1, LONGEST_CHAIN * fewest // vector)

    @property
    def is_folded_in_parts(self) -> bool:
        """True if a thread reduces its part of a row in several parts."""
        return self.steps > self.longest_chain and not self.row_cache.registers

    @property
    def longest_total(self) -> int:
        """Most rows that one accumulator of a grid reduction takes."""
        return longest_total([t.op for t in self.grid_reductions], self.mapping, self.rows)

    @property
    def is_summed_in_parts(self) -> bool:
        return is_summed_in_parts([t.op for t in self.grid_reductions], self.mapping, self.rows)

    @property
    def exact_terms(self) -> tuple[Value, ...]:
        """Operands of grid reductions that keep full precision: not those of long sums that are
        stored rounded, which lose more by their additions than by terms with a few digits less.
        """
        many = self.rows // self.mapping.row_groups >= LONGEST_TOTAL

        def is_exact(total: GridReduction) -> bool:
            if not many or total.op != "sum" or not total.is_of_columns:
                return True
            return not all(
                is_rounded(total.tensor, [*epilogue.graph], [s.value for s in epilogue.stores])
                for epilogue in self.epilogues
            )

        return tuple(v for total in self.grid_reductions if is_exact(total) for v in total.roots)

    @property
    def totals_of_portions(self) -> tuple[int, ...]:
        """Grid reductions with a partial result for each portion of a block."""
        if not self.mapping.walks_portions:
            return ()
        every = self.portions_together == 1
        return tuple(n for n, t in enumerate(self.grid_reductions) if every or t.at == "group")

    @property
    def has_portions_ahead(self) -> bool:
        """True if the first row of a block's next portion is prefetched while partial results of
        this one are combined. Requires that each portion has a row of each block.
        """
        mapping = self.mapping
        before_last = (mapping.portions_of_group - 1) * mapping.rows_per_block
        has_rows = before_last < self.rows // mapping.row_groups
        return bool(self.prefetched) and mapping.walks_portions and has_rows

    @property
    def portions_together(self) -> int:
        return portions_together([t.op for t in self.grid_reductions], self.mapping, self.rows)

    @property
    def leaves_spans(self) -> bool:
        """True if a block writes several partial results, each of several portions."""
        return 1 < self.portions_together < self.mapping.portions_of_block

    @property
    def is_walked_by_one(self) -> bool:
        """True if one thread adds all columns of many rows to column accumulators."""
        return self.grid_split == "rows" and self.mapping.is_alone

    @property
    def takes_rows_in_blocks(self) -> bool:
        """True if one thread only reduces columns, too many for registers: then several rows at a
        time are reduced for some columns while these are in registers.
        """
        alone = self.is_walked_by_one and not self.row_cache.registers
        return alone and not self.row_reductions and not self.stores_of_rows

    @property
    def stores_of_rows(self) -> bool:
        """True if a row has outputs besides terms of column reductions."""
        totals = any(not t.is_of_columns for t in self.grid_reductions)
        return bool(self.element_stores or self.row_stores or totals)

    @property
    def stages(self) -> int:
        return 1 + max((f.stage for f in self.row_reductions), default=0)

    def is_compiler_unrolled(self, number: int) -> bool:
        """True if the loop of a pass is left to the compiler to unroll; -1 is the last pass."""
        return number % len(self.passes) in self.compiler_unrolled

    @property
    def workspace_bytes(self) -> int:
        """Global memory for partial results; each byte is written once and read once."""
        return sum(t.bytes for t in self.grid_reductions)

    def __str__(self) -> str:
        text = (
            f"reduction: {self.rows} rows x {self.columns} columns, lanes are {self.lane_axis}, "
            f"vector {self.lanes.vector}, {self.threads} threads a row, {self.rows_per_block} rows "
            f"a block, {self.stages} stages, {self.row_cache}"
        )
        if self.mapping.cluster > 1:
            text += f", clusters of {self.mapping.cluster} blocks"
        if self.async_prefetched:
            text += ", next row by asynchronous copies"
        if self.async_cached:
            text += ", rows by asynchronous copies"
        if not self.grid_reductions:
            return text
        count, partials = len(self.grid_reductions), self.mapping.partials
        text += f"; {self.grid_split} split over blocks: {count} grid reductions of {partials} "
        return text + f"partials, {self.workspace_bytes:,} B of workspace"
