"""Lowering of a reduction kernel's values in registers and shared memory, by row and by column.

Names beyond those of `lanes_to_ir`: r is the row and c the column (one of them is the loop variable
that lanes divide), t the thread's number within the row, k the vector's within the thread, h<n> the
row of a cached value, n<n> data fetched ahead of its use, w<n> data of this row cached as words of
memory.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from thunder_fuser import kernel_ir as ir
from thunder_fuser.ir.integer.symint import Form
from thunder_fuser.kernel_ir import Var, add, times
from thunder_fuser.lower import values
from thunder_fuser.lower.brief import find_brief
from thunder_fuser.lower.frame import Frame
from thunder_fuser.lower.index.index_arithmetic import IndexArithmetic
from thunder_fuser.lower.scalar_graph import (
    Folded,
    IndexValue,
    IndirectIndex,
    Load,
    PhiloxCall,
    Random,
    Select,
    Value,
    forms,
    operands,
    reachable,
)
from thunder_fuser.lower.vectors.lane_loads import EACH, ONE, Copy, K, V
from thunder_fuser.lower.vectors.lanes import lane_condition
from thunder_fuser.lower.vectors.lanes_to_ir import LaneLowering
from thunder_fuser.lower.vectors.vectorize import ALWAYS
from thunder_fuser.templates.reduction.lowering.accumulators import SMEM, G, T
from thunder_fuser.templates.reduction.lowering.row_loops import RowLoops
from thunder_fuser.templates.reduction.on_chip.cached_values import value_smem_bytes
from thunder_fuser.templates.reduction.on_chip.shared_memory import (
    access_smem_offset,
    value_smem_offset,
)
from thunder_fuser.templates.reduction.schedule import ReductionSchedule

_C, _U, _ZERO = Var("c"), Var("u"), Var("zero")


class RowLowering(LaneLowering):
    """Lowers loads and values of one row, in the order in which its passes need them."""

    def __init__(self, schedule: ReductionSchedule, frame: Frame) -> None:
        stores = [*schedule.writes.elements, *schedule.writes.rows]
        folded = [v for f in schedule.reductions.all for v in f.roots]
        self._cached = (*schedule.row_cache.values, *schedule.portion.values)
        folded += self._cached
        graph, accesses, lanes = schedule.graph, schedule.accesses, schedule.lanes
        super().__init__(graph, accesses, lanes, stores, frame, folded, schedule.paired)
        # Grid reductions go through memory; cached values are read by other nodes only.
        exact = [*(s.value for s in stores), *schedule.exact_terms]
        exact += [f.position for f in schedule.reductions.of_rows if f.position is not None]
        folds = [(f.op, f.value, f.tensor) for f in schedule.reductions.of_rows]
        self._brief = find_brief(self._live_nodes, exact, folds)
        self.schedule = schedule
        self._folds = {f.tensor: n for n, f in enumerate(schedule.reductions.of_rows)}
        self._row_values = self._find_row_values()
        # Nodes computed once a row, and the stage after which they are.
        self._row_stages = {
            node: self._stage_of(node)
            for node in self._live_nodes
            if node.order in self._row_values and schedule.lane_axis == "columns"
        }
        self._row_loads = self._find_row_loads()
        self._stage_dependent_loads = self._find_stage_dependent_loads()
        self._written: set[Value] = set()
        self._loops = RowLoops(schedule, frame)
        # Accesses whose vectors are all loaded before a pass begins.
        self._ahead: set[int] = set()
        # Accesses that an earlier pass has prefetched to a cache of a host core.
        self._near: set[int] = set()
        # Accesses and values that an earlier pass has left in shared memory.
        self._in_smem: set[int] = set()
        self._ready: set[Value] = set(schedule.portion.values)

    # ---- which values live where

    def _find_row_values(self) -> set[int]:
        """Return nodes (by order) with one value for all columns of a row."""
        found: set[int] = set()
        for node in self._live_nodes:
            if not self._moves(node) and all(o.order in found for o in operands(node)):
                found.add(node.order)
        return found

    def _moves(self, node: Value) -> bool:
        """True if the node itself depends on the column (or, with lanes of rows, on the lane)."""
        match node:
            case Load():
                # Loads that share an access are read in one place.
                shared = self.accesses[self._access[node]].loads
                contexts = [c for load in shared for c in self.graph.contexts[load]]
                mentioned = [load.address for load in shared]
                # Any unconditional use makes the load unconditional.
                if all(contexts):
                    mentioned += [condition for context in contexts for condition in context]
            case IndexValue() | PhiloxCall() | Random():
                mentioned = [*forms(node)]
            case Select():
                mentioned = list(node.conditions)
            case IndirectIndex():
                mentioned = [c for context in self.graph.checks[node] for c in context]
            case _:
                mentioned = []
        return any(self._is_column_dependent(f) for f in mentioned)

    def _is_column_dependent(self, form: Form) -> bool:
        if self.schedule.lane_axis == "columns":
            return self.schedule.lanes.moves(form)
        return bool({v.name for v in self.lanes(form).variables()} & {"c", "v"})

    def _stage_of(self, node: Value) -> int | None:
        """Return the stage after which a row value can be computed; None: from the start."""
        stages = [
            self.schedule.reductions.of_rows[self._folds[n.tensor]].stage
            for n in reachable([node])
            if isinstance(n, Folded)
        ]
        return max(stages, default=None)

    def _row_section(self, stage: int | None, indices: IndexArithmetic) -> list[ir.Stmt]:
        """Compute the row values that are ready after a stage."""
        found: list[ir.Stmt] = []
        for node, ready in self._row_stages.items():
            if ready != stage or node in self._written:
                continue
            if isinstance(node, Load):
                k = self._access[node]
                self._written.update(self.accesses[k].loads)
                found += [self._array(k), *self._loads([k], ONE, indices, self._written)]
                continue
            self._written.add(node)
            found += self._defined(node, ONE, indices)
        return found

    def _find_row_loads(self) -> set[int]:
        """Return accesses that are read once a row."""
        if self.schedule.lane_axis == "rows":
            return set()
        return {
            self._access[n]
            for n in self._live
            if isinstance(n, Load) and n.order in self._row_values
        }

    def _find_stage_dependent_loads(self) -> set[int]:
        """Return accesses at positions that a stage computes: nothing can cache them before it."""
        waits = (any(isinstance(n, Folded) for n in self._awaited(a)) for a in self.accesses)
        return {k for k, is_dependent in enumerate(waits) if is_dependent}

    # ---- loads

    def _pointer(self, k: int) -> ir.Expr:
        pointer = super()._pointer(k)
        return ir.Address(pointer, _ZERO) if k in self.schedule.row_cache.not_hoisted else pointer

    def _register_array(self, k: int) -> ir.Registers:
        """Declare registers for this thread's vectors of a row."""
        steps = self.schedule.steps
        if self._is_cached_as_words(k):
            return ir.Registers(f"w{k}", self._fetch_type(k), (steps,))
        return self._array(k, steps)

    def _value_registers(self, value: Value) -> ir.Registers:
        """Declare registers for this thread's vectors of a cached value."""
        lanes = self.lanes.vector if value.order in self._varying else 1
        sizes = self.schedule.steps, lanes
        in_place = value in self.schedule.row_cache.in_place
        dtype = values.register_dtype(value.dtype)
        return ir.Registers(f"h{value.order}", dtype, sizes, in_place=in_place)

    def _waits_as_words(self, k: int) -> bool:
        """True if loads ahead of a pass stay raw words of memory until their step: unpacked, halves
        of words would be moved from loads to steps, which have predicates of their own.
        """
        access = self.accesses[k]
        if not access.is_one_access(self.lanes.vector) or len(access.variants) != 1:
            return False
        return access.variants[0].conditions == ALWAYS

    def _is_cached_as_words(self, k: int) -> bool:
        """True if an access is cached in registers as raw words, where some threads have one vector
        less than others, so that each step of a pass has a predicate.
        """
        tested = self.schedule.walks_columns and not self.schedule.has_whole_steps
        waits = tested and self._in_registers(k) and self._waits_as_words(k)
        return waits and not self._awaited(self.accesses[k])

    def _declare_cached_values(self) -> list[ir.Stmt]:
        """Declare cached values: pointers into shared memory, and registers."""
        found: list[ir.Stmt] = []
        for value in self.schedule.row_cache.values_in_smem:
            place = add(SMEM, ir.Int(value_smem_offset(self.schedule, value)))
            if self.schedule.rows_per_block > 1:
                own = ir.UnsignedBinary("/", ir.LaunchIndex.THREAD, ir.Int(self.schedule.threads))
                row = ir.LaunchIndex.THREAD if self.schedule.threads == 1 else own
                place = add(place, times(row, ir.Int(value_smem_bytes(value, self.schedule.lanes))))
            dtype = values.register_dtype(value.dtype)
            found.append(ir.LetPointer(f"h{value.order}", dtype, ir.Reinterpret(dtype, place)))
        return [*found, *map(self._value_registers, self.schedule.row_cache.values_in_registers)]

    def _needed(self, roots: Sequence[Value], *, loaded: bool = False) -> set[Value]:
        """Return nodes that a pass computes and loads for some roots; cached values are read."""
        return reachable(roots, loaded=loaded, ready=self._ready)

    def _in_registers(self, access: int) -> bool:
        """True if registers cache an access: not stage-dependent, nor read once a row."""
        if access in self._stage_dependent_loads or access in self._row_loads:
            return False
        return access in self.schedule.row_cache.registers

    def _fetched(
        self, accesses: Sequence[int], indices: IndexArithmetic, done: set[Value]
    ) -> list[ir.Stmt]:
        """Load a vector of each access, from shared memory if an earlier pass left it there."""
        words = {k: f"w{k}" for k in accesses if self._is_cached_as_words(k)}
        words |= {k: f"n{k}" for k in accesses if k in self._ahead and self._waits_as_words(k)}
        found: list[ir.Stmt] = [
            self._register_array(k) if self._in_registers(k) and k not in words else self._array(k)
            for k in accesses
            if k not in self._ahead or k in words
        ]
        found += [
            ir.Unpack(ir.Element(Var(name), K), self._register(k, ONE)) for k, name in words.items()
        ]
        for k in accesses:
            target = self._register(k, self._copy)
            if k in self._in_smem:
                found.append(self._from_shared(k, target))
                continue
            if k not in self._ahead and k not in words:
                found += [*self._by_host(k, indices), *self._loads([k], self._copy, indices, done)]
            if k in self.schedule.row_cache.shared:
                self._in_smem.add(k)
                found.append(ir.VectorStore(self.lanes.vector, self._smem_place(k), target))
        return found

    def _by_host(self, k: int, indices: IndexArithmetic) -> list[ir.Stmt]:
        """Prefetch a later vector of an access, in the first pass that loads it: later passes find
        it in a cache. Behind the end of a row the next one begins, or what a prefetch tolerates.
        """
        wanted = [] if k in self._near else [p for n, p in self.schedule.pipeline.by_host if n == k]
        self._near.add(k)
        return self._prefetched(wanted, indices)

    def _from_shared(self, k: int, target: ir.Expr) -> ir.Stmt:
        return ir.VectorLoad(self.lanes.vector, self._smem_place(k), target)

    def _smem_place(self, k: int) -> ir.Address:
        """Return the address of the current vector of an access in shared memory."""
        row = add(SMEM, ir.Int(access_smem_offset(self.schedule, k)))
        elements = ir.Reinterpret(self.accesses[k].loads[0].dtype, row)
        return ir.Address(elements, times(self._vector_of_block, ir.Int(self.lanes.vector)))

    @property
    def _vector_of_block(self) -> ir.Expr:
        """Number of the current vector among those that a block shares."""
        if self.schedule.mapping.shares_rows:
            return add(times(K, ir.Int(self.schedule.threads)), T)
        if not self.schedule.is_outer_shared:
            return _U
        return add(times(_C, ir.Int(self.schedule.rows_per_block)), G)

    def _column_accesses(self, nodes: set[Value]) -> list[int]:
        found = {self._access[n] for n in nodes if isinstance(n, Load)}
        return sorted(found - self._row_loads)

    # ---- one vector of columns

    def _column_body(
        self, roots: Sequence[Value], lane: Sequence[ir.Stmt], row: IndexArithmetic
    ) -> list[ir.Stmt]:
        """Lower one vector of columns: loads unless cached, values, and the statements `lane`."""
        indices = row.child()
        found: list[ir.Stmt] = []
        done = set(self._written)
        wanted = [
            k
            for k in self._column_accesses(self._needed(roots))
            if not self._in_registers(k) or self._is_cached_as_words(k)
        ]
        found += self._fetched(wanted, indices, done)
        inside: list[ir.Stmt] = []
        of_lane = indices.child()
        computed = self._needed(roots, loaded=True)
        cached = [node for node in self._cached if node in computed]
        for node in self._live_nodes:
            if node not in computed or self._is_of_row(node) or node in done:
                continue
            varies = node.order in self._varying or self.schedule.lane_axis == "rows"
            scope = of_lane if varies else indices
            here = inside if varies else found
            name = self._column_name(node)
            if node in self._ready:
                assert isinstance(name, Var)
                dtype = values.register_dtype(node.dtype)
                here.append(ir.Let(name.name, dtype, self._cached_element(node, varies)))
                continue
            here += self._defined(node, self._copy, scope)
            if node in cached:
                here.append(ir.Assign(self._cached_element(node, varies), name))
        self._ready.update(cached)
        guard = tuple(
            self._condition(lane_condition(c, self.lanes), of_lane) for c in self.schedule.inside
        )
        inside += of_lane.taken()
        if guard and self.schedule.lane_axis == "columns":
            inside.append(ir.If(guard, tuple(lane)))
        else:
            inside += lane
        return [*found, self._lane_loop(inside, ir.LoopKind.VECTOR)]

    def _cached_element(self, node: Value, varies: bool) -> ir.Element:
        """Return the place of a cached value."""
        if node not in self.schedule.row_cache.values_in_smem:
            return ir.Element(ir.Element(Var(f"h{node.order}"), K), V if varies else ir.Int(0))
        vector = times(_U, ir.Int(self.lanes.vector))
        return ir.Element(Var(f"h{node.order}"), add(vector, V) if varies else vector)

    @property
    def _copy(self) -> Copy:
        return EACH if self.schedule.row_cache.registers or self._ahead else ONE

    def _is_of_row(self, node: Value) -> bool:
        return self.schedule.lane_axis == "columns" and node.order in self._row_values

    @property
    def _arrays(self) -> Hashable:
        return tuple(self._ahead)

    def _column_name(self, value: Value) -> ir.Expr:
        return self._name(value, self._copy)

    def _name(self, value: Value, copy: Copy) -> ir.Expr:
        if isinstance(value, Folded):
            result = Var(f"f{self._folds[value.tensor]}")
            return ir.Element(result, V) if self.schedule.lane_axis == "rows" else result
        return super()._name(value, copy)

    def _register(self, k: int, copy: Copy) -> ir.Expr:
        is_ahead = k in self._ahead and not self._waits_as_words(k)
        in_registers = is_ahead or (self._in_registers(k) and not self._is_cached_as_words(k))
        return super()._register(k, copy if in_registers else ONE)
