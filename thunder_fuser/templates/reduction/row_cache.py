"""On-chip row cache of persistent kernels: registers first, then shared memory, else a re-read.

A row that does not fit into registers is kept in shared memory: each thread has places of its own
for its vectors, so that no barrier is needed. What does not fit there may fit into registers, and
what fits into neither is read from global memory again in each pass that needs it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from thunder_fuser.device import DeviceInfo
from thunder_fuser.lower.lanes import Lanes
from thunder_fuser.lower.register_budget import (
    CROWDED_ROW_REGISTERS,
    FEWEST_WORKING_REGISTERS,
    ROW_CACHE_REGISTERS,
    STAGE_REGISTERS,
    WORKING_REGISTERS,
)
from thunder_fuser.lower.scalar_graph import Load, Value, reachable
from thunder_fuser.lower.vectorize import RegisterArray
from thunder_fuser.occupancy import registers_of_thread, shared_bytes_of_block

MAX_STEPS = 8
"""Most vectors of one access that a thread keeps in registers: loops over them are unrolled."""


@dataclass(frozen=True, slots=True)
class RowCache:
    """Accesses (by number) and values of a row that a block keeps between passes.

    registers            accesses kept in registers by the thread that loaded them
    shared               accesses kept in shared memory; row-invariant ones may be in registers, too
    reread               accesses that several passes read and no cache keeps
    passes               for each access, how many passes read it
    loaded_in_last_pass  accesses that the last pass loads vector by vector, from the L2 cache, so
                         that the registers that would hold them until then are free for more
                         threads
    values_in_smem       computed values kept in shared memory, so that they are computed once
    values_in_registers  computed values kept in registers
    in_place             those of `values_in_registers` that take the registers of their operands
    """

    registers: tuple[int, ...] = ()
    shared: tuple[int, ...] = ()
    reread: tuple[int, ...] = ()
    passes: tuple[int, ...] = ()
    loaded_in_last_pass: tuple[int, ...] = ()
    values_in_smem: tuple[Value, ...] = ()
    values_in_registers: tuple[Value, ...] = ()
    in_place: tuple[Value, ...] = ()

    @property
    def values(self) -> tuple[Value, ...]:
        """Values that are computed once and kept."""
        return (*self.values_in_smem, *self.values_in_registers)

    def reads(self, access: int) -> int:
        """Return how often an access is read from global memory."""
        return self.passes[access] if access in self.reread else 1

    def sharing(self, accesses: Collection[int], *, from_registers: bool) -> RowCache:
        """Return the cache with accesses in shared memory, in place of registers or beside them."""
        if not accesses:
            return self
        registers, reread = (
            tuple(k for k in some if k not in accesses) for some in (self.registers, self.reread)
        )
        shared = tuple(sorted({*self.shared, *accesses}))
        left = registers if from_registers else self.registers
        return replace(self, registers=left, shared=shared, reread=reread)

    def __str__(self) -> str:
        values = f", {len(self.values)} values cached" if self.values else ""
        return f"{self._reads}{values}"

    @property
    def _reads(self) -> str:
        if self.reread:
            is_partly = self.registers or self.shared
            return "partly persistent" if is_partly else "re-read in every pass"
        if self.shared:
            return "persistent in shared memory"
        return "persistent in registers" if self.registers else "read once"


@dataclass(frozen=True, slots=True)
class BlockBudget:
    """Sizes of a block that decide where a row is kept.

    vectors        vectors of one access that the block reads
    steps          vectors of a row that a thread works on
    is_one_row     False for an outer reduction, whose block works on several rows at a time
    accumulators   32-bit registers of a thread for accumulators
    threads        threads of the block
    blocks_per_sm  blocks that must be resident on a multiprocessor
    shared_in_use  bytes of shared memory that the kernel needs besides; None: no room for a cache
    """

    vectors: int
    steps: int
    is_one_row: bool
    accumulators: int
    threads: int
    blocks_per_sm: int
    shared_in_use: int | None

    def free_registers(self, device: DeviceInfo) -> int:
        """Registers of a thread that accumulators leave."""
        return registers_of_thread(device, self.threads, self.blocks_per_sm) - self.accumulators

    def free_shared_bytes(self, device: DeviceInfo) -> int | None:
        """Bytes of shared memory for a row cache; None where there is no room for one."""
        if self.shared_in_use is None:
            return None
        return shared_bytes_of_block(device, self.blocks_per_sm) - self.shared_in_use


def choose_row_cache(
    accesses: Sequence[RegisterArray],
    columns: Sequence[int],
    near: Collection[int],
    passes: Sequence[Sequence[Value]],
    lanes: Lanes,
    block: BlockBudget,
    device: DeviceInfo,
) -> RowCache:
    """Choose the place of each access that several passes read. `passes`: the values that each pass
    computes. `columns`: accesses that differ from column to column, in order of priority. `near`:
    those of them that are in the L2 cache.
    """
    steps = block.steps
    count = passes_that_read(accesses, passes)
    size = {k: accesses[k].loads[0].dtype.itemsize * lanes.vector * steps for k in columns}
    if device.threads_are_serial:
        # A core's cache serves as registers and shared memory do on a GPU.
        fits = steps <= MAX_STEPS and sum(size.values()) <= 4 * ROW_CACHE_REGISTERS
        if fits:
            return RowCache(tuple(sorted(columns)), passes=count)
        return RowCache(reread=tuple(k for k in columns if count[k] > 1), passes=count)
    free = block.free_registers(device)
    several = block.accumulators and steps > 1
    working = WORKING_REGISTERS
    if several:
        working += STAGE_REGISTERS * (len(passes) - 2)
    if steps <= MAX_STEPS and sum(size.values()) <= 4 * min(ROW_CACHE_REGISTERS, free - working):
        last: list[int] = []
        if sum(size.values()) > 4 * CROWDED_ROW_REGISTERS:
            before = passes_that_read(accesses, passes[:-1])
            last = [k for k in near if not before[k]]
        rest = tuple(k for k in sorted(columns) if k not in last)
        return RowCache(rest, passes=count, loaded_in_last_pass=tuple(sorted(last)))
    fewest = working if steps > 1 else FEWEST_WORKING_REGISTERS
    budget = 4 * (free - fewest) if steps <= MAX_STEPS else 0
    registers: list[int] = []
    shared: list[int] = []
    reread: list[int] = []
    room = block.free_shared_bytes(device)
    for k in columns:
        if count[k] < 2:
            continue
        needed = access_smem_bytes(accesses[k], lanes, block.vectors)
        if size[k] <= budget and several and block.is_one_row:
            registers.append(k)
            budget -= size[k]
        elif room is not None and needed <= room:
            shared.append(k)
            room -= needed
        elif size[k] <= budget:
            registers.append(k)
            budget -= size[k]
        else:
            reread.append(k)
    on_chip = tuple(sorted(registers)), tuple(sorted(shared))
    return RowCache(*on_chip, tuple(sorted(reread)), count)


def access_smem_bytes(access: RegisterArray, lanes: Lanes, vectors: int) -> int:
    """Return shared memory bytes of `vectors` vectors of an access, in whole 16-byte vectors."""
    itemsize = access.loads[0].dtype.itemsize
    return -(-vectors * lanes.vector * itemsize // 16) * 16


def passes_that_read(
    accesses: Sequence[RegisterArray], passes: Sequence[Sequence[Value]]
) -> tuple[int, ...]:
    """Return for each access how many of the passes read it."""
    owner = {load: k for k, access in enumerate(accesses) for load in access.loads}
    count: Counter[int] = Counter()
    for roots in passes:
        count.update({owner[n] for n in reachable(roots) if isinstance(n, Load)})
    return tuple(count[k] for k in range(len(accesses)))
