"""Device model for planning and scheduling: plain data, so that plans for any device can be made
on any machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

WARP_SIZE = 32
"""Threads of a warp, on every NVIDIA GPU and in the host target's emulation."""

_KEPT = 0.75
"""Fraction of the L2 cache within which data that was read before still hits."""


@dataclass(frozen=True, slots=True)
class PipeLanes:
    """Instruction throughput of a multiprocessor per pipe, in thread instructions per clock; pipe
    names as in `time_model/pipes.py`.

    issue   limit for all pipes together
    tensor  FLOPs of the tensor cores per clock, with 16-bit operands and fp32 accumulation
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
    """Interconnect to other devices.

    bandwidth  peak bytes per second that a device sends
    latency    seconds of one step of a ring, even for an empty message
    reach      number of devices with consecutive ranks that it connects; 0 for all
    """

    name: str
    bandwidth: float
    latency: float
    reach: int = 0

    def seconds(self, sent: float, steps: int) -> float:
        """Time for a device to send `sent` bytes in `steps` steps."""
        return steps * self.latency + sent / self.bandwidth


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceInfo:
    """Device parameters for planning and scheduling, flat as in CUDA's cudaDeviceProp. Sizes in
    bytes, bandwidths in bytes per second, times in seconds.
    """

    name: str
    kind: Literal["host", "cuda"]
    arch: str

    # ---- limits of a launch, and what multiprocessors hold (occupancy.py)

    sm_count: int
    threads_per_sm: int
    blocks_per_sm: int
    """Resident blocks per multiprocessor at most, however small."""
    registers_per_sm: int
    shared_bytes_per_sm: int
    shared_bytes_per_block: int
    shared_bytes_reserved: int
    """Shared memory that the system reserves in each block."""
    max_threads_per_block: int
    max_grid: tuple[int, int, int]
    clusters: tuple[tuple[int, int], ...] = ()
    """Pairs of cluster size in blocks and number of such clusters that are resident with a
    multiprocessor for each block; empty if the device has no clusters or the number is not known.
    """

    # ---- memory

    bandwidth: float
    copy_share: float
    """Fraction of `bandwidth` that a large copy reaches."""
    load_seconds: float
    """Latency of a load from memory on a device that is otherwise idle."""
    bytes_in_flight_per_sm: int
    """Outstanding loads needed to reach `bandwidth`; 0 on the host, whose cores prefetch in
    hardware.
    """
    sector_bytes: int
    """Smallest memory transaction."""
    vector_bytes: int
    """Widest useful access of one thread: 16 on a GPU; more on the host, so that the vector loop of
    one thread fills SIMD registers.
    """
    l2_bytes: int

    # ---- instructions and launches

    lanes: PipeLanes
    """Instruction throughput of a multiprocessor per clock."""
    fp32_rate: float
    """fp32 instructions per second, of all threads."""
    launch_seconds: float
    """Time of an empty kernel in a sequence of kernels."""
    grid_barrier_seconds: float
    """Additional time of a kernel with a grid-wide barrier."""

    # ---- of the host only

    threads_are_serial: bool = False
    """One core runs the threads of a block sequentially: a block has one thread, and caches stand
    for registers and shared memory.
    """
    prefetches_by_software: bool = False
    """A core stalls on each non-sequential load unless it was prefetched."""
    outer_cache_bytes: int = 0
    """Size of the last-level cache if stores can bypass it; 0 if they cannot, or if caches do not
    read lines that are overwritten.
    """
    fresh_bytes: int = 0
    """Smallest allocation that gets new pages, which the system clears in the caches at first
    touch; 0 if memory is reused.
    """

    # ---- other devices

    links: tuple[Link, ...] = ()
    """Interconnects, nearest first; empty if not known."""
    collective_seconds: float = 0.0
    """Time of a collective of one step that sends nothing."""

    def sms_of_clusters(self, cluster: int) -> int:
        """Multiprocessors usable by clusters of `cluster` blocks, with one block on each."""
        if cluster == 1:
            return self.sm_count
        return cluster * max(1, dict(self.clusters).get(cluster, 0))

    @property
    def largest_cluster(self) -> int:
        """Largest cluster size in blocks; 1 without clusters."""
        return max((blocks for blocks, _ in self.clusters), default=1)

    @property
    def copies_async(self) -> bool:
        """True if the device has cp.async: copies from global to shared memory that bypass
        registers (sm_80 and later).
        """
        return self.kind == "cuda" and int(self.arch.removeprefix("sm_")) >= 80

    @property
    def clock_rate(self) -> float:
        """Peak clock rate in Hz."""
        return self.fp32_rate / (self.sm_count * self.lanes.fma)

    def product_rate(self, itemsize: int) -> float:
        """Peak FLOPs per second of matrix products with elements of `itemsize` bytes: tensor cores
        if the device has them for these, at twice the 16-bit rate for 8 bits.
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
        """Bytes per second, read and written, of a large copy."""
        return self.bandwidth * self.copy_share

    def link(self, span: int) -> Link | None:
        """Return the nearest link that connects `span` consecutive ranks; None if not known."""
        return next((way for way in self.links if not way.reach or span <= way.reach), None)

    @property
    def last_level_bytes(self) -> int:
        """Size of the last-level cache: L2 of a GPU, L3 of a CPU where its size is known."""
        return max(self.l2_bytes, self.outer_cache_bytes)

    def keeps(self, touched: float) -> bool:
        """True if data is still in the L2 cache after `touched` further bytes were accessed."""
        return touched <= _KEPT * self.l2_bytes

    def share(self, threads: float) -> float:
        """Fraction of `bandwidth` that `threads` threads reach: half of the resident threads that
        fit reach all of it.
        """
        return min(1.0, 2 * threads / (self.sm_count * self.threads_per_sm))
