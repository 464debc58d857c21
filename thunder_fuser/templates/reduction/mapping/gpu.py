"""Thread mapping of a reduction kernel on a GPU: threads share rows, blocks fill the device."""

from __future__ import annotations

from dataclasses import replace

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
from thunder_fuser.lower.rows.row_space import GridSplit, LaneAxis
from thunder_fuser.lower.rows.row_threads import (
    FEWEST_OUTER_ROWS,
    MANY_VECTORS_PER_THREAD,
    OUTER_COLUMNS,
    OUTER_ROWS,
    VECTORS_PER_THREAD,
    power_of_two,
)
from thunder_fuser.occupancy import resident_blocks
from thunder_fuser.templates.reduction.mapping.thread_mapping import (
    LONGEST_PORTION,
    MAX_THREADS,
    RowWork,
    ThreadMapping,
    in_portions,
    sharing,
    splitting_rows,
)

_VECTORS_OF_WARP = 4
"""Vectors of a thread up to which one warp has a row to itself, which needs no barrier."""
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
_UNSHARED_BLOCK = 128
"""Threads of a block whose rows need no barrier: a thread or a warp has a row to
itself.
"""
_MAX_ROWS = 64
_FEWEST_THREADS = 256
_BLOCKS_PER_SM = 2
"""Blocks per multiprocessor that share the columns of rows."""
_SMALL_BLOCKS = 4
"""Blocks per multiprocessor that walk long rows which are read once."""


def map_on_gpu(
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
        return ThreadMapping(1, _UNSHARED_BLOCK, blocks=-(-work.vectors // _UNSHARED_BLOCK))
    if _is_read_in_small_blocks(work, device):
        threads = MAX_THREADS // _SMALL_BLOCKS
        return ThreadMapping(threads, 1, blocks=work.rows, blocks_per_sm=_SMALL_BLOCKS)
    threads, owned = _threads(work, device)
    return ThreadMapping(threads, owned, blocks=-(-work.rows // owned))


def takes_small_blocks(rows: int, vectors: int, device: DeviceInfo) -> bool:
    """True if rows are long, and enough for several small blocks on each multiprocessor, some of
    which reduce while others wait for memory.
    """
    return rows >= _SMALL_BLOCKS * device.sm_count and vectors >= 2 * MAX_THREADS


def _is_read_in_small_blocks(work: RowWork, device: DeviceInfo) -> bool:
    """True if nothing of such rows is kept from pass to pass, and nothing from row to row."""
    bare = work.has_stages and work.reads_once and not work.column_accumulators
    return bare and takes_small_blocks(work.rows, work.vectors, device)


def _outer(work: RowWork, device: DeviceInfo) -> ThreadMapping | None:
    """Map an outer reduction with several threads per row: neighbouring rows share a block."""
    most = MAX_THREADS
    while most > _FEWEST_THREADS and work.accumulators * most > OUTER_ACCUMULATORS * MAX_THREADS:
        most //= 2
    owned = min(OUTER_ROWS, power_of_two(work.vectors))
    while owned > FEWEST_OUTER_ROWS and -(-work.vectors // owned) < device.sm_count:
        owned //= 2
    threads = min(most // owned, power_of_two(work.columns) // OUTER_COLUMNS)
    # At least a warp.
    threads = max(threads, WARP_SIZE // owned)
    if threads > work.columns:
        return None
    return ThreadMapping(threads, owned, blocks=-(-work.vectors // owned))


def _threads(work: RowWork, device: DeviceInfo) -> tuple[int, int]:
    """Return (threads per row, rows per block)."""
    if work.vectors > WARP_SIZE * _VECTORS_OF_WARP:
        return _of_shared_row(work, device), 1
    threads = min(WARP_SIZE, power_of_two(work.vectors))
    return threads, max(1, _UNSHARED_BLOCK // threads)


def _of_shared_row(work: RowWork, device: DeviceInfo) -> int:
    """Return threads of a row that several warps share, with few vectors each where rows are too
    few to keep all multiprocessors busy, or where such blocks fill one.
    """
    few, many = VECTORS_PER_THREAD, MANY_VECTORS_PER_THREAD
    threads, fewer = (sharing(work.vectors, MAX_THREADS, each) for each in (few, many))
    fills = threads <= _SMALL_ROW and threads == power_of_two(threads)
    is_busy = work.rows * fewer >= device.sm_count * device.threads_per_sm
    return fewer if is_busy and not fills else threads


def _sharing_rows(work: RowWork, device: DeviceInfo) -> ThreadMapping | None:
    """Map blocks that stride over rows; a thread has the same columns in each row."""
    within, vectors, has_stages = work.rows_of_group, work.vectors, work.has_stages
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
    owned = max(1, WARP_SIZE // threads, min(most // threads, _MAX_ROWS, power_of_two(within)))
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
    found = in_portions(work, threads, owned, tiles, max(blocks, 1), longest)
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


def _sharing_columns(vectors: int, rows: int, device: DeviceInfo) -> ThreadMapping | None:
    """Map work to several blocks per row: rows are too few to keep the device busy."""
    threads = _SHARED_BLOCK
    splits = min(device.sm_count * _BLOCKS_PER_SM // max(rows, 1), vectors // threads)
    if splits < 2:
        return None
    return splitting_rows(threads, rows, splits, -(-rows * splits // device.sm_count))
