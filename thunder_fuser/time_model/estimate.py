"""Time model of a kernel: seconds on a device, and the resource that bounds it.

A multiprocessor has some resident blocks (occupancy.py). Each alternates between latency (loads,
barriers, shuffles), memory transfers and instruction issue. Latency is hidden while other blocks
have work; without overlap, all three add up. In between, memory and issue slots are queues whose
utilisation depends on the number of agents (queueing.py). An agent is a block if its threads wait
for each other, else a warp; one that prefetches its next row while it computes counts as two.
Blocks that all run at the same time and loop over rows begin together, end when the one with the
most rows does (turns.py), and overlap with nothing before and behind these (latency.py).

Constants were fitted to 85 rows measured on an H200 (benchmarks/gpu_day/calibration.py): the error
is 3 % in the median, and 20 % at most for kernels of 10 us or more.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from thunder_fuser import kernel_ir as ir
from thunder_fuser.device import WARP_SIZE, DeviceInfo
from thunder_fuser.occupancy import resident_blocks
from thunder_fuser.time_model.instruction_mix import instruction_regions
from thunder_fuser.time_model.instruction_values import Region
from thunder_fuser.time_model.latency import CHAIN_CLOCKS, ISSUED, SUSTAINED, Latency
from thunder_fuser.time_model.pipes import Pipe
from thunder_fuser.time_model.queueing import Network
from thunder_fuser.time_model.registers import registers_of
from thunder_fuser.time_model.traffic import Traffic, traffic_of

_START_SECONDS = 0.6e-9
"""Seconds between the starts of two blocks of a device."""
_L2_RATE = 1.6
"""Bandwidth of the L2 cache, as a multiple of that of memory."""
_PORT_BYTES = 64
"""Bytes per clock that a multiprocessor takes from the L2 cache."""
_SHARING = 6
"""Multiprocessors that the queueing model treats as sharing memory. Blocks that start together run
in step and access memory at the same time, so that for them it is 1.
"""
_IN_STEP = 4
"""Waves for which the blocks of clusters, which wait for each other, run in step."""
_STORED = 0.5
"""Fraction of a store's memory time that delays its block: caches take the rest."""
_RARE = 8
"""Iterations of the busiest loop per barrier around it from which that barrier is neglected."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Estimated cost of a kernel.

    seconds          run time, launch included
    bound            the limiting resource: memory, sectors, L2, issue, a pipe's name, latency,
                     launch
    bytes            bytes that memory moves
    cache_bytes      bytes between the L2 cache and multiprocessors, repeated reads included
    sector_bytes     bytes of requested sectors, once for what threads access together
    wanted_bytes     bytes of requested elements: below `sector_bytes` if sectors are used in part
    instructions     instructions of all threads, by pipe
    resident         resident blocks per multiprocessor
    waves            blocks of the grid / resident blocks of the device
    copy_seconds     seconds of a copy that moves the distinct bytes of the kernel's tensors
    bandwidth        bytes per second that a copy reaches
    parts            seconds of each resource taken alone; waiting as "latency"
    workspace_bytes  partial results of grid reductions that blocks write and read
    """

    seconds: float
    bound: str
    bytes: float
    cache_bytes: float
    sector_bytes: float
    wanted_bytes: float
    instructions: Mapping[Pipe, float]
    resident: int
    waves: float
    copy_seconds: float
    bandwidth: float
    parts: Mapping[str, float]
    workspace_bytes: int = 0

    @property
    def copy_fraction(self) -> float:
        """Speed relative to a copy of the distinct bytes: 1 at the bandwidth of a copy."""
        return self.copy_seconds / self.seconds if self.seconds else 1.0

    @property
    def bytes_again(self) -> float:
        """Bytes of sectors that multiprocessors read again, from the L2 cache or from memory."""
        return max(0.0, self.cache_bytes - self.copy_seconds * self.bandwidth)

    def __str__(self) -> str:
        speed = f"{1e6 * self.seconds:.1f} us, {self.copy_fraction:.0%} of a copy's speed"
        text = f"{speed}, bound by {self.bound}"
        if 10 * self.bytes_again > self.cache_bytes:
            text += f"; {round(self.bytes_again):,} B read again"
        if 2 * self.wanted_bytes < self.sector_bytes:
            text += f"; {round(self.sector_bytes):,} B of sectors requested"
        if self.workspace_bytes:
            text += f"; {self.workspace_bytes:,} B through a workspace"
        return text


def estimate_kernel(kernel: ir.KernelIR, device: DeviceInfo) -> Estimate:
    """Estimate the time of a kernel on a device."""
    return _Model(kernel, device).estimate()


class _Need(NamedTuple):
    """Demand of one block.

    memory   seconds of the whole device's memory
    loads    fraction of loads in `memory`
    ahead    fraction of these loads that is prefetched
    work     seconds of its multiprocessor's pipes and issue slots
    waiting  seconds of latency
    """

    memory: float
    loads: float
    ahead: float
    work: float
    waiting: float


class _Turn(NamedTuple):
    """Seconds of a wave of resident blocks.

    seconds  of all of it, in between ramp-up and drain
    ends     ramp-up and drain at the kernel's two ends
    alone    of one block's rows, where no other block slows them down
    """

    seconds: float
    ends: float
    alone: float


class _Model:
    def __init__(self, kernel: ir.KernelIR, device: DeviceInfo) -> None:
        self.kernel, self.device = kernel, device
        self.regions = instruction_regions(kernel, _arch(device))
        self.warps = -(-kernel.threads // WARP_SIZE)
        self.clock = device.clock_rate * SUSTAINED
        self.sms = device.sms_of_clusters(kernel.cluster)
        self.busy = min(kernel.blocks, self.sms)
        registers = registers_of(kernel, device)
        room = resident_blocks(device, kernel.threads, registers, kernel.shared_bytes)
        each = -(-kernel.blocks // self.sms)
        self.resident = max(1, min(max(room, kernel.blocks_per_sm), each))
        self.bandwidth = device.copy_bandwidth
        self.sizes = {p.name: p.bytes for p in kernel.parameters if p.is_pointer}
        self.loops = [r for r in self._busiest.line if r.is_loop and r.total]
        rows = self.loops[-1] if self.loops and self._waves <= 1 else None
        threads = self.resident * self.warps * WARP_SIZE
        self.latency = Latency(self.regions, rows, self.sizes, threads, self._waves, device)

    def estimate(self) -> Estimate:
        kernel, device = self.kernel, self.device
        mix: defaultdict[Pipe, float] = defaultdict(float)
        for region in self.regions:
            for pipe, n in region.mix.items():
                mix[pipe] += n * region.total * kernel.blocks * kernel.threads
        traffic = traffic_of(kernel, self.regions, self.sizes, self.resident, self.busy, device)
        arithmetic = self._arithmetic(mix, self._replays())
        waiting = self.latency.of_block()
        memory = traffic.memory / self.bandwidth
        cache = traffic.cache / (self.bandwidth * _L2_RATE)
        parts = {"memory": memory, "L2": cache, **arithmetic, "latency": waiting * self._waves}
        work = max(arithmetic.values()) * self.latency.share_overlapped
        seconds = self._rounds(max(memory, cache), work, waiting, traffic)
        barriers = sum(r.grid_barriers * r.total for r in self.regions)
        extra = device.launch_seconds + barriers * device.grid_barrier_seconds
        # Partial results go to the L2 cache and come back.
        extra += self.latency.of_finish() + self._workspace_bytes / (self.bandwidth * _L2_RATE)
        return Estimate(
            seconds + extra,
            self._bound(parts, seconds, extra, traffic),
            traffic.memory,
            traffic.cache,
            traffic.requested,
            traffic.wanted,
            dict(mix),
            self.resident,
            self._waves,
            traffic.distinct / self.bandwidth,
            self.bandwidth,
            parts,
            self._workspace_bytes,
        )

    @property
    def _workspace_bytes(self) -> int:
        """Bytes of partial results, each of which is written once and read once."""
        bound = (p.bound for p in self.kernel.parameters)
        return sum(2 * b.bytes for b in bound if isinstance(b, ir.Scratch))

    @property
    def _waves(self) -> float:
        return self.kernel.blocks / (self.sms * self.resident)

    # ---- what is needed

    def _replays(self) -> float:
        """Return the additional passes of all threads' accesses through the L1 cache."""
        each = (r.total * sum(a.replays for a in r.accesses) for r in self.regions)
        return sum(each) * self.kernel.blocks * self.kernel.threads

    def _arithmetic(self, mix: Mapping[Pipe, float], replays: float) -> dict[str, float]:
        """Return the seconds of each pipe, and of the issue slots that all pipes share."""
        lanes = self.device.lanes
        clocks = {"issue": sum(mix.values()) / (lanes.issue * ISSUED)}
        for pipe, n in mix.items():
            if pipe is not Pipe.OTHER:
                n += replays if pipe is Pipe.LSU else 0.0
                clocks[pipe.name] = n / getattr(lanes, pipe.name.lower())
        return {name: n / (self.clock * self.busy) for name, n in clocks.items()}

    # ---- how it adds up

    def _rounds(self, memory: float, work: float, waiting: float, traffic: Traffic) -> float:
        """Return the seconds of all waves, full and partial, and of both ends of the kernel."""
        blocks, sms = self.kernel.blocks, self.sms
        work = work * self.busy / blocks
        need = _Need(memory / blocks, traffic.loaded, traffic.prefetched, work, waiting)
        full, rest = divmod(blocks, sms * self.resident)
        keeping_step = 1 if self._waves <= 1 else _IN_STEP if self.kernel.cluster > 1 else 0
        in_step = min(full, keeping_step)
        turns = [
            (n, self._turn(self.resident, sms, need, in_step=keeps_step))
            for n, keeps_step in ((in_step, True), (full - in_step, False))
            if n
        ]
        if rest:
            keeps_step = not full or rest < _SHARING
            turns.append((1, self._turn(-(-rest // sms), min(rest, sms), need, keeps_step)))
        started = min(blocks, sms * self.resident) * _START_SECONDS
        ends = started + turns[0][1].ends
        if self.latency.rows is None:
            return ends + sum(n * turn.seconds for n, turn in turns)
        return ends + self.latency.around_rows() + self._of_uneven_rows(turns[0][1])

    def _of_uneven_rows(self, wave: _Turn) -> float:
        """Return the seconds of a wave whose blocks have more or fewer rows. Those that have a k-th
        one share what the device has, and no row takes less than it does on an idle device.
        """
        rows = sorted(self._rows_of_blocks)
        if not sum(rows):
            return wave.seconds
        mean = sum(rows) / len(rows)
        seconds = before = 0.0
        for n, count in enumerate(rows):
            sharing = wave.seconds * (len(rows) - n) / len(rows)
            seconds += (count - before) / mean * max(wave.alone, sharing)
            before = count
        return seconds

    def _turn(self, resident: int, sms: int, need: _Need, in_step: bool) -> _Turn:
        """Return the time of a wave of `resident` blocks on each of `sms` multiprocessors; if
        `in_step`, all of them access memory at the same time.
        """
        parts = self._parts_of_block
        agents = resident * parts
        memory, work = need.memory * sms / parts, need.work / parts
        # A lone agent issues no faster than its dependencies allow.
        warps = max(1.0, self.warps / parts)
        alone = work * self.device.lanes.issue * ISSUED / WARP_SIZE * CHAIN_CLOCKS / warps
        delay = need.waiting + max(0.0, alone - work)
        port = need.memory / parts * self.bandwidth / (_PORT_BYTES * self.clock)
        # Service times of whole blocks vary less than those of warps, so their queues are shorter.
        is_even = parts == 1 and not in_step
        network = Network(
            memory * (need.loads + _STORED * (1 - need.loads)),
            work,
            delay + port + (self.device.load_seconds * self._rows if need.ahead else 0.0),
            sharing=1 if in_step else _SHARING,
            spread=0.5 if is_even else 1.0,
        )
        rate = network.rate(max(1, round(agents * (1 + need.ahead))))
        if need.ahead:
            # Only one row of an agent is computed at a time.
            rate = min(rate, replace(network, memory=0.0, delay=delay).rate(agents))
        # Stores take memory bandwidth although no block waits for them.
        rate = min(rate, 1 / max(memory, 1e-30))
        # Memory idles during the first load's latency and while the last row is computed.
        # The first row's latency is among what is before the rows, if it is loaded there.
        is_before = bool(need.ahead) and self.latency.rows is not None
        begins = 0.0 if is_before else self.device.load_seconds
        ends = min(1.0, rate * memory) * (begins + max(alone, work) / self._rows)
        by_itself = max(alone, parts * work) + need.waiting
        return _Turn(agents / rate, ends, min(by_itself, agents / rate))

    @property
    def _rows(self) -> float:
        """Rows that a thread processes one after the other: trips of the outermost loop."""
        return max(1.0, self.loops[-1].total) if self.loops else 1.0

    @property
    def _rows_of_blocks(self) -> Sequence[int]:
        """Turns of each block in the innermost loop around the busiest region that it decides."""
        found = (r.turns for r in self.loops if r.turns is not None)
        return next(found, [1] * self.kernel.blocks)

    @property
    def _busiest(self) -> Region:
        return max(self.regions, key=lambda r: r.instructions * r.total)

    @property
    def _parts_of_block(self) -> int:
        """Agents of a block: its warps if the busiest region has no barriers, its groups if these
        have barriers of their own, else 1. Barriers that are rarer than that region do not count.
        """
        if self.latency.copies_rows:
            return 1
        busiest = self._busiest
        around = [r for r in busiest.line if r.is_loop or r is busiest]
        often = [r for r in around if r.barriers and r.total * _RARE >= busiest.total]
        if not often:
            return self.warps
        if all(r.barriers == r.apart for r in often):
            return min(r.groups for r in often)
        return 1

    def _bound(
        self, parts: Mapping[str, float], seconds: float, extra: float, traffic: Traffic
    ) -> str:
        if extra > seconds:
            return "launch"
        word, most = max(
            ((w, s) for w, s in parts.items() if w != "latency"), key=lambda part: part[1]
        )
        if word in ("memory", "L2") and traffic.requested > 1.5 * traffic.wanted:
            word = "sectors"
        return word if most > 0.75 * seconds else "latency"


def _arch(device: DeviceInfo) -> str:
    """Return the architecture whose instructions are counted: sm_90 for the host."""
    return device.arch if device.kind == "cuda" else "sm_90"
