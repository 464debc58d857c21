"""Thread block clusters of reduction kernels: blocks that share rows, or combine partial results.

`mapping_of` maps threads to rows, each shared by a number of blocks of a cluster, on a device with
a number of such clusters; `scheduled` makes the schedule of a mapping.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from thunder_fuser.device import DeviceInfo
from thunder_fuser.errors import Refusal
from thunder_fuser.kernel_ir import WORD
from thunder_fuser.lower.register_budget import BESIDE_SHARED_REGISTERS
from thunder_fuser.templates.reduction.mapping.clusters import can_meet, in_cluster
from thunder_fuser.templates.reduction.mapping.thread_mapping import MAX_THREADS, ThreadMapping
from thunder_fuser.templates.reduction.on_chip.shared_memory import exchange_bytes
from thunder_fuser.templates.reduction.schedule import ReductionSchedule

MappingOf = Callable[[int, int], ThreadMapping | Refusal]
Scheduled = Callable[[ThreadMapping], ReductionSchedule]
_MOST_PARTS = 0.03
"""Largest share of partial results, written and read, in the bytes of rows. With 0.026, the
backward of an RMSNorm behind dropout takes 52.8 us on an H200 with clusters and 52.0 without; with
0.043, LayerNorm's of 8,192 x 4,096 60.2 and 60.0.
"""
_BUSY = 0.95
"""Least share of multiprocessors with a block of a cluster."""


def cached_in_cluster(
    made: ReductionSchedule, scheduled: Scheduled, device: DeviceInfo
) -> ReductionSchedule:
    """Return a schedule of rows shared by the blocks of a cluster, where one block cannot keep a
    row on chip, or a multiprocessor not two: then two blocks on each, if they have room.
    """
    is_alone = made.threads > MAX_THREADS // 2 and made.rows > device.sm_count
    reads_again = bool(made.row_cache.reread)
    # Rows that are not written can be reduced in one pass, which caches nothing.
    if not made.writes.elements or not (reads_again or (is_alone and made.has_cached_rows)):
        return made
    vectors, rows = made.lanes.vectors, made.rows
    for blocks_per_sm in (2, 1) if reads_again else (2,):
        for cluster, _ in device.clusters:
            found = scheduled(in_cluster(made.mapping, vectors, rows, cluster, blocks_per_sm))
            if not (found.row_cache.reread or _is_crowded(found, blocks_per_sm)):
                return found
    return made


def _is_crowded(schedule: ReductionSchedule, blocks_per_sm: int) -> bool:
    """True if so much of a row is in registers while shared memory has the rest that computation
    lacks registers; any of it, with several blocks per multiprocessor.
    """
    cache = schedule.row_cache
    sizes = (schedule.accesses[k].loads[0].dtype.itemsize for k in cache.registers)
    words = sum(sizes) * schedule.lanes.vector * schedule.steps // WORD
    return bool(cache.shared) and words > (0 if blocks_per_sm > 1 else BESIDE_SHARED_REGISTERS)


def tiled_in_cluster(
    made: ReductionSchedule, mapping_of: MappingOf, scheduled: Scheduled, device: DeviceInfo
) -> ReductionSchedule:
    """Return a schedule of rows in the blocks of a cluster, each with a tile of the columns, where
    column accumulators exceed the registers of one, or a row its shared memory: the smallest
    cluster with room for the next row, too, or else the smallest. Where one block has room for all
    but the next row: the smallest cluster that has it, if any. Where none has room for a row: the
    smallest that has registers for the accumulators.
    """
    # A block with several rows has none that is long.
    reads_again = made.rows_per_block == 1 and bool(made.row_cache.reread)
    is_needed = reads_again or made.has_crowded_totals
    if not made.reductions.of_rows or not (is_needed or _waits_for_rows(made)):
        return made
    smallest: ReductionSchedule | None = None
    reading_again: ReductionSchedule | None = None
    for cluster, clusters in device.clusters:
        mapping = mapping_of(cluster, clusters)
        if isinstance(mapping, Refusal):
            continue
        found = scheduled(mapping)
        if found.has_crowded_totals:
            continue
        if found.row_cache.reread:
            reading_again = reading_again or found
        elif found.pipeline.prefetched:
            return found
        else:
            smallest = smallest or found
    if made.has_crowded_totals:
        return smallest or reading_again or made
    return smallest if smallest and is_needed else made


def _waits_for_rows(schedule: ReductionSchedule) -> bool:
    """True if a block that has one row in shared memory has no room there for the next one."""
    rows = set(schedule.row_cache.shared).difference(schedule.row_invariant_smem)
    return bool(rows) and schedule.rows_per_block == 1


def summed_in_cluster(
    made: ReductionSchedule, mapping_of: MappingOf, scheduled: Scheduled, device: DeviceInfo
) -> ReductionSchedule:
    """Return a schedule of blocks in clusters that combine their column accumulators before they
    write them, where these partial results are many compared to the rows, and take longer than the
    cluster's barrier: the smallest clusters that make them few and leave hardly any multiprocessor
    idle.
    """
    mapping = made.mapping
    columns = all(t.is_of_columns for t in made.reductions.of_grid)
    if mapping.cluster > 1 or mapping.column_tiles > 1 or mapping.walks_portions or not columns:
        return made
    if 2 * made.reductions.workspace_bytes < device.load_seconds * device.bandwidth:
        return made
    for cluster, clusters in device.clusters:
        if _share_of_parts(made) <= _MOST_PARTS:
            break
        if cluster * clusters < _BUSY * device.sm_count:
            continue
        other = mapping_of(1, cluster * clusters)
        if isinstance(other, Refusal) or not can_meet(other, cluster):
            continue
        found = scheduled(replace(other, cluster=cluster))
        has_room = (
            exchange_bytes(found, at_once=found.meets_at_once) <= device.shared_bytes_per_block
        )
        is_like = found.row_cache.reread == made.row_cache.reread
        if has_room and is_like and len(found.pipeline.prefetched) == len(made.pipeline.prefetched):
            made = found
    return made


def _share_of_parts(schedule: ReductionSchedule) -> float:
    """Return bytes of partial results, written and read, over those of the rows."""
    read = [k for k in range(len(schedule.accesses)) if schedule.moves(k)]
    read = [k for k in read if not schedule.is_of_all_rows(k)]
    sizes = [schedule.accesses[k].loads[0].dtype.itemsize for k in read]
    sizes += [store.tensor.dtype.itemsize for store in schedule.writes.elements]
    rows = schedule.rows * schedule.columns * sum(sizes)
    return 2 * schedule.reductions.workspace_bytes / max(rows, 1)
