"""Shared memory layout of a reduction kernel's block: exchange of partial results, and cached rows.

Slots come first, in which the warps of a row exchange partial results. Then the place in which
accumulators of a block's rows are combined, and in which partial results of blocks are. Then the
row cache, and last the next row, which is prefetched.
"""

from __future__ import annotations

from collections.abc import Sequence

from thunder_fuser.device import WARP_SIZE
from thunder_fuser.lower.scalar_graph import Value
from thunder_fuser.templates.reduction.accumulations import Accumulation, GridReduction
from thunder_fuser.templates.reduction.cached_values import value_smem_bytes
from thunder_fuser.templates.reduction.row_cache import access_smem_bytes
from thunder_fuser.templates.reduction.schedule import ReductionSchedule


def shared_bytes(schedule: ReductionSchedule) -> int:
    """Return bytes of dynamic shared memory of a block."""
    ahead = sum(prefetch_smem_bytes(schedule, k) for k in schedule.async_prefetched)
    return _values_end(schedule) + ahead


def value_smem_offset(schedule: ReductionSchedule, value: Value) -> int:
    """Return bytes before a cached value, for the first of the block's rows."""
    before = schedule.row_cache.values_in_smem[: schedule.row_cache.values_in_smem.index(value)]
    size = sum(value_smem_bytes(other, schedule.lanes) for other in before)
    return _cache_end(schedule, schedule.row_cache.shared) + size * schedule.rows_per_block


def prefetch_smem_offset(schedule: ReductionSchedule, access: int) -> int:
    """Return bytes before the prefetched vectors of an access."""
    before = schedule.async_prefetched[: schedule.async_prefetched.index(access)]
    return _values_end(schedule) + sum(prefetch_smem_bytes(schedule, k) for k in before)


def prefetch_smem_bytes(schedule: ReductionSchedule, access: int) -> int:
    """Return bytes of the prefetched vectors of an access, which threads do not share."""
    return access_smem_bytes(
        schedule.accesses[access], schedule.lanes, schedule.steps * schedule.block_threads
    )


def _values_end(schedule: ReductionSchedule) -> int:
    """Return the end of cached values, which come after the cached accesses."""
    values = schedule.row_cache.values_in_smem
    size = sum(value_smem_bytes(value, schedule.lanes) for value in values)
    return _cache_end(schedule, schedule.row_cache.shared) + size * schedule.rows_per_block


def exchange_bytes(schedule: ReductionSchedule) -> int:
    """Return bytes for the exchange between threads, in whole 16-byte vectors."""
    sizes = [_meeting_bytes(schedule, total) for total in schedule.grid_reductions]
    meeting = sum(sizes) if _meets_at_once(schedule) else max(sizes, default=0)
    ends = [
        parts_offset(schedule, n) + _parts_bytes(schedule, total)
        for n, total in enumerate(schedule.grid_reductions)
    ]
    return -(-max(slot_bytes(schedule) + meeting, *ends, 0) // 16) * 16


def access_smem_offset(schedule: ReductionSchedule, access: int) -> int:
    """Return bytes before the cached row of an access."""
    return _cache_end(
        schedule, schedule.row_cache.shared[: schedule.row_cache.shared.index(access)]
    )


def _cache_end(schedule: ReductionSchedule, accesses: Sequence[int]) -> int:
    """Return the end of the cached rows of some accesses."""
    lanes, vectors = schedule.lanes, schedule.block_vectors
    sizes = (access_smem_bytes(schedule.accesses[k], lanes, vectors) for k in accesses)
    return exchange_bytes(schedule) + sum(sizes)


# ---- slots


def takes_turns(schedule: ReductionSchedule) -> bool:
    """True if a block reduces row after row with one exchange each, which needs two buffers."""
    shares = schedule.grid_split == "rows" and schedule.threads > WARP_SIZE
    return shares and bool(schedule.row_reductions) and schedule.stages == 1


def slot_bytes(schedule: ReductionSchedule) -> int:
    """Return bytes for the exchange between warps of all rows of a block."""
    turns = 2 if takes_turns(schedule) else 1
    rows = 1 if schedule.lane_axis == "rows" else schedule.rows_per_block
    return row_slot_bytes(schedule) * turns * rows


def row_slot_bytes(schedule: ReductionSchedule) -> int:
    """Return bytes of the slots of all reductions of one row."""
    return slot_offset(schedule, len(_exchanged(schedule)))


def slot_offset(schedule: ReductionSchedule, n: int) -> int:
    """Return bytes before the slots of the n-th reduction: each has slots of its own."""
    sizes = [f.accumulator_bytes * _slots(schedule) for f in _exchanged(schedule)[:n]]
    return sum(-(-size // 16) * 16 for size in sizes)


def _slots(schedule: ReductionSchedule) -> int:
    """Return accumulators in the slots of one reduction: one for each warp, of all blocks of a
    cluster; or, in an outer reduction, one for each row, lane and warp, and the results.
    """
    if schedule.mapping.shares_rows:
        return schedule.mapping.cluster * schedule.threads // WARP_SIZE
    if not schedule.is_outer_shared:
        return schedule.threads // WARP_SIZE if schedule.threads > WARP_SIZE else 0
    warps = schedule.block_threads // WARP_SIZE
    return (warps + 1) * schedule.rows_per_block * schedule.lanes.vector if warps > 1 else 0


def _exchanged(schedule: ReductionSchedule) -> Sequence[Accumulation]:
    """Return the reductions that one block does over a whole row."""
    return schedule.grid_reductions if schedule.grid_split == "columns" else schedule.row_reductions


# ---- accumulators of several rows


def owned_points(schedule: ReductionSchedule) -> int:
    """Return the columns that the threads of one row accumulate."""
    return schedule.steps * schedule.threads * schedule.lanes.vector


def meeting_offset(schedule: ReductionSchedule, n: int) -> int:
    """Return bytes before the place where accumulators of a grid reduction are combined."""
    if not _meets_at_once(schedule):
        return slot_bytes(schedule)
    before = (_meeting_bytes(schedule, total) for total in schedule.grid_reductions[:n])
    return slot_bytes(schedule) + sum(before)


def _meets_at_once(schedule: ReductionSchedule) -> bool:
    """True if grid reductions have places of their own; in a cluster all are combined at once."""
    return schedule.meets_at_once or schedule.mapping.meets_in_clusters


def parts_offset(schedule: ReductionSchedule, n: int) -> int:
    """Return bytes before the place where threads combine partial results of a grid reduction,
    beside those of the others at its points.
    """
    at = schedule.grid_reductions[n].at
    before = (
        _parts_bytes(schedule, total) for total in schedule.grid_reductions[:n] if total.at == at
    )
    return slot_bytes(schedule) + sum(before)


def _parts_bytes(schedule: ReductionSchedule, total: GridReduction) -> int:
    return total.accumulator_bytes * schedule.block_threads


def _meeting_bytes(schedule: ReductionSchedule, total: GridReduction) -> int:
    """Return bytes to combine a grid reduction's accumulators over a block's rows, or a cluster."""
    others = 0 if schedule.grid_split == "columns" else schedule.rows_per_block - 1
    met = others
    if total.is_of_columns and (others or schedule.mapping.meets_in_clusters):
        met = (others + 1) * owned_points(schedule)
    return total.accumulator_bytes * max(met, schedule.block_threads)
