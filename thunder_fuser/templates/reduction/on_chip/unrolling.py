"""Unrolling of the passes of a reduction kernel on a GPU: iterations whose loads are issued
together.
"""

from __future__ import annotations

from collections.abc import Sequence

from thunder_fuser.device import DeviceInfo
from thunder_fuser.kernel_ir import WORD
from thunder_fuser.lower.register_budget import (
    AHEAD_REGISTERS,
    DEFAULT_UNROLL_REGISTERS,
    GUARDED_AHEAD_REGISTERS,
    OUTER_STRIDING_REGISTERS,
    STRIDING_REGISTERS,
)
from thunder_fuser.lower.scalar_graph import Value
from thunder_fuser.templates.reduction.on_chip.pipelining import bytes_in_flight, choose_ahead
from thunder_fuser.templates.reduction.on_chip.register_use import (
    loaded_bytes,
    registers_for,
    words_of_totals,
)
from thunder_fuser.templates.reduction.on_chip.row_cache import MAX_STEPS
from thunder_fuser.templates.reduction.schedule import ReductionSchedule, Unrolling

MAX_UNROLL = 8
"""Most iterations of a loop over columns that are unrolled together."""
_MAX_GUARDED_UNROLL = 2
_DEFAULT_UNROLL = 4
"""Default unroll factor of a loop."""


def choose_unrolling(schedule: ReductionSchedule, device: DeviceInfo) -> Unrolling:
    """Choose the unrolling of each pass."""
    factors = _factors(schedule, device)
    return Unrolling(factors, _by_compiler(schedule, factors, device))


def _factors(schedule: ReductionSchedule, device: DeviceInfo) -> tuple[int, ...]:
    """Choose unroll factors with enough bytes in flight, for loops that are not fully unrolled
    anyway: over rows without stages, and over columns that do not fit into registers.
    """
    if schedule.has_few_steps:
        # Fully unrolled passes issue all loads first; cached accesses are not loaded.
        return tuple(
            _few_steps_together(schedule, n, device) if schedule.loads_in_pass(n) else 1
            for n in range(len(schedule.passes))
        )
    if schedule.is_before_totals(0):
        return tuple(_steps_of(schedule, n, device) for n in range(len(schedule.passes)))
    is_short = schedule.steps <= MAX_STEPS
    if is_short and (schedule.reductions.of_rows or not schedule.reductions.of_grid):
        return (1,) * len(schedule.passes)
    if schedule.writes.elements and _has_enough_ahead(schedule, device):
        return (1,) * len(schedule.passes)
    return tuple(_unroll_of(schedule, roots, device) for roots in schedule.passes)


def _by_compiler(
    schedule: ReductionSchedule, factors: Sequence[int], device: DeviceInfo
) -> tuple[int, ...]:
    """Choose passes whose loop over the columns has enough bytes in flight as compilers unroll it,
    with predicates for its tail alone. Loads ahead have a predicate each: rows of 128,256 columns
    of a cross-entropy take 283 us on an H200 with three together, and 267 in a plain loop.
    """
    walks = schedule.lane_axis == "columns" and schedule.steps > MAX_STEPS
    if not walks or schedule.inside or schedule.row_cache.shared:
        return ()
    beside = schedule.block_threads * _blocks_beside(schedule, device)
    return tuple(
        n
        for n, roots in enumerate(schedule.passes)
        if factors[n] > 1
        and loaded_bytes(schedule, roots) * default_unroll(schedule, n) * beside
        >= device.bytes_in_flight_per_sm
    )


def _steps_of(schedule: ReductionSchedule, number: int, device: DeviceInfo) -> int:
    """Return the steps of a pass before grid reductions whose loads fit in registers with column
    accumulators. The last pass is fully unrolled: each step has accumulators of its own.
    """
    if not schedule.is_before_totals(number):
        return 1
    totals = words_of_totals(schedule) * (2 if schedule.is_summed_in_parts else 1)
    room = registers_for(schedule, device) - STRIDING_REGISTERS - totals
    words = loaded_bytes(schedule, schedule.passes[number]) // WORD
    return _in_turns(schedule.steps, room // max(words, 1))


def _in_turns(steps: int, most: int) -> int:
    """Return at most `most` steps at a time, equally many each time."""
    turns = -(-steps // max(most, 1))
    return -(-steps // turns)


def _unroll_of(schedule: ReductionSchedule, roots: Sequence[Value], device: DeviceInfo) -> int:
    """Return the unroll factor of the loop of a pass that computes `roots`: over the columns, or
    over the rows, of each of which a thread then has all of its steps.
    """
    each = loaded_bytes(schedule, roots) * schedule.block_threads
    each *= _blocks_beside(schedule, device)
    if schedule.steps <= MAX_STEPS and schedule.grid_split == "rows":
        each *= schedule.steps
    # Lanes that may not exist are loaded one by one, with an address and a condition each.
    most = _MAX_GUARDED_UNROLL if schedule.inside else MAX_UNROLL
    most = _most_together(schedule, roots, device, most)
    unroll = 1
    while each and unroll < most and unroll * each < device.bytes_in_flight_per_sm:
        unroll += 1
    return unroll


def default_unroll(schedule: ReductionSchedule, number: int) -> int:
    """Unroll factor of a pass's loop with the factor 1: a power of two."""
    words = loaded_bytes(schedule, schedule.passes[number]) // WORD
    totals = words_of_totals(schedule) * (2 if schedule.is_summed_in_parts else 1)
    most = min(_DEFAULT_UNROLL, (DEFAULT_UNROLL_REGISTERS - totals) // max(words, 1))
    return 1 << max(most, 1).bit_length() - 1


def _blocks_beside(schedule: ReductionSchedule, device: DeviceInfo) -> int:
    """Return the blocks of a multiprocessor with loads in flight: those that must be resident, or,
    if each thread has rows of its own, those that are.
    """
    least = max(schedule.mapping.blocks_per_sm, 1)
    if schedule.lane_axis == "columns" or schedule.is_outer_shared:
        return least
    room = device.threads_per_sm // schedule.block_threads
    return max(least, min(room, schedule.blocks // max(device.sm_count, 1)))


def _few_steps_together(schedule: ReductionSchedule, number: int, device: DeviceInfo) -> int:
    """Return all steps of a pass if their loads are few, else as many as registers hold."""
    steps, roots = schedule.steps, schedule.passes[number]
    loads = schedule.loads_in_pass(number)
    if schedule.mapping.shares_rows and not schedule.streams_in_pass(number):
        # Compilers hoist loads of shared memory from all iterations that are unrolled.
        loads = loads.union(schedule.row_cache.shared)
    words = loaded_bytes(schedule, roots, loads) // WORD
    if schedule.inside and not schedule.is_outer_shared:
        return max(1, min(steps, GUARDED_AHEAD_REGISTERS // max(words, 1)))
    if words * steps <= AHEAD_REGISTERS and not schedule.inside:
        return steps
    if schedule.is_outer_shared:
        return _most_together(schedule, roots, device, steps)
    return _in_turns(steps, AHEAD_REGISTERS // words)


def _most_together(
    schedule: ReductionSchedule, roots: Sequence[Value], device: DeviceInfo, most: int
) -> int:
    """Return at most `most` iterations: those whose loads registers have room for."""
    if not schedule.is_outer_shared:
        return most
    # Lanes that may not exist have an address and a condition each.
    words = loaded_bytes(schedule, roots) // WORD * (2 if schedule.inside else 1)
    return max(1, min(most, _outer_room(schedule, device) // max(words, 1)))


def _outer_room(schedule: ReductionSchedule, device: DeviceInfo) -> int:
    """Return registers of a thread of an outer reduction, besides accumulators of a reduction for
    each lane, whole and partial, and results of the others.
    """
    words = max(fold.accumulator_bytes // WORD for fold in schedule.reductions.of_rows)
    taken = (2 * words + len(schedule.reductions.of_rows) - 1) * schedule.lanes.vector
    return registers_for(schedule, device) - OUTER_STRIDING_REGISTERS - taken


def _has_enough_ahead(schedule: ReductionSchedule, device: DeviceInfo) -> bool:
    """True if this row and the prefetched next one are enough bytes in flight."""
    in_flight = bytes_in_flight(schedule, choose_ahead(schedule, device))
    return in_flight >= device.bytes_in_flight_per_sm > 0
