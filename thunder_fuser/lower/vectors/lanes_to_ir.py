"""Lowering of vector code, common to all kernels: values of loaded vectors (lane_loads.py), stores.

Names: u is the vector index, v the lane; x0, x1, .. are loaded vectors, t<n> values of the scalar
graph, y0, y1, .. vectors to store. `copy` indexes register arrays that hold several vectors of one
thread: [k].
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence

from thunder_fuser import kernel_ir as ir
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import TensorView
from thunder_fuser.ir.integer.symint import Form
from thunder_fuser.lower import random_draws, values
from thunder_fuser.lower.brief import find_brief
from thunder_fuser.lower.frame import Frame
from thunder_fuser.lower.index.index_arithmetic import IndexArithmetic
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
from thunder_fuser.lower.vectors.lane_loads import MEMORY_WINDOW, Copy, LoadLowering, V
from thunder_fuser.lower.vectors.lanes import LaneForms, lane_condition, varying_nodes
from thunder_fuser.lower.vectors.vectorize import (
    RegisterArray,
    simplify,
)


class LaneLowering(LoadLowering):
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
        super().__init__(accesses, lanes, frame, paired)
        roots = [*(store.value for store in stores), *others]
        self.graph = graph
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
        self._copied = self._find_copied(others)

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

    def _find_copied(self, others: Sequence[Value]) -> dict[Value, Value]:
        """Return, for each value whose register has the bits of another's (the fp32 value of a
        rounded sum), that other value, whose name serves both.
        """
        kept = self._leaving.union(others)
        found: dict[Value, Value] = {}
        for node in self._live_nodes:
            if isinstance(node, Compute) and node not in kept:
                source = values.copied(node, self._exact)
                if isinstance(source, (Compute, Select)):
                    found[node] = found.get(source, source)
        return found

    def _is_live(self, access: RegisterArray) -> bool:
        return any(load in self._live for load in access.loads)

    # ---- values

    def _define(self, node: Value, copy: Copy, indices: IndexArithmetic) -> ir.Stmt | None:
        if isinstance(node, Compute):
            return None if node in self._copied else self._computation(node, copy)

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
                dtype = DataType.Int32 if node.dtype is DataType.Int32 else DataType.Int
                number = ir.IndexNumber(index(self.lanes(node.form)), dtype)
                found = values.convert(number, dtype, node.dtype)
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
        checked = ir.CheckedPosition(value, ir.Int(node.extent), needed, node.error)
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
                return ir.Var(f"t{self._copied.get(value, value).order}")

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
                streams = store.streams and window.is_aligned
                found.append(ir.VectorStore(vector, place, held, streams, window.is_aligned))
            else:
                order = sorted(zip(window.picks, window.lanes, strict=True))
                packed = tuple(ir.Element(held, ir.Int(lane)) for _, lane in order)
                place = ir.Address(target, address)
                found.append(
                    ir.Scope(
                        (
                            ir.Pack("w", store.tensor.dtype, packed),
                            ir.VectorStore(window.width, place, MEMORY_WINDOW),
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


def _nothing(value: Value) -> ir.Expr:
    raise AssertionError(f"a literal names no other value: {value}")
