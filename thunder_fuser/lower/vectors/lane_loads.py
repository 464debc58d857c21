"""Lowering of loads: vectors of a loop into register arrays, whole, in pieces or lane by lane.

Names: u is the vector index, v the lane; x0, x1, .. are loaded vectors, w0, w1, .. those that are
loaded as raw words. `copy` indexes register arrays that hold several vectors of one thread: [k].
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

from thunder_fuser import kernel_ir as ir
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import TensorView
from thunder_fuser.ir.integer.symint import Form, provable
from thunder_fuser.lower.frame import Frame
from thunder_fuser.lower.index.index_arithmetic import IndexArithmetic
from thunder_fuser.lower.scalar_graph import Load, Value, reachable
from thunder_fuser.lower.vectors.gathered_lanes import Alternative, certain_lanes
from thunder_fuser.lower.vectors.lane_windows import VectorAccess
from thunder_fuser.lower.vectors.lanes import LaneForms
from thunder_fuser.lower.vectors.vectorize import (
    ALWAYS,
    Disjunction,
    RegisterArray,
    simplify,
)

Copy = tuple[ir.Expr, ...]

K, V = ir.Var("k"), ir.LANE
EACH: Copy = (K,)
ONE: Copy = ()
MEMORY_WINDOW = ir.Var("w")
ALWAYS_TRUE = ir.BoolConst(True)


def lane_loop(lanes: int, body: ir.Body, kind: ir.LoopKind = ir.LoopKind.SERIAL) -> ir.Loop:
    """Return a loop over the lanes of a vector."""
    return ir.Loop(V.name, ir.Int(lanes), body, kind)


class LoadLowering(ABC):
    """Lowers the loads of one loop to statements."""

    def __init__(
        self, accesses: Sequence[RegisterArray], lanes: LaneForms, frame: Frame, paired: bool
    ) -> None:
        """
        paired  lanes are in registers in the order of `paired_lanes.py`
        """
        self.accesses = accesses
        self.lanes = lanes
        self._frame = frame
        self._paired = paired
        self._index = frame.index
        self._names: dict[str, ir.Expr] = {}
        self._access = {load: k for k, a in enumerate(accesses) for load in a.loads}
        # Nodes, by order, that differ from lane to lane.
        self._varying: set[int] = set()

    @abstractmethod
    def _define(self, node: Value, copy: Copy, indices: IndexArithmetic) -> ir.Stmt | None:
        """Return the definition of a node; None for loads and literals."""

    def _arithmetic(self) -> IndexArithmetic:
        return IndexArithmetic(self._index)

    def _array(self, k: int, *copies: int) -> ir.Registers:
        access = self.accesses[k]
        if self._paired and not access.is_uniform:
            return self._lanes_of(f"x{k}", access.loads[0].dtype, *copies)
        lanes = () if access.is_uniform else (self.lanes.vector,)
        # Lanes outside all conditions are computed and discarded: they need a defined value.
        zeroed = not (self._is_total(access) or self._is_fetched(access))
        return ir.Registers(f"x{k}", access.loads[0].dtype, (*copies, *lanes), zeroed)

    def _lanes_of(self, name: str, dtype: DataType, *copies: int) -> ir.Registers:
        """Return an array for the lanes of a vector, or of each of some copies of it."""
        lanes = self.lanes.vector
        if self._paired:
            return ir.Registers(name, ir.PairedLanes(dtype, lanes), copies)
        return ir.Registers(name, dtype, (*copies, lanes))

    def _register(self, k: int, copy: Copy) -> ir.Expr:
        """Return the register array into which an access loads."""
        return ir.at(ir.Var(f"x{k}"), *copy)

    def _loads(
        self, accesses: Sequence[int], copy: Copy, indices: IndexArithmetic, done: set[Value]
    ) -> list[ir.Stmt]:
        """Return loads in order, with the positions that they depend on. `done`: nodes that this
        scope has defined; updated.

        Predicated loads of words are unpacked after all loads: unpacked in place, they would make
        the thread wait before the next load.
        """
        found: list[ir.Stmt] = []
        fetched: list[ir.Stmt] = []
        at_edges: list[int] = []
        for k in accesses:
            access = self.accesses[k]
            target = self._register(k, copy)
            pointer = self._pointer(k)
            if awaited := self._awaited(access):
                found += [*self._edges(at_edges, copy, indices), *fetched]
                at_edges.clear()
                fetched.clear()
            found += self._definitions(awaited, copy, indices, done)
            if self._is_fetched(access):
                words = ir.Var(f"w{k}")
                found.append(ir.Registers(words.name, self._fetch_type(k), (), zeroed=True))
                found += self._variants(access, words, pointer, indices)
                fetched.append(ir.Unpack(words, target))
            elif access.gather:
                found += self._gather(access, target, pointer, indices, copy)
            elif access.edges:
                at_edges.append(k)
            else:
                found += self._variants(access, target, pointer, indices)
        return [*found, *self._edges(at_edges, copy, indices), *fetched]

    def _pointer(self, k: int) -> ir.Expr:
        """Return the pointer of the tensor that an access reads."""
        return ir.Var(self.accesses[k].loads[0].tensor.name)

    def _is_fetched(self, access: RegisterArray) -> bool:
        """True if an access is loaded as raw words, which are unpacked after all loads."""
        return access.is_one_access(self.lanes.vector) and not self._is_total(access)

    def _fetch_type(self, k: int) -> ir.RawVector:
        """Return the type of an access that is loaded as raw words."""
        return ir.RawVector(self.accesses[k].loads[0].dtype, self.lanes.vector)

    def _awaited(self, access: RegisterArray) -> list[Value]:
        """Return the positions on which an access depends, and their operands, in order."""
        found = reachable(p for load in access.loads for p in load.positions)
        return sorted(found, key=lambda node: node.order)

    def _positions_of(self, accesses: Sequence[int]) -> set[int]:
        """Return the accesses on whose values the positions of `accesses` depend."""
        awaited = (n for k in accesses for n in self._awaited(self.accesses[k]))
        return {self._access[n] for n in awaited if isinstance(n, Load)}

    def _definitions(
        self, nodes: Sequence[Value], copy: Copy, indices: IndexArithmetic, done: set[Value]
    ) -> list[ir.Stmt]:
        """Return definitions of the uniform nodes that are not done yet."""
        found: list[ir.Stmt] = []
        for node in nodes:
            if node.order not in self._varying and node not in done:
                done.add(node)
                found += self._defined(node, copy, indices)
        return found

    def _defined(self, node: Value, copy: Copy, indices: IndexArithmetic) -> list[ir.Stmt]:
        """Return the definition of a node, after the index arithmetic that it needs; none for loads
        and literals.
        """
        statement = self._define(node, copy, indices)
        return [] if statement is None else [*indices.taken(), statement]

    def _prefetched(
        self, prefetches: Sequence[tuple[TensorView, Form]], indices: IndexArithmetic
    ) -> list[ir.Stmt]:
        found: list[ir.Stmt] = []
        for tensor, address in prefetches:
            place = ir.Address(ir.Var(tensor.name), indices.value(address, self._names))
            found += [*indices.taken(), ir.Prefetch(place)]
        return found

    def _variants(
        self,
        access: RegisterArray,
        target: ir.Expr,
        pointer: ir.Expr,
        indices: IndexArithmetic,
    ) -> list[ir.Stmt]:
        """Return loads of all variants; equal window shapes are one load at a selected address."""
        variants = access.variants
        total = self._is_total(access)
        shapes = {tuple((w.width, w.lanes, w.picks) for w in v.windows) for v in variants}
        tests = [self._disjunction(v.conditions, indices) for v in variants]
        if len(shapes) == 1:
            addresses = [
                self._selected(tests, [v.windows[n].address for v in variants], indices)
                for n in range(len(variants[0].windows))
            ]
            before = indices.taken()
            loads = [
                statement
                for address, window in zip(addresses, variants[0].windows, strict=True)
                for statement in self._window(access, window, target, pointer, address)
            ]
            if total or ALWAYS_TRUE in tests:
                return [*before, *loads]
            return [*before, ir.If((ir.Or(tuple(dict.fromkeys(tests))),), tuple(loads))]
        before = indices.taken()
        bodies: list[ir.Body] = []
        for variant in variants:
            inner = indices.child()
            body: list[ir.Stmt] = []
            for window in variant.windows:
                address = inner.value(window.address, self._names)
                body += inner.taken()
                body += self._window(access, window, target, pointer, address)
            bodies.append(tuple(body))
        otherwise = bodies.pop() if total else ()
        for test, body_of in reversed(list(zip(tests, bodies, strict=False))):
            otherwise = (ir.If((test,), body_of, otherwise),)
        return [*before, *otherwise]

    def _edges(
        self, accesses: Sequence[int], copy: Copy, indices: IndexArithmetic
    ) -> list[ir.Stmt]:
        """Return loads of windows that lie in memory, grouped by test; a window that several loads
        share is loaded once.
        """
        tested: dict[ir.Expr, dict[tuple[str, Form, int, bool], list[_Edge]]] = {}
        for k in accesses:
            for piece in self.accesses[k].edges:
                test = self._disjunction(piece.conditions, indices)
                for window in piece.windows:
                    name = self.accesses[k].loads[0].tensor.name
                    key = name, window.address, window.width, window.is_aligned
                    tested.setdefault(test, {}).setdefault(key, []).append(_Edge(k, window))
        found: list[ir.Stmt] = [*indices.taken()]
        for test, windows in tested.items():
            inner = indices.child()
            body: list[ir.Stmt] = []
            for (name, address, width, is_aligned), edges in windows.items():
                place = ir.Address(ir.Var(name), inner.value(address, self._names))
                body += inner.taken()
                load = ir.VectorLoad(width, place, MEMORY_WINDOW, is_aligned)
                dtype = self.accesses[edges[0].access].loads[0].dtype
                picks = (
                    ir.PickLanes(MEMORY_WINDOW, self._register(e.access, copy), e.picks)
                    for e in edges
                )
                body.append(ir.Scope((ir.Registers("w", dtype, (width,)), load, *picks)))
            found += body if test == ALWAYS_TRUE else [ir.If((test,), tuple(body))]
        return found

    def _selected(
        self, tests: Sequence[ir.Expr], addresses: Sequence[Form], indices: IndexArithmetic
    ) -> ir.Expr:
        if len(set(addresses)) == 1:
            return indices.value(addresses[0], self._names)
        found = [indices.value(address, self._names) for address in addresses]
        result = found[-1]
        for test, address in zip(reversed(tests[:-1]), reversed(found[:-1]), strict=True):
            result = ir.Select(test, address, result)
        return result

    def _window(
        self,
        access: RegisterArray,
        window: VectorAccess,
        target: ir.Expr,
        pointer: ir.Expr,
        address: ir.Expr,
    ) -> list[ir.Stmt]:
        if access.is_uniform:
            return [ir.Assign(target, ir.Element(pointer, address))]
        place = ir.Address(pointer, address)
        if self._is_fetched(access):
            return [ir.Assign(target, ir.RawLoad(window.width, place))]
        if window.width == 1:
            element = ir.Element(pointer, address)
            return [ir.Assign(ir.Element(target, ir.Int(n)), element) for n in window.lanes]
        if window.is_in_order and window.width == self.lanes.vector:
            return [ir.VectorLoad(window.width, place, target, window.is_aligned)]
        picks = _picks(window)
        dtype = access.loads[0].dtype
        return [
            ir.Scope(
                (
                    ir.Registers("w", dtype, (window.width,)),
                    ir.VectorLoad(window.width, place, MEMORY_WINDOW, window.is_aligned),
                    ir.PickLanes(MEMORY_WINDOW, target, picks),
                )
            )
        ]

    def _gather(
        self,
        access: RegisterArray,
        target: ir.Expr,
        pointer: ir.Expr,
        indices: IndexArithmetic,
        copy: Copy,
    ) -> list[ir.Stmt]:
        """Return loads lane by lane, of the alternative whose conditions hold; runs untested."""
        runs: list[tuple[tuple[ir.Expr, ...], ir.Body]] = []
        for alternative in access.gather:
            if alternative.run is not None:
                tests = tuple(self._condition(c, indices) for c in alternative.run)
                runs.append((tests, (self._run(alternative, target, pointer, indices),)))
        before = indices.taken()
        found: list[ir.Stmt] = []
        inner = indices.child()
        body: list[ir.Stmt] = []
        for node in self._awaited(access):
            if node.order in self._varying:
                body += self._defined(node, copy, inner)
        for alternative in access.gather:
            lanes = certain_lanes(alternative.conditions, self.lanes)
            if lanes is not None and not self.lanes.diverges([alternative.address]):
                # The lanes are known at compile time and not left to a vectoriser: g++ 12 reads
                # more than a masked load may.
                found += self._chosen_lanes(alternative.address, lanes, target, pointer)
                continue
            test = self._disjunction(alternative.conditions, inner)
            address = inner.value(alternative.address, self._names)
            body += inner.taken()
            load = ir.Assign(ir.Element(target, V), ir.Element(pointer, address))
            body.append(load if test == ALWAYS_TRUE else ir.If((test,), (load,)))
        others = [*found, self._lane_loop(body, ir.LoopKind.UNROLLED)] if body else found
        for tests, run in reversed(runs):
            others = [ir.If(tests, run, tuple(others))]
        return [*before, *others]

    def _run(
        self,
        alternative: Alternative,
        target: ir.Expr,
        pointer: ir.Expr,
        indices: IndexArithmetic,
    ) -> ir.Stmt:
        """Return the loads of lanes that are neighbours in memory."""
        inner = indices.child()
        address = inner.value(alternative.address, self._names)
        one = ir.Assign(ir.Element(target, V), ir.Element(pointer, address))
        return self._lane_loop([*inner.taken(), one], ir.LoopKind.UNROLLED)

    def _chosen_lanes(
        self, address: Form, lanes: Sequence[int], target: ir.Expr, pointer: ir.Expr
    ) -> list[ir.Stmt]:
        indices = self._arithmetic()
        found: list[ir.Stmt] = []
        for n in lanes:
            place = indices.value(address.substitute({self.lanes.v: n}), self._names)
            load = ir.Assign(ir.Element(target, ir.Int(n)), ir.Element(pointer, place))
            found += [*indices.taken(), load]
        return [ir.Scope(tuple(found))]

    def _lane_loop(self, body: Sequence[ir.Stmt], kind: ir.LoopKind) -> ir.Loop:
        return lane_loop(self.lanes.vector, tuple(body), kind)

    def _is_total(self, access: RegisterArray) -> bool:
        """True if every lane of every vector is loaded, whatever conditions hold."""
        if access.gather:
            return simplify(c for a in access.gather for c in a.conditions) == ALWAYS
        if access.edges:
            windows = [w for piece in access.edges for w in piece.windows]
            everywhere = all(piece.conditions == ALWAYS for piece in access.edges)
            return everywhere and sum(len(w.lanes) for w in windows) == self.lanes.vector
        everywhere = simplify(c for v in access.variants for c in v.conditions) == ALWAYS
        read = [sum(len(w.lanes) for w in v.windows) for v in access.variants]
        return everywhere and all(count == self.lanes.vector for count in read)

    # ---- conditions

    def _disjunction(self, conditions: Disjunction, indices: IndexArithmetic) -> ir.Expr:
        tests: list[ir.Expr] = []
        for conjunction in conditions:
            parts = [self._condition(c, indices) for c in conjunction if not provable(c, 0, None)]
            if not parts:
                return ALWAYS_TRUE
            tests.append(parts[0] if len(parts) == 1 else ir.And(tuple(parts)))
        return tests[0] if len(tests) == 1 else ir.Or(tuple(tests))

    def _condition(self, condition: Form, indices: IndexArithmetic) -> ir.Expr:
        """Return `condition >= 0` as a comparison of its non-constant part with a constant."""
        varying = condition - condition.const
        if all(coef < 0 for _, coef in varying.terms):
            value = indices.value(-varying, self._names)
            return ir.Binary("<=", value, ir.Int(condition.const))
        return ir.Binary(">=", indices.value(varying, self._names), ir.Int(-condition.const))


class _Edge(NamedTuple):
    """Window of some lanes of an access that is loaded at an edge."""

    access: int
    window: VectorAccess

    @property
    def picks(self) -> tuple[int | None, ...]:
        return _picks(self.window)


def _picks(window: VectorAccess) -> tuple[int | None, ...]:
    """Return by lane the element of a window that it takes, or None."""
    picks: list[int | None] = [None] * (max(window.lanes) + 1)
    for lane, pick in zip(window.lanes, window.picks, strict=True):
        picks[lane] = pick
    return tuple(picks)
