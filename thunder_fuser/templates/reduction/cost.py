"""Cost of a reduction schedule, by which candidates are ranked before they are lowered, which the
template's estimate needs. `tests/segment/test_ranking.py` compares both orders.
"""

from __future__ import annotations

from collections.abc import Iterator

from thunder_fuser.device import DeviceInfo
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.integer.symint import Form
from thunder_fuser.ir.tables import reductions
from thunder_fuser.kernel_ir import WRITTEN_OUT
from thunder_fuser.lower.lanes import Lanes
from thunder_fuser.templates.reduction.accumulations import RowReduction
from thunder_fuser.templates.reduction.host_tiles import HOST_PARTS
from thunder_fuser.templates.reduction.pipelining import bytes_under_way
from thunder_fuser.templates.reduction.schedule import ReductionSchedule
from thunder_fuser.templates.reduction.thread_mapping import takes_small_blocks

_JUMP = 128
"""Fewest bytes that an access costs where a core jumps from row to row: nothing is prefetched."""

_OUTER_SHARE = 0.7
"""Share of the bandwidth in outer reductions with several threads per row: all threads reduce at
once, and few loads of each are in flight (the time model's .55 to .8).
"""

_BY_LANE = 2
"""Factor of uncoalesced loads, lane by lane (the time model's 1.3 to 4)."""
_DEPENDENT = 1.15
"""Factor of Welford's moments, where each vector depends on the one before: a pass that they save
pays for that where it would re-read a row that is not cached.
"""
_AHEAD = 1.5
"""Factor over the share of threads, of those with the next row prefetched."""
_IDLE = 1.25
"""Factor of blocks that issue no loads while they reduce (the time model's 1.2 to 2.5)."""


def seconds(schedule: ReductionSchedule, device: DeviceInfo) -> float:
    """Estimate the time: bytes moved over the bandwidth that the threads can use, or the latency of
    one thread's loads of a row, if that is longer.
    """
    moved = _vectors(schedule) * sum(_bytes_per_vector(schedule, device))
    moved += 2 * schedule.workspace_bytes
    time = moved / (device.bandwidth * _share_of(schedule, device))
    time = max(time, _waiting(schedule, device))
    if _keeps_in_vain(schedule, device):
        time *= _IDLE
    if not device.threads_are_serial and any(map(_has_moments, schedule.row_reductions)):
        time *= _DEPENDENT
    return time + (device.grid_barrier_seconds if schedule.grid_reductions else 0.0)


def _has_moments(fold: RowReduction) -> bool:
    """True if an accumulator has more than a scalar and what it is relative to."""
    return reductions.lookup(fold.op).accumulator.words > 2


def _waiting(schedule: ReductionSchedule, device: DeviceInfo) -> float:
    """Return the latency of a thread's part of a row, where steps are so many that a compiler
    leaves them in a loop: loads of some are in flight together. A host's core prefetches by itself.
    """
    if device.threads_are_serial or schedule.steps <= WRITTEN_OUT:
        return 0.0
    loading = (n for k, n in enumerate(schedule.unroll) if schedule.loads_in_pass(k))
    return device.load_seconds * sum(-(-schedule.steps // max(n, 1)) for n in loading)


def _keeps_in_vain(schedule: ReductionSchedule, device: DeviceInfo) -> bool:
    """True if long rows are cached between passes and not written: a block issues no loads while it
    reduces its row cache, and a multiprocessor has few such blocks. One pass has smaller ones.
    """
    vectors = schedule.lanes.vectors
    if schedule.lane_axis == "rows" or schedule.element_stores or schedule.stages < 2:
        return False
    return schedule.has_cached_rows and takes_small_blocks(schedule.rows, vectors, device)


def _vectors(schedule: ReductionSchedule) -> float:
    return max(schedule.rows * schedule.columns, 1) / schedule.lanes.vector


def _bytes_per_vector(schedule: ReductionSchedule, device: DeviceInfo) -> Iterator[int]:
    lanes = schedule.lanes
    least = _JUMP if device.threads_are_serial and schedule.lane_axis == "rows" else 0
    for address, dtype, times in _accesses(schedule, device):
        # Lanes that are not contiguous move a sector each.
        each = dtype.itemsize if lanes.are_neighbours(address) else device.sector_bytes
        yield times * max(lanes.vector * each, least)


def _accesses(
    schedule: ReductionSchedule, device: DeviceInfo
) -> Iterator[tuple[Form, DataType, int]]:
    """Yield addresses that differ from vector to vector, their dtypes, and how often they are read
    or written.
    """
    found = [
        (a.loads[0].address, a.loads[0].dtype, _reads(schedule, k, device))
        for k, a in enumerate(schedule.accesses)
    ]
    found += [(store.address, store.tensor.dtype, 1) for store in schedule.element_stores]
    for address, dtype, times in found:
        if schedule.lane_axis == "rows" or _moves(address, schedule.lanes):
            yield address, dtype, times


def _moves(address: Form, lanes: Lanes) -> bool:
    """True if vectors of a row read different elements; one element a row is not counted."""
    whole = lanes(address)
    return whole.depends_on(lanes.u) or whole.depends_on(lanes.v) or lanes.diverges([address])


def _reads(schedule: ReductionSchedule, access: int, device: DeviceInfo) -> int:
    """Return how often an access is read from memory; on a host re-reads hit the cache. Loads lane
    by lane pass through the nearest cache so often that they take as long, if all multiprocessors
    have something to load.
    """
    if device.threads_are_serial:
        return 1
    found = schedule.accesses[access]
    by_lane = found.gather and schedule.lanes.vector > 1 and not found.loads[0].positions
    is_busy = schedule.blocks >= device.sm_count
    return schedule.row_cache.reads(access) * (_BY_LANE if by_lane and is_busy else 1)


def _share_of(schedule: ReductionSchedule, device: DeviceInfo) -> float:
    """Return the share of the device that the kernel keeps busy: on a host, by its blocks."""
    if device.threads_are_serial:
        # As many as there could be: results must not depend on how many there are.
        return min(1.0, schedule.blocks / HOST_PARTS)
    share = device.share(schedule.blocks * schedule.block_threads)
    if schedule.prefetched:
        # Fewer threads suffice with more bytes in flight; but they compute, too.
        ahead = bytes_under_way(schedule) / device.bytes_in_flight_per_sm
        most = min(ahead, schedule.blocks / device.sm_count, _AHEAD * share)
        share = max(share, min(1.0, most))
    if schedule.is_outer_shared:
        turns = -(-schedule.blocks // device.sm_count)
        share = min(share, _OUTER_SHARE * schedule.blocks / (turns * device.sm_count))
    return share


def wastes(schedule: ReductionSchedule, device: DeviceInfo) -> bool:
    """True if it takes longer than moving each byte once, which fewer stages may repair."""
    each = sum(dtype.itemsize for _, dtype, _ in _accesses(schedule, device))
    least = _vectors(schedule) * schedule.lanes.vector * each / device.bandwidth
    return schedule.stages > 1 and seconds(schedule, device) > least
