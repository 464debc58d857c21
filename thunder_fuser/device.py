"""What plans and schedules know of a device: data, so that any device can be planned
for anywhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

WARP_SIZE = 32
"""Threads that run in step and shuffle: of every GPU of NVIDIA, and of the host in its place."""

_KEPT = 0.75
"""Of the L2 cache, that what is read once more may take."""


@dataclass(frozen=True, slots=True)
class PipeLanes:
    """Threads of a multiprocessor whose instruction each pipe takes in one clock, by the names of
    `lower/pipes.py`; `issue`: of all pipes together. `tensor`: 16-bit FLOPs of tensor cores in one
    clock, with sums in fp32.
    """

    fma: int
    alu: int
    xu: int
    lsu: int
    fp64: int
    issue: int = 128
    tensor: int = 0


@dataclass(frozen=True, slots=True)
class Link:
    """A way to other devices.

    bandwidth  bytes per second that a device sends, at best
    latency    seconds of one step of a ring, however little is sent
    reach      devices that are connected so, neighbours by their ranks; 0 for all there are
    """

    name: str
    bandwidth: float
    latency: float
    reach: int = 0

    def seconds(self, sent: float, steps: int) -> float:
        """What a device takes that sends so many bytes in so many steps."""
        return steps * self.latency + sent / self.bandwidth


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """What schedules know of a device. Sizes in bytes, `bandwidth` in bytes per second.

    vector_bytes            widest useful access of one thread: 16 on a GPU; on the host more, so
                            that one thread's vector loop fills SIMD registers
    blocks_per_sm           blocks that a multiprocessor holds at most, however small
    shared_bytes_reserved   shared memory of each block that the system takes
    sector_bytes            what memory moves at least
    bytes_in_flight_per_sm  loads that must be outstanding to reach `bandwidth`; 0 on the host,
                            whose cores prefetch by themselves
    fp32_rate               fp32 instructions of all threads per second
    launch_seconds          what a kernel takes that does nothing, among others
    grid_barrier_seconds    what a kernel takes more in which all blocks wait for each other
    threads_are_serial      one core runs the threads of a block one after the other: a block has
                            one, caches stand for registers and shared memory
    lanes                   instructions of a multiprocessor in one clock
    load_seconds            what a load takes that memory answers, on a device that does little else
    copy_share              of `bandwidth` that a copy of much memory reaches
    prefetches_by_software  a core waits for each load that jumps, unless it was asked for before
    outer_cache_bytes       the last cache before memory, where stores can go past it; 0 where
                            they cannot, or where caches do not read what is overwritten
    fresh_bytes             an allocation of so many bytes is new pages, which the system clears
                            in the caches when they are first touched; 0 where it is used again
    clusters                blocks of a cluster, which reach each other's shared memory, and how
                            many such clusters are on the device at a time whose blocks have a
                            multiprocessor each: those of a cluster are neighbours; none where the
                            device has no clusters, or where it is not known how many
    links                   ways to other devices, the nearest first; none where not known
    collective_seconds      what a collective takes that sends nothing, in one step
    """

    name: str
    kind: Literal["host", "cuda"]
    arch: str
    sm_count: int
    threads_per_sm: int
    blocks_per_sm: int
    registers_per_sm: int
    shared_bytes_per_block: int
    shared_bytes_per_sm: int
    shared_bytes_reserved: int
    max_threads_per_block: int
    max_grid: tuple[int, int, int]
    vector_bytes: int
    bandwidth: float
    l2_bytes: int
    sector_bytes: int
    bytes_in_flight_per_sm: int
    fp32_rate: float
    launch_seconds: float
    grid_barrier_seconds: float
    lanes: PipeLanes
    load_seconds: float
    copy_share: float
    threads_are_serial: bool = False
    prefetches_by_software: bool = False
    outer_cache_bytes: int = 0
    fresh_bytes: int = 0
    clusters: tuple[tuple[int, int], ...] = ()
    links: tuple[Link, ...] = ()
    collective_seconds: float = 0.0

    def sms_of_clusters(self, cluster: int) -> int:
        """Multiprocessors that clusters of so many blocks have, one for each block."""
        if cluster == 1:
            return self.sm_count
        return cluster * max(1, dict(self.clusters).get(cluster, 0))

    @property
    def largest_cluster(self) -> int:
        """Blocks that reach each other's shared memory, at most."""
        return max((blocks for blocks, _ in self.clusters), default=1)

    @property
    def copies_async(self) -> bool:
        """Whether copies from memory to shared memory pass through no registers (cp.async)."""
        return self.kind == "cuda" and int(self.arch.removeprefix("sm_")) >= 80

    @property
    def clock_rate(self) -> float:
        """Clocks per second, at their highest."""
        return self.fp32_rate / (self.sm_count * self.lanes.fma)

    def product_rate(self, itemsize: int) -> float:
        """FLOPs per second of matrix products, by the size of their elements: of tensor cores where
        these have them, doubled for 8 bits.
        """
        if itemsize == 8:
            flops = 2 * self.lanes.fp64
        elif itemsize == 4 or not self.lanes.tensor:
            flops = 2 * self.lanes.fma
        else:
            flops = self.lanes.tensor * 2 // itemsize
        return self.clock_rate * self.sm_count * flops

    @property
    def copy_bandwidth(self) -> float:
        """Bytes per second that a copy of much memory reaches."""
        return self.bandwidth * self.copy_share

    def link(self, span: int) -> Link | None:
        """The way among devices whose ranks lie within `span` numbers; None where not known."""
        return next((way for way in self.links if not way.reach or span <= way.reach), None)

    def keeps(self, touched: float) -> bool:
        """Whether the L2 cache still has what was read before so many bytes were touched."""
        return touched <= _KEPT * self.l2_bytes

    def share(self, threads: float) -> float:
        """The share of `bandwidth` that so many threads can use: half of those that fit use all."""
        return min(1.0, 2 * threads / (self.sm_count * self.threads_per_sm))
