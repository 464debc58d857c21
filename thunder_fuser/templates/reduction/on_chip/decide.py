"""On-chip decisions of a reduction kernel on a GPU: row cache, unrolling, prologue of a portion,
pipelining, shared memory in place of registers.

The decisions are made one after the other: each reads those before it, and has the registers and
the shared memory that these have left.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from thunder_fuser.device import DeviceInfo
from thunder_fuser.kernel_ir import WORD
from thunder_fuser.lower.register_budget import (
    CROWDED_ROW_REGISTERS,
    STRIDING_REGISTERS,
    STRIDING_REGISTERS_OF_SEVERAL,
    STRIDING_STAGE_REGISTERS,
    VALUE_CACHE_REGISTERS,
    WORKING_REGISTERS,
)
from thunder_fuser.lower.scalar_graph import Load
from thunder_fuser.occupancy import resident_blocks, shared_bytes_of_block
from thunder_fuser.templates.reduction.mapping.mapped_rows import MappedRows
from thunder_fuser.templates.reduction.on_chip.cached_values import choose_values_in_registers
from thunder_fuser.templates.reduction.on_chip.pipelining import choose_pipeline
from thunder_fuser.templates.reduction.on_chip.portions import choose_portion
from thunder_fuser.templates.reduction.on_chip.register_use import (
    computed_words,
    loaded_bytes,
    registers_for,
    words_of,
    words_of_totals,
)
from thunder_fuser.templates.reduction.on_chip.row_cache import (
    BlockBudget,
    RowCache,
    access_smem_bytes,
    choose_row_cache,
    moving_accesses,
    re_reading,
)
from thunder_fuser.templates.reduction.on_chip.shared_memory import exchange_bytes, shared_bytes
from thunder_fuser.templates.reduction.on_chip.unrolling import choose_unrolling
from thunder_fuser.templates.reduction.schedule import ReductionSchedule

_RARELY_NEW = 4
"""Fewest times that rows must read the same data for it to count as being in the L2 cache."""


def on_chip(mapped: MappedRows, device: DeviceInfo) -> ReductionSchedule:
    """Return the schedule of mapped rows with all on-chip decisions."""
    made = ReductionSchedule.of(mapped)
    made = replace(made, row_cache=_row_cache(mapped, device))
    made = replace(made, unrolling=choose_unrolling(made, device))
    made = replace(made, portion=choose_portion(made, device))
    made = replace(made, pipeline=choose_pipeline(made, device))
    made = replace(made, row_cache=_with_row_invariants(made, device))
    made = replace(made, meets_at_once=_meets_at_once(made, device))
    # Depends on all registers and shared memory, so that it comes last.
    return replace(made, min_blocks_hint=_occupancy_hint(made, device))


# ---- row cache


def _row_cache(mapped: MappedRows, device: DeviceInfo) -> RowCache:
    """Choose the row cache: none if a row takes one pass, or has too many columns."""
    if mapped.grid_split == "columns":
        return RowCache()
    if mapped.lane_axis == "rows" and not mapped.is_outer_shared:
        return re_reading(mapped, range(len(mapped.accesses)))
    accumulators = mapped.reductions.column_words * mapped.steps
    if mapped.is_outer_shared:
        accumulators = sum(f.accumulator_bytes // WORD + 1 for f in mapped.reductions.of_rows)
    cache = _cached_accesses(mapped, accumulators, device)
    return _with_register_values(mapped, cache, accumulators, device)


def _cached_accesses(mapped: MappedRows, accumulators: int, device: DeviceInfo) -> RowCache:
    """Choose the accesses to cache."""
    accumulators *= mapped.lanes.vector
    room: int | None = None
    if mapped.rows_per_block == 1 or mapped.is_outer_shared:
        room = shared_bytes_of_block(device, max(mapped.mapping.blocks_per_sm, 1))
        room -= exchange_bytes(mapped, at_once=False)
    budget = BlockBudget(
        accumulators=accumulators,
        registers=registers_for(mapped, device) - accumulators,
        shared_bytes=room,
    )
    # Rows first: row-invariant data is in near caches anyway.
    columns = sorted(moving_accesses(mapped), key=mapped.is_of_all_rows)
    near = [k for k in columns if _is_near(mapped, k, device)]
    return choose_row_cache(mapped, columns, near, budget)


def _is_near(mapped: MappedRows, access: int, device: DeviceInfo) -> bool:
    """True if an access is in the L2 cache because other rows read it (modulation, a weight). A
    modulated LayerNorm of 57,344 rows takes 80.0 us on an H200 with four of these in registers
    from the first pass on, and 74.6 where the last one loads them.
    """
    if mapped.grid_split != "none":
        return False
    loads = mapped.accesses[access].loads
    touched = sum(map(_touched_bytes, loads))
    wanted = mapped.rows * mapped.columns * loads[0].dtype.itemsize
    return _RARELY_NEW * touched <= min(wanted, device.l2_bytes)


def _touched_bytes(load: Load) -> float:
    """Return bytes of memory between the first and the last element that a load may read."""
    lo, hi = load.address.lo, load.address.hi
    if load.positions or lo is None or hi is None:
        return math.inf
    return (hi - lo + 1) * load.dtype.itemsize


def _with_register_values(
    mapped: MappedRows, cache: RowCache, accumulators: int, device: DeviceInfo
) -> RowCache:
    """Return the cache with values in registers, where rows are there."""
    wide = mapped.lane_axis == "rows" or not cache.registers
    if wide or len(mapped.passes) < 2:
        return cache
    loads = {load for k in cache.registers for load in mapped.accesses[k].loads}
    words = sum(load.dtype.itemsize for load in loads) // WORD + accumulators // mapped.steps
    every = min(VALUE_CACHE_REGISTERS, registers_for(mapped, device))
    lanes = mapped.lanes.vector * mapped.steps
    room = (every - WORKING_REGISTERS) // lanes - words
    found = choose_values_in_registers(mapped.lanes, mapped.graph, mapped.passes, loads, room)
    in_place = tuple(value for value, is_in_place in found.items() if is_in_place)
    return replace(cache, values_in_registers=tuple(found), in_place=in_place)


# ---- shared memory in place of registers


def _with_row_invariants(schedule: ReductionSchedule, device: DeviceInfo) -> RowCache:
    """Return the row cache with row-invariant accesses in shared memory, or read again in each row,
    where registers have no room for them.
    """
    crowded = _crowded_out(schedule, device)
    # The passes over a row that is one vector of a thread read shared memory once: 258
    # instructions for it, and 275 if each does, in a LayerNorm's backward on an H200.
    is_one = schedule.steps == 1 and schedule.has_whole_steps
    invariant = _row_invariant_smem(schedule, crowded, device)
    cache = schedule.row_cache.sharing(invariant, from_registers=not is_one)
    kept = replace(schedule, row_cache=cache).row_invariant_smem
    not_hoisted = [k for k in crowded if k not in kept]
    return replace(cache, not_hoisted=(*not_hoisted, *cache.loaded_in_last_pass))


def _crowded_out(schedule: ReductionSchedule, device: DeviceInfo) -> tuple[int, ...]:
    """Choose row-invariant vectors, such as those of a weight, for which registers have no room
    from row to row. NVVM hoists such loads out of the loop over the rows regardless of registers,
    and ptxas spills what they cannot hold.
    """
    if schedule.grid_split != "rows":
        return ()
    beside = STRIDING_REGISTERS_OF_SEVERAL if schedule.steps > 1 else STRIDING_REGISTERS
    beside += STRIDING_STAGE_REGISTERS * (schedule.stages - 1)
    room = registers_for(schedule, device) - beside
    room -= words_of_totals(schedule) * (2 if schedule.is_summed_in_parts else 1)
    in_registers = [k for k in schedule.pipeline.prefetched if k not in schedule.pipeline.copied]
    room -= words_of(schedule, in_registers)
    of_all = [k for k in range(len(schedule.accesses)) if schedule.is_of_all_rows(k)]
    same = [k for k in of_all if k not in schedule.row_invariant_smem]
    cached = set(schedule.row_cache.registers).difference(same)
    room -= sum(computed_words(schedule, k) for k in cached)
    if not schedule.row_cache.registers:
        loading = zip(schedule.unrolling.factors, schedule.passes, strict=True)
        room -= max(n * loaded_bytes(schedule, roots) for n, roots in loading) // WORD
    found = []
    for k in same:
        words = computed_words(schedule, k)
        if words > room:
            found.append(k)
        else:
            room -= words
    return tuple(found)


def _row_invariant_smem(
    schedule: ReductionSchedule, crowded: Sequence[int], device: DeviceInfo
) -> list[int]:
    """Return row-invariant accesses that shared memory has room for, in place of registers."""
    found: list[int] = []
    blocks_per_sm = max(schedule.mapping.blocks_per_sm, 1)
    room = shared_bytes_of_block(device, blocks_per_sm) - shared_bytes(schedule)
    for k in crowded:
        needed = access_smem_bytes(schedule.accesses[k], schedule.lanes, schedule.block_vectors)
        if needed <= room:
            found.append(k)
            room -= needed
    return found


def _meets_at_once(schedule: ReductionSchedule, device: DeviceInfo) -> bool:
    """True if several column reductions are combined at once: shared memory has room for that."""
    several = sum(total.is_of_columns for total in schedule.reductions.of_grid) > 1
    if not several or schedule.rows_per_block == 1:
        return False
    room = shared_bytes_of_block(device, max(schedule.mapping.blocks_per_sm, 1))
    return shared_bytes(replace(schedule, meets_at_once=True)) <= room


def _occupancy_hint(schedule: ReductionSchedule, device: DeviceInfo) -> int:
    """Return the resident blocks that accesses loaded in the last pass leave registers for; 0: no
    hint. A compiler that spills for it drops a hint, and not what a mapping requires.
    """
    if not schedule.row_cache.loaded_in_last_pass or schedule.mapping.blocks_per_sm:
        return 0
    threads, shared = schedule.block_threads, shared_bytes(schedule)
    return resident_blocks(device, threads, CROWDED_ROW_REGISTERS, shared)
