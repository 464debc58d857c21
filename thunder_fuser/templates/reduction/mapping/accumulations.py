"""Accumulations of a reduction kernel: over a row, over the grid, and how long their chains are."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import TensorView
from thunder_fuser.ir.tables import reductions
from thunder_fuser.kernel_ir import WORD
from thunder_fuser.lower.rows.roles import Point
from thunder_fuser.lower.scalar_graph import ScalarGraph, Value
from thunder_fuser.lower.store import Store
from thunder_fuser.lower.vectors.lanes import Lanes
from thunder_fuser.lower.vectors.vectorize import RegisterArray
from thunder_fuser.templates.reduction.mapping.thread_mapping import LONGEST_PORTION, ThreadMapping

LONGEST_CHAIN = 32
"""Most values that one accumulator takes one after the other. Rounding errors grow with the length
of a chain, so that longer ones are reduced in parts, and then the parts' results.
"""
LONGEST_TOTAL = LONGEST_PORTION
"""Most rows that one scalar accumulator of a grid reduction takes: partial ones take as many
registers again. Errors of structs may grow faster than a sum's; their chains are shorter.
"""
BLOCK_OF_ROWS = 16
"""Rows reduced at a time for some columns, where registers cannot hold all columns."""


def longest_total(ops: Collection[str], mapping: ThreadMapping, rows: int) -> int:
    """Return the most rows that one accumulator of a grid reduction takes one after the other.

    A block of one thread has its accumulators in memory, where partial ones cost little: there are
    about as many of them as rows in each.
    """
    if any(reductions.lookup(op).accumulator.words > 1 for op in ops):
        return LONGEST_CHAIN
    if not mapping.is_alone:
        return LONGEST_TOTAL
    balanced = 1 << mapping.rows_per_thread(rows).bit_length() // 2
    return min(max(balanced, 2 * BLOCK_OF_ROWS), LONGEST_TOTAL)


def portions_together(ops: Collection[str], mapping: ThreadMapping, rows: int) -> int:
    """Return how many portions of a block go into the same accumulators: as many as one takes,
    since two were too many registers. A block of one thread has its accumulators in memory.
    """
    each = mapping.portions_of_block
    if mapping.is_alone:
        return each
    # Portions may have no rows.
    portion = max(mapping.rows_of_portion(rows), 1)
    return min(each, max(1, longest_total(ops, mapping, rows) // portion))


def is_summed_in_parts(ops: Collection[str], mapping: ThreadMapping, rows: int) -> bool:
    """True if a block has more rows than one accumulator of a grid reduction takes."""
    taken = portions_together(ops, mapping, rows) * mapping.rows_of_portion(rows)
    return taken > longest_total(ops, mapping, rows)


@dataclass(frozen=True, slots=True)
class Accumulation:
    """A reduction of `value`, and of its `position` if `op` reduces that, too."""

    tensor: TensorView
    op: str
    accumulate: DataType
    value: Value
    position: Value | None

    @property
    def roots(self) -> tuple[Value, ...]:
        """Operands of the reduction, for each element."""
        return (self.value,) if self.position is None else (self.value, self.position)

    @property
    def is_struct(self) -> bool:
        """True if the accumulator is a struct of several scalars."""
        return reductions.lookup(self.op).accumulator.words > 1

    @property
    def is_of_columns(self) -> bool:
        """True if it reduces over rows, with a result for each column."""
        return False

    @property
    def accumulator_bytes(self) -> int:
        """Size of one accumulator."""
        widest = max(self.accumulate.itemsize, WORD)
        if self.position is not None:
            widest = max(widest, self.position.dtype.itemsize)
        return widest * reductions.lookup(self.op).accumulator.words


@dataclass(frozen=True, slots=True)
class RowReduction(Accumulation):
    """A reduction over the columns; its result of a row is ready after stage `stage`."""

    stage: int


@dataclass(frozen=True, slots=True)
class GridReduction(Accumulation):
    """A reduction across all blocks; a thread mapping decides on all but `at` (`in_workspace`).

    at      place of the results: each column (of all rows, or of a row group), each row, or one
    points  results; for columns, as many as threads may own
    parts   partial results of each: one of a block, or one of each portion of a row group
    offset  bytes before its partial results in the workspace, which are [parts, points]
    bytes   size of its partial results in the workspace
    """

    at: Point
    points: int = 0
    parts: int = 0
    offset: int = 0
    bytes: int = 0

    @property
    def is_of_columns(self) -> bool:
        return self.at in ("column", "group")


def in_workspace(
    totals: Iterable[GridReduction], lanes: Lanes, mapping: ThreadMapping, rows: int
) -> tuple[GridReduction, ...]:
    """Return grid reductions with their partial results one after the other in the workspace."""
    totals = list(totals)
    ops = [total.op for total in totals]
    in_parts = is_summed_in_parts(ops, mapping, rows)
    portions = portions_together(ops, mapping, rows)
    columns = mapping.steps(lanes.vectors) * mapping.threads_per_row * mapping.column_tiles
    found: list[GridReduction] = []
    offset = 0
    for total in totals:
        owned = columns * lanes.vector if total.is_of_columns else total.tensor.numel
        points = 1 if total.at == "one" else owned
        # A block of one thread accumulates in the workspace, with partial accumulators there, too.
        copies = 2 if mapping.is_alone and in_parts and total.is_of_columns else 1
        parts = mapping.parts(1 if total.at == "group" else portions)
        size = -(-copies * parts * points * total.accumulator_bytes // 64) * 64
        found.append(replace(total, points=points, parts=parts, offset=offset, bytes=size))
        offset += size
    return tuple(found)


@dataclass(frozen=True, slots=True)
class GridEpilogue:
    """Stores that read grid reductions, at each of `points` points: one thread does one point."""

    at: Point
    points: int
    graph: ScalarGraph
    accesses: tuple[RegisterArray, ...]
    lanes: Lanes
    stores: tuple[Store, ...]


@dataclass(frozen=True, slots=True)
class Reductions:
    """Reductions of a kernel; a reduction's number is its place in `all`, or in `of_grid`.

    of_rows    reductions over the columns
    of_grid    reductions across all blocks
    epilogues  what reads `of_grid`, after the grid barrier
    """

    of_rows: tuple[RowReduction, ...]
    of_grid: tuple[GridReduction, ...]
    epilogues: tuple[GridEpilogue, ...]

    @property
    def all(self) -> tuple[RowReduction | GridReduction, ...]:
        return (*self.of_rows, *self.of_grid)

    @property
    def stages(self) -> int:
        """Passes over a row that reduce it, at least one."""
        return 1 + max((fold.stage for fold in self.of_rows), default=0)

    @property
    def column_words(self) -> int:
        """32-bit words of a column's accumulators."""
        return sum(t.accumulator_bytes // WORD for t in self.of_grid if t.is_of_columns)

    @property
    def workspace_bytes(self) -> int:
        """Global memory for partial results; each byte is written once and read once."""
        return sum(total.bytes for total in self.of_grid)
