"""Cost of a reduction schedule by a short formula: which of the candidates may be the fastest. The
time model ranks the kernels of these (template.py); on a host the formula does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from thunder_fuser.device import DeviceInfo
from thunder_fuser.errors import Refusal
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.integer.symint import Form
from thunder_fuser.ir.tables import reductions
from thunder_fuser.kernel_ir import WRITTEN_OUT
from thunder_fuser.lower.vectors.lanes import Lanes
from thunder_fuser.templates.reduction.mapping.accumulations import RowReduction
from thunder_fuser.templates.reduction.mapping.gpu import takes_small_blocks
from thunder_fuser.templates.reduction.mapping.host import HOST_PARTS
from thunder_fuser.templates.reduction.mapping.mapped_rows import MappedRows
from thunder_fuser.templates.reduction.on_chip.pipelining import bytes_in_flight
from thunder_fuser.templates.reduction.schedule import ReductionSchedule

_NEAR = 2.0
"""Cost over the least, up to which the time model tells which of some schedules is the fastest. The
formula counts what passes read again as read from memory, which the L2 cache may have.
"""
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
    """Estimate the time of a kernel on a device."""
    estimate = _host_seconds if device.threads_are_serial else _gpu_seconds
    barrier = device.grid_barrier_seconds if schedule.reductions.of_grid else 0.0
    return estimate(schedule, device) + barrier


def cheapest(
    made: Iterable[ReductionSchedule | Refusal], device: DeviceInfo
) -> list[ReductionSchedule]:
    """Return the schedules that may be the fastest, the cheapest first: on a GPU all that are near
    it, which only an estimate of their kernels tells apart.
    """
    schedules = [schedule for schedule in made if isinstance(schedule, ReductionSchedule)]
    costs = [seconds(schedule, device) for schedule in schedules]
    order = sorted(range(len(costs)), key=costs.__getitem__)
    near = 1.0 if device.threads_are_serial else _NEAR
    found = [schedules[k] for k in order if costs[k] <= near * costs[order[0]]]
    return found[:1] if device.threads_are_serial else found


def wastes(schedule: ReductionSchedule, device: DeviceInfo) -> bool:
    """True if it takes longer than moving each byte once, which fewer stages may repair."""
    each = sum(dtype.itemsize for _, _, dtype in _accesses(schedule))
    least = _vectors(schedule) * schedule.lanes.vector * each / device.bandwidth
    return schedule.stages > 1 and seconds(schedule, device) > least


# ---- a host


def _host_seconds(mapped: MappedRows, device: DeviceInfo) -> float:
    """Bytes moved over the bandwidth that the cores reach together. Re-reads hit the cache, and a
    core prefetches in hardware.
    """
    least = _JUMP if mapped.lane_axis == "rows" else 0
    vectors = (
        max(_bytes_of_vector(mapped, address, dtype, device), least)
        for _, address, dtype in _accesses(mapped)
    )
    # As many blocks as there could be cores: results must not depend on how many there are.
    share = min(1.0, mapped.blocks / HOST_PARTS)
    return _moved(mapped, sum(vectors)) / (device.bandwidth * share)


# ---- a GPU


def _gpu_seconds(schedule: ReductionSchedule, device: DeviceInfo) -> float:
    """Bytes moved over the bandwidth that the threads can use, or the latency of one thread's loads
    of a row, if that is longer.
    """
    vectors = (
        _times_read(schedule, access, device) * _bytes_of_vector(schedule, address, dtype, device)
        for access, address, dtype in _accesses(schedule)
    )
    time = _moved(schedule, sum(vectors)) / (device.bandwidth * _busy_share(schedule, device))
    time = max(time, _waiting(schedule, device))
    if _keeps_in_vain(schedule, device):
        time *= _IDLE
    if any(map(_has_moments, schedule.reductions.of_rows)):
        time *= _DEPENDENT
    return time


def _has_moments(fold: RowReduction) -> bool:
    """True if an accumulator has more than a scalar and what it is relative to."""
    return reductions.lookup(fold.op).accumulator.words > 2


def _waiting(schedule: ReductionSchedule, device: DeviceInfo) -> float:
    """Return the latency of a thread's part of a row, where steps are so many that a compiler
    leaves them in a loop: loads of some are in flight together.
    """
    if schedule.steps <= WRITTEN_OUT:
        return 0.0
    loading = (n for k, n in enumerate(schedule.unrolling.factors) if schedule.loads_in_pass(k))
    return device.load_seconds * sum(-(-schedule.steps // max(n, 1)) for n in loading)


def _keeps_in_vain(schedule: ReductionSchedule, device: DeviceInfo) -> bool:
    """True if long rows are cached between passes and not written: a block issues no loads while it
    reduces its row cache, and a multiprocessor has few such blocks. One pass has smaller ones.
    """
    vectors = schedule.lanes.vectors
    if schedule.lane_axis == "rows" or schedule.writes.elements or schedule.stages < 2:
        return False
    return schedule.has_cached_rows and takes_small_blocks(schedule.rows, vectors, device)


def _times_read(schedule: ReductionSchedule, access: int | None, device: DeviceInfo) -> int:
    """Return how often an access is read from memory; 1 for a store. Loads lane by lane pass
    through the nearest cache so often that they take as long, if all multiprocessors have something
    to load.
    """
    if access is None:
        return 1
    found = schedule.accesses[access]
    by_lane = found.gather and schedule.lanes.vector > 1 and not found.loads[0].positions
    is_busy = schedule.blocks >= device.sm_count
    return schedule.row_cache.reads(access) * (_BY_LANE if by_lane and is_busy else 1)


def _busy_share(schedule: ReductionSchedule, device: DeviceInfo) -> float:
    """Return the share of the device's bandwidth that the kernel's threads can use."""
    share = device.share(schedule.blocks * schedule.block_threads)
    if schedule.pipeline.prefetched:
        # Fewer threads suffice with more bytes in flight; but they compute, too.
        in_flight = bytes_in_flight(schedule, schedule.pipeline.prefetched)
        ahead = in_flight / device.bytes_in_flight_per_sm
        most = min(ahead, schedule.blocks / device.sm_count, _AHEAD * share)
        share = max(share, min(1.0, most))
    if schedule.is_outer_shared:
        turns = -(-schedule.blocks // device.sm_count)
        share = min(share, _OUTER_SHARE * schedule.blocks / (turns * device.sm_count))
    return share


# ---- what is moved


def _moved(mapped: MappedRows, bytes_of_vector: float) -> float:
    """Return bytes of all vectors, and of partial results."""
    return _vectors(mapped) * bytes_of_vector + 2 * mapped.reductions.workspace_bytes


def _vectors(mapped: MappedRows) -> float:
    return max(mapped.rows * mapped.columns, 1) / mapped.lanes.vector


def _bytes_of_vector(mapped: MappedRows, address: Form, dtype: DataType, device: DeviceInfo) -> int:
    """Return bytes that one vector of an access moves: lanes that are not contiguous move a sector
    each.
    """
    is_contiguous = mapped.lanes.are_neighbours(address)
    return mapped.lanes.vector * (dtype.itemsize if is_contiguous else device.sector_bytes)


def _accesses(mapped: MappedRows) -> Iterator[tuple[int | None, Form, DataType]]:
    """Yield what differs from vector to vector: the number of an access (None: a store), its
    address and its dtype.
    """
    found: list[tuple[int | None, Form, DataType]] = [
        (k, a.loads[0].address, a.loads[0].dtype) for k, a in enumerate(mapped.accesses)
    ]
    found += [(None, store.address, store.tensor.dtype) for store in mapped.writes.elements]
    for access, address, dtype in found:
        if mapped.lane_axis == "rows" or _moves(address, mapped.lanes):
            yield access, address, dtype


def _moves(address: Form, lanes: Lanes) -> bool:
    """True if vectors of a row read different elements; one element a row is not counted."""
    return lanes.moves(address) or lanes.diverges([address])
