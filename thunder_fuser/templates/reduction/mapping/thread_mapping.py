"""Thread mapping of a reduction kernel: how threads and blocks divide rows and columns.

`gpu.py` and `host.py` choose one.
"""

from __future__ import annotations

from dataclasses import dataclass

from thunder_fuser.device import WARP_SIZE
from thunder_fuser.lower.rows.row_threads import power_of_two

MAX_THREADS = 1024
_MANY_STEPS = 8
"""Vectors of a thread from which on one more is little: long rows take all threads of a block."""
LONGEST_PORTION = 128
"""Most rows of a thread that one column accumulator takes: more would need a second one."""
_FEWEST_ROWS = 128
"""Fewest rows of a portion if portions outnumber blocks: partial results stay much smaller."""
_ROWS_OF_A_TURN = 5
"""Time from one portion of a block to its next one, in rows of a thread."""


@dataclass(frozen=True, slots=True)
class ThreadMapping:
    """Thread mapping of a reduction kernel: which threads and blocks reduce which rows and columns.

    threads_per_row  threads that share a row, or a vector of rows where lanes are rows: a power of
                     two, or whole warps
    rows_per_block   rows (vectors of rows where lanes are rows) that a block works on at a time
    blocks           blocks of the grid
    column_tiles     neighbouring blocks with the same rows, each with its own columns
    blocks_per_row   blocks that share the columns of one row
    partials         partial results of each grid reduction: one of each block on the same points
    row_groups       groups of rows with grid reductions of their own
    portions         of the rows, equally many in each row group, in order: a block works on one, or
                     on several in turn where they are more than `partials`
    blocks_per_sm    resident blocks that a multiprocessor needs room for, as they wait for each
                     other or one works while another waits; else 0
    cluster          blocks of a thread block cluster, whose tiles are all columns of a row
    """

    threads_per_row: int
    rows_per_block: int
    blocks: int
    column_tiles: int = 1
    blocks_per_row: int = 1
    partials: int = 1
    row_groups: int = 1
    portions: int = 1
    blocks_per_sm: int = 0
    cluster: int = 1

    @property
    def shares_rows(self) -> bool:
        """True if the blocks of a cluster reduce a row together."""
        return self.cluster > 1 and self.column_tiles == self.cluster

    @property
    def meets_in_clusters(self) -> bool:
        """True if blocks of a cluster have rows of their own and combine their partial results."""
        return self.cluster > 1 and self.column_tiles == 1

    @property
    def is_alone(self) -> bool:
        """True if a block is one thread, which has more columns than registers."""
        return self.threads_per_row * self.rows_per_block == 1

    def steps(self, vectors: int) -> int:
        """Return the vectors of a row that one thread works on."""
        return -(-vectors // (self.threads_per_row * self.column_tiles * self.blocks_per_row))

    @property
    def portions_of_group(self) -> int:
        return self.portions // self.row_groups

    @property
    def parts_of_group(self) -> int:
        """Partial results of a grid reduction of one row group."""
        each = self.portions_of_group
        return each // self.cluster if self.meets_in_clusters else each

    @property
    def walks_portions(self) -> bool:
        """True if a block works on several portions in turn."""
        return self.portions > self.partials

    @property
    def portions_of_block(self) -> int:
        """Portions of the block that has the most."""
        return -(-self.portions // self.partials)

    def parts(self, portions: int) -> int:
        """Return the partial results of a grid reduction, one of each `portions` portions."""
        spans, rest = divmod(self.portions, portions * self.partials)
        parts = spans * self.partials + min(rest, self.partials)
        return parts // self.cluster if self.meets_in_clusters else parts

    def rows_of_portion(self, rows: int) -> int:
        """Return the rows of each portion that one thread works on, where blocks share rows."""
        return -(-(rows // self.row_groups) // (self.portions_of_group * self.rows_per_block))

    def rows_per_thread(self, rows: int) -> int:
        """Return the rows of all its portions that one thread works on."""
        return self.portions_of_block * self.rows_of_portion(rows)


@dataclass(frozen=True, slots=True)
class RowWork:
    """Work that the threads of a reduction kernel divide among themselves.

    vectors              of a row, or of rows where lanes are rows
    has_stages           the kernel reads its results of a row: one block has all its columns
    accumulators         32-bit registers of a thread for accumulators of one vector
    at_a_time            most of them in one pass: those of a stage are free in the next
    column_accumulators  those of them that a thread keeps from row to row, for each vector
    of_rows              32-bit registers of what a thread reads of one vector of each row
    of_columns           32-bit registers of the row-invariant vectors it reads
    row_groups           groups of rows with grid reductions of their own: a block has rows of one
    reads_once           each row takes one pass
    is_narrow            a vector is several accesses, since rows begin within wider ones
    """

    vectors: int
    rows: int
    columns: int
    has_stages: bool
    accumulators: int
    at_a_time: int
    column_accumulators: int
    of_rows: int
    of_columns: int
    row_groups: int
    reads_once: bool
    is_narrow: bool

    @property
    def rows_of_group(self) -> int:
        return max(self.rows // self.row_groups, 1)


def sharing(vectors: int, most: int, each: int = 1) -> int:
    """Return threads that share `vectors` vectors, at least `each` a thread: all have equally many,
    except for those of the last warp. Where a thread has many: `most`.
    """
    if vectors <= WARP_SIZE:
        return power_of_two(vectors)
    each = max(each, -(-vectors // most))
    return most if each > _MANY_STEPS else WARP_SIZE * -(-vectors // (each * WARP_SIZE))


def in_portions(
    work: RowWork, threads: int, owned: int, tiles: int, most: int, longest: int
) -> ThreadMapping:
    """Map work to at most `most` blocks for each column tile, which walk over portions of row
    groups: as many portions as let blocks end at about the same time, of at most `longest` rows.
    """
    within, row_groups = work.rows_of_group, work.row_groups
    each = max(1, min(most // row_groups, -(-within // owned)))
    if row_groups == 1:
        each *= max(1, -(-within // (each * longest)))
    else:

        def latest(each: int) -> int:
            """Rows of a thread of the last block to end, and the time between portions in rows."""
            portions = -(-row_groups * each // most)
            return portions * (-(-within // (each * owned)) + _ROWS_OF_A_TURN)

        fewest = max(each, -(-within // longest))
        each = min(range(fewest, max(fewest, within // _FEWEST_ROWS) + 1), key=latest)
    portions = row_groups * each
    parts = min(portions, most)
    return ThreadMapping(
        threads_per_row=threads,
        rows_per_block=owned,
        blocks=parts * tiles,
        column_tiles=tiles,
        partials=parts,
        row_groups=row_groups,
        portions=portions,
    )


def splitting_rows(threads: int, rows: int, splits: int, blocks_per_sm: int) -> ThreadMapping:
    """Map each row to `splits` blocks of `threads` threads."""
    return ThreadMapping(
        threads_per_row=threads,
        rows_per_block=1,
        blocks=rows * splits,
        blocks_per_row=splits,
        partials=splits,
        portions=splits,
        blocks_per_sm=blocks_per_sm,
    )
