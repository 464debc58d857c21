"""Shared memory layout of a reduction kernel's block: exchange of partial results, and cached rows.

Slots come first, in which the warps of a row exchange partial results. Then the place in which
accumulators of a block's rows are combined, and in which partial results of blocks are. Then the
row cache, and last the next row, which is prefetched.
"""

from __future__ import annotations

from collections.abc import Sequence

from thunder_fuser.device import WARP_SIZE
from thunder_fuser.lower.scalar_graph import Value
from thunder_fuser.templates.reduction.mapping.accumulations import Accumulation, GridReduction
from thunder_fuser.templates.reduction.mapping.mapped_rows import MappedRows
from thunder_fuser.templates.reduction.on_chip.cached_values import value_smem_bytes
from thunder_fuser.templates.reduction.on_chip.row_cache import access_smem_bytes
from thunder_fuser.templates.reduction.schedule import ReductionSchedule


def shared_bytes(schedule: ReductionSchedule) -> int:
    """Return bytes of dynamic shared memory of a block."""
    ahead = sum(prefetch_smem_bytes(schedule, k) for k in schedule.pipeline.copied)
    return _values_end(schedule) + ahead


def value_smem_offset(schedule: ReductionSchedule, value: Value) -> int:
    """Return bytes before a cached value, for the first of the block's rows."""
    before = schedule.row_cache.values_in_smem[: schedule.row_cache.values_in_smem.index(value)]
    size = sum(value_smem_bytes(other, schedule.lanes) for other in before)
    return _cache_end(schedule, schedule.row_cache.shared) + size * schedule.rows_per_block


def prefetch_smem_offset(schedule: ReductionSchedule, access: int) -> int:
    """Return bytes before the prefetched vectors of an access."""
    before = schedule.pipeline.copied[: schedule.pipeline.copied.index(access)]
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


def exchange_bytes(mapped: MappedRows, *, at_once: bool) -> int:
    """Return bytes for the exchange between threads, in whole 16-byte vectors. `at_once`: column
    accumulators of all grid reductions are combined at once.
    """
    sizes = [_meeting_bytes(mapped, total) for total in mapped.reductions.of_grid]
    meeting = sum(sizes) if _has_own_places(mapped, at_once) else max(sizes, default=0)
    ends = [
        parts_offset(mapped, n) + _parts_bytes(mapped, total)
        for n, total in enumerate(mapped.reductions.of_grid)
    ]
    return -(-max(slot_bytes(mapped) + meeting, *ends, 0) // 16) * 16


def access_smem_offset(schedule: ReductionSchedule, access: int) -> int:
    """Return bytes before the cached row of an access."""
    return _cache_end(
        schedule, schedule.row_cache.shared[: schedule.row_cache.shared.index(access)]
    )


def _cache_end(schedule: ReductionSchedule, accesses: Sequence[int]) -> int:
    """Return the end of the cached rows of some accesses."""
    lanes, vectors = schedule.lanes, schedule.block_vectors
    sizes = (access_smem_bytes(schedule.accesses[k], lanes, vectors) for k in accesses)
    return exchange_bytes(schedule, at_once=schedule.meets_at_once) + sum(sizes)


# ---- slots


def takes_turns(mapped: MappedRows) -> bool:
    """True if a block reduces row after row with one exchange each, which needs two buffers."""
    shares = mapped.grid_split == "rows" and mapped.threads > WARP_SIZE
    return shares and bool(mapped.reductions.of_rows) and mapped.stages == 1


def slot_bytes(mapped: MappedRows) -> int:
    """Return bytes for the exchange between warps of all rows of a block."""
    turns = 2 if takes_turns(mapped) else 1
    count = 1 if mapped.lane_axis == "rows" else mapped.rows_per_block
    return row_slot_bytes(mapped) * turns * count


def row_slot_bytes(mapped: MappedRows) -> int:
    """Return bytes of the slots of all reductions of one row."""
    return slot_offset(mapped, len(_exchanged(mapped)))


def slot_offset(mapped: MappedRows, n: int) -> int:
    """Return bytes before the slots of the n-th reduction: each has slots of its own."""
    sizes = [f.accumulator_bytes * _slots(mapped) for f in _exchanged(mapped)[:n]]
    return sum(-(-size // 16) * 16 for size in sizes)


def _slots(mapped: MappedRows) -> int:
    """Return accumulators in the slots of one reduction: one for each warp, of all blocks of a
    cluster; or, in an outer reduction, one for each row, lane and warp, and the results.
    """
    if mapped.mapping.shares_rows:
        return mapped.mapping.cluster * mapped.threads // WARP_SIZE
    if not mapped.is_outer_shared:
        return mapped.threads // WARP_SIZE if mapped.threads > WARP_SIZE else 0
    warps = mapped.block_threads // WARP_SIZE
    return (warps + 1) * mapped.rows_per_block * mapped.lanes.vector if warps > 1 else 0


def _exchanged(mapped: MappedRows) -> Sequence[Accumulation]:
    """Return the reductions that one block does over a whole row."""
    return (
        mapped.reductions.of_grid if mapped.grid_split == "columns" else mapped.reductions.of_rows
    )


# ---- accumulators of several rows


def owned_points(mapped: MappedRows) -> int:
    """Return the columns that the threads of one row accumulate."""
    return mapped.steps * mapped.threads * mapped.lanes.vector


def meeting_offset(schedule: ReductionSchedule, n: int) -> int:
    """Return bytes before the place where accumulators of a grid reduction are combined."""
    if not _has_own_places(schedule, schedule.meets_at_once):
        return slot_bytes(schedule)
    before = (_meeting_bytes(schedule, total) for total in schedule.reductions.of_grid[:n])
    return slot_bytes(schedule) + sum(before)


def _has_own_places(mapped: MappedRows, at_once: bool) -> bool:
    """True if grid reductions have places of their own; in a cluster all are combined at once."""
    return at_once or mapped.mapping.meets_in_clusters


def parts_offset(mapped: MappedRows, n: int) -> int:
    """Return bytes before the place where threads combine partial results of a grid reduction,
    in addition to those of the others at its points.
    """
    at = mapped.reductions.of_grid[n].at
    before = (
        _parts_bytes(mapped, total) for total in mapped.reductions.of_grid[:n] if total.at == at
    )
    return slot_bytes(mapped) + sum(before)


def _parts_bytes(mapped: MappedRows, total: GridReduction) -> int:
    return total.accumulator_bytes * mapped.block_threads


def _meeting_bytes(mapped: MappedRows, total: GridReduction) -> int:
    """Return bytes to combine a grid reduction's accumulators over a block's rows, or a cluster."""
    others = 0 if mapped.grid_split == "columns" else mapped.rows_per_block - 1
    met = others
    if total.is_of_columns and (others or mapped.mapping.meets_in_clusters):
        met = (others + 1) * owned_points(mapped)
    return total.accumulator_bytes * max(met, mapped.block_threads)
