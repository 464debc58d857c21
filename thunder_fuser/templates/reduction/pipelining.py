"""Software pipelining and unrolling of reduction kernels: loads issued together, or ahead of their
use.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from thunder_fuser.device import DeviceInfo
from thunder_fuser.kernel_ir import WORD
from thunder_fuser.lower.lanes import Lanes
from thunder_fuser.lower.register_budget import (
    AHEAD_REGISTERS,
    DEFAULT_UNROLL_REGISTERS,
    GUARDED_AHEAD_REGISTERS,
    OUTER_STRIDING_REGISTERS,
    STRIDING_REGISTERS,
    STRIDING_REGISTERS_OF_SEVERAL,
    STRIDING_STAGE_REGISTERS,
)
from thunder_fuser.lower.scalar_graph import PhiloxCall, Value, reachable
from thunder_fuser.lower.vectorize import ALWAYS, RegisterArray
from thunder_fuser.occupancy import registers_of_thread, shared_bytes_of_block
from thunder_fuser.templates.reduction.row_cache import MAX_STEPS
from thunder_fuser.templates.reduction.schedule import ReductionSchedule
from thunder_fuser.templates.reduction.shared_memory import shared_bytes

MAX_UNROLL = 8
"""Most iterations of a loop over columns that are unrolled together."""
_MAX_GUARDED_UNROLL = 2
_DEFAULT_UNROLL = 4
"""Default unroll factor of a loop."""
_FEW_UNDER_WAY = 2 / 3
"""Share of the bytes that must be in flight, below which the row after the next goes to L2."""
_FEW_THREADS = 4
"""Divisor of a multiprocessor's threads: that part of them counts as few."""
_WORTH_BYTES = 16
"""Fewest bytes of one prefetch to L2."""
_COPY_BYTES = (4, 8, 16)
"""Sizes in bytes of one asynchronous copy (cp.async)."""
_PLENTY = 2
"""Factor over the bytes that must be in flight, above which rows are not prefetched."""


def choose_unroll(schedule: ReductionSchedule, device: DeviceInfo) -> tuple[int, ...]:
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
    walks = schedule.lane_axis == "columns" or not device.threads_are_serial
    is_long = walks and schedule.steps > MAX_STEPS
    if not is_long and (schedule.row_reductions or not schedule.grid_reductions):
        return (1,) * len(schedule.passes)
    if schedule.element_stores and _has_enough_ahead(schedule, device):
        return (1,) * len(schedule.passes)
    return tuple(_unroll_of(schedule, roots, device) for roots in schedule.passes)


def choose_compiler_unrolled(schedule: ReductionSchedule, device: DeviceInfo) -> tuple[int, ...]:
    """Choose passes whose loop over the columns has enough bytes in flight as compilers unroll it,
    with predicates for its tail alone. Loads ahead have a predicate each: rows of 128,256 columns
    of a cross-entropy take 283 us on an H200 with three together, and 267 in a plain loop.
    """
    walks = schedule.lane_axis == "columns" and schedule.steps > MAX_STEPS
    guarded = schedule.inside or schedule.row_cache.shared
    if not walks or guarded or device.threads_are_serial:
        return ()
    beside = schedule.block_threads * _blocks_beside(schedule, device)
    return tuple(
        n
        for n, roots in enumerate(schedule.passes)
        if schedule.unroll[n] > 1
        and _loaded_bytes(schedule, roots) * default_unroll(schedule, n) * beside
        >= device.bytes_in_flight_per_sm
    )


def _steps_of(schedule: ReductionSchedule, number: int, device: DeviceInfo) -> int:
    """Return the steps of a pass before grid reductions whose loads registers have room for, beside
    column accumulators. The last pass is fully unrolled: each step has accumulators of its own.
    """
    if not schedule.is_before_totals(number):
        return 1
    if device.threads_are_serial:
        return schedule.steps
    totals = _words_of_totals(schedule) * (2 if schedule.is_summed_in_parts else 1)
    room = _registers_of_thread(schedule, device) - STRIDING_REGISTERS - totals
    words = _loaded_bytes(schedule, schedule.passes[number]) // WORD
    return _in_turns(schedule.steps, room // max(words, 1))


def _in_turns(steps: int, most: int) -> int:
    """Return at most `most` steps at a time, equally many each time."""
    turns = -(-steps // max(most, 1))
    return -(-steps // turns)


def _registers_of_thread(schedule: ReductionSchedule, device: DeviceInfo) -> int:
    blocks_per_sm = max(schedule.mapping.blocks_per_sm, 1)
    return registers_of_thread(device, schedule.block_threads, blocks_per_sm)


def _unroll_of(schedule: ReductionSchedule, roots: Sequence[Value], device: DeviceInfo) -> int:
    """Return the unroll factor of the loop of a pass that computes `roots`: over the columns, or
    over the rows, of each of which a thread then has all of its steps.
    """
    each = _loaded_bytes(schedule, roots) * schedule.block_threads
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
    """Unroll factor of a pass's loop for which `choose_unroll` asks for none: a power of two."""
    words = _loaded_bytes(schedule, schedule.passes[number]) // WORD
    totals = _words_of_totals(schedule) * (2 if schedule.is_summed_in_parts else 1)
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
    words = _loaded_bytes(schedule, roots, loads) // WORD
    if schedule.inside and not schedule.is_outer_shared:
        return max(1, min(steps, GUARDED_AHEAD_REGISTERS // max(words, 1)))
    if words * steps <= AHEAD_REGISTERS and not schedule.inside:
        return steps
    if schedule.is_outer_shared:
        return _most_together(schedule, roots, device, steps)
    return _in_turns(steps, AHEAD_REGISTERS // words)


def _loaded_bytes(
    schedule: ReductionSchedule, roots: Sequence[Value], among: Collection[int] | None = None
) -> int:
    """Return bytes that a thread loads for a vector of a pass; `among`: of these accesses."""
    wanted = reachable(roots)
    loads = [
        access.loads
        for k, access in enumerate(schedule.accesses)
        if schedule.moves(k) and (among is None or k in among)
    ]
    each = sum(found[0].dtype.itemsize for found in loads if not wanted.isdisjoint(found))
    return each * schedule.lanes.vector


def _most_together(
    schedule: ReductionSchedule, roots: Sequence[Value], device: DeviceInfo, most: int
) -> int:
    """Return at most `most` iterations: those whose loads registers have room for."""
    if not schedule.is_outer_shared:
        return most
    # Lanes that may not exist have an address and a condition each.
    words = _loaded_bytes(schedule, roots) // WORD * (2 if schedule.inside else 1)
    return max(1, min(most, _outer_room(schedule, device) // max(words, 1)))


def _outer_room(schedule: ReductionSchedule, device: DeviceInfo) -> int:
    """Return registers of a thread of an outer reduction, beside accumulators of a reduction for
    each lane, whole and partial, and results of the others.
    """
    words = max(fold.accumulator_bytes // WORD for fold in schedule.row_reductions)
    taken = (2 * words + len(schedule.row_reductions) - 1) * schedule.lanes.vector
    return _registers_of_thread(schedule, device) - OUTER_STRIDING_REGISTERS - taken


def _has_enough_ahead(schedule: ReductionSchedule, device: DeviceInfo) -> bool:
    """True if this row and the prefetched next one are enough bytes in flight."""
    found = choose_ahead(replace(schedule, unroll=(1,)), device)
    under_way = bytes_under_way(replace(schedule, prefetched=found))
    return under_way >= device.bytes_in_flight_per_sm > 0


def bytes_under_way(schedule: ReductionSchedule) -> int:
    """Return bytes in flight on a multiprocessor whose blocks prefetch the next row: that row and
    the one before.
    """
    accesses = (schedule.accesses[k] for k in schedule.prefetched)
    each = sum(a.loads[0].dtype.itemsize for a in accesses if not a.is_uniform)
    threads = schedule.block_threads * schedule.mapping.blocks_per_sm
    return 2 * each * schedule.lanes.vector * schedule.steps * threads


def words_beside(schedule: ReductionSchedule, device: DeviceInfo) -> int:
    """Return registers of a thread beside its row cache, accumulators and computation."""
    room = _registers_of_thread(schedule, device) - STRIDING_REGISTERS
    cached = sum(_computed_words(schedule, k) for k in schedule.row_cache.registers)
    return max(room - _words_of_totals(schedule) - cached, 0)


def choose_ahead(schedule: ReductionSchedule, device: DeviceInfo) -> tuple[int, ...]:
    """Choose accesses whose next row is prefetched to registers, where rows follow each other and
    registers have room: whole vectors without predicates; and with them accesses of one element a
    row, for which a row would otherwise wait as long as for its vectors.
    """
    if schedule.grid_split != "rows" or schedule.unroll[-1] > 1 or device.threads_are_serial:
        return ()
    found = vectors_of_rows(schedule)
    words = _words_of_totals(schedule) + _words_of_draws(schedule)
    words += _words_of(schedule, (*schedule.row_cache.registers, *found))
    room = _registers_of_thread(schedule, device) - STRIDING_REGISTERS
    if not found or words > room:
        return ()
    elements = _elements_of_rows(schedule)
    return tuple(sorted([*found, *(elements if words + len(elements) <= room else ())]))


def choose_to_l2(schedule: ReductionSchedule, device: DeviceInfo) -> tuple[int, ...]:
    """Choose accesses of the row after the next one to prefetch to L2, where a multiprocessor has
    few threads and their next row is too few bytes in flight: a row then waits for L2 and not for
    memory. The backward of a modulated norm takes 121 us with it on an H200 and 124 without; those
    with more threads gain nothing, or lose.
    """
    threads = schedule.block_threads * max(schedule.mapping.blocks_per_sm, 1)
    under_way = bytes_under_way(schedule) // 2
    is_little = under_way < _FEW_UNDER_WAY * device.bytes_in_flight_per_sm
    if not is_little or threads > device.threads_per_sm // _FEW_THREADS:
        return ()
    vectors = (k for k in schedule.prefetched if not schedule.accesses[k].is_uniform)
    sizes = {k: schedule.accesses[k].loads[0].dtype.itemsize for k in vectors}
    # A prefetch is an instruction for each vector, which a few bytes are not worth.
    return tuple(k for k, size in sizes.items() if size * schedule.lanes.vector >= _WORTH_BYTES)


def with_async_prefetch(schedule: ReductionSchedule, device: DeviceInfo) -> ReductionSchedule:
    """Return the schedule with the next row prefetched to shared memory by cp.async, where its
    blocks stride over rows. Not where one row of each block is much more than enough bytes in
    flight: other blocks then keep memory busy while one computes.
    """
    walks = schedule.grid_split == "rows" and schedule.unroll[-1] == 1
    if not (walks and schedule.row_reductions and device.copies_async):
        return schedule
    found = tuple(vectors_of_rows(schedule))
    sizes = [schedule.accesses[k].loads[0].dtype.itemsize for k in found]
    if not found or min(sizes) * schedule.lanes.vector < WORD:
        return schedule
    words = _words_of_totals(schedule) + _words_of(schedule, schedule.row_cache.registers)
    room = _registers_of_thread(schedule, device) - STRIDING_REGISTERS - words
    elements = _elements_of_rows(schedule)
    ahead = (*found, *(elements if len(elements) <= room else ()))
    made = replace(schedule, prefetched=tuple(sorted(ahead)), async_prefetched=found)
    if bytes_under_way(made) > 2 * _PLENTY * device.bytes_in_flight_per_sm:
        return schedule
    blocks_per_sm = max(schedule.mapping.blocks_per_sm, 1)
    fits = shared_bytes(made) <= shared_bytes_of_block(device, blocks_per_sm)
    return made if fits else schedule


def choose_async_cached(schedule: ReductionSchedule, device: DeviceInfo) -> tuple[int, ...]:
    """Choose accesses whose whole row cp.async copies into the row cache in shared memory. Loads
    through registers are limited by these, and to one at a time under a predicate: a BatchNorm
    takes 94 us with them on an H200, and 70 without.
    """
    is_row_of_block = schedule.grid_split == "none" and schedule.lane_axis == "columns"
    if not (is_row_of_block and schedule.walks_columns and device.copies_async):
        return ()
    accesses, lanes = schedule.accesses, schedule.lanes
    return tuple(
        k
        for k in schedule.row_cache.shared
        if _is_vector_of_row(accesses[k], lanes)
        and accesses[k].loads[0].dtype.itemsize * lanes.vector in _COPY_BYTES
    )


def vectors_of_rows(schedule: ReductionSchedule) -> list[int]:
    """Return accesses in registers that are one vector of a row in each step."""
    cached = (k for k in schedule.row_cache.registers if k not in schedule.portion_loads)
    return [k for k in cached if _is_vector_of_row(schedule.accesses[k], schedule.lanes)]


def choose_not_hoisted(schedule: ReductionSchedule, device: DeviceInfo) -> tuple[int, ...]:
    """Choose row-invariant vectors, such as those of a weight, for which registers have no room
    from row to row. NVVM hoists such loads out of the loop over the rows regardless of registers,
    and ptxas spills what they cannot hold.
    """
    if schedule.grid_split != "rows" or device.threads_are_serial:
        return ()
    beside = STRIDING_REGISTERS_OF_SEVERAL if schedule.steps > 1 else STRIDING_REGISTERS
    beside += STRIDING_STAGE_REGISTERS * (schedule.stages - 1)
    room = _registers_of_thread(schedule, device) - beside
    room -= _words_of_totals(schedule) * (2 if schedule.is_summed_in_parts else 1)
    in_registers = [k for k in schedule.prefetched if k not in schedule.async_prefetched]
    room -= _words_of(schedule, in_registers)
    of_all = [k for k in range(len(schedule.accesses)) if schedule.is_of_all_rows(k)]
    same = [k for k in of_all if k not in schedule.row_invariant_smem]
    cached = set(schedule.row_cache.registers).difference(same)
    room -= sum(_computed_words(schedule, k) for k in cached)
    if not schedule.row_cache.registers:
        loading = zip(schedule.unroll, schedule.passes, strict=True)
        room -= max(n * _loaded_bytes(schedule, roots) for n, roots in loading) // WORD
    found = []
    for k in same:
        words = _computed_words(schedule, k)
        if words > room:
            found.append(k)
        else:
            room -= words
    return tuple(found)


def _words_of_totals(schedule: ReductionSchedule) -> int:
    """Registers of a thread for column accumulators."""
    wide = [t for t in schedule.grid_reductions if t.is_of_columns]
    return sum(t.accumulator_bytes // WORD for t in wide) * schedule.lanes.vector * schedule.steps


def _words_of_draws(schedule: ReductionSchedule) -> int:
    """Registers of a thread for random words of a vector's lanes, which are drawn together."""
    wanted = reachable(root for roots in schedule.passes for root in roots)
    return schedule.lanes.vector * sum(isinstance(v, PhiloxCall) for v in wanted)


def _words_of(schedule: ReductionSchedule, accesses: Iterable[int]) -> int:
    """Registers of a thread for its part of a row of some accesses, in their own types."""
    found = 0
    for k in accesses:
        itemsize = schedule.accesses[k].loads[0].dtype.itemsize
        whole = max(itemsize * schedule.lanes.vector // WORD, 1) * schedule.steps
        found += max(itemsize // WORD, 1) if schedule.accesses[k].is_uniform else whole
    return found


def _computed_words(schedule: ReductionSchedule, access: int) -> int:
    """Registers of an access converted to at least 32 bits, which is done once for all rows."""
    itemsize = schedule.accesses[access].loads[0].dtype.itemsize
    return _words_of(schedule, [access]) * (WORD // min(itemsize, WORD))


def _elements_of_rows(schedule: ReductionSchedule) -> tuple[int, ...]:
    """Accesses that are one element a row, wherever the row is."""
    if not schedule.row_reductions or any(
        load.positions for a in schedule.accesses for load in a.loads
    ):
        return ()
    return tuple(k for k, access in enumerate(schedule.accesses) if _is_element_of_row(access))


def _is_vector_of_row(access: RegisterArray, lanes: Lanes) -> bool:
    """True if an access is one vector of the row, wherever the row is."""
    if not access.is_one_access(lanes.vector) or access.loads[0].positions:
        return False
    if len(access.variants) != 1 or access.variants[0].conditions != ALWAYS:
        return False
    (window,) = access.variants[0].windows
    return any(v.name == "r" for v in window.address.variables())


def _is_element_of_row(access: RegisterArray) -> bool:
    if not access.is_uniform or access.gather or len(access.variants) != 1:
        return False
    (variant,) = access.variants
    mentioned = {v.name for window in variant.windows for v in window.address.variables()}
    return variant.conditions == ALWAYS and len(variant.windows) == 1 and mentioned == {"r"}
