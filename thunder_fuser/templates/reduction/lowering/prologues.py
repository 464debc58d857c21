"""Lowering of what a reduction kernel loads before it is used: row-invariant data, registers of the
present row, prefetches of the next rows, loads of the steps that a pass unrolls together.

Names beyond those of `values.py`: copies the asynchronous copies of a row, from<n> the address
that they begin at.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from thunder_fuser import kernel_ir as ir
from thunder_fuser.kernel_ir import WORD, Var, add, equal, less, times
from thunder_fuser.lower.index.index_arithmetic import IndexArithmetic
from thunder_fuser.lower.register_budget import AHEAD_REGISTERS
from thunder_fuser.lower.scalar_graph import Value
from thunder_fuser.lower.vectors.lane_loads import EACH, ONE, K
from thunder_fuser.templates.reduction.lowering.accumulators import SMEM, G, T
from thunder_fuser.templates.reduction.lowering.column_loops import StepsAhead
from thunder_fuser.templates.reduction.lowering.row_loops import FOLLOWING
from thunder_fuser.templates.reduction.lowering.values import RowLowering
from thunder_fuser.templates.reduction.on_chip.shared_memory import (
    access_smem_offset,
    prefetch_smem_offset,
)

_COPIES = "copies"


class PrologueLowering(RowLowering):
    """Lowers loads ahead of the passes that read them."""

    # ---- what all rows share

    def _row_invariant_smem(self) -> list[ir.Stmt]:
        """Load row-invariant data into shared memory: each thread its own vectors, or those of one
        row for all rows of the block.
        """
        invariant = self.schedule.row_invariant_smem
        if not invariant:
            return []
        names = ", ".join(dict.fromkeys(self.accesses[k].loads[0].tensor.name for k in invariant))
        found = self._fetched(invariant, self._arithmetic(), set(self._written))
        head = ir.Comment(f"{names}, kept in shared memory for all rows")
        loads = self._loops.over_columns(found)
        if self.schedule.rows_per_block > 1:
            loads = [ir.If((equal(G, 0),), tuple(loads)), ir.Barrier()]
        return [head, *loads]

    def _portion_prologue(self) -> list[ir.Stmt]:
        """Load vectors that all rows of a portion share, and compute values of them."""
        common = self.schedule.portion.loads
        if not common:
            return []
        indices, loads = self._arithmetic(), list[ir.Stmt]()
        for k in filter(self._is_cached_as_words, common):
            loads += self._fetch(k, f"w{k}", indices, self._names)
        whole = [k for k in common if not self._is_cached_as_words(k)]
        loads += self._loads(whole, EACH, indices, set(self._written))
        names = ", ".join(dict.fromkeys(self.accesses[k].loads[0].tensor.name for k in common))
        head = ir.Comment(f"{names}, kept in registers for the rows of the portion")
        arrays: list[ir.Stmt] = [*map(self._register_array, common)]
        computed = self.schedule.portion.values
        if computed:
            arrays += map(self._value_registers, computed)
            self._ready.difference_update(computed)
            loads += self._column_body(computed, (), indices)
        scope = ir.Scope((*self._loops.place_of("r"), *self._loops.over_columns(loads)))
        if not self.schedule.has_portions_ahead:
            return [head, *arrays, scope]
        later = tuple(self._prefetches(common, FOLLOWING))
        return [head, *arrays, scope, ir.If((less(ir.Int(-1), FOLLOWING),), later)]

    # ---- the present row

    @property
    def _register_loads_wait(self) -> bool:
        found = filter(self._in_registers, self._column_accesses(self._live))
        return any(self._awaited(self.accesses[k]) for k in found)

    def _register_loads(self, row: IndexArithmetic) -> list[ir.Stmt]:
        """Load accesses cached in registers for every column of the row, before their first use."""
        cached = filter(self._in_registers, self._column_accesses(self._live))
        wanted = [k for k in cached if k not in self.schedule.portion.loads]
        ahead = [k for k in wanted if k in self.schedule.pipeline.prefetched]
        now = [k for k in wanted if k not in ahead]
        taken: list[ir.Stmt] = []
        for k in self._elements_ahead:
            taken += [self._array(k), ir.Assign(self._register(k, ONE), Var(f"n{k}"))]
            self._written.update(self.accesses[k].loads)
        loads = [self._taken_over(k) for k in ahead]
        indices = row.child()
        for k in filter(self._is_cached_as_words, now):
            loads += self._fetch(k, f"w{k}", indices, self._names)
        now = [k for k in now if not self._is_cached_as_words(k)]
        in_smem = [k for k in now if k in self._in_smem]
        now = [k for k in now if k not in in_smem]
        loads += [self._from_shared(k, self._register(k, EACH)) for k in in_smem]
        beside = sorted(self._positions_of(now).difference(wanted, self._row_loads))
        loads += map(self._array, beside)
        loads += self._loads(sorted([*now, *beside]), EACH, indices, set(self._written))
        arrays = [self._register_array(k) for k in wanted]
        names = ", ".join(dict.fromkeys(self.accesses[k].loads[0].tensor.name for k in wanted))
        head = ir.Comment(f"prologue: {names}, kept in registers")
        found = [head, *arrays, *self._loops.over_columns(loads)] if wanted else []
        if not self.schedule.pipeline.prefetched:
            return found
        if self.schedule.pipeline.copied:
            found.insert(0, ir.AwaitCopies(_COPIES))
        place = self._loops.place_of("next")
        later = [ir.Scope((*place, *self._fetched_row("next"))), *self._row_to_l2()]
        return [*found, *taken, *later, ir.LoadFence()]

    def _taken_over(self, k: int) -> ir.Stmt:
        """Move the current prefetched vector to the registers of the present row."""
        vector, here = self.lanes.vector, ir.Element(Var(f"x{k}"), K)
        is_copied = k in self.schedule.pipeline.copied
        if is_copied and not self._is_cached_as_words(k):
            return ir.VectorLoad(vector, self._prefetch_pointer(k), here)
        words: ir.Expr = ir.Element(Var(f"n{k}"), K)
        if is_copied:
            words = ir.RawLoad(vector, self._prefetch_pointer(k))
        if self._is_cached_as_words(k):
            return ir.Assign(ir.Element(Var(f"w{k}"), K), words)
        return ir.Unpack(words, here)

    def _fetch(
        self, k: int, words: str, indices: IndexArithmetic, names: dict[str, ir.Expr]
    ) -> list[ir.Stmt]:
        """Load the current vector as raw words of memory, so that nothing waits for it."""
        fetched = ir.RawLoad(self.lanes.vector, self._source(k, indices, names))
        return [*indices.taken(), ir.Assign(ir.Element(Var(words), K), fetched)]

    def _source(self, k: int, indices: IndexArithmetic, names: dict[str, ir.Expr]) -> ir.Address:
        """Return the address of the current vector of an access."""
        (window,) = self.accesses[k].variants[0].windows
        return ir.Address(self._pointer(k), indices.value(window.address, names))

    def _row_by_async_copies(self) -> list[ir.Stmt]:
        """Copy a row into the row cache in shared memory by cp.async."""
        cached = self.schedule.pipeline.copied_whole
        if not cached:
            return []
        row, vector = self._arithmetic(), self._arithmetic()
        firsts: list[ir.Stmt] = []
        copies: list[ir.Stmt] = []
        for k in cached:
            size = self.lanes.vector * self.accesses[k].loads[0].dtype.itemsize
            place = times(self._vector_of_block, ir.Int(size))
            place = add(ir.Int(access_smem_offset(self.schedule, k)), place)
            before, copy = self._copy_async(k, place, row, vector, self._names)
            firsts += before
            copies += copy
        self._in_smem.update(cached)
        names = ", ".join(dict.fromkeys(self.accesses[k].loads[0].tensor.name for k in cached))
        head = ir.Comment(f"prologue: {names}, copied to shared memory")
        in_flight = ir.AsyncCopies(_COPIES, self.schedule.steps * len(cached), SMEM)
        issued = ir.Scope((*firsts, *self._loops.over_columns_at_once(copies)))
        return [head, in_flight, issued]

    def _row_arrived(self) -> list[ir.Stmt]:
        return [ir.AwaitCopies(_COPIES)] if self.schedule.pipeline.copied_whole else []

    # ---- the next rows

    @property
    def _elements_ahead(self) -> list[int]:
        """Prefetched accesses of one element a row."""
        return [k for k in self.schedule.pipeline.prefetched if k in self._row_loads]

    def _first_row(self) -> list[ir.Stmt]:
        """Prefetch the first row, before any row is computed."""
        steps, elements = self.schedule.steps, self._elements_ahead
        copied = self.schedule.pipeline.copied
        if not self.schedule.pipeline.prefetched:
            return []
        arrays: list[ir.Stmt] = [
            ir.Registers(f"n{k}", self.accesses[k].loads[0].dtype, ())
            if k in elements
            else ir.Registers(f"n{k}", self._fetch_type(k), (steps,))
            for k in self.schedule.pipeline.prefetched
            if k not in copied
        ]
        if copied:
            arrays.append(ir.AsyncCopies(_COPIES, steps * len(copied), SMEM))
        return [*arrays, ir.Scope((*self._loops.place_of_first(), *self._fetched_row("r")))]

    @property
    def _waits_before_rows(self) -> bool:
        """True if threads wait for each other's loads between the first row's and its use."""
        return bool(self.schedule.row_invariant_smem) and self.schedule.rows_per_block > 1

    def _fetched_row(self, row: str) -> list[ir.Stmt]:
        """Prefetch vectors and elements of a row."""
        vectors: list[ir.Stmt] = []
        elements: list[ir.Stmt] = []
        firsts: list[ir.Stmt] = []
        of_row, of_vector = self._arithmetic(), self._arithmetic()
        names = self._names | {"r": Var(row)}
        # Elements first: common subexpressions of indices are then declared for vectors, too.
        for k in self._elements_ahead:
            (window,) = self.accesses[k].variants[0].windows
            address = of_row.value(window.address, names)
            pointer = Var(self.accesses[k].loads[0].tensor.name)
            elements += of_row.taken()
            if row == "r" and self._waits_before_rows:
                # ptxas sinks the load itself to its use, behind what is waited for.
                elements.append(ir.Prefetch(ir.Address(pointer, address)))
            elements.append(ir.Assign(Var(f"n{k}"), ir.Element(pointer, address)))
        for k in self.schedule.pipeline.prefetched:
            if k in self.schedule.pipeline.copied:
                place = self._prefetch_offset(k)
                before, copy = self._copy_async(k, place, of_row, of_vector, names)
                firsts += before
                vectors += copy
            elif k not in self._elements_ahead:
                vectors += self._fetch(k, f"n{k}", of_vector, names)
        columns = [*firsts, *self._loops.over_columns(vectors)] if vectors else []
        if self.schedule.pipeline.copied and row != "r":
            # No copies behind the last row: nothing would wait for them.
            columns = [ir.If((ir.Binary("!=", Var("r"), Var(row)),), tuple(columns))]
        return [*elements, *columns]

    def _copy_async(
        self,
        k: int,
        place: ir.Expr,
        row: IndexArithmetic,
        vector: IndexArithmetic,
        names: dict[str, ir.Expr],
    ) -> tuple[list[ir.Stmt], list[ir.Stmt]]:
        """Copy the current vector to shared memory by cp.async; before it, the address that all
        steps share where they are at a constant distance: one for each is more to compute.
        """
        (window,) = self.accesses[k].variants[0].windows
        before: list[ir.Stmt] = []
        # A loop over the vectors of a long row has no step to count the distance in.
        counts = self.schedule.has_steps
        step = self.schedule.lanes.step(window.address) if counts else None
        if step is None:
            source = self._source(k, vector, names)
        else:
            first = names | {"u": self._loops.first_vector}
            address = row.value(window.address, first)
            name = f"from{k}"
            before = [*row.taken(), ir.Let(name, self._frame.index, address)]
            distance = times(K, ir.Int(step * self.schedule.threads))
            source = ir.Address(ir.Address(self._pointer(k), Var(name)), distance)
        copy = ir.CopyAsync(_COPIES, self.lanes.vector, place, source)
        return before, [*vector.taken(), copy]

    def _prefetch_pointer(self, k: int) -> ir.Reinterpret:
        """Return the place in shared memory of this thread's current prefetched vector."""
        return ir.Reinterpret(self.accesses[k].loads[0].dtype, add(SMEM, self._prefetch_offset(k)))

    def _prefetch_offset(self, k: int) -> ir.Expr:
        """Return its offset in bytes: a constant distance from step to step."""
        thread = T if self.schedule.rows_per_block == 1 else ir.LaunchIndex.THREAD
        size = self.lanes.vector * self.accesses[k].loads[0].dtype.itemsize
        first = add(ir.Int(prefetch_smem_offset(self.schedule, k)), times(thread, ir.Int(size)))
        return add(first, times(K, ir.Int(self.schedule.block_threads * size)))

    def _row_to_l2(self) -> list[ir.Stmt]:
        """Prefetch the row after the next one to L2."""
        found = self._prefetches(self.schedule.pipeline.to_l2, Var("after"))
        return [ir.Scope((*self._loops.place_of("after"), *found))] if found else []

    def _prefetches(self, accesses: Sequence[int], row: ir.Expr) -> list[ir.Stmt]:
        """Prefetch this thread's vectors of a row to L2."""
        vector = self._arithmetic()
        names = self._names | {"r": row}
        found: list[ir.Stmt] = []
        for k in accesses:
            source = self._source(k, vector, names)
            found += [*vector.taken(), ir.Prefetch(source)]
        return self._loops.over_columns(found) if found else []

    # ---- the next steps of a pass

    @contextmanager
    def _loads_ahead(
        self, roots: Sequence[Value], row: IndexArithmetic, number: int
    ) -> Iterator[StepsAhead]:
        """Issue the loads of the steps that a pass unrolls together, as far as registers go, before
        their first use: within the steps, loads would wait for what comes before them. What is
        lowered inside of the `with` block, the body of the pass, reads what they loaded.
        """
        self._ahead = self._chosen_ahead(roots, number)
        yield self._issued_ahead(row, self.schedule.unrolling.factors[number])
        self._ahead = set()

    def _chosen_ahead(self, roots: Sequence[Value], number: int) -> set[int]:
        """Return the accesses whose vectors are loaded before a pass begins."""
        schedule = self.schedule
        unroll = schedule.unrolling.factors[number]
        if schedule.has_written_out or not schedule.walks_columns or unroll == 1:
            return set()
        if schedule.is_compiler_unrolled(number):
            return set()
        if schedule.mapping.column_tiles > 1 and unroll < schedule.steps:
            return set()
        found: set[int] = set()
        vector, words = self.lanes.vector, 0
        for k in self._column_accesses(self._needed(roots)):
            access = self.accesses[k]
            size = unroll * vector * access.loads[0].dtype.itemsize // WORD
            waits = k in self._in_smem or self._awaited(access) or access.is_uniform
            if not waits and words + size <= AHEAD_REGISTERS:
                found.add(k)
                words += size
        return found

    def _issued_ahead(self, row: IndexArithmetic, unroll: int) -> StepsAhead:
        arrays: list[ir.Stmt] = []
        loads: list[ir.Stmt] = []
        indices = row.child()
        for k in sorted(self._ahead):
            if not self._waits_as_words(k):
                arrays.append(self._array(k, unroll))
                loads += self._loads([k], EACH, indices, set(self._written))
                continue
            arrays.append(ir.Registers(f"n{k}", self._fetch_type(k), (unroll,)))
            loads += self._fetch(k, f"n{k}", indices, self._names)
        return StepsAhead(arrays, loads)
