"""Writer of vector code, which every generated kernel is made of: loads into register arrays,
values, stores.

Names: u is the vector's number, v the lane; x0, x1, .. hold what is loaded, t<n> are values of the
DAG, y0, y1, .. are stored. `copy` is the suffix of arrays that hold several vectors of one thread:
"[k]".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from thunder_fuser.codegen import expressions, random_text
from thunder_fuser.codegen.index_text import Emitter
from thunder_fuser.codegen.literals import literal
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import TensorView
from thunder_fuser.ir.integer.symint import Form
from thunder_fuser.lower.lanes import LaneForms, lane_condition, varying_nodes
from thunder_fuser.lower.pull import at_least
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
    Select,
    Value,
    ValueGraph,
    reachable,
)
from thunder_fuser.lower.vectorize import ALWAYS, Disjunction, RegisterArray, VectorAccess, simplify
from thunder_fuser.templates.store import Store


def lane_loop(lanes: int) -> str:
    """The head of a loop over so many lanes of a vector."""
    return f"for (int v = 0; v < {lanes}; ++v)"


class LaneWriter:
    """Text for the vectors of one loop. `buffers`: an output written in place -> the
    input it is in.
    """

    def __init__(
        self,
        graph: ValueGraph,
        accesses: Sequence[RegisterArray],
        lanes: LaneForms,
        roots: Sequence[Value],
        buffers: Mapping[TensorView, TensorView],
        index_type: str,
    ) -> None:
        self.graph = graph
        self.accesses = accesses
        self.lanes = lanes
        self._buffers = buffers
        self._index_type = index_type
        self._names: dict[str, str] = {"u": "u", "v": "v"}
        self._access = {load: k for k, a in enumerate(accesses) for load in a.loads}
        self._live = reachable(roots)
        scattered = {load for a in accesses if not a.is_uniform for load in a.loads}
        varying = varying_nodes(self._live_nodes(), graph.checks, scattered, lanes)
        self._calls = {
            node: random_text.shared_calls(node, lanes)
            for node in self._live_nodes()
            if isinstance(node, PhiloxCall)
        }
        shared = {node for node, calls in self._calls.items() if calls is not None}
        self._varying = {node.order for node in varying if node not in shared}
        self._exact = expressions.find_exact(self._live_nodes())

    def _emitter(self) -> Emitter:
        return Emitter(self._index_type)

    # ---- loads

    def _is_live(self, access: RegisterArray) -> bool:
        return any(load in self._live for load in access.loads)

    def _array(self, k: int, copies: str) -> str:
        access = self.accesses[k]
        lanes = "" if access.is_uniform else f"[{self.lanes.vector}]"
        # Lanes outside every condition are computed with and thrown away: give them a value.
        zero = "" if self._is_total(access) else " = {}"
        return f"{access.loads[0].dtype.ctype} x{k}{copies}{lanes}{zero};"

    def _register(self, k: int, copy: str) -> str:
        """Where an access puts what it reads."""
        return f"x{k}{copy}"

    def _loads(
        self, accesses: Sequence[int], copy: str, emitter: Emitter, done: set[Value]
    ) -> list[str]:
        """Loads in order, and the positions that they wait for. `done`: nodes that this scope has
        defined; what is defined here joins them.
        """
        lines: list[str] = []
        for k in accesses:
            access = self.accesses[k]
            target = self._register(k, copy)
            pointer = access.loads[0].tensor.name
            lines += self._definitions(self._awaited(access), copy, emitter, done)
            if access.gather:
                lines += self._gather(access, target, pointer, emitter, copy)
            else:
                lines += self._variants(access, target, pointer, emitter)
        return lines

    def _awaited(self, access: RegisterArray) -> list[Value]:
        """The positions that an access mentions, and what these are computed from, in order."""
        found = reachable(p for load in access.loads for p in load.positions)
        return sorted(found, key=lambda node: node.order)

    def _definitions(
        self, nodes: Sequence[Value], copy: str, emitter: Emitter, done: set[Value]
    ) -> list[str]:
        """Those of some nodes that are the same for all lanes and not done yet."""
        lines: list[str] = []
        for node in nodes:
            if node.order not in self._varying and node not in done:
                done.add(node)
                text = self._define(node, copy, emitter)
                lines += [*taken(emitter), text] if text is not None else []
        return lines

    def _prefetched(
        self, prefetches: Sequence[tuple[TensorView, Form]], emitter: Emitter
    ) -> list[str]:
        lines: list[str] = []
        for tensor, address in prefetches:
            text = emitter.emit(address, self._names)
            lines += [*taken(emitter), f"TF_PREFETCH({tensor.name} + {text});"]
        return lines

    def _variants(
        self, access: RegisterArray, target: str, pointer: str, emitter: Emitter
    ) -> list[str]:
        """Windows of all variants; equal ones become one load at a selected address."""
        variants = access.variants
        total = self._is_total(access)
        shapes = {tuple((w.width, w.lanes, w.picks) for w in v.windows) for v in variants}
        tests = [self._disjunction(v.conditions, emitter) for v in variants]
        if len(shapes) == 1:
            addresses = [
                self._selected(tests, [v.windows[n].address for v in variants], emitter)
                for n in range(len(variants[0].windows))
            ]
            lines = taken(emitter)
            loads = [
                line
                for address, window in zip(addresses, variants[0].windows, strict=True)
                for line in self._window(access, window, target, pointer, address)
            ]
            if total:
                return lines + loads
            return lines + braced(f"if ({' || '.join(dict.fromkeys(tests))})", loads)
        lines = taken(emitter)
        for n, (test, variant) in enumerate(zip(tests, variants, strict=True)):
            inner = emitter.child()
            body: list[str] = []
            for window in variant.windows:
                address = inner.emit(window.address, self._names)
                body += taken(inner)
                body += self._window(access, window, target, pointer, address)
            last = total and n == len(variants) - 1
            head = "else" if last and n else f"{'else ' if n else ''}if ({test})"
            lines += braced(head, body)
        return lines

    def _selected(self, tests: Sequence[str], addresses: Sequence[Form], emitter: Emitter) -> str:
        if len(set(addresses)) == 1:
            return emitter.emit(addresses[0], self._names)
        texts = [emitter.emit(address, self._names) for address in addresses]
        result = texts[-1]
        for test, text in zip(reversed(tests[:-1]), reversed(texts[:-1]), strict=True):
            result = f"({test}) ? {text} : {result}"
        return f"({result})"

    def _window(
        self, access: RegisterArray, window: VectorAccess, target: str, pointer: str, address: str
    ) -> list[str]:
        if access.is_uniform:
            return [f"{target} = {pointer}[{address}];"]
        if window.width == 1:
            return [f"{target}[{lane}] = {pointer}[{address}];" for lane in window.lanes]
        if window.is_in_order and window.width == self.lanes.vector:
            return [f"tf::load<{window.width}>({pointer} + {address}, {target});"]
        ctype = access.loads[0].dtype.ctype
        moves = [
            f"{target}[{lane}] = w[{pick}];"
            for lane, pick in zip(window.lanes, window.picks, strict=True)
        ]
        inside = [
            f"{ctype} w[{window.width}];",
            f"tf::load<{window.width}>({pointer} + {address}, w);",
        ]
        return braced("", [*inside, " ".join(moves)])

    def _gather(
        self, access: RegisterArray, target: str, pointer: str, emitter: Emitter, copy: str
    ) -> list[str]:
        """Lane by lane: each lane reads the alternative that its conditions choose, if any."""
        lines = taken(emitter)
        inner = emitter.child()
        body: list[str] = []
        for node in self._awaited(access):
            text = self._define(node, copy, inner) if node.order in self._varying else None
            body += [*taken(inner), text] if text is not None else []
        for alternative in access.gather:
            lanes = self._certain_lanes(alternative.conditions)
            if lanes is not None and not self.lanes.diverges([alternative.address]):
                # Which lanes they are is known, and not left to a vectoriser: g++ 12 reads more
                # than a masked load may.
                lines += self._chosen_lanes(alternative.address, lanes, target, pointer)
                continue
            test = self._disjunction(alternative.conditions, inner)
            address = inner.emit(alternative.address, self._names)
            body += taken(inner)
            load = f"{target}[v] = {pointer}[{address}];"
            body.append(load if test == "true" else f"if ({test}) {load}")
        return [*lines, "TF_UNROLL", *braced(self._lane_loop(), body)] if body else lines

    def _certain_lanes(self, conditions: Disjunction) -> list[int] | None:
        """The lanes for which conditions hold that depend on nothing else; None for others."""
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
        self, address: Form, lanes: Sequence[int], target: str, pointer: str
    ) -> list[str]:
        emitter = self._emitter()
        lines: list[str] = []
        for n in lanes:
            place = emitter.emit(address.substitute({self.lanes.v: n}), self._names)
            lines += [*taken(emitter), f"{target}[{n}] = {pointer}[{place}];"]
        return braced("", lines)

    def _lane_loop(self) -> str:
        return lane_loop(self.lanes.vector)

    def _is_total(self, access: RegisterArray) -> bool:
        """Whether every lane of every vector is read under some condition."""
        if access.gather:
            return simplify(c for a in access.gather for c in a.conditions) == ALWAYS
        everywhere = simplify(c for v in access.variants for c in v.conditions) == ALWAYS
        read = [sum(len(w.lanes) for w in v.windows) for v in access.variants]
        return everywhere and all(count == self.lanes.vector for count in read)

    # ---- conditions

    def _disjunction(self, conditions: Disjunction, emitter: Emitter) -> str:
        texts = []
        for conjunction in conditions:
            parts = [self._condition(c, emitter) for c in conjunction if not at_least(c, 0)]
            if not parts:
                return "true"
            texts.append(" && ".join(parts) if len(parts) == 1 else f"({' && '.join(parts)})")
        return " || ".join(texts)

    def _condition(self, condition: Form, emitter: Emitter) -> str:
        """`condition >= 0`, printed as a comparison of what varies with a constant."""
        varying = condition - condition.const
        if all(coef < 0 for _, coef in varying.terms):
            return f"{emitter.emit(-varying, self._names)} <= {condition.const}"
        return f"{emitter.emit(varying, self._names)} >= {-condition.const}"

    # ---- values

    def _live_nodes(self) -> list[Value]:
        return [node for node in self.graph if node in self._live]

    def _define(self, node: Value, copy: str, emitter: Emitter) -> str | None:
        def name(value: Value) -> str:
            return self._name(value, copy)

        def index_text(form: Form) -> str:
            return emitter.emit(form, self._names)

        match node:
            case Compute():
                exact = expressions.exact_before_rounding(node, self._exact)
                text = expressions.compute(node, name, exact)
            case Select():
                tests = tuple(lane_condition(c, self.lanes) for c in node.conditions)
                chosen = self._disjunction((tests,), emitter)
                text = f"({chosen}) ? {name(node.inside)} : {name(node.outside)}"
            case IndexValue():
                index = emitter.emit(self.lanes(node.form), self._names)
                text = expressions.convert(f"(long long)({index})", DataType.Int, node.dtype)
            case IndirectIndex():
                return self._position(node, copy, emitter)
            case PhiloxCall():
                return random_text.draw(node, self._calls[node], self.lanes, name, index_text)
            case Random():
                calls = self._calls[node.draw]
                text = random_text.number(node, calls, self.lanes, name, index_text)
            case BoundsChecked():
                text = name(node.value)
            case Argument() if node.dtype.is_complex:
                text = f"{node.dtype.ctype}{{{node.source.name}_real, {node.source.name}_imag}}"
            case Argument():
                text = expressions.round_to(node.source.name, node.dtype)
            case _:
                return None
        ctype = expressions.register_dtype(node.dtype).ctype
        return f"const {ctype} t{node.order} = {text};"

    def _position(self, node: IndirectIndex, copy: str, emitter: Emitter) -> str:
        """An index as a variable of the forms, checked wherever it is needed."""
        value = expressions.operand(node.value, DataType.Int, lambda v: self._name(v, copy))
        contexts = simplify(self.graph.checks[node])
        lanes = tuple(tuple(lane_condition(c, self.lanes) for c in each) for each in contexts)
        needed = self._disjunction(lanes, emitter)
        arguments = f'{value}, {node.extent}, {needed}, "{node.error}"'
        return f"const {self._index_type} {node.name} = tf::position({arguments});"

    def _name(self, value: Value, copy: str) -> str:
        """The text of a value in its register type."""
        match value:
            case Literal():
                return expressions.operand(value, expressions.register_dtype(value.dtype), str)
            case Load():
                held = expressions.register_dtype(value.dtype)
                return expressions.convert(self._loaded(value, copy), value.dtype, held)
            case _:
                return f"t{value.order}"

    def _loaded(self, load: Load, copy: str) -> str:
        """What is loaded, in the type of memory."""
        k = self._access[load]
        register = self._register(k, copy)
        return register if self.accesses[k].is_uniform else f"{register}[v]"

    def _stored(self, store: Store, copy: str) -> str:
        """The value of a store in the type of memory. What was loaded goes out as it came in."""
        if isinstance(store.value, Load):
            return self._loaded(store.value, copy)
        if isinstance(store.value, Literal):
            return literal(store.value.value, store.tensor.dtype)
        return expressions.narrow(self._name(store.value, copy), store.tensor.dtype)

    # ---- stores

    def _results(
        self, stores: Sequence[Store], copy: str, emitter: Emitter, done: set[Value]
    ) -> list[str]:
        """Values the same for all lanes, then the lane loop, then the stores."""
        wanted = reachable((store.value for store in stores), loaded=True)
        nodes = [node for node in self._live_nodes() if node in wanted]
        before = self._definitions(nodes, copy, emitter, done)
        inside: list[str] = []
        lane_emitter = emitter.child()
        for node in nodes:
            text = self._define(node, copy, lane_emitter) if node.order in self._varying else None
            inside += [*taken(lane_emitter), text] if text is not None else []
        after: list[str] = []
        for n, store in enumerate(stores):
            dtype = store.tensor.dtype.ctype
            before.append(f"{dtype} y{n}[{self.lanes.vector}];")
            inside.append(f"y{n}[v] = {self._stored(store, copy)};")
            after += self._store(n, store, emitter)
        return [*before, "TF_VEC", *braced(self._lane_loop(), inside), *after]

    def _store(self, n: int, store: Store, emitter: Emitter) -> list[str]:
        target = self._buffers.get(store.tensor, store.tensor)
        vector = self.lanes.vector
        if not store.windows:
            inner = emitter.child()
            address = inner.emit(self.lanes(store.address), self._names)
            body = [*taken(inner), f"{target.name}[{address}] = y{n}[v];"]
            return [*taken(emitter), "TF_UNROLL", *braced(self._lane_loop(), body)]
        lines: list[str] = []
        for window in store.windows:
            address = emitter.emit(window.address, self._names)
            lines += taken(emitter)
            if window.width == 1:
                lines.append(f"{target.name}[{address}] = y{n}[{window.lanes[0]}];")
            elif window.is_in_order and window.width == vector:
                lines.append(f"tf::store<{vector}>({target.name} + {address}, y{n});")
            else:
                order = sorted(zip(window.picks, window.lanes, strict=True))
                values = ", ".join(f"y{n}[{lane}]" for _, lane in order)
                lines += braced(
                    "",
                    [
                        f"const {store.tensor.dtype.ctype} w[{window.width}] = {{{values}}};",
                        f"tf::store<{window.width}>({target.name} + {address}, w);",
                    ],
                )
        return lines


def braced(head: str, lines: Sequence[str]) -> list[str]:
    opening = f"{head} {{" if head else "{"
    return [opening, *(f"  {part}" for line in lines for part in line.splitlines()), "}"]


def taken(emitter: Emitter) -> list[str]:
    """The statements that the emitter has gathered since the last time."""
    lines = list(emitter.statements)
    emitter.statements.clear()
    return lines
