"""Lowering of a reduction kernel: prologue loads, a loop over the columns for each stage, epilogue
stores.

Names beyond those of `values.py` are in `lowering/pass_accumulators.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from thunder_fuser import kernel_ir as ir
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.kernel_ir import LoopKind, Var, add, equal, less
from thunder_fuser.kernel_ir.tests_that_hold import without_tests
from thunder_fuser.lower.frame import Frame
from thunder_fuser.lower.index.index_arithmetic import IndexArithmetic, fits
from thunder_fuser.lower.scalar_graph import Condition, Value, forms
from thunder_fuser.lower.store import Store
from thunder_fuser.lower.vectors.lane_loads import EACH, V
from thunder_fuser.templates.reduction.lowering import accumulators as lowered
from thunder_fuser.templates.reduction.lowering import grid, partial_results
from thunder_fuser.templates.reduction.lowering.accumulators import T
from thunder_fuser.templates.reduction.lowering.grid import WORKSPACE, EpilogueLowering
from thunder_fuser.templates.reduction.lowering.pass_accumulators import (
    PassAccumulator,
    pass_accumulator,
)
from thunder_fuser.templates.reduction.lowering.prologues import PrologueLowering
from thunder_fuser.templates.reduction.mapping.accumulations import (
    BLOCK_OF_ROWS,
    GridReduction,
    RowReduction,
)
from thunder_fuser.templates.reduction.on_chip.shared_memory import shared_bytes
from thunder_fuser.templates.reduction.schedule import ReductionSchedule
from thunder_fuser.templates.template import Lowered

_U = Var("u")


def fits_int32(schedule: ReductionSchedule) -> bool:
    """True if every index of the kernel, and all steps towards it, fit into an Int32."""
    mentioned = [schedule.lanes(f) for node in schedule.graph for f in forms(node)]
    mentioned += [
        schedule.lanes(s.address) for s in (*schedule.writes.elements, *schedule.writes.rows)
    ]
    points = max(schedule.rows, 1) * max(schedule.columns, 1)
    epilogues = all(map(grid.epilogue_fits_int32, schedule.reductions.epilogues))
    loops = max(_last_row(schedule), _last_vector(schedule)) < 2**31
    return epilogues and loops and points < 2**31 and all(fits(form) for form in mentioned)


def _last_row(schedule: ReductionSchedule) -> int:
    """Upper bound of a row variable: a step past the end (one accumulator's rows), or two ahead."""
    stride = max(schedule.mapping.blocks, schedule.mapping.portions) * schedule.rows_per_block
    steps = schedule.longest_total if schedule.is_summed_in_parts else 3
    return schedule.rows + steps * stride if schedule.rows > stride else schedule.rows


def _last_vector(schedule: ReductionSchedule) -> int:
    """Upper bound of a vector variable: one step past the end of the last block's share."""
    mapping = schedule.mapping
    vectors = schedule.columns if schedule.lane_axis == "rows" else schedule.lanes.vectors
    shares = mapping.blocks_per_row * mapping.column_tiles * schedule.steps * schedule.threads
    step = schedule.threads * max(schedule.longest_chain, *schedule.unrolling.factors)
    return max(vectors, shares) + step


class ReductionLowering(PrologueLowering):
    """Lowers the body of one reduction kernel."""

    def body(self) -> list[ir.Stmt]:
        schedule = self.schedule
        row = self._arithmetic()
        in_blocks = schedule.takes_rows_in_blocks
        invariant = self._row_invariant_smem()
        body = self._columns_of_row(row) if in_blocks else self._row_body(row)
        found: list[ir.Stmt] = [ir.Shared("smem")] if shared_bytes(schedule) else []
        if schedule.mapping.shares_rows:
            found.append(ir.ClusterArrive())
        if schedule.reductions.of_grid:
            found += grid.workspaces(schedule)
        if in_blocks:
            found += self._loops.over_blocks_of_rows(body)
        elif schedule.grid_split == "rows":
            once = [*invariant, *self._others_began]
            common = self._portion_prologue()
            found += self._loops.over_rows(body, common, self._first_row(), once)
        elif schedule.lane_axis == "rows" and not schedule.is_outer_shared:
            found += [*self._loops.owned_rows(), *self._of_own_vector(body)]
        else:
            # Threads that share a row synchronise: those without a row of their own compute, too.
            found += [*self._loops.owned_rows(), *body]
        if schedule.reductions.of_grid:
            found.append(ir.GridBarrier(ir.Int(schedule.blocks)))
        tiles = 0
        for epilogue in schedule.reductions.epilogues:
            lowering = EpilogueLowering(schedule, epilogue, self._frame)
            found += lowering.body(tiles)
            tiles += lowering.tiles
        return found

    def _of_own_vector(self, body: Sequence[ir.Stmt]) -> ir.Body:
        """Return the body of a thread's vector of rows, if there is one; with the last, partial
        vector apart, for the vectors before it without their tests.
        """
        schedule, vectors = self.schedule, self.lanes.vectors
        exact = schedule.blocks * schedule.rows_per_block == vectors
        own: ir.Body = tuple(body) if exact else (ir.If((less(_U, vectors),), tuple(body)),)
        if not schedule.tail_apart or vectors == 1:
            return own
        whole = without_tests(tuple(body), {_U.name: (0, vectors - 2)})
        return (ir.If((less(_U, vectors - 1),), whole, own),)

    def _row_body(self, row: IndexArithmetic) -> list[ir.Stmt]:
        """Lower all passes over one row."""
        schedule = self.schedule
        body = [*self._declare_cached_values(), *self._row_by_async_copies()]
        # A row's loads are issued first, unless they depend on a position.
        if self._register_loads_wait:
            body += self._row_section(None, row)
        body += self._register_loads(row)
        body += [*self._row_section(None, row), *self._row_arrived()]
        for stage in range(schedule.stages):
            folds = [f for f in schedule.reductions.of_rows if f.stage == stage]
            if folds:
                body += self._stage(folds, row)
            body += self._row_section(stage, row)
        if schedule.grid_split == "columns":
            body += self._stage(schedule.reductions.of_grid, row)
        return [*body, *self._stores(row)]

    def _columns_of_row(self, row: IndexArithmetic) -> list[ir.Stmt]:
        """Lower one vector of columns of one row, where all of it goes into grid reductions."""
        return [
            *self._of_next_block(row),
            *self._row_section(None, row),
            *self._vector_stores((), row, range(len(self.schedule.reductions.of_grid))),
        ]

    def _of_next_block(self, row: IndexArithmetic) -> list[ir.Stmt]:
        """Prefetch these columns of the next block of rows. Rows are far apart, so that a core's
        own prefetcher does not follow; nothing is read beyond the last. Gathered rows are not
        prefetched: their addresses are known only when they are read.
        """
        found: list[ir.Stmt] = []
        indices = row.child()
        names = self._names | {"r": add(Var("r"), ir.Int(BLOCK_OF_ROWS))}
        for k in self._column_accesses(self._live):
            access = self.accesses[k]
            if len(access.variants) != 1 or any(load.positions for load in access.loads):
                continue
            for window in access.variants[0].windows:
                if any(v.name == "r" for v in window.address.variables()):
                    pointer = Var(access.loads[0].tensor.name)
                    place = ir.Address(pointer, indices.value(window.address, names))
                    found += [*indices.taken(), ir.Prefetch(place)]
        return found

    @property
    def _others_began(self) -> list[ir.Stmt]:
        """Wait for the cluster before the first write to other blocks' shared memory."""
        mapping = self.schedule.mapping
        return [ir.ClusterWait(mapping.cluster)] if mapping.shares_rows else []

    # ---- passes over the columns

    def _reductions(
        self, folds: Sequence[RowReduction | GridReduction], stores: Sequence[Store]
    ) -> ir.Comment:
        """Return the comment at the head of a pass."""
        named = [f"{n}: {f.op}" for n, f in enumerate(self.schedule.reductions.all) if f in folds]
        named += [self._target(s).name for s in stores]
        tensors = [f.tensor for f in folds] + [s.tensor for s in stores]
        return self._frame.section(f"reduction {', '.join(named)}", *tensors)

    def _stage(
        self, folds: Sequence[RowReduction | GridReduction], row: IndexArithmetic
    ) -> list[ir.Stmt]:
        """Lower one pass over the columns that computes the results of `folds`."""
        number = folds[0].stage if isinstance(folds[0], RowReduction) else -1
        stores = self.schedule.stores_in_pass(number) if number >= 0 else ()
        roots = [v for f in folds for v in f.roots]
        read = [*roots, *(s.value for s in stores)]
        with self._loads_ahead(read, row, number) as ahead:
            taken = [
                pass_accumulator(
                    self.schedule,
                    n,
                    self._column_name,
                    in_parts=self.schedule.is_folded_in_parts,
                    is_zero=not self._loops.is_short(number),
                )
                for n, fold in enumerate(self.schedule.reductions.all)
                if fold in folds
            ]
            body = self._with_stores(stores, roots, [s for t in taken for s in t.lane], row)
        if vectors := [t for t in taken if t.elements]:
            body = self._with_vectors(vectors, body, row)
        partial = [s for t in taken for s in t.partial]
        joined = [s for t in taken for s in t.joined]
        loop = (
            self._loops.over_columns_in_parts(partial, body, joined, number, ahead)
            if joined
            else self._loops.over_columns(body, number, ahead)
        )
        before = [s for t in taken for s in t.before]
        return [self._reductions(folds, stores), *before, *loop, *self._combined(taken, number)]

    def _combined(self, taken: Sequence[PassAccumulator], number: int) -> list[ir.Stmt]:
        """Combine the accumulators of a pass over the threads of a row; of grid reductions, write
        partial results to the workspace.
        """
        found: list[ir.Stmt] = []
        for each in taken:
            if isinstance(each.fold, GridReduction):
                found += partial_results.left_by_columns(self.schedule, each.number)
        if number == 0 and self.schedule.grid_split == "none":
            found += self._others_began
        of_rows = [t.number for t in taken if isinstance(t.fold, RowReduction)]
        return found + lowered.combined_together(self.schedule, of_rows)

    def _with_vectors(
        self, taken: Sequence[PassAccumulator], body: Sequence[ir.Stmt], row: IndexArithmetic
    ) -> list[ir.Stmt]:
        """Add accumulators that take all lanes of a vector, after `body` has gathered them in
        arrays; lanes that do not exist are the identity, or only the first ones, which exist, are
        counted.
        """
        lanes = self.lanes.vector
        arrays: list[ir.Stmt] = []
        takes: list[ir.Stmt] = []
        indices = row.child()
        for each in taken:
            one, place, array = lowered.reducer(each.fold), Var(each.name), Var(each.elements)
            arrays.append(ir.Registers(each.elements, one.element, (lanes,)))
            present: ir.Expr = ir.Int(lanes)
            if self.schedule.inside and lowered.pads(each.fold):
                nothing = ir.Assign(ir.Element(array, V), lowered.identity(each.fold))
                arrays.append(self._lane_loop([nothing], LoopKind.UNROLLED))
            elif self.schedule.inside:
                # Holds for the lane v while v is not above this.
                (condition,) = self.schedule.inside
                last = self.lanes(condition).substitute({self.lanes.v: 0})
                present = ir.Present(indices.value(last, self._names), lanes)
            takes.append(ir.Assign(place, ir.AccumulateVector(one, place, array, present)))
        return [*arrays, *body, *indices.taken(), *takes]

    # ---- stores

    def _stores(self, row: IndexArithmetic) -> list[ir.Stmt]:
        wide, narrow = self.schedule.stores_in_pass(-1), self.schedule.writes.rows
        totals = enumerate(self.schedule.reductions.of_grid)
        sums = [n for n, total in totals if total.is_of_columns]
        found: list[ir.Stmt] = []
        if self.schedule.row_cache.loaded_in_last_pass:
            found.append(ir.Let("zero", DataType.Int32, ir.OpaqueZero()))
        if wide or sums:
            found.append(self._left_by_columns(wide, sums))
            with self._loads_ahead([s.value for s in wide], row, -1) as ahead:
                body = self._vector_stores(wide, row, sums)
            found += self._loops.over_columns(body, -1, ahead)
        if self.schedule.lane_axis == "rows":
            if not narrow:
                return found
            stores = tuple(self._vector_stores(narrow, row))
            if self.schedule.is_outer_shared:
                return [*found, ir.If((equal(T, 0),), stores)]
            return [*found, ir.Scope(stores)]
        return found + self._row_stores(row)

    def _left_by_columns(self, wide: Sequence[Store], sums: Sequence[int]) -> ir.Comment:
        """Return the comment at the head of the last pass."""
        totals = [self.schedule.reductions.of_grid[n] for n in sums]
        named = [self._target(s).name for s in wide]
        named += [f"{t.op} over rows" for t in totals]
        tensors = [s.tensor for s in wide] + [t.tensor for t in totals]
        return self._frame.section(f"epilogue: {', '.join(named)}", *tensors)

    def _row_stores(self, row: IndexArithmetic) -> list[ir.Stmt]:
        """Lower stores of one value a row, where lanes are columns: one thread does them."""
        found: list[ir.Stmt] = []
        for store in self.schedule.writes.rows:
            value = self._stored(store, self._copy)
            address = row.value(self.lanes(store.address), self._names)
            element = ir.Element(Var(self._target(store).name), address)
            found += [*row.taken(), ir.Assign(element, value)]
        for n, total in enumerate(self.schedule.reductions.of_grid):
            if total.at == "one":
                found.append(self._added(n))
        tests = (*lowered.is_first_thread(self.schedule), *self._loops.own_row)
        return [ir.If(tests, tuple(found))] if found and tests else found

    @property
    def _total_name(self) -> str:
        if self.schedule.takes_rows_in_blocks:
            return "b"
        return "q" if self.schedule.is_summed_in_parts else "s"

    def _added(self, n: int, each: bool = False) -> ir.Stmt:
        """Add the value at this point to an accumulator of a grid reduction, or to `each` of
        several vectors'.
        """
        total, lanes = self.schedule.reductions.of_grid[n], self.lanes.vector
        place: ir.Expr = Var(f"{self._total_name}{n}")
        if each:
            place = ir.at(place, *EACH)
        if not total.is_of_columns:
            return ir.Assign(place, lowered.with_element(place, total, self._column_name))
        seen = lowered.get(place, total, lanes)
        one_more = lowered.with_element(seen, total, self._column_name)
        return lowered.put(place, total, lanes, one_more)

    def _summed_lanes(self, sums: Sequence[int]) -> list[ir.Stmt]:
        """Add the lane's values to accumulators of its column."""
        each = not self.schedule.takes_rows_in_blocks
        found = [self._added(n, each) for n in sums]
        own = self._loops.own_row
        return [ir.If(own, tuple(found))] if found and own else found

    def _vector_stores(
        self, stores: Sequence[Store], row: IndexArithmetic, sums: Sequence[int] = ()
    ) -> list[ir.Stmt]:
        """Lower the stores of one vector of columns (or of rows, with lanes of rows), and its terms
        of the grid reductions with the numbers `sums`.
        """
        roots = [v for n in sums for v in self.schedule.reductions.of_grid[n].roots]
        return self._with_stores(stores, roots, self._summed_lanes(sums), row)

    def _with_stores(
        self,
        stores: Sequence[Store],
        roots: Sequence[Value],
        lane: Sequence[ir.Stmt],
        row: IndexArithmetic,
    ) -> list[ir.Stmt]:
        """Lower the computation of one vector for some values, lane by lane, and its stores."""
        arrays: list[ir.Stmt] = []
        stored: list[ir.Stmt] = []
        for n, store in enumerate(stores):
            arrays.append(self._lanes_of(f"y{n}", store.tensor.dtype))
            element = ir.Element(Var(f"y{n}"), V)
            stored.append(ir.Assign(element, self._stored(store, self._copy)))
        indices = row.child()
        body = self._column_body([*(s.value for s in stores), *roots], [*stored, *lane], row)
        ends = [s for n, store in enumerate(stores) for s in self._guarded_store(n, store, indices)]
        if self._loops.own_row and ends:
            ends = [ir.If(self._loops.own_row, tuple(ends))]
        return [*arrays, *body, *ends]

    def _guarded_store(self, n: int, store: Store, indices: IndexArithmetic) -> list[ir.Stmt]:
        """Store the lanes of one vector that exist: all together, or one by one."""
        if not self.schedule.inside:
            return self._store(n, store, indices)
        target = Var(self._target(store).name)
        inner = indices.child()
        address = inner.value(self.lanes(store.address), self._names)
        guard = self._inside(inner)
        one = ir.Assign(ir.Element(target, address), ir.Element(Var(f"y{n}"), V))
        body: list[ir.Stmt] = [*inner.taken(), ir.If((guard,), (one,))]
        by_lane = self._lane_loop(body, LoopKind.UNROLLED)
        if not store.windows:
            return [by_lane]
        ends = [form for c in self.schedule.inside for form in self._at_ends(c)]
        whole = indices.child()
        tests = self._disjunction((tuple(dict.fromkeys(ends)),), whole)
        before = whole.taken()
        return [*before, ir.If((tests,), tuple(self._store(n, store, whole)), (by_lane,))]

    def _at_ends(self, condition: Condition) -> tuple[Condition, Condition]:
        """Return a condition at the first and at the last lane, which imply it in between."""
        each = self.lanes.at(self.lanes(condition))
        return each[0], each[-1]

    def _inside(self, indices: IndexArithmetic) -> ir.Expr:
        """Return the predicate that the lane is a point that exists."""
        return self._disjunction((tuple(map(self.lanes, self.schedule.inside)),), indices)


def lower_reduction(schedule: ReductionSchedule, frame: Frame) -> Lowered:
    """Lower a schedule to statements and launch parameters."""
    return Lowered(
        tuple(ReductionLowering(schedule, frame).body()),
        shared_bytes(schedule),
        schedule.mapping.blocks_per_sm,
        tuple(_scratch(schedule)),
        tuple(f.op for f in schedule.reductions.all),
        schedule.mapping.cluster,
        schedule.min_blocks_hint,
    )


def _scratch(schedule: ReductionSchedule) -> Iterator[ir.Parameter]:
    """Yield the workspace of partial results."""
    if schedule.reductions.of_grid:
        parts = ir.Scratch(schedule.reductions.workspace_bytes)
        yield ir.Parameter(WORKSPACE, None, parts, True, written=True, aliased=True)
