"""Text of a reduction kernel: prologue loads, a loop over the columns for each stage, epilogue
stores.

Names beyond those of `row_values`: a<n> are the accumulators of a fold, p<n> those of a part of the
row, e<n> the elements of a vector that one accumulator takes.
"""

from __future__ import annotations

from collections.abc import Sequence

from thunder_fuser.codegen import grid_text, reduction_text
from thunder_fuser.codegen.index_text import Emitter, fits
from thunder_fuser.codegen.lane_writer import braced, taken
from thunder_fuser.codegen.reduction_values import ReductionValueWriter
from thunder_fuser.ir.tables import reductions
from thunder_fuser.lower.scalar_graph import forms
from thunder_fuser.templates.reduction.schedule import (
    GridReduction,
    ReductionSchedule,
    RowReduction,
)
from thunder_fuser.templates.reduction.shared_memory import shared_bytes
from thunder_fuser.templates.store import Store


class ReductionWriter(ReductionValueWriter):
    """Writes the body of one reduction kernel."""

    @staticmethod
    def fits_int32(schedule: ReductionSchedule) -> bool:
        """Every index that the text can mention, and all steps towards it, fit into an int."""
        mentioned = [schedule.lanes(f) for node in schedule.graph for f in forms(node)]
        mentioned += [
            schedule.lanes(s.address) for s in (*schedule.element_stores, *schedule.row_stores)
        ]
        points = max(schedule.rows, 1) * max(schedule.columns, 1)
        finishes = all(grid_text.EpilogueWriter.fits_int32(f) for f in schedule.epilogues)
        return finishes and points < 2**31 and all(fits(form) for form in mentioned)

    def text(self) -> str:
        schedule = self.schedule
        row = self._emitter()
        in_blocks = schedule.takes_rows_in_blocks
        body = self._columns_of_row(row) if in_blocks else self._row_body(row)
        lines = ["TF_SHARED(smem);"] if shared_bytes(schedule) else []
        if schedule.totals:
            lines += grid_text.workspaces(schedule)
        if in_blocks:
            lines += self._loops.over_blocks_of_rows(body)
        elif schedule.grid_split == "rows":
            lines += self._loops.over_rows(body, self._first_row())
        elif schedule.lane_axis == "rows" and not schedule.is_outer_shared:
            lines += self._loops.owned_rows()
            exact = schedule.blocks * schedule.rows_per_block == self.lanes.vectors
            lines += body if exact else braced(f"if (u < {self.lanes.vectors})", body)
        else:
            # Threads that share a row synchronise: those without a row of their own work in vain.
            lines += [*self._loops.owned_rows(), *body]
        if schedule.totals:
            lines.append(f"tf::grid_barrier({grid_text.COUNTER}, {schedule.blocks}u);")
        for finish in schedule.epilogues:
            writer = grid_text.EpilogueWriter(schedule, finish, self._buffers, self._index_type)
            lines += writer.lines()
        return "\n".join(lines)

    def _row_body(self, row: Emitter) -> list[str]:
        """Everything that is done with one row."""
        schedule = self.schedule
        body = self._held_places()
        # A row's loads are issued before anything else, unless they wait for a position.
        if self._held_loads_wait:
            body += self._row_section(None, row)
        body += self._held_loads(row)
        body += self._row_section(None, row)
        for stage in range(schedule.stages):
            folds = [f for f in schedule.folds if f.stage == stage]
            if folds:
                body += self._stage(folds, row)
            body += self._row_section(stage, row)
        if schedule.grid_split == "columns":
            body += self._stage(schedule.totals, row)
        return [*body, *self._stores(row)]

    def _columns_of_row(self, row: Emitter) -> list[str]:
        """What is done with one vector of columns of one row, where all of it goes into totals."""
        return [
            *self._row_section(None, row),
            *self._vector_stores((), row, range(len(self.schedule.totals))),
        ]

    # ---- passes over the columns

    def _stage(self, folds: Sequence[RowReduction | GridReduction], row: Emitter) -> list[str]:
        """One pass over the columns that leaves the values of `folds`."""
        rounds = {fold for fold in folds if not reductions.lookup(fold.op).selects}
        in_parts = self.schedule.is_folded_in_parts and bool(rounds)
        roots = [v for f in folds for v in f.roots]
        number = folds[0].stage if isinstance(folds[0], RowReduction) else -1
        ahead = self._loads_ahead(roots, row, number)
        before: list[str] = []
        partial: list[str] = []
        lane: list[str] = []
        vectors: list[tuple[str, str, RowReduction | GridReduction]] = []
        joined: list[str] = []
        after: list[str] = []
        for n, fold in enumerate(self.schedule.reductions):
            if fold not in folds:
                continue
            lanes = self.schedule.lanes_of(fold)
            before += reduction_text.accumulators(f"a{n}", fold, lanes)
            name = "p" if in_parts and fold in rounds else "a"
            if name == "p":
                partial += reduction_text.accumulators(f"p{n}", fold, lanes)
                joined += reduction_text.joined(f"a{n}", f"p{n}", fold, lanes)
            if reduction_text.takes_vectors(fold, lanes):
                vectors.append((f"{name}{n}", f"e{n}", fold))
                lane.append(f"e{n}[v] = {reduction_text.element(fold, self._column_name)};")
            else:
                seen = reduction_text.get(f"{name}{n}", fold, lanes)
                one_more = reduction_text.with_element(seen, fold, self._column_name)
                lane.append(reduction_text.put(f"{name}{n}", fold, lanes, one_more))
            if isinstance(fold, GridReduction):
                after += grid_text.left_by_columns(self.schedule, n)
            else:
                after += reduction_text.combined(self.schedule, n)
        body = self._column_body(roots, lane, row)
        self._ahead = set()
        if vectors:
            body = self._with_vectors(vectors, body, row)
        loop = (
            self._loops.over_columns_in_parts(partial, body, joined, number, ahead)
            if in_parts
            else self._loops.over_columns(body, number, ahead)
        )
        return [*before, *loop, *after]

    def _with_vectors(
        self,
        vectors: Sequence[tuple[str, str, RowReduction | GridReduction]],
        body: Sequence[str],
        row: Emitter,
    ) -> list[str]:
        """Accumulators that take all lanes of a vector when `body` has gathered them in arrays."""
        lanes = self.lanes.vector
        arrays = [reduction_text.elements(fold, array, lanes) for _, array, fold in vectors]
        emitter = row.child()
        present = str(lanes)
        for condition in self.schedule.inside:
            # Holds for the lane v while v is not above this.
            last = emitter.emit(self.lanes(condition).substitute({self.lanes.v: 0}), self._names)
            present = f"({last} < {lanes - 1} ? ({last}) + 1 : {lanes})"
        takes = [
            f"{place} = {reduction_text.with_vector(place, fold, array, present)};"
            for place, array, fold in vectors
        ]
        return [*arrays, *body, *taken(emitter), *takes]

    # ---- stores

    def _stores(self, row: Emitter) -> list[str]:
        wide, narrow = self.schedule.element_stores, self.schedule.row_stores
        totals = enumerate(self.schedule.totals)
        sums = [n for n, total in totals if total.is_of_columns]
        lines: list[str] = []
        if wide or sums:
            ahead = self._loads_ahead([s.value for s in wide], row, -1)
            lines += self._loops.over_columns(self._vector_stores(wide, row, sums), -1, ahead)
            self._ahead = set()
        if self.schedule.lane_axis == "rows":
            first = "if (t == 0)" if self.schedule.is_outer_shared else ""
            return lines + (braced(first, self._vector_stores(narrow, row)) if narrow else [])
        return lines + self._row_stores(row)

    def _row_stores(self, row: Emitter) -> list[str]:
        """Stores of one value a row, where lanes are columns: one thread does them."""
        lines: list[str] = []
        for store in self.schedule.row_stores:
            target = self._buffers.get(store.tensor, store.tensor)
            value = self._stored(store, self._copy)
            address = row.emit(self.lanes(store.address), self._names)
            lines += [*taken(row), f"{target.name}[{address}] = {value};"]
        for n, total in enumerate(self.schedule.totals):
            if total.at == "one":
                lines.append(self._added(n))
        tests = (["t == 0"] if self.schedule.threads > 1 else []) + self._loops.own_row
        return braced(f"if ({' && '.join(tests)})", lines) if lines and tests else lines

    @property
    def _total_name(self) -> str:
        if self.schedule.takes_rows_in_blocks:
            return "b"
        return "q" if self.schedule.is_summed_in_parts else "s"

    def _added(self, n: int, step: str = "") -> str:
        """The statement that adds the value at this point to a total's accumulator."""
        total = self.schedule.totals[n]
        place, lanes = f"{self._total_name}{n}{step}", self.lanes.vector
        if not total.is_of_columns:
            return f"{place} = {reduction_text.with_element(place, total, self._column_name)};"
        seen = reduction_text.get(place, total, lanes)
        one_more = reduction_text.with_element(seen, total, self._column_name)
        return reduction_text.put(place, total, lanes, one_more)

    def _summed_lanes(self, sums: Sequence[int]) -> list[str]:
        """The lane's values into totals of its column."""
        step = "" if self.schedule.takes_rows_in_blocks else "[k]"
        lines = [self._added(n, step) for n in sums]
        return (
            braced(f"if ({self._loops.own_row[0]})", lines)
            if lines and self._loops.own_row
            else lines
        )

    def _vector_stores(
        self, stores: Sequence[Store], row: Emitter, sums: Sequence[int] = ()
    ) -> list[str]:
        """What one vector of columns (or of rows, with lanes of rows) leaves in memory and in the
        totals with the numbers `sums`.
        """
        roots = [s.value for s in stores]
        roots += [v for n in sums for v in self.schedule.totals[n].roots]
        arrays = [
            f"{s.tensor.dtype.ctype} y{n}[{self.lanes.vector}];" for n, s in enumerate(stores)
        ]
        names = [f"y{n}[v] = {self._stored(s, self._copy)};" for n, s in enumerate(stores)]
        emitter = row.child()
        body = self._column_body(roots, [*names, *self._summed_lanes(sums)], row)
        ends = [line for n, s in enumerate(stores) for line in self._guarded_store(n, s, emitter)]
        if self._loops.own_row:
            ends = braced(f"if ({self._loops.own_row[0]})", ends)
        return [*arrays, *body, *ends]

    def _guarded_store(self, n: int, store: Store, emitter: Emitter) -> list[str]:
        if not self.schedule.inside:
            return self._store(n, store, emitter)
        target = self._buffers.get(store.tensor, store.tensor)
        inner = emitter.child()
        address = inner.emit(self.lanes(store.address), self._names)
        guard = self._inside(inner)
        body = [*taken(inner), f"if ({guard}) {target.name}[{address}] = y{n}[v];"]
        return ["TF_UNROLL", *braced(self._lane_loop(), body)]

    def _inside(self, emitter: Emitter) -> str:
        """Whether the lane is a point that exists."""
        return self._disjunction((tuple(map(self.lanes, self.schedule.inside)),), emitter)
