"""Software pipelining of a reduction kernel on a GPU: loads of a row that are issued before it is
computed.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from thunder_fuser.device import DeviceInfo
from thunder_fuser.kernel_ir import WORD
from thunder_fuser.lower.register_budget import STRIDING_REGISTERS
from thunder_fuser.lower.vectors.lanes import Lanes
from thunder_fuser.lower.vectors.vectorize import ALWAYS, RegisterArray
from thunder_fuser.occupancy import shared_bytes_of_block
from thunder_fuser.templates.reduction.mapping.mapped_rows import MappedRows
from thunder_fuser.templates.reduction.on_chip.register_use import (
    registers_for,
    words_of,
    words_of_draws,
    words_of_totals,
)
from thunder_fuser.templates.reduction.on_chip.shared_memory import shared_bytes
from thunder_fuser.templates.reduction.schedule import ReductionSchedule, RowPipeline

_FEW_IN_FLIGHT = 2 / 3
"""Share of the bytes that must be in flight, below which the row after the next goes to L2."""
_FEW_THREADS = 4
"""Divisor of a multiprocessor's threads: that part of them counts as few."""
_WORTH_BYTES = 16
"""Fewest bytes of one prefetch to L2."""
_COPY_BYTES = (4, 8, 16)
"""Sizes in bytes of one asynchronous copy (cp.async)."""
_PLENTY = 2
"""Factor over the bytes that must be in flight, above which rows are not prefetched."""


def choose_pipeline(schedule: ReductionSchedule, device: DeviceInfo) -> RowPipeline:
    """Choose the loads that are issued a row ahead, with the registers and the shared memory that
    the row cache and the portion prologue leave.
    """
    if schedule.grid_split == "none":
        return RowPipeline(copied_whole=_copied_whole(schedule, device))
    # A loop over rows that is unrolled has the loads of several rows in flight as it is.
    if schedule.grid_split == "columns" or schedule.unrolling.factors[-1] > 1:
        return RowPipeline()
    if schedule.mapping.rows_per_thread(schedule.rows) == 1:
        return RowPipeline()
    found = _next_row(schedule, device)
    return replace(found, to_l2=_to_l2(schedule, found.prefetched, device))


def _next_row(schedule: ReductionSchedule, device: DeviceInfo) -> RowPipeline:
    """Prefetch the next row: to registers if these have room, else to shared memory. Rows of one
    vector a thread go to shared memory anyway: that is less code, where others compute while it
    waits. RMSNorm's backward takes 57.1 us with 4,096 columns on an H200, and 58.0 through
    registers; with two vectors each, of 5,120 columns, 72.0 and 70.5.
    """
    ahead = choose_ahead(schedule, device)
    if ahead and schedule.steps > 1:
        return RowPipeline(ahead)
    return _next_row_copied(schedule, device) or RowPipeline(ahead)


def choose_ahead(schedule: ReductionSchedule, device: DeviceInfo) -> tuple[int, ...]:
    """Choose accesses whose next row is prefetched to registers, where rows follow each other and
    registers have room: whole vectors without predicates; and with them accesses of one element a
    row, for which a row would otherwise wait as long as for its vectors.
    """
    if schedule.grid_split != "rows" or schedule.mapping.rows_per_thread(schedule.rows) == 1:
        return ()
    found = vectors_of_rows(schedule)
    words = words_of_totals(schedule) + words_of_draws(schedule)
    words += words_of(schedule, (*schedule.row_cache.registers, *found))
    room = registers_for(schedule, device) - STRIDING_REGISTERS
    if not found or words > room:
        return ()
    elements = _elements_of_rows(schedule)
    return tuple(sorted([*found, *(elements if words + len(elements) <= room else ())]))


def _next_row_copied(schedule: ReductionSchedule, device: DeviceInfo) -> RowPipeline | None:
    """Prefetch the next row to shared memory by cp.async, if it has room. Not where one row of each
    block is much more than enough bytes in flight: other blocks then keep memory busy while one
    computes.
    """
    if not (schedule.reductions.of_rows and device.copies_async):
        return None
    found = tuple(vectors_of_rows(schedule))
    sizes = [schedule.accesses[k].loads[0].dtype.itemsize for k in found]
    if not found or min(sizes) * schedule.lanes.vector < WORD:
        return None
    words = words_of_totals(schedule) + words_of(schedule, schedule.row_cache.registers)
    room = registers_for(schedule, device) - STRIDING_REGISTERS - words
    elements = _elements_of_rows(schedule)
    ahead = (*found, *(elements if len(elements) <= room else ()))
    if bytes_in_flight(schedule, ahead) > 2 * _PLENTY * device.bytes_in_flight_per_sm:
        return None
    made = RowPipeline(tuple(sorted(ahead)), found)
    blocks_per_sm = max(schedule.mapping.blocks_per_sm, 1)
    taken = shared_bytes(replace(schedule, pipeline=made))
    return made if taken <= shared_bytes_of_block(device, blocks_per_sm) else None


def bytes_in_flight(mapped: MappedRows, prefetched: Collection[int]) -> int:
    """Return bytes in flight on a multiprocessor whose blocks prefetch these accesses of the next
    row: that row and the one before.
    """
    accesses = (mapped.accesses[k] for k in prefetched)
    each = sum(a.loads[0].dtype.itemsize for a in accesses if not a.is_uniform)
    threads = mapped.block_threads * mapped.mapping.blocks_per_sm
    return 2 * each * mapped.lanes.vector * mapped.steps * threads


def _to_l2(mapped: MappedRows, prefetched: Collection[int], device: DeviceInfo) -> tuple[int, ...]:
    """Choose accesses of the row after the next one to prefetch to L2, where a multiprocessor has
    few threads and their next row is too few bytes in flight: a row then waits for L2 and not for
    memory. The backward of a modulated norm takes 121 us with it on an H200 and 124 without; those
    with more threads gain nothing, or lose.
    """
    threads = mapped.block_threads * max(mapped.mapping.blocks_per_sm, 1)
    in_flight = bytes_in_flight(mapped, prefetched) // 2
    is_little = in_flight < _FEW_IN_FLIGHT * device.bytes_in_flight_per_sm
    if not is_little or threads > device.threads_per_sm // _FEW_THREADS:
        return ()
    vectors = (k for k in prefetched if not mapped.accesses[k].is_uniform)
    sizes = {k: mapped.accesses[k].loads[0].dtype.itemsize for k in vectors}
    # A prefetch is an instruction for each vector, which a few bytes are not worth.
    return tuple(k for k, size in sizes.items() if size * mapped.lanes.vector >= _WORTH_BYTES)


def _copied_whole(schedule: ReductionSchedule, device: DeviceInfo) -> tuple[int, ...]:
    """Choose accesses whose whole row cp.async copies into the row cache in shared memory. Loads
    through registers are as many at a time as these hold, and one at a time under a predicate: a
    BatchNorm takes 94 us through registers on an H200, and 70 by copies.
    """
    is_row_of_block = schedule.lane_axis == "columns" and schedule.walks_columns
    if not (is_row_of_block and device.copies_async):
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
    cached = (k for k in schedule.row_cache.registers if k not in schedule.portion.loads)
    return [k for k in cached if _is_vector_of_row(schedule.accesses[k], schedule.lanes)]


def _elements_of_rows(mapped: MappedRows) -> tuple[int, ...]:
    """Accesses that are one element a row, wherever the row is."""
    if not mapped.reductions.of_rows or any(
        load.positions for a in mapped.accesses for load in a.loads
    ):
        return ()
    return tuple(k for k, access in enumerate(mapped.accesses) if _is_element_of_row(access))


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
