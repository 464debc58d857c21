"""Thread mapping of reduction kernels: how threads and blocks divide rows and columns."""

from __future__ import annotations

from dataclasses import dataclass, replace

from thunder_fuser.device import WARP_SIZE, DeviceInfo
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
"""The same as VECTORS_PER_THREAD of a row that one warp has to itself, which needs no barrier."""
_MANY_STEPS = 8
"""Vectors of a thread beyond which one more is little: all threads of a block share longer rows."""
_VECTORS_OF_BARE_ROW = (8, 4, 2)
"""Vectors of a thread of rows that are folded for totals, none of them of columns: as many as leave
rows for all blocks.
"""
_SMALL_ROW = 256
"""Threads that share a row, of which blocks fill a multiprocessor. LayerNorm of 8,192 x 4,096 bf16
takes 38.4 us on an H200 with these, and 39.4 with half as many; of 5,120 columns 50.5 with 320, and
46.4 with 160.
"""
_SHARED_BLOCK = 512
_MAX_ROWS = 64
_ACCUMULATORS = 32
"""Registers of each of so many threads that a block has at most, that accumulators may take."""
_COLUMN_REGISTERS = 39
"""The same of accumulators and of what all rows want, which compilers keep in registers: with 40,
two vectors of a row spill on sm_100.
"""
_ROW_REGISTERS = 112
"""The same of accumulators and of all that a row reads, where threads have 128."""
_LOOP_REGISTERS = 8
"""Those of them that a loop over parts of the rows takes."""
_TESTED_REGISTERS = 12
"""Those besides where some threads have no vector: what these compute with is zeroed under a test.
"""
_SECOND_ACCUMULATORS = 24
"""The same of blocks that fold rows, too, where one set is of a part of the rows."""
_FEWEST_THREADS = 256
_BLOCKS_PER_SM = 2
_SMALL_BLOCKS = 4
"""The same of blocks that have row after row, of long rows that are read once."""
_OUTER_ACCUMULATORS = 16
"""The same as _ACCUMULATORS: each has its result beside it until the last pass."""
LONGEST_PORTION = 128
"""Rows of a thread that one accumulator of its column takes: more would want a second one."""
_FEWEST_ROWS = 128
"""Of a portion, if more of them are made than blocks need: parts of totals are few beside rows."""
_ROWS_OF_A_TURN = 5
"""Rows of a thread in whose time a block leaves one portion and has the next one under way."""


@dataclass(frozen=True, slots=True)
class ThreadMapping:
    """Thread mapping of a reduction kernel: which threads and blocks reduce which rows and columns.

    threads_per_row  that share a row, or a vector of rows where lanes are rows: a power of two, or
                     whole warps
    rows_per_block   that a block works on at a time (vectors of rows where lanes are rows)
    blocks           of the whole grid
    column_tiles     blocks side by side, each with its own columns
    blocks_per_row   blocks that share the columns of one row
    partials         of each grid reduction: one of each block that works on the same points
    row_groups       of rows that have totals of their own
    portions         of the rows, of each group as many, the first group's first: a block works on
                     one, or on one after the other where they are more than partials
    blocks_per_sm    that a multiprocessor must have room for, because blocks wait for each other
                     or because one works while the other waits; else 0
    cluster          blocks of a thread block cluster: one has all columns of a row in its tiles
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
        """Whether the blocks of a cluster fold a row together."""
        return self.cluster > 1 and self.column_tiles == self.cluster

    @property
    def meets_in_clusters(self) -> bool:
        """Whether blocks of a cluster have rows of their own, and add up what these leave."""
        return self.cluster > 1 and self.column_tiles == 1

    @property
    def is_alone(self) -> bool:
        """A block is one thread, which has more columns than registers."""
        return self.threads_per_row * self.rows_per_block == 1

    def steps(self, vectors: int) -> int:
        """Vectors of a row that one thread works on."""
        return -(-vectors // (self.threads_per_row * self.column_tiles * self.blocks_per_row))

    @property
    def portions_of_group(self) -> int:
        return self.portions // self.row_groups

    @property
    def parts_of_group(self) -> int:
        """What blocks leave of a total of one group."""
        each = self.portions_of_group
        return each // self.cluster if self.meets_in_clusters else each

    @property
    def walks_portions(self) -> bool:
        """Whether a block works on several portions, one after the other."""
        return self.portions > self.partials

    @property
    def portions_of_block(self) -> int:
        """As many as the block with the most has."""
        return -(-self.portions // self.partials)

    def parts(self, portions: int) -> int:
        """What blocks leave of a total, each with so many of its portions."""
        spans, rest = divmod(self.portions, portions * self.partials)
        parts = spans * self.partials + min(rest, self.partials)
        return parts // self.cluster if self.meets_in_clusters else parts

    def rows_of_portion(self, rows: int) -> int:
        """Rows that one thread works on of each portion, where blocks share them."""
        return -(-(rows // self.row_groups) // (self.portions_of_group * self.rows_per_block))

    def rows_per_thread(self, rows: int) -> int:
        """The same of all its portions."""
        return self.portions_of_block * self.rows_of_portion(rows)


@dataclass(frozen=True, slots=True)
class RowWork:
    """What the threads of a reduction kernel divide among themselves.

    vectors       of lanes: of a row, or of rows
    has_stages    results of a row are wanted while the kernel runs, so that one block has all of
                  its columns
    accumulators  32-bit registers with which a thread folds one vector
    at_a_time     those of them that it has in one pass: a stage's are free in the next
    column_accumulators  those of them that it keeps for each of its vectors from row to row
    of_rows       32-bit registers of what a thread reads of one vector of each row
    of_columns    the same of what all rows have in common
    row_groups    of rows that have totals of their own: a block works on rows of one
    reads_once    one pass over a row is all
    is_narrow     a vector is several accesses, since rows begin within wider ones
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
    """The mapping of some work; None where a row is not worth sharing. `stacks`: several threads
    walk down rows that lie side by side.
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
    """Whether rows are long, and enough for several small blocks on each multiprocessor, some of
    which fold while others wait for memory.
    """
    is_long = rows >= _SMALL_BLOCKS * device.sm_count and vectors >= 2 * MAX_THREADS
    return is_long and not device.threads_are_serial


def _is_read_in_small_blocks(work: RowWork, device: DeviceInfo) -> bool:
    """The same of rows of which nothing is kept from pass to pass, nor for columns."""
    bare = work.has_stages and work.reads_once and not work.column_accumulators
    return bare and takes_small_blocks(work.rows, work.vectors, device)


def _outer(work: RowWork, device: DeviceInfo) -> ThreadMapping | None:
    """Some vectors of rows that lie side by side for each block."""
    most = MAX_THREADS
    while most > _FEWEST_THREADS and work.accumulators * most > _OUTER_ACCUMULATORS * MAX_THREADS:
        most //= 2
    owned = min(OUTER_ROWS, _power_of_two(work.vectors))
    while owned > FEWEST_OUTER_ROWS and -(-work.vectors // owned) < device.sm_count:
        owned //= 2
    threads = min(most // owned, _power_of_two(work.columns) // OUTER_COLUMNS)
    # Whole warps.
    threads = max(threads, WARP_SIZE // owned)
    if threads > work.columns:
        return None
    return ThreadMapping(threads, owned, blocks=-(-work.vectors // owned))


def _threads(work: RowWork, device: DeviceInfo) -> tuple[int, int]:
    """(threads that share a row, rows of a block). A host core runs one thread after the other."""
    if device.threads_are_serial:
        return 1, 8
    if work.vectors > WARP_SIZE * _VECTORS_OF_WARP:
        return _of_shared_row(work, device), 1
    threads = min(WARP_SIZE, _power_of_two(work.vectors))
    return threads, max(1, 128 // threads)


def _of_shared_row(work: RowWork, device: DeviceInfo) -> int:
    """Threads of a row that several warps share, with few vectors each where rows are too few to
    keep all multiprocessors busy, or where blocks of so many threads fill one.
    """
    few, many = VECTORS_PER_THREAD, MANY_VECTORS_PER_THREAD
    threads, fewer = (sharing(work.vectors, MAX_THREADS, each) for each in (few, many))
    fills = threads <= _SMALL_ROW and threads == _power_of_two(threads)
    is_busy = work.rows * fewer >= device.sm_count * device.threads_per_sm
    return fewer if is_busy and not fills else threads


def sharing(vectors: int, most: int, each: int = 1) -> int:
    """Threads that share so many vectors, `each` or as many more as `most` threads leave: all have
    equally many, but for those of the last warp. Where they have many, all of `most`.
    """
    if vectors <= WARP_SIZE:
        return _power_of_two(vectors)
    each = max(each, -(-vectors // most))
    return most if each > _MANY_STEPS else WARP_SIZE * -(-vectors // (each * WARP_SIZE))


def _sharing_rows(work: RowWork, device: DeviceInfo) -> ThreadMapping | None:
    """Blocks stride over rows; a thread has the same columns in each of them."""
    within, vectors, has_stages = work.rows_of_group, work.vectors, work.has_stages
    if device.threads_are_serial:
        tiles, parts = (1, HOST_PARTS) if has_stages else host_tiles(work.vectors, within)
        if parts == 1:
            return None
        return _in_portions(work, 1, 1, tiles, parts, within)
    most = MAX_THREADS
    while not resident_blocks(device, most):
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
    # Blocks that keep totals of columns in registers until the last row have a multiprocessor each.
    # A second set of accumulators where columns are long, or one portion of them at a time.
    steps = -(-vectors // (threads * tiles))
    taken = 2 * (work.accumulators + (steps - 1) * work.column_accumulators)
    has_room = taken * threads * owned <= _SECOND_ACCUMULATORS * MAX_THREADS
    is_whole = work.row_groups == 1 and (has_room or not has_stages)
    longest = within if is_whole else LONGEST_PORTION * owned
    found = _in_portions(work, threads, owned, tiles, max(blocks, 1), longest)
    return replace(found, blocks_per_sm=blocks_per_sm)


def _fits_half(work: RowWork, device: DeviceInfo) -> bool:
    """Whether half a block's threads have registers for a row with what is kept for its columns: a
    second set of it where rows are so many that they are taken in parts, which are a loop more.
    """
    if work.is_narrow:
        return False
    steps = -(-work.vectors // (MAX_THREADS // 2))
    in_parts = work.rows_of_group > LONGEST_PORTION * device.sm_count
    columns, room = work.column_accumulators, _ROW_REGISTERS
    if in_parts:
        room -= _LOOP_REGISTERS
        taken = 2 * (work.accumulators + (steps - 1) * columns)
        has_second = taken * (MAX_THREADS // 2) <= _SECOND_ACCUMULATORS * MAX_THREADS
        # Blocks that take rows by portions have no second set. Without clusters the next row is not
        # copied to shared memory, but has its registers.
        columns *= 2 if has_second or not device.clusters else 1
    return steps * (columns + work.of_rows + work.of_columns) <= room


def _of_bare_row(work: RowWork, most: int, device: DeviceInfo) -> int:
    """Threads of a row of which nothing is kept for its columns: few, so that a block of `most` has
    many rows, which do not wait for each other, if there are so many.
    """
    for each in _VECTORS_OF_BARE_ROW:
        threads = sharing(work.vectors, most, each)
        if work.rows_of_group >= most // threads * device.sm_count:
            return threads
    return sharing(work.vectors, most)


def _is_crowded(work: RowWork, threads: int) -> bool:
    """Whether what a thread keeps from row to row leaves it too few registers to compute a row.

    Where several rows share a block, one computes while others wait, and the registers of a pass
    are enough. A lone row wants more of them: what they do not hold goes through shared memory, and
    is not loaded ahead.
    """
    of_row = sharing(work.vectors, threads)
    # Of whole rows a block has fewer threads, and each of them more registers.
    room = MAX_THREADS / (threads // of_row * of_row)
    taken = work.at_a_time if 2 * of_row <= threads else work.accumulators
    invariant = taken + work.of_columns
    if work.vectors % of_row:
        invariant += _TESTED_REGISTERS
    return taken > _ACCUMULATORS * room or invariant > _COLUMN_REGISTERS * room


def _in_portions(
    work: RowWork, threads: int, owned: int, tiles: int, most: int, longest: int
) -> ThreadMapping:
    """The mapping with at most so many blocks for each tile, which walk over portions of groups of
    rows: as many portions as let blocks end at about the same time, of at most `longest` rows.
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
    found = ThreadMapping(threads, owned, parts * tiles, column_tiles=tiles, partials=parts)
    return replace(found, row_groups=row_groups, portions=portions)


def _sharing_columns(vectors: int, rows: int, device: DeviceInfo) -> ThreadMapping | None:
    """Several blocks work on one row: rows are too few to keep the device busy."""
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
    found = ThreadMapping(threads, 1, rows * splits, blocks_per_row=splits, partials=splits)
    return replace(found, portions=splits, blocks_per_sm=blocks_per_sm)


def _power_of_two(number: int) -> int:
    """The smallest power of two that is not smaller."""
    return 1 << max(number - 1, 0).bit_length()
