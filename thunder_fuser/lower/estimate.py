"""Time model of a kernel: how long its statements take on a device, and what bounds it.

A multiprocessor holds some blocks at a time (occupancy.py). Each goes round: it waits for loads,
barriers and shuffles, moves bytes, issues instructions. Where others have work meanwhile, waiting
costs nothing; where nothing overlaps, all of it adds up. Between these, memory and issue slots are
queues, and how many agents there are says how often they are idle: mean value analysis of a closed
network, with Schweitzer's approximation. Agents are blocks whose threads wait for each other, and
warps where they do not.

Bytes are those of sectors. What is read again comes from the L2 cache where all that the device
touches in between fits into it, else from memory.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from thunder_fuser.device import WARP_SIZE, DeviceInfo
from thunder_fuser.ir.fusion import TensorView
from thunder_fuser.lower import kernel_ir as ir
from thunder_fuser.lower.estimated_registers import registers_of
from thunder_fuser.lower.instruction_mix import instruction_regions
from thunder_fuser.lower.instruction_values import Access, Region
from thunder_fuser.lower.pipes import Pipe
from thunder_fuser.occupancy import resident_blocks

_SUSTAINED = 0.92
"""Of the highest clock rate, under load."""
_ISSUED = 0.85
"""Of the slots of a busy scheduler: the rest are lost to dependencies and to the register file."""
_CHAIN_CLOCKS = 3
"""From one instruction of a warp to the next, dependent or not, where no other warp is there."""
_BARRIER_CLOCKS = 40
_EXCHANGE_CLOCKS = 30
"""A shuffle, and what is done with the result."""
_BLOCK_SECONDS = 0.35e-6
"""From the end of a block to the first instruction of the next in its place."""
_NEAR = 0.4
"""How much sooner than memory the L2 cache answers."""
_L2_RATE = 1.6
"""Bandwidth of the L2 cache, of that of memory."""
_L1_BYTES = 64 * 1024
"""Tensors so small stay in a multiprocessor's own cache."""
_PORT_BYTES = 64
"""That a multiprocessor takes from the L2 cache in one clock."""
_SHARING = 6
"""Multiprocessors that are modelled beside each other: memory serves whichever asks."""
_RARE = 8
"""Turns of a loop that a barrier around it parts: of so many, one more or less does not matter."""
_ROUNDS = 60


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a kernel takes.

    seconds          of it, launch included
    bound            what it waits for most: memory, sectors, L2, issue, a pipe's name, latency,
                     launch
    bytes            that memory moves
    cache_bytes      that the L2 cache moves to and from multiprocessors: what is read again, too
    sector_bytes     of memory sectors that threads ask for: once for what they touch together
    wanted_bytes     of what they ask for: less than `sector_bytes` where sectors are used in part
    instructions     of all threads, by pipe
    resident         blocks that a multiprocessor holds at a time
    waves            rounds in which all blocks had their turn
    copy_seconds     what a copy takes that moves the distinct bytes of the kernel's tensors
    bandwidth        that a copy reaches
    parts            seconds of each resource, were it all that counts; waiting as "latency"
    workspace_bytes  that blocks write for each other, and read: parts of grid reductions
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
        """Of the bandwidth that a copy reaches: 1 at its speed."""
        return self.copy_seconds / self.seconds if self.seconds else 1.0

    @property
    def bytes_again(self) -> float:
        """Of sectors that multiprocessors read once more, from the L2 cache or from memory."""
        return max(0.0, self.cache_bytes - self.copy_seconds * self.bandwidth)

    def __str__(self) -> str:
        speed = f"{1e6 * self.seconds:.1f} us, {self.copy_fraction:.0%} of a copy's speed"
        text = f"{speed}, bound by {self.bound}"
        if 10 * self.bytes_again > self.cache_bytes:
            text += f"; {round(self.bytes_again):,} B read again"
        if 2 * self.wanted_bytes < self.sector_bytes:
            text += f"; {round(self.sector_bytes):,} B of sectors asked for"
        if self.workspace_bytes:
            text += f"; {self.workspace_bytes:,} B through a workspace"
        return text


def estimate_kernel(
    kernel: ir.KernelIR,
    device: DeviceInfo,
    registers: int | None = None,
    ideal_bytes: int | None = None,
) -> Estimate:
    """What a device takes for a kernel. `registers` of a thread, where a compiler has said it;
    `ideal_bytes`: what must be moved, where the plan knows.
    """
    found = _Model(kernel, device, registers).estimate()
    if ideal_bytes is None:
        return found
    return replace(found, copy_seconds=ideal_bytes / device.copy_bandwidth)


@dataclass(frozen=True, slots=True)
class _Traffic:
    """Bytes of all blocks: that memory moves, that the L2 cache gives, asked for, and wanted."""

    memory: float
    cache: float
    asked: float
    wanted: float
    loaded: float
    ahead: float
    distinct: float


class _Asked(NamedTuple):
    """Sectors that an access asks for.

    moved   bytes of sectors, of all threads
    wanted  bytes of the elements
    window  of a thread, for each row that its block begins
    """

    moved: float
    wanted: float
    window: float


class _Model:
    def __init__(self, kernel: ir.KernelIR, device: DeviceInfo, registers: int | None) -> None:
        self.kernel, self.device = kernel, device
        self.regions = instruction_regions(kernel, _arch(device))
        self.warps = -(-kernel.threads // WARP_SIZE)
        self.clock = device.clock_rate * _SUSTAINED
        self.sms = device.sms_of_clusters(kernel.cluster)
        self.busy = min(kernel.blocks, self.sms)
        wanted = registers_of(kernel, device) if registers is None else registers
        room = resident_blocks(device, kernel.threads, wanted, kernel.shared_bytes)
        each = -(-kernel.blocks // self.sms)
        self.resident = max(1, min(max(room, kernel.blocks_per_sm), each))
        self.bandwidth = device.copy_bandwidth
        self.sizes = {p.name: _bytes_of(p) for p in kernel.parameters if p.is_pointer}

    def estimate(self) -> Estimate:
        kernel, device = self.kernel, self.device
        mix: defaultdict[Pipe, float] = defaultdict(float)
        for region in self.regions:
            for pipe, n in region.mix.items():
                mix[pipe] += n * region.total * kernel.blocks * kernel.threads
        traffic = self._traffic()
        arithmetic = self._arithmetic(mix, self._replays())
        waiting = self._waiting()
        memory = traffic.memory / self.bandwidth
        cache = traffic.cache / (self.bandwidth * _L2_RATE)
        parts = {"memory": memory, "L2": cache, **arithmetic, "latency": waiting * self._waves}
        seconds = self._rounds(max(memory, cache), max(arithmetic.values()), waiting, traffic)
        barriers = sum(r.grid_barriers * r.total for r in self.regions)
        extra = device.launch_seconds + barriers * device.grid_barrier_seconds
        return Estimate(
            seconds + extra,
            self._bound(parts, seconds, extra, traffic),
            traffic.memory,
            traffic.cache,
            traffic.asked,
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
        """Each part is written once and read once."""
        bound = (p.bound for p in self.kernel.parameters)
        return sum(2 * b.bytes for b in bound if isinstance(b, ir.Scratch))

    @property
    def _waves(self) -> float:
        return self.kernel.blocks / (self.sms * self.resident)

    # ---- what is needed

    def _replays(self) -> float:
        """What the nearest cache passes over again, of all threads."""
        each = (r.total * sum(a.replays for a in r.accesses) for r in self.regions)
        return sum(each) * self.kernel.blocks * self.kernel.threads

    def _arithmetic(self, mix: Mapping[Pipe, float], replays: float) -> dict[str, float]:
        """Seconds of each pipe, and of the slots that all share."""
        lanes = self.device.lanes
        clocks = {"issue": sum(mix.values()) / (lanes.issue * _ISSUED)}
        for pipe, n in mix.items():
            if pipe is not Pipe.OTHER:
                n += replays if pipe is Pipe.LSU else 0.0
                clocks[pipe.name] = n / getattr(lanes, pipe.name.lower())
        return {name: n / (self.clock * self.busy) for name, n in clocks.items()}

    def _waiting(self) -> float:
        """Seconds that a block waits for what has been asked for, and for its own threads."""
        found = _BLOCK_SECONDS
        for region in self.regions:
            clocks = region.barriers * _BARRIER_CLOCKS + region.exchanges * _EXCHANGE_CLOCKS
            loads = self.device.load_seconds * sum(self._load_waits(region)) / region.unroll
            found += region.total * (clocks / self.clock + loads)
        return found

    def _load_waits(self, region: Region) -> Iterator[float]:
        """Of loads, those together that no barrier parts, some of them perhaps under tests; less
        where the cache has them.
        """
        phases: dict[int, list[Access]] = {}
        loads = (a for r in self.regions if r.waiting is region for a in r.accesses)
        for access in loads:
            if not access.is_store and not access.is_ahead:
                phases.setdefault(access.phase, []).append(access)
        for accesses in phases.values():
            near = all(4 * self.sizes[a.tensor] <= self.device.l2_bytes for a in accesses)
            yield _NEAR if near and self._waves > 1 else 1.0

    def _traffic(self) -> _Traffic:
        threads = self.kernel.blocks * self.kernel.threads
        asked: defaultdict[tuple[str, bool], float] = defaultdict(float)
        wanted = ahead = cache = 0.0
        window = 0.0
        together: defaultdict[tuple[int, str, bool], list[_Asked]] = defaultdict(list)
        for region in self.regions:
            for a in region.accesses:
                times = _times(region, a) * threads
                moved = times * a.sectors
                asked[a.tensor, a.is_store] += moved
                own = times * a.bytes
                each = _Asked(moved, own, self._row_share(region) * a.sectors)
                together[id(region.waiting), a.tensor, a.is_store].append(each)
                wanted += own
                ahead += moved if a.is_ahead else 0.0
        for (_, tensor, _), found in together.items():
            # What a block reads side by side, or all of them read, is in its own cache; loads of
            # neighbours in one place of a tensor touch it once.
            size, every = self.sizes[tensor], sum(x.moved for x in found)
            apart = max(1.0, every / (sum(x.wanted for x in found) or 1.0))
            most = max(x.moved for x in found)
            held = size * self.busy if size <= _L1_BYTES else max(most, size * apart)
            cache += min(every, held)
            touched = sum(x.window for x in found)
            window += touched * min(1.0, held / every) if len(found) > 1 and every else touched
        between = window * self.kernel.threads * self.resident * self.busy
        memory = loaded = distinct = 0.0
        for (tensor, is_store), bytes in asked.items():
            size = self.sizes[tensor]
            least = min(bytes, size)
            distinct += least
            near = self.device.keeps(min(between, size))
            moved = least if near else bytes
            memory += moved
            loaded += 0.0 if is_store else moved
        total = float(sum(asked.values()))
        share = 1.0 if not total else min(1.0, ahead / total)
        return _Traffic(memory, cache, total, wanted, loaded, share, distinct)

    def _row_share(self, region: Region) -> float:
        """How often a thread does a region for each time that its block begins a row: once more
        than the loop around all of them goes on. Of the parts of a kernel a block does one.
        """
        loops = [r for r in region.line if r.is_loop and r.total]
        return region.total / loops[-1].total if loops else region.total

    # ---- how it adds up

    def _rounds(self, memory: float, work: float, waiting: float, traffic: _Traffic) -> float:
        """Seconds of all waves: full ones, and the blocks that are left."""
        blocks, sms = self.kernel.blocks, self.sms
        each = 1.0 / blocks
        full, rest = divmod(blocks, sms * self.resident)
        loads = traffic.loaded / traffic.memory if traffic.memory else 0.0
        seconds = 0.0
        if full:
            turn = self._turn(self.resident, sms, memory * each, work * each * self.busy, waiting,
                              loads, traffic.ahead)  # fmt: skip
            seconds += full * turn
        if rest:
            held = -(-rest // sms)
            seconds += self._turn(held, min(rest, sms), memory * each, work * each * self.busy,
                                  waiting, loads, traffic.ahead)  # fmt: skip
        return seconds

    def _turn(
        self,
        resident: int,
        sms: int,
        memory: float,
        work: float,
        waiting: float,
        loads: float,
        ahead: float,
    ) -> float:
        """Seconds in which so many blocks of each multiprocessor are done, one of which takes so
        many seconds of all memory, so many of the pipes of its multiprocessor, and waits so long.
        """
        busiest = max(self.regions, key=lambda r: r.instructions * r.total)
        agents = resident * self._agents(busiest)
        is_apart = agents == resident * self.warps
        each = resident / agents
        memory, work = memory * each, work * each
        # A lone agent issues no faster than its dependencies allow.
        alone = work * WARP_SIZE * _CHAIN_CLOCKS / (self.device.lanes.issue * _ISSUED)
        waiting += max(0.0, alone * (self.warps / resident if is_apart else 0.0) - work)
        others = min(sms, _SHARING)
        served = memory * self.device.sm_count if sms < _SHARING else memory * sms
        served /= others
        port = memory * self.bandwidth / (_PORT_BYTES * self.clock)
        customers = agents * others
        queue_memory = queue_work = 0.5
        rate = 0.0
        for _ in range(_ROUNDS):
            at_memory = served * (1 + queue_memory * (customers - 1) / customers)
            at_work = work * (1 + queue_work * (agents - 1) / agents)
            # Stores are not waited for, and what was asked for ahead only if it is late.
            waited = (at_memory + port) * loads * (1 - ahead)
            rest = at_work + waiting + waited
            late = max(0.0, (at_memory + port) * loads * ahead + self.device.load_seconds - rest)
            time = rest + (late if ahead else 0.0)
            rate = min(agents / time, 1 / max(served * others, 1e-30), 1 / max(work, 1e-30))
            queue_memory = 0.5 * (queue_memory + rate * others * at_memory * max(loads, 0.5))
            queue_memory = min(queue_memory, customers)
            queue_work = min(0.5 * (queue_work + rate * at_work), agents)
        return agents / rate

    def _agents(self, busiest: Region) -> int:
        """Of a block: its warps, where none waits for another while they do what takes most, or
        groups of them that do not. Barriers that are rare beside it do not count.
        """
        around = [r for r in busiest.line if r.is_loop or r is busiest]
        often = [r for r in around if r.barriers and r.total * _RARE >= busiest.total]
        if not often:
            return self.warps
        if all(r.barriers == r.apart for r in often):
            return min(r.groups for r in often)
        return 1

    def _bound(
        self, parts: Mapping[str, float], seconds: float, extra: float, traffic: _Traffic
    ) -> str:
        if extra > seconds:
            return "launch"
        word, most = max(
            ((w, s) for w, s in parts.items() if w != "latency"), key=lambda part: part[1]
        )
        if word in ("memory", "L2") and traffic.asked > 1.5 * traffic.wanted:
            word = "sectors"
        return word if most > 0.75 * seconds else "latency"


def _times(region: Region, access: Access) -> float:
    """How often a thread asks memory for an access: behind the last iteration of a loop nothing is
    loaded ahead, or once more what is at hand.
    """
    if not access.is_ahead:
        return region.total
    loop = next(r for r in region.line if r.is_loop)
    return region.total * max(0.0, 1 - 1 / loop.times)


def _arch(device: DeviceInfo) -> str:
    """Whose instructions are counted: a host is estimated as if it had those of a GPU."""
    return device.arch if device.kind == "cuda" else "sm_90"


def _bytes_of(parameter: ir.Parameter) -> int:
    match parameter.bound:
        case ir.Scratch(bytes=bytes):
            return bytes
        case TensorView() as tensor:
            # Elements that are shown in many places are in one.
            return math.prod(int(d.size) for d in tensor.domain.root) * tensor.dtype.itemsize
    return 0
