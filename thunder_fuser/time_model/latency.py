"""Latency of a kernel's blocks: what their threads wait for, apart from the bandwidth of memory and
the issue slots that blocks share.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from thunder_fuser.device import DeviceInfo
from thunder_fuser.time_model.instruction_values import Access, Region

SUSTAINED = 0.92
"""Sustained clock rate under load, as a fraction of the highest clock rate."""
ISSUED = 0.85
"""Fraction of issue slots that a busy scheduler uses: dependencies and the register file cost the
rest.
"""
CHAIN_CLOCKS = 2.5
"""Clocks between two instructions of a warp that runs alone, dependent or not."""
_BARRIER_CLOCKS = 40
_EXCHANGE_CLOCKS = 30
"""Clocks of a shuffle and the use of its result."""
_BLOCK_SECONDS = 0.35e-6
"""Seconds from the end of a block to the first instruction of the next one in its slot."""
_NEAR = 0.4
"""Latency of the L2 cache, as a fraction of that of memory."""


@dataclass(frozen=True, slots=True)
class Latency:
    """Waiting of the blocks of a kernel, in seconds.

    regions    of the kernel
    rows       the outermost loop of its busiest region, if all blocks run at the same time: what is
               outside of it overlaps with no other block's rows
    sizes      bytes of tensors, by name
    threads    resident threads of a multiprocessor
    waves      blocks of the grid / resident blocks of the device
    """

    regions: Sequence[Region]
    rows: Region | None
    sizes: Mapping[str, int]
    threads: int
    waves: float
    device: DeviceInfo

    @property
    def _clock(self) -> float:
        return self.device.clock_rate * SUSTAINED

    def overlaps_with_rows(self, region: Region) -> bool:
        """True for what overlaps with other blocks' rows: all of it, unless blocks run at the
        same time and each has rows in a loop.
        """
        return self.rows is None or self.rows in region.line

    @property
    def share_overlapped(self) -> float:
        """Fraction of all instructions that overlap with other blocks' rows."""
        every = sum(r.instructions * r.total for r in self.regions)
        overlapped = filter(self.overlaps_with_rows, self.regions)
        return sum(r.instructions * r.total for r in overlapped) / (every or 1.0)

    def of_block(self) -> float:
        """Return the seconds that a block waits where other blocks' rows overlap with it."""
        found = _BLOCK_SECONDS if self.rows is None else 0.0
        for region in filter(self.overlaps_with_rows, self.regions):
            loads = self.device.load_seconds * sum(self._load_waits(region))
            meetings = region.total * _meeting_clocks(region) / self._clock
            found += meetings + _waits(region) * loads
        return found + (self.device.load_seconds if self.copies_rows else 0.0)

    def around_rows(self) -> float:
        """Return the seconds before and behind the rows: memory is idle while all blocks begin, and
        while they combine what they have of their rows.
        """
        around = [r for r in self.regions if not (self.overlaps_with_rows(r) or r.finishes)]
        clocks = sum(region.total * self._chain_clocks(region) for region in around)
        # Loads between two barriers wait together, the asynchronous copies of a first row as well;
        # those of some threads are waited for by all.
        phases = {
            access.phase if region.parent is None else region.phase
            for region in around
            for access in region.accesses
            if region.total and not access.is_store
        }
        if any(self._awaited_in_rows):
            # No barrier parts the first phase from the first row: both wait together.
            phases.discard(0)
        return clocks / self._clock + len(phases) * self.device.load_seconds

    @property
    def _awaited_in_rows(self) -> Iterator[Access]:
        """Yield the loads that each row waits for, the first one, too."""
        for region in filter(self.overlaps_with_rows, self.regions):
            for access in region.accesses:
                if not (access.is_store or access.is_ahead or access.is_async):
                    yield access

    def of_finish(self) -> float:
        """Return the seconds behind a grid barrier, when only the finishing blocks have work."""
        clocks = waits = 0.0
        for region in self.regions:
            if region.finishes and region.total:
                first = [r for r in region.line if r.finishes][-1]
                clocks += self._chain_clocks(region) * region.total / first.total
                waits += _NEAR if region is first else 0.0
        return clocks / self._clock + waits * self.device.load_seconds

    @property
    def copies_rows(self) -> bool:
        """True if blocks wait for whole rows that are copied asynchronously, without prefetch."""
        copies = [a for r in self.regions for a in r.accesses if a.is_async]
        return bool(copies) and not any(a.is_ahead for a in copies)

    def _chain_clocks(self, region: Region) -> float:
        """Clocks of one execution of a region by all resident threads at the same time."""
        each = max(CHAIN_CLOCKS, self.threads / (self.device.lanes.issue * ISSUED))
        return region.instructions * each + _meeting_clocks(region)

    def _load_waits(self, region: Region) -> Iterator[float]:
        """Yield the latency of each group of loads between two barriers, predicated or not: 1 for
        memory, less if the L2 cache holds their tensors.
        """
        phases: dict[int, list[Access]] = {}
        loads = (a for r in self.regions if r.waiting is region for a in r.accesses)
        for access in loads:
            if not (access.is_store or access.is_ahead or access.is_async):
                phases.setdefault(access.phase, []).append(access)
        for accesses in phases.values():
            near = all(4 * self.sizes[a.tensor] <= self.device.l2_bytes for a in accesses)
            yield _NEAR if near and self.waves > 1 else 1.0


def _meeting_clocks(region: Region) -> float:
    """Clocks that one execution of a region waits for other threads of the block."""
    return region.barriers * _BARRIER_CLOCKS + region.exchanges * _EXCHANGE_CLOCKS


def _waits(region: Region) -> float:
    """Return how often a thread waits for loads of a region: once per group of unrolled iterations,
    and once per remaining iteration.
    """
    if region.unroll == 1 or not region.total:
        return region.total
    together, left = divmod(math.ceil(region.times), region.unroll)
    return region.total / region.times * (together + left)
