"""On-chip row cache of persistent kernels: registers first, then shared memory, else a re-read.

A row that does not fit into registers is kept in shared memory: each thread has places of its own
for its vectors, so that no barrier is needed. What does not fit there may fit into registers, and
what fits into neither is read from global memory again in each pass that needs it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from thunder_fuser.kernel_ir import WORD
from thunder_fuser.lower.register_budget import (
    CROWDED_ROW_REGISTERS,
    FEWEST_WORKING_REGISTERS,
    ROW_CACHE_REGISTERS,
    STAGE_REGISTERS,
    WORKING_REGISTERS,
)
from thunder_fuser.lower.scalar_graph import Load, Value, reachable
from thunder_fuser.lower.vectors.lanes import Lanes
from thunder_fuser.lower.vectors.vectorize import RegisterArray
from thunder_fuser.templates.reduction.mapping.mapped_rows import MappedRows

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
    not_hoisted          accesses loaded where they are used: row-invariant ones in each row,
                         `loaded_in_last_pass` in that pass
    """

    registers: tuple[int, ...] = ()
    shared: tuple[int, ...] = ()
    reread: tuple[int, ...] = ()
    passes: tuple[int, ...] = ()
    loaded_in_last_pass: tuple[int, ...] = ()
    values_in_smem: tuple[Value, ...] = ()
    values_in_registers: tuple[Value, ...] = ()
    in_place: tuple[Value, ...] = ()
    not_hoisted: tuple[int, ...] = ()

    @property
    def values(self) -> tuple[Value, ...]:
        """Values that are computed once and kept."""
        return (*self.values_in_smem, *self.values_in_registers)

    def reads(self, access: int) -> int:
        """Return how often an access is read from global memory."""
        return self.passes[access] if access in self.reread else 1

    def sharing(self, accesses: Collection[int], *, from_registers: bool) -> RowCache:
        """Return the cache with accesses in shared memory, not in registers or in both."""
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
    """Registers and shared memory of a block for a row cache.

    accumulators  32-bit registers of a thread for accumulators
    registers     32-bit registers of a thread besides these
    shared_bytes  free shared memory of the block; None: no room for a row in it
    """

    accumulators: int
    registers: int
    shared_bytes: int | None


class _Capacity(NamedTuple):
    """Bytes that a part of a row may take.

    registers  in registers of a thread, for its part of the row
    in_flight  in registers of a thread, for that and the loads that a pass has in flight with it
    shared     in shared memory of the block; None: no row fits
    """

    registers: int
    in_flight: int
    shared: int | None


def choose_row_cache(
    mapped: MappedRows, columns: Sequence[int], near: Collection[int], budget: BlockBudget
) -> RowCache:
    """Choose the place of each access that several passes read. `columns`: accesses that differ
    from column to column, in order of priority. `near`: those of them that are in the L2 cache.
    """
    total = sum(register_bytes(mapped, k) for k in columns)
    several = budget.accumulators and mapped.steps > 1
    working = WORKING_REGISTERS
    if several:
        working += STAGE_REGISTERS * (len(mapped.passes) - 2)
    most = min(ROW_CACHE_REGISTERS, budget.registers - working)
    if mapped.steps <= MAX_STEPS and total <= WORD * most:
        is_crowded = total > WORD * CROWDED_ROW_REGISTERS
        return _all_in_registers(mapped, columns, near if is_crowded else ())
    with_few = budget.registers - FEWEST_WORKING_REGISTERS
    registers = budget.registers - working if mapped.steps > 1 else with_few
    capacity = _Capacity(
        WORD * registers if mapped.steps <= MAX_STEPS else 0, WORD * with_few, budget.shared_bytes
    )
    prefers_registers = bool(several) and not mapped.is_outer_shared
    return _divided(mapped, columns, capacity, prefers_registers)


def _all_in_registers(
    mapped: MappedRows, columns: Sequence[int], near: Collection[int]
) -> RowCache:
    """Keep a row in registers, except for what is near and that only the last pass reads."""
    before = passes_that_read(mapped.accesses, mapped.passes[:-1])
    last = tuple(sorted(k for k in near if not before[k]))
    rest = tuple(k for k in sorted(columns) if k not in last)
    count = passes_that_read(mapped.accesses, mapped.passes)
    return RowCache(rest, passes=count, loaded_in_last_pass=last)


def _divided(
    mapped: MappedRows, columns: Sequence[int], capacity: _Capacity, prefers_registers: bool
) -> RowCache:
    """Divide a row among registers, shared memory, and the passes that read it again."""
    registers_left, in_flight_left, smem_left = capacity
    count = passes_that_read(mapped.accesses, mapped.passes)
    registers: list[int] = []
    shared: list[int] = []
    reread: list[int] = []
    for k in columns:
        if count[k] < 2:
            continue
        size = register_bytes(mapped, k)
        needed = access_smem_bytes(mapped.accesses[k], mapped.lanes, mapped.block_vectors)
        in_registers = size <= registers_left
        if in_registers and mapped.steps > 1:
            # Passes over a row in registers are written out, and compilers issue the loads of all
            # their steps first, those from shared memory, too.
            others = [x for x in columns if x != k and x not in registers]
            in_registers = size + _in_flight(mapped, others) <= in_flight_left
        if (
            smem_left is not None
            and needed <= smem_left
            and not (in_registers and prefers_registers)
        ):
            shared.append(k)
            smem_left -= needed
        elif in_registers:
            registers.append(k)
            registers_left -= size
            in_flight_left -= size
        else:
            reread.append(k)
    on_chip = tuple(sorted(registers)), tuple(sorted(shared))
    return RowCache(*on_chip, tuple(sorted(reread)), count)


def _in_flight(mapped: MappedRows, columns: Iterable[int]) -> int:
    """Return the most bytes of `columns` that a thread loads in a pass."""
    read = (passes_that_read(mapped.accesses, [roots]) for roots in mapped.passes)
    sizes = {k: register_bytes(mapped, k) for k in columns}
    return max(sum(size for k, size in sizes.items() if reads[k]) for reads in read)


def re_reading(mapped: MappedRows, columns: Iterable[int]) -> RowCache:
    """Return the row cache that keeps nothing: each pass reads what it needs of `columns`."""
    count = passes_that_read(mapped.accesses, mapped.passes)
    return RowCache(reread=tuple(k for k in columns if count[k] > 1), passes=count)


def register_bytes(mapped: MappedRows, access: int) -> int:
    """Return bytes of a thread's part of a row of an access."""
    return mapped.accesses[access].loads[0].dtype.itemsize * mapped.lanes.vector * mapped.steps


def moving_accesses(mapped: MappedRows) -> list[int]:
    """Return accesses of which a thread has another vector at each of its columns."""
    return [k for k in range(len(mapped.accesses)) if mapped.moves(k)]


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
