"""Thread mapping of reduction kernels: how threads and blocks divide rows and columns."""

from __future__ import annotations

from dataclasses import dataclass, replace

from thunder_fuser.device import WARP_SIZE, DeviceInfo
from thunder_fuser.lower.register_budget import (
    ACCUMULATORS,
    FEWEST_REGISTERS,
    INVARIANT_REGISTERS,
    OUTER_ACCUMULATORS,
    PORTION_REGISTERS,
    ROW_REGISTERS,
    SECOND_ACCUMULATORS,
    TESTED_REGISTERS,
)
from thunder_fuser.lower.row_space import GridSplit, LaneAxis
from thunder_fuser.lower.row_threads import (
    FEWEST_OUTER_ROWS,
    MANY_VECTORS_PER_THREAD,
    OUTER_COLUMNS,
    OUTER_ROWS,
    VECTORS_PER_THREAD,
)
from thunder_fuser.occupancy import resident_blocks
from thunder_fuser.templates.reduction.host_tiles import HOST_PARTS, host_tiles

MAX_THREADS = 1024
_VECTORS_OF_WARP = 4
"""Vectors of a thread up to which one warp has a row to itself, which needs no barrier."""
_MANY_STEPS = 8
"""Vectors of a thread from which on one more is little: long rows take all threads of a block."""
_VECTORS_OF_BARE_ROW = (8, 4, 2)
"""Vectors of a thread to try for rows that are reduced without column accumulators: the most that
leave rows for all blocks.
"""
_SMALL_ROW = 256
"""Most threads of a row of which several blocks fill a multiprocessor. LayerNorm of 8,192 x 4,096
bf16 takes 38.4 us on an H200 with these, and 39.4 with half as many; of 5,120 columns 50.5 with
320, and 46.4 with 160.
"""
_SHARED_BLOCK = 512
"""Threads of a block that only reduces over the grid."""
_MAX_ROWS = 64
_FEWEST_THREADS = 256
_BLOCKS_PER_SM = 2
"""Blocks per multiprocessor that share the columns of rows."""
_SMALL_BLOCKS = 4
"""Blocks per multiprocessor that walk long rows which are read once."""
LONGEST_PORTION = 128
"""Most rows of a thread that one column accumulator takes: more would need a second one."""
_FEWEST_ROWS = 128
"""Fewest rows of a portion if portions outnumber blocks: partial results stay small beside rows."""
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


def choose_thread_mapping(
    work: RowWork, axis: LaneAxis, outer_shared: bool, grid_split: GridSplit, device: DeviceInfo
) -> ThreadMapping | None:
    """Choose the mapping of some work; None where a row is not worth sharing. `outer_shared`: an
    outer reduction with several threads per row.
    """
    if grid_split == "rows":
        return _sharing_rows(work, device)
    if grid_split == "columns":
        return _sharing_columns(work.vectors, work.rows, device)
    if outer_shared:
        return _outer(work, device)
    if axis == "rows":
        vectors = work.vectors
        owned = max(1, min(16, vectors // HOST_PARTS)) if device.threads_are_serial else 128
        return ThreadMapping(1, owned, blocks=-(-vectors // owned))
    if _is_read_in_small_blocks(work, device):
        threads = MAX_THREADS // _SMALL_BLOCKS
        return ThreadMapping(threads, 1, blocks=work.rows, blocks_per_sm=_SMALL_BLOCKS)
    threads, owned = _threads(work, device)
    return ThreadMapping(threads, owned, blocks=-(-work.rows // owned))


def takes_small_blocks(rows: int, vectors: int, device: DeviceInfo) -> bool:
    """True if rows are long, and enough for several small blocks on each multiprocessor, some of
    which reduce while others wait for memory.
    """
    is_long = rows >= _SMALL_BLOCKS * device.sm_count and vectors >= 2 * MAX_THREADS
    return is_long and not device.threads_are_serial


def _is_read_in_small_blocks(work: RowWork, device: DeviceInfo) -> bool:
    """True for such rows of which nothing is kept between passes, and no column accumulators."""
    bare = work.has_stages and work.reads_once and not work.column_accumulators
    return bare and takes_small_blocks(work.rows, work.vectors, device)


def _outer(work: RowWork, device: DeviceInfo) -> ThreadMapping | None:
    """Map an outer reduction with several threads per row: neighbouring rows share a block."""
    most = MAX_THREADS
    while most > _FEWEST_THREADS and work.accumulators * most > OUTER_ACCUMULATORS * MAX_THREADS:
        most //= 2
    owned = min(OUTER_ROWS, _power_of_two(work.vectors))
    while owned > FEWEST_OUTER_ROWS and -(-work.vectors // owned) < device.sm_count:
        owned //= 2
    threads = min(most // owned, _power_of_two(work.columns) // OUTER_COLUMNS)
    # At least a warp.
    threads = max(threads, WARP_SIZE // owned)
    if threads > work.columns:
        return None
    return ThreadMapping(threads, owned, blocks=-(-work.vectors // owned))


def _threads(work: RowWork, device: DeviceInfo) -> tuple[int, int]:
    """Return (threads per row, rows per block). A host core runs one thread after the other."""
    if device.threads_are_serial:
        return 1, 8
    if work.vectors > WARP_SIZE * _VECTORS_OF_WARP:
        return _of_shared_row(work, device), 1
    threads = min(WARP_SIZE, _power_of_two(work.vectors))
    return threads, max(1, 128 // threads)


def _of_shared_row(work: RowWork, device: DeviceInfo) -> int:
    """Return threads of a row that several warps share, with few vectors each where rows are too
    few to keep all multiprocessors busy, or where such blocks fill one.
    """
    few, many = VECTORS_PER_THREAD, MANY_VECTORS_PER_THREAD
    threads, fewer = (sharing(work.vectors, MAX_THREADS, each) for each in (few, many))
    fills = threads <= _SMALL_ROW and threads == _power_of_two(threads)
    is_busy = work.rows * fewer >= device.sm_count * device.threads_per_sm
    return fewer if is_busy and not fills else threads


def sharing(vectors: int, most: int, each: int = 1) -> int:
    """Return threads that share `vectors` vectors, at least `each` a thread: all have equally many,
    but for those of the last warp. Where a thread has many: `most`.
    """
    if vectors <= WARP_SIZE:
        return _power_of_two(vectors)
    each = max(each, -(-vectors // most))
    return most if each > _MANY_STEPS else WARP_SIZE * -(-vectors // (each * WARP_SIZE))


def _sharing_rows(work: RowWork, device: DeviceInfo) -> ThreadMapping | None:
    """Map blocks that stride over rows; a thread has the same columns in each row."""
    within, vectors, has_stages = work.rows_of_group, work.vectors, work.has_stages
    if device.threads_are_serial:
        tiles, parts = (1, HOST_PARTS) if has_stages else host_tiles(work.vectors, within)
        if parts == 1:
            return None
        return _in_portions(work, 1, 1, tiles, parts, within)
    most = MAX_THREADS
    while not resident_blocks(device, most, FEWEST_REGISTERS):
        most //= 2
    # Half as many threads have twice the registers.
    while most > _FEWEST_THREADS and _is_crowded(work, most):
        most //= 2
    apart = most == MAX_THREADS and _is_read_in_small_blocks(work, device)
    blocks_per_sm = _SMALL_BLOCKS if apart else 1
    most //= blocks_per_sm
    limit = most if has_stages else _SHARED_BLOCK
    threads = sharing(vectors, limit)
    if has_stages and not (work.column_accumulators or apart):
        threads = _of_bare_row(work, most, device)
    elif has_stages and threads > MAX_THREADS // 2 and _fits_half(work, device):
        most = MAX_THREADS // 2
        threads = sharing(vectors, most)
    tiles = 1 if has_stages else -(-vectors // threads)
    # Whole warps, even where rows are fewer.
    owned = max(1, WARP_SIZE // threads, min(most // threads, _MAX_ROWS, _power_of_two(within)))
    blocks = blocks_per_sm * device.sm_count // tiles
    if min(blocks, -(-within // owned)) <= 1 and not has_stages:
        return None
    # Blocks with column accumulators in registers until the last row have a multiprocessor each.
    # Long columns take a second set of accumulators, or one portion at a time.
    steps = -(-vectors // (threads * tiles))
    taken = 2 * (work.accumulators + (steps - 1) * work.column_accumulators)
    has_room = taken * threads * owned <= SECOND_ACCUMULATORS * MAX_THREADS
    is_whole = work.row_groups == 1 and (has_room or not has_stages)
    longest = within if is_whole else LONGEST_PORTION * owned
    found = _in_portions(work, threads, owned, tiles, max(blocks, 1), longest)
    return replace(found, blocks_per_sm=blocks_per_sm)


def _fits_half(work: RowWork, device: DeviceInfo) -> bool:
    """True if half a block's threads have registers for a row with its column accumulators: two
    sets of these where rows are so many that they are reduced in parts, which are a loop more.
    """
    if work.is_narrow:
        return False
    steps = -(-work.vectors // (MAX_THREADS // 2))
    in_parts = work.rows_of_group > LONGEST_PORTION * device.sm_count
    columns, room = work.column_accumulators, ROW_REGISTERS
    if in_parts:
        room -= PORTION_REGISTERS
        taken = 2 * (work.accumulators + (steps - 1) * columns)
        has_second = taken * (MAX_THREADS // 2) <= SECOND_ACCUMULATORS * MAX_THREADS
        # Blocks that walk portions have no second set. Without clusters the next row is prefetched
        # to registers, not to shared memory.
        columns *= 2 if has_second or not device.clusters else 1
    return steps * (columns + work.of_rows + work.of_columns) <= room


def _of_bare_row(work: RowWork, most: int, device: DeviceInfo) -> int:
    """Return the threads of a row without column accumulators: few, so that a block of `most` has
    many rows, which do not wait for each other, if there are as many.
    """
    for each in _VECTORS_OF_BARE_ROW:
        threads = sharing(work.vectors, most, each)
        if work.rows_of_group >= most // threads * device.sm_count:
            return threads
    return sharing(work.vectors, most)


def _is_crowded(work: RowWork, threads: int) -> bool:
    """True if registers kept from row to row leave too few to compute a row.

    Where several rows share a block, one computes while others wait, and the registers of a pass
    are enough. A single row needs more: what they do not hold goes through shared memory, and is
    not prefetched.
    """
    of_row = sharing(work.vectors, threads)
    # With whole rows a block has fewer threads, and each of them more registers.
    room = MAX_THREADS / (threads // of_row * of_row)
    taken = work.at_a_time if 2 * of_row <= threads else work.accumulators
    invariant = taken + work.of_columns
    if work.vectors % of_row:
        invariant += TESTED_REGISTERS
    return taken > ACCUMULATORS * room or invariant > INVARIANT_REGISTERS * room


def _in_portions(
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


def _sharing_columns(vectors: int, rows: int, device: DeviceInfo) -> ThreadMapping | None:
    """Map work to several blocks per row: rows are too few to keep the device busy."""
    if device.threads_are_serial:
        splits = min(HOST_PARTS // max(rows, 1), vectors)
        if splits < 2:
            return None
        return _with_splits(1, rows, splits, 0)
    threads = _SHARED_BLOCK
    splits = min(device.sm_count * _BLOCKS_PER_SM // max(rows, 1), vectors // threads)
    if splits < 2:
        return None
    return _with_splits(threads, rows, splits, -(-rows * splits // device.sm_count))


def _with_splits(threads: int, rows: int, splits: int, blocks_per_sm: int) -> ThreadMapping:
    return ThreadMapping(
        threads_per_row=threads,
        rows_per_block=1,
        blocks=rows * splits,
        blocks_per_row=splits,
        partials=splits,
        portions=splits,
        blocks_per_sm=blocks_per_sm,
    )


def _power_of_two(number: int) -> int:
    """Return the smallest power of two that is not smaller."""
    return 1 << max(number - 1, 0).bit_length()
