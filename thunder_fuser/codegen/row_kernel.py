"""The text of a row kernel: loads, then a loop over the columns for each stage, then the stores.

Names beyond those of `lane_writer`: r is the row and c the column (one of them is the loop variable
that lanes divide), t the thread's number within the row, k the vector's number within the thread,
a<n> the accumulators of a fold, one a lane.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from thunder_fuser.analysis.lanes import lane_condition
from thunder_fuser.analysis.value import (
    Draw,
    Folded,
    IndexValue,
    Load,
    Position,
    Random,
    Select,
    Value,
    forms,
    operands,
    reachable,
)
from thunder_fuser.codegen import expressions, fold_text, total_text
from thunder_fuser.codegen.lane_writer import LaneWriter, braced, taken
from thunder_fuser.codegen.row_loops import RowLoops
from thunder_fuser.ir.fusion import TensorView
from thunder_fuser.ir.symint import Form
from thunder_fuser.ir.symint_emit import Emitter, fits
from thunder_fuser.schedule.exchange import held_offset, kept_offset, shared_bytes
from thunder_fuser.schedule.holding import held_bytes
from thunder_fuser.schedule.row_schedule import (
    Fold,
    RowSchedule,
    Total,
)
from thunder_fuser.schedule.store import Store


class RowWriter(LaneWriter):
    """Writes the body of one row kernel."""

    def __init__(
        self, schedule: RowSchedule, buffers: Mapping[TensorView, TensorView], index_type: str
    ) -> None:
        stores = [*schedule.wide, *schedule.narrow]
        roots = [s.value for s in stores] + [v for f in schedule.reductions for v in f.roots]
        super().__init__(
            schedule.graph, schedule.accesses, schedule.lanes, roots, buffers, index_type
        )
        self.schedule = schedule
        self._names |= {"r": "r", "c": "c"}
        self._folds = {f.tensor: n for n, f in enumerate(schedule.folds)}
        self._row_values = self._find_row_values()
        self._row_loads = self._find_row_loads()
        self._late_loads = self._find_late_loads()
        self._written: set[Value] = set()
        self._loops = RowLoops(schedule, index_type)
        # Accesses and values that an earlier pass has left in shared memory.
        self._kept: set[int] = set()
        self._ready: set[Value] = set()

    @staticmethod
    def fits_int32(schedule: RowSchedule) -> bool:
        """Every index that the text can mention, and all steps towards it, fit into an int."""
        mentioned = [schedule.lanes(f) for node in schedule.graph for f in forms(node)]
        mentioned += [schedule.lanes(s.address) for s in (*schedule.wide, *schedule.narrow)]
        points = max(schedule.rows, 1) * max(schedule.columns, 1)
        finishes = all(total_text.FinishWriter.fits_int32(f) for f in schedule.finishes)
        return finishes and points < 2**31 and all(fits(form) for form in mentioned)

    def text(self) -> str:
        schedule = self.schedule
        row = self._emitter()
        in_blocks = schedule.takes_rows_in_blocks
        body = self._columns_of_row(row) if in_blocks else self._row_body(row)
        lines = ["TF_SHARED(smem);"] if shared_bytes(schedule) else []
        if schedule.totals:
            lines += total_text.workspaces(schedule)
        if in_blocks:
            lines += self._loops.over_blocks_of_rows(body)
        elif schedule.sharing == "rows":
            lines += self._loops.over_rows(body)
        elif schedule.lane_axis == "rows":
            lines += self._loops.owned_rows()
            exact = schedule.blocks * schedule.rows_per_block == self.lanes.vectors
            lines += body if exact else braced(f"if (u < {self.lanes.vectors})", body)
        else:
            # Threads that share a row synchronise: those without a row of their own work in vain.
            lines += [*self._loops.owned_rows(), *body]
        if schedule.totals:
            lines.append(f"tf::grid_barrier({total_text.COUNTER}, {schedule.blocks}u);")
        for finish in schedule.finishes:
            writer = total_text.FinishWriter(schedule, finish, self._buffers, self._index_type)
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
        if schedule.sharing == "columns":
            body += self._stage(schedule.totals, row)
        return [*body, *self._stores(row)]

    def _columns_of_row(self, row: Emitter) -> list[str]:
        """What is done with one vector of columns of one row, where all of it goes into totals."""
        return [
            *self._row_section(None, row),
            *self._vector_stores((), row, range(len(self.schedule.totals))),
        ]

    # ---- which values live where

    def _find_row_values(self) -> set[int]:
        """Nodes (by order) that are one value for all columns of a row."""
        found: set[int] = set()
        for node in self._live_nodes():
            if not self._moves(node) and all(o.order in found for o in operands(node)):
                found.add(node.order)
        return found

    def _moves(self, node: Value) -> bool:
        """Whether the node itself depends on the column (or, with lanes of rows, on the lane)."""
        match node:
            case Load():
                # Loads that share an access are read in one place.
                shared = self.accesses[self._access[node]].loads
                contexts = [c for load in shared for c in self.graph.contexts[load]]
                mentioned = [load.address for load in shared]
                mentioned += [condition for context in contexts for condition in context]
            case IndexValue() | Draw() | Random():
                mentioned = [*forms(node)]
            case Select():
                mentioned = list(node.conditions)
            case Position():
                mentioned = [c for context in self.graph.checks[node] for c in context]
            case _:
                mentioned = []
        return any(self._is_column_dependent(f) for f in mentioned)

    def _is_column_dependent(self, form: Form) -> bool:
        names = {v.name for v in self.lanes(form).variables()}
        return bool(names & ({"c", "v"} if self.schedule.lane_axis == "rows" else {"u", "v"}))

    def _stage_of(self, node: Value) -> int | None:
        """The stage after which a row value can be computed; None: from the start."""
        stages = [
            self.schedule.folds[self._folds[n.tensor]].stage
            for n in reachable([node])
            if isinstance(n, Folded)
        ]
        return max(stages, default=None)

    def _row_section(self, stage: int | None, emitter: Emitter) -> list[str]:
        """Row values that can be computed from here on."""
        lines: list[str] = []
        if self.schedule.lane_axis == "rows":
            return lines
        for node in self._live_nodes():
            if node.order not in self._row_values or node in self._written:
                continue
            if self._stage_of(node) != stage:
                continue
            if isinstance(node, Load):
                k = self._access[node]
                self._written.update(self.accesses[k].loads)
                lines += [self._array(k, ""), *self._loads([k], "", emitter, self._written)]
                continue
            self._written.add(node)
            text = self._define(node, "", emitter)
            if text is not None:
                lines += [*taken(emitter), text]
        return lines

    def _find_row_loads(self) -> set[int]:
        """Accesses that are read once a row."""
        if self.schedule.lane_axis == "rows":
            return set()
        return {
            self._access[n]
            for n in self._live
            if isinstance(n, Load) and n.order in self._row_values
        }

    def _find_late_loads(self) -> set[int]:
        """Accesses at positions that a stage computes: nothing can hold them before it."""
        return {
            k
            for k, access in enumerate(self.accesses)
            if any(isinstance(node, Folded) for node in self._awaited(access))
        }

    @property
    def _held_loads_wait(self) -> bool:
        held = (k for k in self._column_accesses(self._live) if self._is_held(k))
        return any(self._awaited(self.accesses[k]) for k in held)

    # ---- loads

    def _held_loads(self, row: Emitter) -> list[str]:
        """What stays in registers, for every column of the row, before the first use of any."""
        wanted = [k for k in self._column_accesses(self._live) if self._is_held(k)]
        copies = f"[{self.schedule.steps}]"
        loads = self._loads(wanted, "[k]", row.child(), set(self._written))
        arrays = [self._array(k, copies) for k in wanted]
        return [*arrays, *self._loops.over_columns(loads)] if wanted else []

    def _held_places(self) -> list[str]:
        """Where this thread's row of each value that is held lies."""
        lines: list[str] = []
        for value in self.schedule.residency.held:
            place = f"smem + {held_offset(self.schedule, value)}"
            if self.schedule.rows_per_block > 1:
                threads = self.schedule.threads
                own = "threadIdx.x" if threads == 1 else f"threadIdx.x / {threads}u"
                place += f" + ({own}) * {held_bytes(value, self.schedule.lanes)}u"
            ctype = expressions.register_dtype(value.dtype).ctype
            lines.append(f"{ctype}* const h{value.order} = ({ctype}*)({place});")
        return lines

    def _needed(self, roots: Sequence[Value], *, loaded: bool = False) -> set[Value]:
        """What a pass computes and loads for some values; those that are held it reads."""
        return reachable(roots, loaded=loaded, ready=self._ready)

    def _is_held(self, access: int) -> bool:
        """Whether registers keep it; not what waits for a stage, nor what is read once a row."""
        if access in self._late_loads or access in self._row_loads:
            return False
        return access in self.schedule.residency.registers

    def _fetched(self, accesses: Sequence[int], emitter: Emitter, done: set[Value]) -> list[str]:
        """Loads of one vector, from shared memory where a pass before has left it there."""
        lines = [self._array(k, "") for k in accesses]
        for k in accesses:
            ctype, vector = self.accesses[k].loads[0].dtype.ctype, self.lanes.vector
            if k not in self.schedule.residency.shared:
                lines += self._loads([k], self._copy, emitter, done)
                continue
            place = f"({ctype}*)(smem + {kept_offset(self.schedule, k)}) + u * {vector}"
            if k in self._kept:
                lines.append(f"tf::load<{vector}>({place}, x{k});")
            else:
                self._kept.add(k)
                lines += self._loads([k], self._copy, emitter, done)
                lines.append(f"tf::store<{vector}>({place}, x{k});")
        return lines

    def _column_accesses(self, nodes: set[Value]) -> list[int]:
        found = {self._access[n] for n in nodes if isinstance(n, Load)}
        return sorted(found - self._row_loads)

    # ---- passes over the columns

    def _stage(self, folds: Sequence[Fold | Total], row: Emitter) -> list[str]:
        """One pass over the columns that leaves the values of `folds`."""
        in_parts = self.schedule.is_folded_in_parts
        name = "p" if in_parts else "a"
        before: list[str] = []
        partial: list[str] = []
        lane: list[str] = []
        vectors: list[tuple[str, str, Fold | Total]] = []
        joined: list[str] = []
        after: list[str] = []
        for n, fold in enumerate(self.schedule.reductions):
            if fold not in folds:
                continue
            lanes = self.schedule.lanes_of(fold)
            before += fold_text.accumulators(f"a{n}", fold, lanes)
            partial += fold_text.accumulators(f"p{n}", fold, lanes)
            if fold_text.takes_vectors(fold, lanes):
                vectors.append((f"{name}{n}", f"e{n}", fold))
                lane.append(f"e{n}[v] = {fold_text.element(fold, self._column_name)};")
            else:
                seen = fold_text.get(f"{name}{n}", fold, lanes)
                one_more = fold_text.with_element(seen, fold, self._column_name)
                lane.append(fold_text.put(f"{name}{n}", fold, lanes, one_more))
            joined += fold_text.joined(f"a{n}", f"p{n}", fold, lanes)
            if isinstance(fold, Total):
                after += total_text.left_by_columns(self.schedule, n)
            else:
                after += fold_text.combined(self.schedule, n)
        roots = [v for f in folds for v in f.roots]
        body = self._column_body(roots, lane, row)
        if vectors:
            body = self._with_vectors(vectors, body, row)
        loop = (
            self._loops.over_columns_in_parts(partial, body, joined)
            if in_parts
            else self._loops.over_columns(body)
        )
        return [*before, *loop, *after]

    def _with_vectors(
        self,
        vectors: Sequence[tuple[str, str, Fold | Total]],
        body: Sequence[str],
        row: Emitter,
    ) -> list[str]:
        """Accumulators that take all lanes of a vector when `body` has gathered them in arrays."""
        lanes = self.lanes.vector
        arrays = [fold_text.elements(fold, array, lanes) for _, array, fold in vectors]
        emitter = row.child()
        present = str(lanes)
        for condition in self.schedule.inside:
            # Holds for the lane v while v is not above this.
            last = emitter.emit(self.lanes(condition).substitute({self.lanes.v: 0}), self._names)
            present = f"({last} < {lanes - 1} ? ({last}) + 1 : {lanes})"
        takes = [
            f"{place} = {fold_text.with_vector(place, fold, array, present)};"
            for place, array, fold in vectors
        ]
        return [*arrays, *body, *taken(emitter), *takes]

    def _column_body(self, roots: Sequence[Value], lane: Sequence[str], row: Emitter) -> list[str]:
        """What one vector of columns does: loads unless held, values, and the statements `lane`."""
        emitter = row.child()
        lines: list[str] = []
        done = set(self._written)
        wanted = [k for k in self._column_accesses(self._needed(roots)) if not self._is_held(k)]
        lines += self._fetched(wanted, emitter, done)
        inside: list[str] = []
        lane_emitter = emitter.child()
        computed = self._needed(roots, loaded=True)
        held = [node for node in self.schedule.residency.held if node in computed]
        for node in self._live_nodes():
            if node not in computed or self._is_of_row(node) or node in done:
                continue
            varies = node.order in self._varying or self.schedule.lane_axis == "rows"
            scope = lane_emitter if varies else emitter
            here = inside if varies else lines
            place = f"h{node.order}[u * {self.lanes.vector}{' + v' if varies else ''}]"
            name = self._column_name(node)
            if node in self._ready:
                ctype = expressions.register_dtype(node.dtype).ctype
                here.append(f"const {ctype} {name} = {place};")
                continue
            text = self._define(node, self._copy, scope)
            if text is not None:
                here += [*taken(scope), text]
            if node in held:
                here.append(f"{place} = {name};")
        self._ready.update(held)
        guard = [
            self._condition(lane_condition(c, self.lanes), lane_emitter)
            for c in self.schedule.inside
        ]
        statements = [*taken(lane_emitter), *lane]
        if guard and self.schedule.lane_axis == "columns":
            statements = [
                *statements[: len(statements) - len(lane)],
                *braced(f"if ({' && '.join(guard)})", lane),
            ]
        return [*lines, "TF_VEC", *braced(self._lane_loop(), [*inside, *statements])]

    @property
    def _copy(self) -> str:
        return "[k]" if self.schedule.residency.registers else ""

    def _is_of_row(self, node: Value) -> bool:
        return self.schedule.lane_axis == "columns" and node.order in self._row_values

    def _column_name(self, value: Value) -> str:
        return self._name(value, self._copy)

    def _name(self, value: Value, copy: str) -> str:
        if isinstance(value, Folded):
            lane = "[v]" if self.schedule.lane_axis == "rows" else ""
            return f"f{self._folds[value.tensor]}{lane}"
        return super()._name(value, copy)

    def _register(self, k: int, copy: str) -> str:
        return super()._register(k, copy if self._is_held(k) else "")

    # ---- stores

    def _stores(self, row: Emitter) -> list[str]:
        wide, narrow = self.schedule.wide, self.schedule.narrow
        totals = enumerate(self.schedule.totals)
        sums = [n for n, total in totals if total.at == "column"]
        lines = (
            self._loops.over_columns(self._vector_stores(wide, row, sums)) if wide or sums else []
        )
        if self.schedule.lane_axis == "rows":
            return lines + (braced("", self._vector_stores(narrow, row)) if narrow else [])
        return lines + self._row_stores(row)

    def _row_stores(self, row: Emitter) -> list[str]:
        """Stores of one value a row, where lanes are columns: one thread does them."""
        lines: list[str] = []
        for store in self.schedule.narrow:
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
            return f"{place} = {fold_text.with_element(place, total, self._column_name)};"
        seen = fold_text.get(place, total, lanes)
        one_more = fold_text.with_element(seen, total, self._column_name)
        return fold_text.put(place, total, lanes, one_more)

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
