"""Shared memory layout of a reduction kernel's block: cached rows, and where warps exchange partial
results.

Slots come first: the warps of a row leave what they have folded there. Then the place in which the
groups of a block meet, and in which those who add up parts do. Then what is kept of the row, and
last what is on its way of the next one.
"""

from __future__ import annotations

from collections.abc import Sequence

from thunder_fuser.device import WARP_SIZE
from thunder_fuser.lower.scalar_graph import Value
from thunder_fuser.templates.reduction.cached_values import value_smem_bytes
from thunder_fuser.templates.reduction.row_cache import access_smem_bytes
from thunder_fuser.templates.reduction.schedule import (
    Accumulation,
    GridReduction,
    ReductionSchedule,
)


def shared_bytes(schedule: ReductionSchedule) -> int:
    """Dynamic shared memory of a block."""
    ahead = sum(prefetch_smem_bytes(schedule, k) for k in schedule.async_prefetched)
    return _values_end(schedule) + ahead


def value_smem_offset(schedule: ReductionSchedule, value: Value) -> int:
    """Bytes before a value that is held, for the first of the block's rows."""
    before = schedule.row_cache.values_in_smem[: schedule.row_cache.values_in_smem.index(value)]
    size = sum(value_smem_bytes(other, schedule.lanes) for other in before)
    return _cache_end(schedule, schedule.row_cache.shared) + size * schedule.rows_per_block


def prefetch_smem_offset(schedule: ReductionSchedule, access: int) -> int:
    """Bytes before the vectors of a next row that are copied."""
    before = schedule.async_prefetched[: schedule.async_prefetched.index(access)]
    return _values_end(schedule) + sum(prefetch_smem_bytes(schedule, k) for k in before)


def prefetch_smem_bytes(schedule: ReductionSchedule, access: int) -> int:
    """Of the next row's vectors, those of each thread at places of their own."""
    return access_smem_bytes(
        schedule.accesses[access], schedule.lanes, schedule.steps * schedule.block_threads
    )


def _values_end(schedule: ReductionSchedule) -> int:
    """Where values that are held end, which come after what is kept of the row."""
    values = schedule.row_cache.values_in_smem
    size = sum(value_smem_bytes(value, schedule.lanes) for value in values)
    return _cache_end(schedule, schedule.row_cache.shared) + size * schedule.rows_per_block


def exchange_bytes(schedule: ReductionSchedule) -> int:
    """What threads exchange values through, in whole 16-byte vectors."""
    sizes = [_meeting_bytes(schedule, total) for total in schedule.grid_reductions]
    meeting = sum(sizes) if _meets_at_once(schedule) else max(sizes, default=0)
    ends = [
        parts_offset(schedule, n) + _parts_bytes(schedule, total)
        for n, total in enumerate(schedule.grid_reductions)
    ]
    return -(-max(slot_bytes(schedule) + meeting, *ends, 0) // 16) * 16


def access_smem_offset(schedule: ReductionSchedule, access: int) -> int:
    """Bytes before the row of an access that is kept in shared memory."""
    return _cache_end(
        schedule, schedule.row_cache.shared[: schedule.row_cache.shared.index(access)]
    )


def _cache_end(schedule: ReductionSchedule, accesses: Sequence[int]) -> int:
    """Where what is kept of some accesses ends."""
    lanes, vectors = schedule.lanes, schedule.block_vectors
    sizes = (access_smem_bytes(schedule.accesses[k], lanes, vectors) for k in accesses)
    return exchange_bytes(schedule) + sum(sizes)


# ---- slots


def takes_turns(schedule: ReductionSchedule) -> bool:
    """Whether a block folds row after row with one exchange each, which then needs two places."""
    shares = schedule.grid_split == "rows" and schedule.threads > WARP_SIZE
    return shares and bool(schedule.row_reductions) and schedule.stages == 1


def slot_bytes(schedule: ReductionSchedule) -> int:
    """Shared memory of a block to exchange what the warps of its rows have folded."""
    turns = 2 if takes_turns(schedule) else 1
    rows = 1 if schedule.lane_axis == "rows" else schedule.rows_per_block
    return row_slot_bytes(schedule) * turns * rows


def row_slot_bytes(schedule: ReductionSchedule) -> int:
    """The slots of all folds of one row."""
    return slot_offset(schedule, len(_exchanged(schedule)))


def slot_offset(schedule: ReductionSchedule, n: int) -> int:
    """Bytes before the slots of the n-th fold: consecutive reductions use slots of their own."""
    sizes = [f.accumulator_bytes * _slots(schedule) for f in _exchanged(schedule)[:n]]
    return sum(-(-size // 16) * 16 for size in sizes)


def _slots(schedule: ReductionSchedule) -> int:
    """Values of one fold that warps leave for each other: one each, of all blocks of a cluster, or
    one for each row that lies side by side with others, and those that result.
    """
    if schedule.mapping.shares_rows:
        return schedule.mapping.cluster * schedule.threads // WARP_SIZE
    if not schedule.is_outer_shared:
        return schedule.threads // WARP_SIZE if schedule.threads > WARP_SIZE else 0
    warps = schedule.block_threads // WARP_SIZE
    return (warps + 1) * schedule.rows_per_block * schedule.lanes.vector if warps > 1 else 0


def _exchanged(schedule: ReductionSchedule) -> Sequence[Accumulation]:
    """The reductions that one block folds over a whole row."""
    return schedule.grid_reductions if schedule.grid_split == "columns" else schedule.row_reductions


# ---- where groups meet


def owned_points(schedule: ReductionSchedule) -> int:
    """Columns that the threads of one row accumulate."""
    return schedule.steps * schedule.threads * schedule.lanes.vector


def meeting_offset(schedule: ReductionSchedule, n: int) -> int:
    """Bytes before the place where groups of threads bring their accumulators of a total."""
    if not _meets_at_once(schedule):
        return slot_bytes(schedule)
    before = (_meeting_bytes(schedule, total) for total in schedule.grid_reductions[:n])
    return slot_bytes(schedule) + sum(before)


def _meets_at_once(schedule: ReductionSchedule) -> bool:
    """Whether totals have places of their own, where the blocks of a cluster bring all of them."""
    return schedule.meets_at_once or schedule.mapping.meets_in_clusters


def parts_offset(schedule: ReductionSchedule, n: int) -> int:
    """Bytes before the place where the threads of a block add up the parts of a total, beside those
    of the others at its points.
    """
    at = schedule.grid_reductions[n].at
    before = (
        _parts_bytes(schedule, total) for total in schedule.grid_reductions[:n] if total.at == at
    )
    return slot_bytes(schedule) + sum(before)


def _parts_bytes(schedule: ReductionSchedule, total: GridReduction) -> int:
    return total.accumulator_bytes * schedule.block_threads


def _meeting_bytes(schedule: ReductionSchedule, total: GridReduction) -> int:
    """Of a total's accumulators where groups of threads meet: those of a block, or of a cluster."""
    others = 0 if schedule.grid_split == "columns" else schedule.rows_per_block - 1
    met = others
    if total.is_of_columns and (others or schedule.mapping.meets_in_clusters):
        met = (others + 1) * owned_points(schedule)
    return total.accumulator_bytes * max(met, schedule.block_threads)
