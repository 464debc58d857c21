"""Schedule of a reduction kernel: chosen by `scheduler.py`, lowered to kernel IR by `lower.py`."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from thunder_fuser.ir.fusion import TensorView
from thunder_fuser.ir.integer.symint import Form
from thunder_fuser.lower.scalar_graph import Value, reachable
from thunder_fuser.templates.reduction.mapping.mapped_rows import MappedRows
from thunder_fuser.templates.reduction.on_chip.row_cache import MAX_STEPS, RowCache


@dataclass(frozen=True, slots=True)
class Unrolling:
    """Unrolling of the loops of each pass.

    factors      iterations whose loads are issued together
    by_compiler  passes whose loop compilers unroll, whatever `factors` says
    """

    factors: tuple[int, ...] = ()
    by_compiler: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class PortionPrologue:
    """What is loaded and computed once for all rows of a portion.

    loads   accesses in registers that all these rows share, such as a batch's modulation
    values  values of `loads` alone
    """

    loads: tuple[int, ...] = ()
    values: tuple[Value, ...] = ()


@dataclass(frozen=True, slots=True)
class RowPipeline:
    """Loads that are issued before what they load is computed.

    prefetched    accesses whose next row is loaded before this one is computed
    copied        those of `prefetched` whose next row cp.async copies to shared memory
    to_l2         those of `prefetched` that are prefetched to the L2 cache one row earlier
    copied_whole  accesses whose whole row cp.async copies into the row cache in shared memory
    by_host       accesses whose later vectors a host core prefetches, with tensor and address
    """

    prefetched: tuple[int, ...] = ()
    copied: tuple[int, ...] = ()
    to_l2: tuple[int, ...] = ()
    copied_whole: tuple[int, ...] = ()
    by_host: tuple[tuple[int, tuple[TensorView, Form]], ...] = ()


@dataclass(frozen=True, slots=True)
class ReductionSchedule(MappedRows):
    """Schedule of a reduction kernel: rows on threads, and what these keep on chip.

    row_cache        accesses and values of a row kept on chip until the last stage
    min_blocks_hint  resident blocks a multiprocessor should have, unless registers spill for it
    meets_at_once    a block's column accumulators of all grid reductions are combined in shared
                     memory at once, not one reduction after the other
    paired           lanes are in the register order of `lower/vectors/paired_lanes.py`
    """

    row_cache: RowCache = field(default_factory=RowCache)
    unrolling: Unrolling = Unrolling()
    portion: PortionPrologue = PortionPrologue()
    pipeline: RowPipeline = RowPipeline()
    min_blocks_hint: int = 0
    meets_at_once: bool = False
    paired: bool = False

    @classmethod
    def of(cls, mapped: MappedRows) -> ReductionSchedule:
        """Return the schedule that keeps nothing on chip, from which the others are made."""
        return cls(**{f.name: getattr(mapped, f.name) for f in fields(MappedRows)})

    @property
    def row_invariant_smem(self) -> tuple[int, ...]:
        """Row-invariant accesses in shared memory, loaded once a block."""
        if self.grid_split != "rows":
            return ()
        return tuple(k for k in self.row_cache.shared if self.is_of_all_rows(k))

    def loads_in_pass(self, number: int) -> set[int]:
        """Return accesses that a pass loads from global memory, without those that an earlier pass,
        or the prologue of the block, left in shared memory.
        """
        wanted = [reachable(roots) for roots in self.passes[: number + 1]]
        found = {k for k, a in enumerate(self.accesses) if not wanted[-1].isdisjoint(a.loads)}
        return {
            k
            for k in found.difference(self.row_cache.registers, self.row_invariant_smem)
            if k not in self.row_cache.shared
            or all(before.isdisjoint(self.accesses[k].loads) for before in wanted[:-1])
        }

    @property
    def has_cached_rows(self) -> bool:
        """True if accesses of a row stay on chip until a later pass."""
        return bool(self.row_cache.registers or self.row_cache.shared)

    def streams_in_pass(self, number: int) -> bool:
        """True if a pass loads column-dependent data from global memory."""
        return any(map(self.moves, self.loads_in_pass(number)))

    @property
    def has_few_steps(self) -> bool:
        """True if threads pass over a row that is not in registers in a few steps, the same number
        for all threads, and reduce it in one part.
        """
        loops = self.walks_columns and self.grid_split == "none"
        few = self.steps <= min(MAX_STEPS, self.longest_chain)
        return loops and few and not self.row_cache.registers

    @property
    def has_steps(self) -> bool:
        """True if all threads take the same, constant number of steps through a row."""
        shared = self.grid_split == "rows" or self.mapping.shares_rows
        return bool(shared or self.row_cache.registers or self.has_few_steps)

    @property
    def has_written_out(self) -> bool:
        """True if some passes are fully unrolled: steps are few or own registers."""
        shares = self.grid_split == "rows"
        columns = any(t.is_of_columns for t in self.reductions.of_grid)
        return bool(self.row_cache.registers or columns or (shares and self.steps <= MAX_STEPS))

    def is_before_totals(self, number: int) -> bool:
        """True if a pass reduces rows and no step keeps anything in registers of its own."""
        is_last = number in (-1, len(self.passes) - 1)
        few = self.grid_split == "rows" and self.steps <= MAX_STEPS
        return few and not (is_last or self.row_cache.registers)

    def is_written_out(self, number: int) -> bool:
        """True if a pass is fully unrolled: its steps own registers, or all loads fit."""
        if self.is_before_totals(number) and self.unrolling.factors[number] < self.steps:
            return False
        return self.has_written_out

    @property
    def is_folded_in_parts(self) -> bool:
        """True if a thread reduces its part of a row in several parts."""
        return self.steps > self.longest_chain and not self.row_cache.registers

    @property
    def has_portions_ahead(self) -> bool:
        """True if the first row of a block's next portion is prefetched while partial results of
        this one are combined. Requires that each portion has a row of each block.
        """
        mapping = self.mapping
        before_last = (mapping.portions_of_group - 1) * mapping.rows_per_block
        has_rows = before_last < self.rows // mapping.row_groups
        return bool(self.pipeline.prefetched) and mapping.walks_portions and has_rows

    @property
    def takes_rows_in_blocks(self) -> bool:
        """True if one thread only reduces columns, too many for registers: then several rows at a
        time are reduced for some columns while these are in registers.
        """
        alone = self.is_walked_by_one and not self.row_cache.registers
        return alone and not self.reductions.of_rows and not self.stores_of_rows

    def is_compiler_unrolled(self, number: int) -> bool:
        """True if the loop of a pass is left to the compiler to unroll; -1 is the last pass."""
        return number % len(self.passes) in self.unrolling.by_compiler

    def __str__(self) -> str:
        text = (
            f"reduction: {self.rows} rows x {self.columns} columns, lanes are {self.lane_axis}, "
            f"vector {self.lanes.vector}, {self.threads} threads a row, {self.rows_per_block} rows "
            f"a block, {self.stages} stages, {self.row_cache}"
        )
        if self.mapping.cluster > 1:
            text += f", clusters of {self.mapping.cluster} blocks"
        if self.pipeline.copied:
            text += ", next row by asynchronous copies"
        if self.pipeline.copied_whole:
            text += ", rows by asynchronous copies"
        if not self.reductions.of_grid:
            return text
        count, partials = len(self.reductions.of_grid), self.mapping.partials
        text += f"; {self.grid_split} split over blocks: {count} grid reductions of {partials} "
        return text + f"partials, {self.reductions.workspace_bytes:,} B of workspace"
