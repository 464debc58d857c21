"""Schedule of a reduction kernel on a host: a core runs a block's rows one after the other, and its
caches keep what registers and shared memory keep on a GPU.
"""

from __future__ import annotations

from dataclasses import replace

from thunder_fuser.device import DeviceInfo
from thunder_fuser.kernel_ir import WORD
from thunder_fuser.lower.register_budget import ROW_CACHE_REGISTERS
from thunder_fuser.lower.vectors.paired_lanes import can_pair
from thunder_fuser.templates.prefetches import prefetch
from thunder_fuser.templates.reduction.mapping.mapped_rows import MappedRows
from thunder_fuser.templates.reduction.on_chip.cached_values import choose_values_in_smem
from thunder_fuser.templates.reduction.on_chip.row_cache import (
    MAX_STEPS,
    RowCache,
    moving_accesses,
    passes_that_read,
    re_reading,
    register_bytes,
)
from thunder_fuser.templates.reduction.on_chip.shared_memory import exchange_bytes
from thunder_fuser.templates.reduction.schedule import ReductionSchedule, RowPipeline, Unrolling


def schedule_on_host(mapped: MappedRows, device: DeviceInfo) -> ReductionSchedule:
    """Return the schedule of mapped rows; of one row at a time, if that caches more values."""
    made = replace(ReductionSchedule.of(mapped), row_cache=_row_cache(mapped, device))
    made = replace(made, unrolling=_unrolling(made))
    made = replace(made, paired=_can_pair(made), pipeline=_pipeline(mapped, device))
    if mapped.lane_axis == "rows" or mapped.grid_split != "none":
        return made
    mapping = replace(mapped.mapping, rows_per_block=1, blocks=mapped.rows)
    cache = _row_cache(replace(mapped, mapping=mapping), device)
    if len(cache.values_in_smem) > len(made.row_cache.values_in_smem):
        return replace(made, mapping=mapping, row_cache=cache)
    return made


def _pipeline(mapped: MappedRows, device: DeviceInfo) -> RowPipeline:
    """Choose what the core prefetches: columns that no near cache holds."""
    if mapped.lane_axis == "rows":
        return RowPipeline()
    found = (prefetch(access, mapped.lanes, device) for access in mapped.accesses)
    return RowPipeline(by_host=tuple((k, each) for k, each in enumerate(found) if each))


def _row_cache(mapped: MappedRows, device: DeviceInfo) -> RowCache:
    """Choose the row cache: none if a row takes one pass, or has too many columns."""
    if mapped.grid_split == "columns":
        return RowCache()
    if mapped.lane_axis == "rows":
        return re_reading(mapped, range(len(mapped.accesses)))
    room = device.shared_bytes_per_block - exchange_bytes(mapped, at_once=False)
    room //= mapped.rows_per_block
    values = choose_values_in_smem(mapped.graph, mapped.lanes, mapped.passes, room)
    return replace(_cached_accesses(mapped), values_in_smem=values)


def _cached_accesses(mapped: MappedRows) -> RowCache:
    """Keep all of a row, or nothing."""
    columns = sorted(moving_accesses(mapped), key=mapped.is_of_all_rows)
    total = sum(register_bytes(mapped, k) for k in columns)
    if mapped.steps > MAX_STEPS or total > WORD * ROW_CACHE_REGISTERS:
        return re_reading(mapped, columns)
    return RowCache(tuple(sorted(columns)), passes=passes_that_read(mapped.accesses, mapped.passes))


def _unrolling(schedule: ReductionSchedule) -> Unrolling:
    """Unroll passes over a few steps; a core issues loads ahead in hardware."""
    numbers = range(len(schedule.passes))
    steps = schedule.steps
    return Unrolling(tuple(steps if schedule.is_before_totals(n) else 1 for n in numbers))


def _can_pair(schedule: ReductionSchedule) -> bool:
    """True if lanes can be in paired order: nothing depends on which column a lane is."""
    if schedule.lane_axis == "rows" or schedule.inside or schedule.has_cached_rows:
        return False
    if any(r.position is not None for r in schedule.reductions.all):
        return False
    return can_pair(schedule.graph, schedule.accesses, schedule.writes.elements, schedule.lanes)
