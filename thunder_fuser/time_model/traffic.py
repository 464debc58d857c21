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

    memory      bytes that memory moves
    cache       bytes between the L2 cache and multiprocessors
    requested   bytes of requested sectors
    wanted      bytes of requested elements
    distinct    bytes of memory traffic if each byte were moved once
    loaded      fraction of loads in `memory`
    prefetched  fraction of the loads' `requested` that is prefetched for the next row
    """

    memory: float
    cache: float
    requested: float
    wanted: float
    distinct: float
    loaded: float
    prefetched: float


class _Request(NamedTuple):
    """Sectors that an access requests.

    moved   bytes of sectors, of all threads
    wanted  bytes of elements, of all threads
    window  bytes of sectors of one thread, per row that its block processes
    """

    moved: float
    wanted: float
    window: float


class _Requests:
    """Requests of all accesses of a kernel, summed by tensor, loads and stores apart.

    sectors     bytes of requested sectors
    together    requests that one wait makes of a tensor: threads of a block share their sectors
    prefetched  bytes of sectors that are prefetched for the next row
    """

    def __init__(self, regions: Sequence[Region], threads: int) -> None:
        """Collect the accesses of `regions`, which `threads` threads execute."""
        self.sectors: defaultdict[tuple[str, bool], float] = defaultdict(float)
        self.together: defaultdict[tuple[int, str, bool], list[_Request]] = defaultdict(list)
        self.prefetched = 0.0
        for region in regions:
            for a in region.accesses:
                times = _times(region, a) * threads
                moved = times * a.sectors
                self.sectors[a.tensor, a.is_store] += moved
                request = _Request(moved, times * a.bytes, _row_share(region) * a.sectors)
                self.together[id(region.waiting), a.tensor, a.is_store].append(request)
                self.prefetched += moved if a.is_ahead else 0.0

    @property
    def wanted(self) -> float:
        return sum(x.wanted for requests in self.together.values() for x in requests)

    @property
    def loads(self) -> float:
        return sum(bytes for (_, is_store), bytes in self.sectors.items() if not is_store)

    def behind_l1(self, sizes: Mapping[str, int], busy: int) -> tuple[float, float]:
        """Return bytes that miss the L1 cache, of all threads, and of one thread per row.

        L1 hits are neighbouring accesses of a block to the same sectors, and tensors so small that
        all blocks read them.
        """
        cache = window = 0.0
        for (_, tensor, _), requests in self.together.items():
            size, every = sizes[tensor], sum(x.moved for x in requests)
            apart = max(1.0, every / (sum(x.wanted for x in requests) or 1.0))
            most = max(x.moved for x in requests)
            held = size * busy if size <= _L1_BYTES else max(most, size * apart)
            cache += min(every, held)
            touched = sum(x.window for x in requests)
            shares = len(requests) > 1 and every
            window += touched * min(1.0, held / every) if shares else touched
        return cache, window


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
    requests = _Requests(regions, kernel.blocks * kernel.threads)
    cache, window = requests.behind_l1(sizes, busy)
    between = window * kernel.threads * resident * busy
    memory = loaded = distinct = 0.0
    for (tensor, is_store), bytes in requests.sectors.items():
        size = sizes[tensor]
        least = min(bytes, size)
        distinct += least
        moved = least if device.keeps(min(between, size)) else bytes
        memory += moved
        loaded += 0.0 if is_store else moved
    return Traffic(
        memory=memory,
        cache=cache,
        requested=float(sum(requests.sectors.values())),
        wanted=requests.wanted,
        distinct=distinct,
        loaded=loaded / memory if memory else 0.0,
        prefetched=requests.prefetched / requests.loads if requests.loads else 0.0,
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
