"""Memory traffic of a kernel: bytes of sectors, counted once if threads of a block access them
together.

Repeated reads hit the L2 cache if everything that the device accesses in between fits into it;
otherwise they go to memory.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from thunder_fuser import kernel_ir as ir
from thunder_fuser.device import DeviceInfo
from thunder_fuser.time_model.instruction_values import Access, Region

_L1_BYTES = 64 * 1024
"""Largest tensor, in bytes, that is taken to stay in a multiprocessor's L1 cache."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes that all blocks of a kernel move, and fractions of them.

    memory    bytes that memory moves
    cache     bytes between the L2 cache and multiprocessors
    asked     bytes of requested sectors
    wanted    bytes of requested elements
    distinct  bytes of memory traffic if each byte were moved once
    loaded    fraction of loads in `memory`
    ahead     fraction of the loads' `asked` that is prefetched for the next row
    """

    memory: float
    cache: float
    asked: float
    wanted: float
    distinct: float
    loaded: float
    ahead: float


class _Asked(NamedTuple):
    """Sectors that an access requests.

    moved   bytes of sectors, of all threads
    wanted  bytes of elements, of all threads
    window  bytes of sectors of one thread, per row that its block processes
    """

    moved: float
    wanted: float
    window: float


def traffic_of(
    kernel: ir.KernelIR,
    regions: Sequence[Region],
    sizes: Mapping[str, int],
    resident: int,
    busy: int,
    device: DeviceInfo,
) -> Traffic:
    """Return the traffic of a kernel whose `regions` access tensors of `sizes` bytes, with
    `resident` blocks on each of `busy` multiprocessors.
    """
    threads = kernel.blocks * kernel.threads
    asked: defaultdict[tuple[str, bool], float] = defaultdict(float)
    together: defaultdict[tuple[int, str, bool], list[_Asked]] = defaultdict(list)
    ahead = cache = window = 0.0
    for region in regions:
        for a in region.accesses:
            times = _times(region, a) * threads
            moved = times * a.sectors
            asked[a.tensor, a.is_store] += moved
            each = _Asked(moved, times * a.bytes, _row_share(region) * a.sectors)
            together[id(region.waiting), a.tensor, a.is_store].append(each)
            ahead += moved if a.is_ahead else 0.0
    for (_, tensor, _), found in together.items():
        # L1 hits: neighbouring accesses of a block to the same sectors, and tensors so small that
        # all blocks read them.
        size, every = sizes[tensor], sum(x.moved for x in found)
        apart = max(1.0, every / (sum(x.wanted for x in found) or 1.0))
        most = max(x.moved for x in found)
        held = size * busy if size <= _L1_BYTES else max(most, size * apart)
        cache += min(every, held)
        touched = sum(x.window for x in found)
        window += touched * min(1.0, held / every) if len(found) > 1 and every else touched
    between = window * kernel.threads * resident * busy
    memory = loaded = distinct = 0.0
    for (tensor, is_store), bytes in asked.items():
        size = sizes[tensor]
        least = min(bytes, size)
        distinct += least
        moved = least if device.keeps(min(between, size)) else bytes
        memory += moved
        loaded += 0.0 if is_store else moved
    wanted = sum(x.wanted for found in together.values() for x in found)
    loads = sum(bytes for (_, is_store), bytes in asked.items() if not is_store)
    return Traffic(
        memory,
        cache,
        float(sum(asked.values())),
        wanted,
        distinct,
        loaded / memory if memory else 0.0,
        ahead / loads if loads else 0.0,
    )


def _row_share(region: Region) -> float:
    """Return executions of a region by a thread per iteration of its outermost loop, over rows; all
    executions if it is in no loop.
    """
    loops = [r for r in region.line if r.is_loop and r.total]
    return region.total / loops[-1].total if loops else region.total


def _times(region: Region, access: Access) -> float:
    """Return how often a thread's access reaches memory: a prefetch in a loop's last iteration
    loads nothing, or what is there already.
    """
    if not access.is_ahead:
        return region.total
    loop = next(r for r in region.line if r.is_loop)
    return region.total * max(0.0, 1 - 1 / loop.times)
