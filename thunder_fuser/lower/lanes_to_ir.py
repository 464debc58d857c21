"""Lowering of vector code, common to all kernels: loads into register arrays, values, stores.

Names: u is the vector index, v the lane; x0, x1, .. are loaded vectors, t<n> values of the scalar
graph, y0, y1, .. vectors to store. `copy` indexes register arrays that hold several vectors of one
thread: [k].
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from typing import NamedTuple

from thunder_fuser import kernel_ir as ir
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import TensorView
from thunder_fuser.ir.integer.symint import Form, provable
from thunder_fuser.lower import random_draws, values
from thunder_fuser.lower.brief import find_brief
from thunder_fuser.lower.frame import Frame
from thunder_fuser.lower.index_arithmetic import IndexArithmetic
from thunder_fuser.lower.lane_windows import VectorAccess
from thunder_fuser.lower.lanes import LaneForms, lane_condition, varying_nodes
from thunder_fuser.lower.scalar_graph import (
    Argument,
    BoundsChecked,
    Compute,
    IndexValue,
    IndirectIndex,
    Literal,
    Load,
    PhiloxCall,
    Random,
    ScalarGraph,
    Select,
    Value,
    operands,
    reachable,
)
from thunder_fuser.lower.store import Store
from thunder_fuser.lower.vectorize import (
    ALWAYS,
    Disjunction,
    RegisterArray,
    simplify,
)

Copy = tuple[ir.Expr, ...]

K, V = ir.Var("k"), ir.Var("v")
EACH: Copy = (K,)
ONE: Copy = ()
_MEMORY_WINDOW = ir.Var("w")


def lane_loop(lanes: int, body: ir.Body, kind: ir.LoopKind = ir.LoopKind.SERIAL) -> ir.Loop:
    """Return a loop over the lanes of a vector."""
    return ir.Loop("v", ir.Int(lanes), body, kind)


class LaneLowering:
    """Lowers the vectors of one loop to statements."""

    def __init__(
        self,
        graph: ScalarGraph,
        accesses: Sequence[RegisterArray],
        lanes: LaneForms,
        stores: Sequence[Store],
        frame: Frame,
        others: Sequence[Value] = (),
        paired: bool = False,
    ) -> None:
        """
        others  values that are needed besides stored ones
        paired  lanes are in registers in the order of `paired_lanes.py`
        """
        roots = [*(store.value for store in stores), *others]
        self.graph = graph
        self.accesses = accesses
        self.lanes = lanes
        self._frame = frame
        self._paired = paired
        self._index = frame.index
        self._names: dict[str, ir.Expr] = {}
        self._access = {load: k for k, a in enumerate(accesses) for load in a.loads}
        self._live = reachable(roots)
        self._live_nodes = [node for node in graph if node in self._live]
        scattered = {load for a in accesses if not a.is_uniform for load in a.loads}
        varying = varying_nodes(self._live_nodes, graph.checks, scattered, lanes)
        self._calls = {
            node: random_draws.shared_calls(node, lanes)
            for node in self._live_nodes
            if isinstance(node, PhiloxCall)
        }
        shared = {node for node, calls in self._calls.items() if calls is not None}
        self._varying = {node.order for node in varying if node not in shared}
        self._lets: dict[Hashable, ir.Let] = {}
        self._exact = values.find_exact(self._live_nodes)
        self._brief = find_brief(self._live_nodes, roots, ())
        self._leaving = self._find_leaving(roots, others)

    def _find_leaving(self, roots: Sequence[Value], others: Sequence[Value]) -> set[Value]:
        """Return reduced floats that are computed for one store only: they get the storage type."""
        read = {operand for node in self._live_nodes for operand in operands(node)}.union(others)
        wanted = Counter(roots)
        return {
            node
            for node in wanted
            if isinstance(node, Compute)
            and node.dtype.is_reduced_precision
            and node.order in self._varying
            and wanted[node] == 1
            and node not in read
        }

    def _arithmetic(self) -> IndexArithmetic:
        return IndexArithmetic(self._index)

    # ---- loads

    def _is_live(self, access: RegisterArray) -> bool:
        return any(load in self._live for load in access.loads)

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
            if total:
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
                load = ir.VectorLoad(width, place, _MEMORY_WINDOW, is_aligned)
                dtype = self.accesses[edges[0].access].loads[0].dtype
                picks = (
                    ir.PickLanes(_MEMORY_WINDOW, self._register(e.access, copy), e.picks)
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
                    ir.VectorLoad(window.width, place, _MEMORY_WINDOW),
                    ir.PickLanes(_MEMORY_WINDOW, target, picks),
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
        """Return loads lane by lane, each of the alternative whose conditions hold, if any."""
        found: list[ir.Stmt] = [*indices.taken()]
        inner = indices.child()
        body: list[ir.Stmt] = []
        for node in self._awaited(access):
            if node.order in self._varying:
                body += self._defined(node, copy, inner)
        for alternative in access.gather:
            lanes = self._certain_lanes(alternative.conditions)
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
        return [*found, self._lane_loop(body, ir.LoopKind.UNROLLED)] if body else found

    def _certain_lanes(self, conditions: Disjunction) -> list[int] | None:
        """Return the lanes where conditions hold that depend on the lane only; None for others."""
        v = self.lanes.v
        mentioned = {x for each in conditions for c in each for x in c.variables()}
        if not mentioned or mentioned != set(v.variables()):
            return None
        lanes = range(self.lanes.vector)
        return [
            n
            for n in lanes
            if any(all(c.substitute({v: n}).const >= 0 for c in each) for each in conditions)
        ]

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

    # ---- values

    def _define(self, node: Value, copy: Copy, indices: IndexArithmetic) -> ir.Stmt | None:
        if isinstance(node, Compute):
            return self._computation(node, copy)

        def name(value: Value) -> ir.Expr:
            return self._name(value, copy)

        def index(form: Form) -> ir.Expr:
            return indices.value(form, self._names)

        found: ir.Expr
        match node:
            case Select():
                tests = tuple(lane_condition(c, self.lanes) for c in node.conditions)
                chosen = self._disjunction((tests,), indices)
                found = ir.Select(chosen, name(node.inside), name(node.outside))
            case IndexValue():
                number = ir.IndexNumber(index(self.lanes(node.form)))
                found = values.convert(number, DataType.Int, node.dtype)
            case IndirectIndex():
                return self._position(node, copy, indices)
            case PhiloxCall():
                return random_draws.draw(node, self._calls[node], self.lanes, name, index)
            case Random():
                calls = self._calls[node.draw]
                found = random_draws.number(node, calls, self.lanes, name, index)
            case BoundsChecked():
                found = name(node.value)
            case Argument() if node.dtype.is_complex:
                parts = (ir.Var(f"{node.source.name}_{half}") for half in ("real", "imag"))
                found = ir.MakeComplex(node.dtype, *parts)
            case Argument():
                found = values.round_to(ir.Var(node.source.name), node.dtype)
            case _:
                return None
        return ir.Let(f"t{node.order}", values.register_dtype(node.dtype), found)

    def _computation(self, node: Compute, copy: Copy) -> ir.Let:
        """Return the statement that computes a value; cached, since passes over a row share it."""
        key = node.order, len(copy), self._arrays
        found = self._lets.get(key)
        if found is None:
            value = values.compute(node, lambda v: self._name(v, copy), self._exact, self._brief)
            dtype = values.register_dtype(node.dtype)
            if node in self._leaving:
                value, dtype = values.leaving(value, node.dtype), node.dtype
            found = ir.Let(f"t{node.order}", dtype, value)
            self._lets[key] = found
        return found

    @property
    def _arrays(self) -> Hashable:
        """Cache key of the registers that hold loads, besides `copy`."""
        return None

    def _position(self, node: IndirectIndex, copy: Copy, indices: IndexArithmetic) -> ir.Let:
        """Return the definition of a position: a variable of forms, checked where it is needed."""
        value = values.operand(node.value, DataType.Int, lambda v: self._name(v, copy))
        contexts = simplify(self.graph.checks[node])
        lanes = tuple(tuple(lane_condition(c, self.lanes) for c in each) for each in contexts)
        needed = self._disjunction(lanes, indices)
        checked = ir.CheckedPosition(value, node.extent, needed, node.error)
        return ir.Let(node.name, self._index, checked)

    def _name(self, value: Value, copy: Copy) -> ir.Expr:
        """Return the expression that holds a value in its register type."""
        match value:
            case Literal():
                return values.operand(value, values.register_dtype(value.dtype), _nothing)
            case Load():
                held = values.register_dtype(value.dtype)
                return values.convert(self._loaded(value, copy), value.dtype, held)
            case _:
                return ir.Var(f"t{value.order}")

    def _loaded(self, load: Load, copy: Copy) -> ir.Expr:
        """Return a loaded value in its storage type."""
        k = self._access[load]
        register = self._register(k, copy)
        return register if self.accesses[k].is_uniform else ir.Element(register, V)

    def _stored(self, store: Store, copy: Copy) -> ir.Expr:
        """Return the value of a store in its storage type; a loaded value is not converted."""
        if isinstance(store.value, Load):
            return self._loaded(store.value, copy)
        if isinstance(store.value, Literal):
            return ir.Literal(store.value.value, store.tensor.dtype)
        value = self._name(store.value, copy)
        is_narrow = store.value in self._leaving
        return value if is_narrow else values.narrow(value, store.tensor.dtype)

    # ---- stores

    def _results(
        self, stores: Sequence[Store], copy: Copy, indices: IndexArithmetic, done: set[Value]
    ) -> list[ir.Stmt]:
        """Return definitions of uniform values, then the lane loop, then the stores."""
        wanted = reachable((store.value for store in stores), loaded=True)
        nodes = [node for node in self._live_nodes if node in wanted]
        before = self._definitions(nodes, copy, indices, done)
        inside: list[ir.Stmt] = []
        of_lane = indices.child()
        for node in nodes:
            if node.order in self._varying:
                inside += self._defined(node, copy, of_lane)
        after: list[ir.Stmt] = []
        for n, store in enumerate(stores):
            before.append(self._lanes_of(f"y{n}", store.tensor.dtype))
            inside.append(ir.Assign(ir.Element(ir.Var(f"y{n}"), V), self._stored(store, copy)))
            after += self._store(n, store, indices)
        return [*before, self._lane_loop(inside, ir.LoopKind.VECTOR), *after]

    def _store(self, n: int, store: Store, indices: IndexArithmetic) -> list[ir.Stmt]:
        target = ir.Var(self._target(store).name)
        held = ir.Var(f"y{n}")
        vector = self.lanes.vector
        if not store.windows:
            inner = indices.child()
            address = inner.value(self.lanes(store.address), self._names)
            one = ir.Assign(ir.Element(target, address), ir.Element(held, V))
            loop = self._lane_loop([*inner.taken(), one], ir.LoopKind.UNROLLED)
            return [*indices.taken(), loop]
        found: list[ir.Stmt] = []
        for window in store.windows:
            address = indices.value(window.address, self._names)
            found += indices.taken()
            if window.width == 1:
                element = ir.Element(held, ir.Int(window.lanes[0]))
                found.append(ir.Assign(ir.Element(target, address), element))
            elif window.is_in_order and window.width == vector:
                place = ir.Address(target, address)
                found.append(ir.VectorStore(vector, place, held, store.streams))
            else:
                order = sorted(zip(window.picks, window.lanes, strict=True))
                packed = tuple(ir.Element(held, ir.Int(lane)) for _, lane in order)
                place = ir.Address(target, address)
                found.append(
                    ir.Scope(
                        (
                            ir.Pack("w", store.tensor.dtype, packed),
                            ir.VectorStore(window.width, place, _MEMORY_WINDOW),
                        )
                    )
                )
        return found

    def _target(self, store: Store) -> TensorView:
        """Return the tensor whose memory a store writes."""
        return self._frame.buffers.get(store.tensor, store.tensor)

    def _section(self, text: str, stores: Sequence[Store]) -> ir.Comment:
        """Return the comment above the statements that compute some stores."""
        names = ", ".join(self._target(store).name for store in stores)
        return self._frame.section(f"{text}: {names}", *(store.tensor for store in stores))


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


ALWAYS_TRUE = ir.BoolConst(True)


def _nothing(value: Value) -> ir.Expr:
    raise AssertionError(f"a literal names no other value: {value}")
