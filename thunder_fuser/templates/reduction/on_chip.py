"""On-chip decisions of a reduction schedule: row cache, unrolling, prefetches, shared memory.

They are made one after the other (`STEPS`): each reads what those before it have decided, and uses
registers and shared memory that these have left.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from thunder_fuser.device import DeviceInfo
from thunder_fuser.kernel_ir import WORD
from thunder_fuser.lower.paired_lanes import can_pair
from thunder_fuser.lower.register_budget import (
    CROWDED_ROW_REGISTERS,
    VALUE_CACHE_REGISTERS,
    WORKING_REGISTERS,
)
from thunder_fuser.lower.scalar_graph import Load
from thunder_fuser.occupancy import registers_of_thread, resident_blocks, shared_bytes_of_block
from thunder_fuser.templates.reduction.cached_values import (
    choose_values_in_registers,
    choose_values_in_smem,
)
from thunder_fuser.templates.reduction.pipelining import (
    choose_ahead,
    choose_async_cached,
    choose_compiler_unrolled,
    choose_not_hoisted,
    choose_to_l2,
    choose_unroll,
    with_async_prefetch,
)
from thunder_fuser.templates.reduction.portions import choose_portion_loads, choose_portion_values
from thunder_fuser.templates.reduction.row_cache import (
    BlockBudget,
    RowCache,
    access_smem_bytes,
    choose_row_cache,
    passes_that_read,
)
from thunder_fuser.templates.reduction.schedule import ReductionSchedule
from thunder_fuser.templates.reduction.shared_memory import exchange_bytes, shared_bytes

Step = Callable[[ReductionSchedule, DeviceInfo], ReductionSchedule]

_RARELY_NEW = 4
"""Fewest times that rows must read the same data for it to count as being in the L2 cache."""


def on_chip(bare: ReductionSchedule, device: DeviceInfo) -> ReductionSchedule:
    """Return a schedule of stages and thread mapping with all on-chip decisions."""
    made = bare
    for step in STEPS:
        made = step(made, device)
    return made


# ---- row cache


def _with_row_cache(schedule: ReductionSchedule, device: DeviceInfo) -> ReductionSchedule:
    return replace(schedule, row_cache=row_cache_of(schedule, device))


def row_cache_of(schedule: ReductionSchedule, device: DeviceInfo) -> RowCache:
    """Choose the row cache: none if a row takes one pass, or has too many columns."""
    if schedule.grid_split == "columns":
        return RowCache()
    if schedule.lane_axis == "rows" and not schedule.is_outer_shared:
        count = passes_that_read(schedule.accesses, schedule.passes)
        return RowCache(reread=tuple(k for k, n in enumerate(count) if n > 1), passes=count)
    wide = [t for t in schedule.grid_reductions if t.is_of_columns]
    accumulators = sum(t.accumulator_bytes // WORD for t in wide) * schedule.steps
    if schedule.is_outer_shared:
        accumulators = sum(f.accumulator_bytes // WORD + 1 for f in schedule.row_reductions)
    cache = _cached_accesses(schedule, accumulators, device)
    if device.threads_are_serial:
        room = device.shared_bytes_per_block - exchange_bytes(schedule)
        room //= schedule.rows_per_block
        found = choose_values_in_smem(schedule.graph, schedule.lanes, schedule.passes, room)
        return replace(cache, values_in_smem=found)
    return _with_register_values(schedule, cache, accumulators, device)


def _cached_accesses(
    schedule: ReductionSchedule, accumulators: int, device: DeviceInfo
) -> RowCache:
    """Choose the accesses to cache."""
    has_block = schedule.rows_per_block == 1 or schedule.is_outer_shared
    moving = filter(schedule.moves, range(len(schedule.accesses)))
    # Rows first: row-invariant data is in near caches anyway.
    columns = sorted(moving, key=schedule.is_of_all_rows)
    return choose_row_cache(
        schedule.accesses,
        columns,
        [k for k in columns if _is_near(schedule, k, device)],
        schedule.passes,
        schedule.lanes,
        BlockBudget(
            vectors=schedule.block_vectors,
            steps=schedule.steps,
            is_one_row=not schedule.is_outer_shared,
            accumulators=accumulators * schedule.lanes.vector,
            threads=schedule.block_threads,
            blocks_per_sm=max(schedule.mapping.blocks_per_sm, 1),
            shared_in_use=exchange_bytes(schedule) if has_block else None,
        ),
        device,
    )


def _is_near(schedule: ReductionSchedule, access: int, device: DeviceInfo) -> bool:
    """True if an access is in the L2 cache because other rows read it (modulation, a weight). A
    modulated LayerNorm of 57,344 rows takes 80.0 us on an H200 with four of these in registers
    from the first pass on, and 74.6 where the last one loads them.
    """
    if device.threads_are_serial or schedule.grid_split != "none":
        return False
    loads = schedule.accesses[access].loads
    touched = sum(map(_touched_bytes, loads))
    wanted = schedule.rows * schedule.columns * loads[0].dtype.itemsize
    return _RARELY_NEW * touched <= min(wanted, device.l2_bytes)


def _touched_bytes(load: Load) -> float:
    """Return bytes of memory between the first and the last element that a load may read."""
    lo, hi = load.address.lo, load.address.hi
    if load.positions or lo is None or hi is None:
        return math.inf
    return (hi - lo + 1) * load.dtype.itemsize


def _with_register_values(
    schedule: ReductionSchedule, cache: RowCache, accumulators: int, device: DeviceInfo
) -> RowCache:
    """Return the cache with values in registers, where rows are there."""
    wide = schedule.lane_axis == "rows" or not cache.registers or schedule.stages == 0
    if wide or len(schedule.passes) < 2:
        return cache
    loads = {load for k in cache.registers for load in schedule.accesses[k].loads}
    words = sum(load.dtype.itemsize for load in loads) // WORD + accumulators // schedule.steps
    blocks_per_sm = max(schedule.mapping.blocks_per_sm, 1)
    every = registers_of_thread(device, schedule.block_threads, blocks_per_sm)
    every = min(VALUE_CACHE_REGISTERS, every)
    lanes = schedule.lanes.vector * schedule.steps
    room = (every - WORKING_REGISTERS) // lanes - words
    found = choose_values_in_registers(schedule.lanes, schedule.graph, schedule.passes, loads, room)
    in_place = tuple(value for value, is_in_place in found.items() if is_in_place)
    return replace(cache, values_in_registers=tuple(found), in_place=in_place)


# ---- unrolling and prefetches


def _unrolled(schedule: ReductionSchedule, device: DeviceInfo) -> ReductionSchedule:
    made = replace(schedule, unroll=choose_unroll(schedule, device))
    return replace(made, compiler_unrolled=choose_compiler_unrolled(made, device))


def _with_portions(schedule: ReductionSchedule, device: DeviceInfo) -> ReductionSchedule:
    made = replace(schedule, portion_loads=choose_portion_loads(schedule, device))
    return replace(made, portion_values=choose_portion_values(made, device))


def _with_next_row(schedule: ReductionSchedule, device: DeviceInfo) -> ReductionSchedule:
    """Return the schedule with the next row prefetched: to registers if these have room, else
    to shared memory. Rows of one vector a thread go to shared memory anyway: that is less code,
    where others compute while it waits. RMSNorm's backward takes 57.1 us with 4,096 columns on
    an H200, and 58.0 through registers; with two vectors each, of 5,120 columns, 72.0 and 70.5.
    """
    ahead = replace(schedule, prefetched=choose_ahead(schedule, device))
    if ahead.prefetched and schedule.steps > 1:
        return ahead
    found = with_async_prefetch(schedule, device)
    return found if found.async_prefetched else ahead


def _with_later_rows(schedule: ReductionSchedule, device: DeviceInfo) -> ReductionSchedule:
    made = replace(schedule, to_l2=choose_to_l2(schedule, device))
    return replace(made, async_cached=choose_async_cached(made, device))


# ---- shared memory in place of registers


def _with_row_invariant_smem(schedule: ReductionSchedule, device: DeviceInfo) -> ReductionSchedule:
    """Return the schedule with row-invariant accesses in shared memory, or read anew in each row,
    where registers have no room for them.
    """
    crowded = choose_not_hoisted(schedule, device)
    # The passes over a row that is one vector of a thread read shared memory once: 258
    # instructions for it, and 275 if each does, in a LayerNorm's backward on an H200.
    is_one = schedule.steps == 1 and schedule.has_whole_steps
    invariant = _row_invariant_smem(schedule, crowded, device)
    cache = schedule.row_cache.sharing(invariant, from_registers=not is_one)
    made = replace(schedule, row_cache=cache)
    not_hoisted = [k for k in crowded if k not in made.row_invariant_smem]
    return replace(made, not_hoisted=(*not_hoisted, *cache.loaded_in_last_pass))


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


def _with_occupancy_hint(schedule: ReductionSchedule, device: DeviceInfo) -> ReductionSchedule:
    """Return the schedule with the occupancy that accesses loaded in the last pass leave registers
    for. Required launch bounds are no hint, which is dropped if a compiler spills for it.
    """
    if not schedule.row_cache.loaded_in_last_pass or schedule.mapping.blocks_per_sm:
        return schedule
    threads, shared = schedule.block_threads, shared_bytes(schedule)
    hint = resident_blocks(device, threads, CROWDED_ROW_REGISTERS, shared)
    return replace(schedule, min_blocks_hint=hint)


def _meeting_at_once(schedule: ReductionSchedule, device: DeviceInfo) -> ReductionSchedule:
    """Return the schedule with several column reductions combined at once, if shared memory has
    room for that.
    """
    several = sum(total.is_of_columns for total in schedule.grid_reductions) > 1
    if not several or schedule.rows_per_block == 1 or device.threads_are_serial:
        return replace(schedule, meets_at_once=False)
    at_once = replace(schedule, meets_at_once=True)
    room = shared_bytes_of_block(device, max(schedule.mapping.blocks_per_sm, 1))
    return replace(schedule, meets_at_once=shared_bytes(at_once) <= room)


# ---- lanes


def _paired(schedule: ReductionSchedule, device: DeviceInfo) -> ReductionSchedule:
    return replace(schedule, paired=device.threads_are_serial and _can_pair(schedule))


def _can_pair(schedule: ReductionSchedule) -> bool:
    """True if lanes can be in paired order: nothing depends on which column a lane is."""
    if schedule.lane_axis == "rows" or schedule.inside or schedule.has_cached_rows:
        return False
    if any(r.position is not None for r in schedule.reductions):
        return False
    return can_pair(schedule.graph, schedule.accesses, schedule.element_stores, schedule.lanes)


STEPS: tuple[Step, ...] = (
    _with_row_cache,
    _unrolled,
    _with_portions,
    # With the registers and the shared memory that the present row leaves.
    _with_next_row,
    _with_later_rows,
    # When the passes' registers are known.
    _with_row_invariant_smem,
    _with_occupancy_hint,
    _meeting_at_once,
    _paired,
)
"""The decisions in order."""
