"""Registers of a thread of a reduction kernel: how many it has, and what its rows take of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from thunder_fuser.device import DeviceInfo
from thunder_fuser.kernel_ir import WORD
from thunder_fuser.lower.register_budget import STRIDING_REGISTERS
from thunder_fuser.lower.scalar_graph import PhiloxCall, Value, reachable
from thunder_fuser.occupancy import registers_of_thread
from thunder_fuser.templates.reduction.mapping.mapped_rows import MappedRows
from thunder_fuser.templates.reduction.schedule import ReductionSchedule


def registers_for(mapped: MappedRows, device: DeviceInfo) -> int:
    """Return the registers of a thread with the resident blocks that the mapping asks for."""
    return registers_of_thread(device, mapped.block_threads, max(mapped.mapping.blocks_per_sm, 1))


def words_beside(schedule: ReductionSchedule, device: DeviceInfo) -> int:
    """Return registers of a thread besides its row cache, accumulators and computation."""
    room = registers_for(schedule, device) - STRIDING_REGISTERS
    cached = sum(computed_words(schedule, k) for k in schedule.row_cache.registers)
    return max(room - words_of_totals(schedule) - cached, 0)


def words_of_totals(mapped: MappedRows) -> int:
    """Return registers for column accumulators."""
    return mapped.reductions.column_words * mapped.lanes.vector * mapped.steps


def words_of_draws(mapped: MappedRows) -> int:
    """Return registers for random words of a vector's lanes, which are drawn together."""
    wanted = reachable(root for roots in mapped.passes for root in roots)
    return mapped.lanes.vector * sum(isinstance(v, PhiloxCall) for v in wanted)


def words_of(mapped: MappedRows, accesses: Iterable[int]) -> int:
    """Return registers for a thread's part of a row of some accesses, in their own types."""
    found = 0
    for k in accesses:
        itemsize = mapped.accesses[k].loads[0].dtype.itemsize
        whole = max(itemsize * mapped.lanes.vector // WORD, 1) * mapped.steps
        found += max(itemsize // WORD, 1) if mapped.accesses[k].is_uniform else whole
    return found


def computed_words(mapped: MappedRows, access: int) -> int:
    """Return registers of an access converted to at least 32 bits, which is done once for all
    rows.
    """
    itemsize = mapped.accesses[access].loads[0].dtype.itemsize
    return words_of(mapped, [access]) * (WORD // min(itemsize, WORD))


def loaded_bytes(
    mapped: MappedRows, roots: Sequence[Value], among: Collection[int] | None = None
) -> int:
    """Return bytes that a thread loads for a vector of a pass; `among`: of these accesses."""
    wanted = reachable(roots)
    loads = [
        access.loads
        for k, access in enumerate(mapped.accesses)
        if mapped.moves(k) and (among is None or k in among)
    ]
    each = sum(found[0].dtype.itemsize for found in loads if not wanted.isdisjoint(found))
    return each * mapped.lanes.vector
