"""Schedule of a reduction kernel as data: `scheduler.py` decides it, code generation prints it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import ClassVar

from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import TensorView
from thunder_fuser.ir.tables import reductions
from thunder_fuser.lower.brief import is_rounded
from thunder_fuser.lower.kernel_ir import WORD
from thunder_fuser.lower.lanes import Lanes
from thunder_fuser.lower.legal_rows import MAX_TOTAL_WORDS
from thunder_fuser.lower.row_program import Point
from thunder_fuser.lower.row_space import GridSplit, LaneAxis
from thunder_fuser.lower.scalar_graph import Conjunction, Value, ValueGraph, reachable
from thunder_fuser.lower.store import Store
from thunder_fuser.lower.vectorize import RegisterArray
from thunder_fuser.templates.reduction.row_cache import MAX_STEPS, RowCache
from thunder_fuser.templates.reduction.thread_mapping import LONGEST_PORTION, ThreadMapping

LONGEST_CHAIN = 32
"""Values that go into one accumulator one after the other. Rounding errors grow with the length of
a chain, so that longer ones are folded in parts, and the parts' results then.
"""
LONGEST_TOTAL = LONGEST_PORTION
"""The same for rows that go into a total of numbers: parts of these take as many registers as the
whole. What structs lose may grow faster than a sum's, so that theirs are shorter.
"""
BLOCK_OF_ROWS = 16
"""Rows that are folded for some columns at a time, where registers cannot hold all columns."""


def longest_total(ops: Collection[str], mapping: ThreadMapping, rows: int) -> int:
    """Rows that go into totals of such reductions one after the other.

    A block of one thread has its accumulators in memory, where parts cost little: there are about
    as many as each of them has rows.
    """
    if any(reductions.lookup(op).accumulator.words > 1 for op in ops):
        return LONGEST_CHAIN
    if not mapping.is_alone:
        return LONGEST_TOTAL
    balanced = 1 << mapping.rows_per_thread(rows).bit_length() // 2
    return min(max(balanced, 2 * BLOCK_OF_ROWS), LONGEST_TOTAL)


def portions_together(ops: Collection[str], mapping: ThreadMapping, rows: int) -> int:
    """Portions of a block whose rows go into totals one after the other: as many as one accumulator
    takes, since two were too many registers. A block of one thread has its own in memory.
    """
    each = mapping.portions_of_block
    if mapping.is_alone:
        return each
    # Of no rows there are portions, too.
    portion = max(mapping.rows_of_portion(rows), 1)
    return min(each, max(1, longest_total(ops, mapping, rows) // portion))


def is_summed_in_parts(ops: Collection[str], mapping: ThreadMapping, rows: int) -> bool:
    """Whether so many rows go into one accumulator of a total that they are taken in parts."""
    taken = portions_together(ops, mapping, rows) * mapping.rows_of_portion(rows)
    return taken > longest_total(ops, mapping, rows)


@dataclass(frozen=True, slots=True)
class Accumulation:
    """A reduction of `value`, with its `position` where `op` folds that too."""

    tensor: TensorView
    op: str
    accumulate: DataType
    value: Value
    position: Value | None

    @property
    def roots(self) -> tuple[Value, ...]:
        """What each element gives to the reduction."""
        return (self.value,) if self.position is None else (self.value, self.position)

    @property
    def is_struct(self) -> bool:
        """Whether it carries along more than one number."""
        return reductions.lookup(self.op).accumulator.words > 1

    @property
    def is_of_columns(self) -> bool:
        """Whether it accumulates over the rows, for each column."""
        return False

    @property
    def accumulator_bytes(self) -> int:
        """Size of what the reduction carries along."""
        widest = max(self.accumulate.itemsize, WORD)
        if self.position is not None:
            widest = max(widest, self.position.dtype.itemsize)
        return widest * reductions.lookup(self.op).accumulator.words


@dataclass(frozen=True, slots=True)
class RowReduction(Accumulation):
    """One reduction along the columns, ready at each row after stage `stage`."""

    stage: int


@dataclass(frozen=True, slots=True)
class GridReduction(Accumulation):
    """One reduction that needs all blocks.

    at      where it has a result: at each column (of all rows, or of a group), at each row, or once
    points  results; of columns as many as threads could have
    parts   of each: blocks leave one, or one of each portion of a group's rows
    offset  bytes before its parts in the workspace, which are [parts, points]
    bytes   of the workspace for it
    """

    at: Point
    points: int
    parts: int
    offset: int
    bytes: int

    @property
    def is_of_columns(self) -> bool:
        return self.at in ("column", "group")


@dataclass(frozen=True, slots=True)
class GridEpilogue:
    """Stores that read totals, at each of `points` points: one thread does one point."""

    at: Point
    points: int
    graph: ValueGraph
    accesses: tuple[RegisterArray, ...]
    lanes: Lanes
    stores: tuple[Store, ...]


@dataclass(frozen=True, slots=True)
class ReductionSchedule:
    """A reduction kernel.

    element_stores, row_stores    stores at every point, and at every row
    store_passes    for each store at every point the number of the pass that does it: the first in
                    which all that it stores is there
    inside          holds for columns that exist, where the last vector has lanes too many
    mapping            how threads and blocks divide the work
    unroll          for each pass the iterations whose loads go out together, of loops that are not
                    unrolled anyway
    compiler_unrolled  passes whose loop compilers unroll, whatever `unroll` says of it
    row_cache       where what is read of a row stays until the last stage
    portion_loads   vectors that are the same for all rows of a portion, such as a modulation's of
                    its batch: loaded before the first of these rows
    portion_values  values that are computed of them alone, and then, too
    prefetched      accesses whose next row is loaded before this one is computed
    async_prefetched  those of them whose next row waits in shared memory: asynchronous copies
                    (cp.async) bring it
    to_l2           those of them that are prefetched to the L2 cache one row earlier
    async_cached    accesses whose row, all of it at once, asynchronous copies bring to where shared
                    memory keeps it
    not_hoisted     accesses whose loads stay where they are wanted: at each row, of what is the
                    same for all; in the last pass, of what nothing before it reads
    min_blocks_hint blocks that a multiprocessor should have room for, if no register spills for it
    meets_at_once   what the groups of a block leave of totals of columns meets in shared memory for
                    all of these at once, not for one after the other
    paired          lanes stand in registers as `lower/paired_lanes.py` has them
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
    graph: ValueGraph
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
    def graphs(self) -> tuple[ValueGraph, ...]:
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
        """What the passes over the columns compute: one for each stage, and the last."""
        roots: list[list[Value]] = [[] for _ in range(self.stages + 1)]
        for fold in self.row_reductions:
            roots[fold.stage] += fold.roots
        for number, store in zip(self.store_passes, self.element_stores, strict=True):
            roots[number].append(store.value)
        roots[-1] += [v for t in self.grid_reductions if t.at != "one" for v in t.roots]
        return tuple(map(tuple, roots))

    def stores_in_pass(self, number: int) -> tuple[Store, ...]:
        """Stores at every point that a pass does; -1 is the last."""
        passes = range(self.stages + 1)
        found = zip(self.store_passes, self.element_stores, strict=True)
        return tuple(store for n, store in found if n == passes[number])

    def moves(self, access: int) -> bool:
        """Whether a thread has another vector of an access at each of its columns."""
        found = self.accesses[access]
        if found.is_uniform or self.lane_axis == "columns":
            return not found.is_uniform
        return any(v.name == "c" for v in found.loads[0].address.variables())

    def is_of_all_rows(self, access: int) -> bool:
        """Whether an access differs from column to column, and not from row to row."""
        found = self.accesses[access]
        if found.is_uniform or any(load.positions for load in found.loads):
            return False
        mentioned = (self.lanes(load.address).variables() for load in found.loads)
        return all(v.name != "r" for variables in mentioned for v in variables)

    @property
    def row_invariant_smem(self) -> tuple[int, ...]:
        """What shared memory keeps that is the same for all rows: loaded once a block."""
        if self.grid_split != "rows":
            return ()
        return tuple(k for k in self.row_cache.shared if self.is_of_all_rows(k))

    def loads_in_pass(self, number: int) -> set[int]:
        """The accesses to memory of one pass: not what a pass before, or the whole block, has left
        in shared memory.
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
        """Whether what is read of a row stays on chip until a later pass."""
        return bool(self.row_cache.registers or self.row_cache.shared)

    @property
    def has_crowded_totals(self) -> bool:
        """Whether totals of columns are more than the registers of a block are for."""
        words = sum(t.accumulator_bytes // WORD for t in self.grid_reductions if t.is_of_columns)
        return words * self.columns > MAX_TOTAL_WORDS * self.mapping.column_tiles

    def streams_in_pass(self, number: int) -> bool:
        """Whether a pass loads of memory what differs from column to column."""
        return any(map(self.moves, self.loads_in_pass(number)))

    @property
    def has_few_steps(self) -> bool:
        """Whether threads pass over a row that registers do not hold in a few steps, as many for
        all of them, and fold it in one part.
        """
        loops = self.walks_columns and self.grid_split == "none"
        few = self.steps <= min(MAX_STEPS, self.longest_chain)
        return loops and few and not self.row_cache.registers

    @property
    def has_steps(self) -> bool:
        """Whether all threads take as many steps through a row, which is then a constant."""
        shared = self.grid_split == "rows" or self.mapping.shares_rows
        return bool(shared or self.row_cache.registers or self.has_few_steps)

    @property
    def has_whole_steps(self) -> bool:
        """Whether all threads have a vector (where lanes are rows: a column) in each of these."""
        end = self.columns if self.lane_axis == "rows" else self.lanes.vectors
        return self.steps * self.threads * self.mapping.column_tiles == end

    @property
    def has_spare_rows(self) -> bool:
        """Whether some threads of the last block to work have no row of their own."""
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
        """Whether several threads go through the columns of a row."""
        return self.threads > 1

    @property
    def is_outer_shared(self) -> bool:
        """Whether several threads go through the columns of rows that lie side by side."""
        return self.lane_axis == "rows" and self.threads > 1

    @property
    def block_vectors(self) -> int:
        """Vectors of one access that a block reads of what its threads share."""
        if self.is_outer_shared:
            return self.columns * self.rows_per_block
        return self.steps * self.threads if self.mapping.shares_rows else self.lanes.vectors

    @property
    def has_written_out(self) -> bool:
        """Whether there are passes whose steps have registers of their own, or few of them."""
        shares = self.grid_split == "rows"
        columns = any(t.is_of_columns for t in self.grid_reductions)
        return bool(self.row_cache.registers or columns or (shares and self.steps <= MAX_STEPS))

    def is_before_totals(self, number: int) -> bool:
        """Whether a pass folds rows of which no step keeps anything in registers of its own."""
        is_last = number in (-1, len(self.passes) - 1)
        few = self.grid_split == "rows" and self.steps <= MAX_STEPS
        return few and not (is_last or self.row_cache.registers)

    def is_written_out(self, number: int) -> bool:
        """Whether each step of a pass has registers of its own, or there is room for all loads."""
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
        """Accumulators that a thread has for a vector: one a lane. Threads that share a row have
        few registers, and one accumulator that takes several serves all lanes in turn.
        """
        shares = self.lane_axis == "columns" and self.threads > 1
        in_turn = shares and fold.is_struct and not fold.is_of_columns
        return 1 if in_turn else self.lanes.vector

    @property
    def longest_chain(self) -> int:
        """Vectors of a row that go into the same accumulators one after the other. Exponentials of
        a vector are added up before their sum is added; deviations from one origin, which cancel by
        as much as they are many, go in one by one.
        """
        vector = self.lanes.vector
        one_by_one = (f for f in self.reductions if f.op != "sum_exp")
        fewest = min((self.lanes_of(f) for f in one_by_one), default=vector)
        return max(1, LONGEST_CHAIN * fewest // vector)

    @property
    def is_folded_in_parts(self) -> bool:
        return self.steps > self.longest_chain and not self.row_cache.registers

    @property
    def longest_total(self) -> int:
        """The same for rows that go into a total."""
        return longest_total([t.op for t in self.grid_reductions], self.mapping, self.rows)

    @property
    def is_summed_in_parts(self) -> bool:
        return is_summed_in_parts([t.op for t in self.grid_reductions], self.mapping, self.rows)

    @property
    def exact_terms(self) -> tuple[Value, ...]:
        """What goes into totals, but for sums of many rows of which only what is rounded is stored:
        these lose more by their own additions than by terms that have a few digits less.
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
        """The totals that a block leaves with each portion of its rows, and not with several."""
        if not self.mapping.walks_portions:
            return ()
        every = self.portions_together == 1
        return tuple(n for n, t in enumerate(self.grid_reductions) if every or t.at == "group")

    @property
    def has_portions_ahead(self) -> bool:
        """Whether the first row of a block's next portion is on its way while what this portion
        leaves meets in shared memory. Each portion has a row of each block, or this is not known.
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
        """Whether a block leaves some totals several times, each time with several portions."""
        return 1 < self.portions_together < self.mapping.portions_of_block

    @property
    def is_walked_by_one(self) -> bool:
        """Whether one thread goes through all columns of many rows, which it adds to totals."""
        return self.grid_split == "rows" and self.mapping.is_alone

    @property
    def takes_rows_in_blocks(self) -> bool:
        """Whether one thread folds columns, and nothing else, that are too many for registers: then
        several rows at a time are folded for some columns while these are in registers.
        """
        alone = self.is_walked_by_one and not self.row_cache.registers
        return alone and not self.row_reductions and not self.stores_of_rows

    @property
    def stores_of_rows(self) -> bool:
        """Whether a row leaves more than what is added to columns."""
        totals = any(not t.is_of_columns for t in self.grid_reductions)
        return bool(self.element_stores or self.row_stores or totals)

    @property
    def stages(self) -> int:
        return 1 + max((f.stage for f in self.row_reductions), default=0)

    def is_compiler_unrolled(self, number: int) -> bool:
        """Whether compilers unroll the loop of a pass; below zero it is counted from the end."""
        return number % len(self.passes) in self.compiler_unrolled

    @property
    def workspace_bytes(self) -> int:
        """Global memory for the parts of totals; each byte is written once and read once."""
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
