"""Rows of a reduction kernel on threads: what it computes, and which thread computes what. Nothing
is decided here about what stays on chip (schedule.py).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from thunder_fuser.lower.brief import is_rounded
from thunder_fuser.lower.register_budget import BLOCK_ACCUMULATORS
from thunder_fuser.lower.rows.row_space import GridSplit, LaneAxis
from thunder_fuser.lower.scalar_graph import Conjunction, ScalarGraph, Value
from thunder_fuser.lower.store import Store
from thunder_fuser.lower.vectors.lanes import Lanes
from thunder_fuser.lower.vectors.vectorize import RegisterArray
from thunder_fuser.templates.reduction.mapping.accumulations import (
    LONGEST_CHAIN,
    LONGEST_TOTAL,
    Accumulation,
    GridReduction,
    Reductions,
    in_workspace,
    is_summed_in_parts,
    longest_total,
    portions_together,
)
from thunder_fuser.templates.reduction.mapping.thread_mapping import ThreadMapping


@dataclass(frozen=True, slots=True)
class Writes:
    """Stores of a reduction kernel before the grid barrier.

    elements  stores at every point
    passes    for each of them, the first pass that has all its operands
    rows      stores once a row
    """

    elements: tuple[Store, ...]
    passes: tuple[int, ...]
    rows: tuple[Store, ...]


@dataclass(frozen=True, slots=True)
class MappedRows:
    """Rows of a reduction kernel, divided over threads and blocks.

    rows, columns  sizes of the iteration space
    lane_axis      what the lanes of a vector are: consecutive columns, or consecutive rows
    grid_split     what blocks share: rows, the columns of each row, or none
    lanes          vectors of a row (or of rows)
    inside         predicate of columns that exist, where the last vector has lanes too many
    graph          what is computed at every point; each grid epilogue has its own
    accesses       loads of the graph, as vectors
    mapping        how threads and blocks divide the work
    tail_apart     a core takes the last vector, which is partial, apart from the others: only that
                   has tests of lanes
    """

    template: ClassVar[str] = "reduction"

    rows: int
    columns: int
    lane_axis: LaneAxis
    grid_split: GridSplit
    lanes: Lanes
    inside: Conjunction
    graph: ScalarGraph
    accesses: tuple[RegisterArray, ...]
    reductions: Reductions
    writes: Writes
    mapping: ThreadMapping
    tail_apart: bool = False

    def on(self, mapping: ThreadMapping) -> MappedRows:
        """Return the rows on other threads and blocks."""
        of_grid = in_workspace(self.reductions.of_grid, self.lanes, mapping, self.rows)
        return replace(self, mapping=mapping, reductions=replace(self.reductions, of_grid=of_grid))

    @property
    def graphs(self) -> tuple[ScalarGraph, ...]:
        return (self.graph, *(f.graph for f in self.reductions.epilogues))

    @property
    def stores(self) -> tuple[Store, ...]:
        return (
            *self.writes.elements,
            *self.writes.rows,
            *(s for f in self.reductions.epilogues for s in f.stores),
        )

    @property
    def passes(self) -> tuple[tuple[Value, ...], ...]:
        """Roots of each pass over the columns: one pass for each stage, and the last."""
        roots: list[list[Value]] = [[] for _ in range(self.stages + 1)]
        for fold in self.reductions.of_rows:
            roots[fold.stage] += fold.roots
        for number, store in zip(self.writes.passes, self.writes.elements, strict=True):
            roots[number].append(store.value)
        roots[-1] += [v for t in self.reductions.of_grid if t.at != "one" for v in t.roots]
        return tuple(map(tuple, roots))

    def stores_in_pass(self, number: int) -> tuple[Store, ...]:
        """Return the stores at every point that a pass does; -1 is the last."""
        passes = range(self.stages + 1)
        found = zip(self.writes.passes, self.writes.elements, strict=True)
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
    def has_crowded_totals(self) -> bool:
        """True if column accumulators exceed the registers that a block has for them."""
        words = self.reductions.column_words * self.columns
        return words > BLOCK_ACCUMULATORS * self.mapping.column_tiles

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
        one_by_one = (f for f in self.reductions.all if f.op != "sum_exp")
        fewest = min((self.lanes_of(f) for f in one_by_one), default=vector)
        return max(1, LONGEST_CHAIN * fewest // vector)

    @property
    def longest_total(self) -> int:
        """Most rows that one accumulator of a grid reduction takes."""
        return longest_total([t.op for t in self.reductions.of_grid], self.mapping, self.rows)

    @property
    def is_summed_in_parts(self) -> bool:
        return is_summed_in_parts([t.op for t in self.reductions.of_grid], self.mapping, self.rows)

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
                for epilogue in self.reductions.epilogues
            )

        return tuple(v for total in self.reductions.of_grid if is_exact(total) for v in total.roots)

    @property
    def totals_of_portions(self) -> tuple[int, ...]:
        """Grid reductions with a partial result for each portion of a block."""
        if not self.mapping.walks_portions:
            return ()
        every = self.portions_together == 1
        return tuple(n for n, t in enumerate(self.reductions.of_grid) if every or t.at == "group")

    @property
    def portions_together(self) -> int:
        return portions_together([t.op for t in self.reductions.of_grid], self.mapping, self.rows)

    @property
    def leaves_spans(self) -> bool:
        """True if a block writes several partial results, each of several portions."""
        return 1 < self.portions_together < self.mapping.portions_of_block

    @property
    def is_walked_by_one(self) -> bool:
        """True if one thread adds all columns of many rows to column accumulators."""
        return self.grid_split == "rows" and self.mapping.is_alone

    @property
    def stores_of_rows(self) -> bool:
        """True if a row has outputs besides terms of column reductions."""
        totals = any(not t.is_of_columns for t in self.reductions.of_grid)
        return bool(self.writes.elements or self.writes.rows or totals)

    @property
    def stages(self) -> int:
        return self.reductions.stages
