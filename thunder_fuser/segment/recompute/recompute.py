"""Recompute or store: choice of the boundary tensors between kernels, and of recomputed values.

By default a kernel recomputes from inputs whatever it needs, even if others compute it as well.
Reductions of other kernels it cannot compute: it reads them, or a value computed from them. Where
recomputing reads more bytes than an earlier kernel would write, an intermediate value is stored.
Both decisions are one minimum cut per kernel (`store_or_recompute.py`), earlier kernels first.
Candidates to store are values that an earlier kernel computes anyway, or computes from its own
reductions that are no smaller, or from tensors that it reads anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from thunder_fuser.analysis.footprint import Footprint
from thunder_fuser.ir.dag import backward_slice, topological_order
from thunder_fuser.ir.domain import Resize
from thunder_fuser.ir.fusion import (
    CatOp,
    Expr,
    FoldOp,
    GatherOp,
    MoveOp,
    PointwiseOp,
    RandomOp,
    TensorView,
    Val,
)
from thunder_fuser.ir.tables import pointwise, random
from thunder_fuser.segment.anchors.anchors import Anchors, members, union
from thunder_fuser.segment.anchors.graph import AnchorGraph
from thunder_fuser.segment.legality import Legal, Legality
from thunder_fuser.segment.recompute.min_cut import INFINITE
from thunder_fuser.segment.recompute.store_or_recompute import Choice, Value, materialize

_NEVER = INFINITE >> 20
NEAR = 2
"""Longest chain of stored values, one computed from the other, that a kernel may recompute."""
_L1_READ = 1
"""Price of a byte from L1: per clock, as many bytes as fp32 instructions of threads."""
_FEWER = "it moves fewer bytes than computing it again would"


@dataclass(slots=True, eq=False)
class Group:
    """A kernel with its boundary tensors.

    level    greater than the levels of all groups whose outputs it reads
    outputs  tensors that it writes: anchors that must be stored, and reads of other groups
    reads    boundary tensors that it loads, besides inputs and results of cuts and calls
    """

    anchors: Anchors
    kernel: Legal
    level: int
    outputs: list[TensorView]
    reads: dict[TensorView, StoreCandidate] = field(default_factory=dict)

    def loads(self, graph: AnchorGraph) -> Loaded:
        """Tensors in memory at which the computation of its outputs stops."""
        return Loaded(graph.stops, self.reads)


@dataclass(frozen=True, slots=True)
class Loaded(Container[Val]):
    """Tensors that a kernel loads: those in memory for every kernel (`always`), and boundary
    tensors that other kernels write for this one (`written`).
    """

    always: Container[Val]
    written: Container[Val]

    def __contains__(self, value: object) -> bool:
        return value in self.always or value in self.written


def computed_and_loaded(graph: AnchorGraph, group: Group) -> tuple[set[Val], set[TensorView]]:
    """Return the values that a kernel computes for its non-empty outputs, and its loads."""
    stops, outputs = group.loads(graph), set(group.outputs)

    def is_loaded(value: Val) -> bool:
        return value in stops and value not in outputs

    def producers(value: Val) -> tuple[Val, ...]:
        expr = None if is_loaded(value) else graph.definitions.get(value)
        return expr.inputs if expr else ()

    roots: list[Val] = [t for t in group.outputs if t.numel]
    needed = backward_slice(roots, producers)
    loaded = {v for v in needed if isinstance(v, TensorView) and is_loaded(v)}
    return {v for v in needed if v not in loaded and v in graph.definitions}, loaded


@dataclass(frozen=True, slots=True)
class StoreCandidate:
    """A group that can write a value. `reason`: why a reader would not recompute it; empty where it
    cannot, because it depends on a reduction of another kernel.
    """

    writer: Group
    reason: str = ""


def grouped(graph: AnchorGraph, legality: Legality, parts: Sequence[Anchors]) -> list[Group]:
    """Return the kernels of a partition, given in executable order, with boundaries decided."""
    groups: list[Group] = []
    home: dict[int, Group] = {}
    for part in parts:
        kernel = legality.of(part)
        assert isinstance(kernel, Legal)
        stored = (graph.anchors[k] for k in members(part))
        group = Group(part, kernel, 0, [a.tensor for a in stored if a.is_stored])
        groups.append(group)
        home.update(dict.fromkeys(members(part), group))
    _Boundaries(graph, legality, groups, home).choose()
    for group in groups:
        needs = union(graph.anchors[k].reach.needs for k in members(group.anchors))
        waits = [home[k].level for k in members(needs & ~group.anchors)]
        waits += [candidate.writer.level for candidate in group.reads.values()]
        group.level = 1 + max(waits, default=-1)
    groups.sort(key=lambda g: g.level)
    # Reductions that only empty results need are dropped.
    return [group for group in groups if group.outputs]


class _Boundaries:
    """Choice of the boundary tensors between groups.

    groups     kernels, in executable order
    writer     the group that writes each stored value
    computing  the first group that computes a value
    sources    tensors in memory before any kernel runs, as read by each group
    readers    groups that read such a tensor, in order
    """

    def __init__(
        self,
        graph: AnchorGraph,
        legality: Legality,
        groups: Sequence[Group],
        home: Mapping[int, Group],
    ) -> None:
        self.graph = graph
        self.legality = legality
        self.groups = groups
        self.place = {group: k for k, group in enumerate(groups)}
        self.home = home
        self.writer: dict[Val, Group] = {t: g for g in groups for t in g.outputs}
        self.computing: dict[Val, Group] = {}
        self.sources: dict[Group, AbstractSet[TensorView]] = {}
        self.readers: dict[TensorView, list[Group]] = {}

    def choose(self) -> None:
        """Choose the reads of each group, and add them to the outputs of their writers."""
        for group in self.groups:
            self._read(group, _Subgraph(self.graph, group, self._before(group)))

    def _before(self, reader: Group) -> Callable[[Val], bool]:
        """Return a predicate: True if an earlier group than `reader` stores a value anyway."""
        place = self.place[reader]

        def is_written(value: Val) -> bool:
            writer = self.writer.get(value)
            return writer is not None and self.place[writer] < place

        return is_written

    def _read(self, group: Group, subgraph: _Subgraph) -> None:
        """Choose which values a group reads and which it computes."""
        candidates = {
            v: c for v in subgraph.order if (c := self._candidate(v, group, subgraph)) is not None
        }
        while True:
            choice = subgraph.choose(candidates, self.writer)
            read = [
                v for v in map(subgraph.order.__getitem__, sorted(choice.read)) if v in candidates
            ]
            refused = self._unwritable(read, candidates)
            if not refused:
                break
            for v in refused:
                del candidates[v]
        for v in read:
            assert isinstance(v, TensorView)
            writer = candidates[v].writer
            self.writer[v] = writer
            group.reads[v] = candidates[v]
            if v not in writer.outputs:
                writer.outputs.append(v)
        for v in map(subgraph.order.__getitem__, sorted(choice.computed)):
            self.computing.setdefault(v, group)
        found = map(subgraph.order.__getitem__, choice.read)
        self.sources[group] = self.graph.stops.intersection(found)
        for source in self.sources[group]:
            self.readers.setdefault(source, []).append(group)

    def _candidate(self, v: Val, reader: Group, subgraph: _Subgraph) -> StoreCandidate | None:
        """Return the group that would store a value for a reader, or None."""
        if not isinstance(v, TensorView):
            return None
        if subgraph.is_foreign(v):
            return StoreCandidate(self.home[self.graph.number[v]])
        if not subgraph.is_inner(v):
            return None
        able = (
            [(self.writer[v], "it is in memory anyway")]
            if v in self.writer
            else [
                (self._after_folds(v), ""),
                (self.computing.get(v), _FEWER),
                (self._beside(v, reader), _FEWER),
            ]
        )
        for writer, reason in able:
            if writer is not None and self.place[writer] < self.place[reader]:
                return StoreCandidate(writer, reason)
        return None

    def _beside(self, v: TensorView, reader: Group) -> Group | None:
        """Return the first group that reads all sources of a value, if writing and reading the
        value moves fewer bytes than reading the sources again.
        """
        reach, size = self.graph.reach(v), self.graph.bytes_of
        if reach.folds or not all(s in self.readers for s in reach.sources):
            return None
        if 2 * size(v) >= sum(map(size, reach.sources)):
            return None
        rarest = min((self.readers[s] for s in reach.sources), key=len)
        for group in rarest:
            if reach.sources <= self.sources[group] and self._is_after(group, reach.awaited):
                return group
        return None

    def _after_folds(self, v: TensorView) -> Group | None:
        """Return the group of all folds that a value reads, if it is no larger than the largest."""
        reach = self.graph.reach(v)
        homes = [self.home[k] for k in members(reach.folds)]
        largest = max((self.graph.anchors[k].tensor.bytes for k in members(reach.folds)), default=0)
        if not homes or any(h is not homes[0] for h in homes) or v.bytes > largest:
            return None
        return homes[0] if self._is_after(homes[0], reach.awaited) else None

    def _is_after(self, group: Group, anchors: Anchors) -> bool:
        return all(self.place[self.home[k]] < self.place[group] for k in members(anchors))

    def _unwritable(
        self, wanted: Sequence[Val], candidates: Mapping[Val, StoreCandidate]
    ) -> list[Val]:
        """Return values that their writers cannot write in addition to their outputs and the other
        wanted values. A kernel can always write its own anchors.
        """
        refused: list[Val] = []
        written: dict[Group, list[TensorView]] = {}
        for v in wanted:
            assert isinstance(v, TensorView)
            group = candidates[v].writer
            if self._is_own(group, v):
                continue
            outputs = written.setdefault(
                group, list(dict.fromkeys([*group.outputs, *self.legality.outputs(group.anchors)]))
            )
            if self._may_write(group, v, outputs):
                outputs.append(v)
            else:
                refused.append(v)
        return refused

    def _is_own(self, group: Group, v: TensorView) -> bool:
        number = self.graph.number.get(v)
        return number is not None and bool(group.anchors >> number & 1)

    def _may_write(self, group: Group, v: TensorView, outputs: Sequence[TensorView]) -> bool:
        is_free = self.computing.get(v) is group or not self._reads_more(group, v)
        return is_free and self.legality.may_write(group.anchors, outputs, v)

    def _reads_more(self, group: Group, v: TensorView) -> bool:
        """True if a group would have to read more elements to compute a value."""
        footprint, loaded = self.graph.parts.footprint, group.loads(self.graph)
        made = [self.graph.anchors[k].tensor for k in members(group.anchors)]
        done = list(dict.fromkeys((*made, *group.outputs)))
        return footprint([*done, v], loaded) != footprint(done, loaded)


class _Subgraph:
    """Backward slice of a kernel's anchors up to loaded tensors; operands come before results.

    is_written  True for a value that is stored anyway
    far         such values beyond NEAR others, whose operands are not considered. Without this
                limit, recomputation from the first layer would be considered in every layer
    """

    def __init__(self, graph: AnchorGraph, group: Group, is_written: Callable[[Val], bool]) -> None:
        self.graph = graph
        # Anchors are computed here, even if other kernels compute them as well.
        anchors = [graph.anchors[k].tensor for k in members(group.anchors)]
        self.roots = dict.fromkeys(anchors)
        self.stops = graph.stops
        self.far: AbstractSet[Val] = frozenset()
        self.far = self._found_far(is_written)
        self.order = topological_order(list[Val](self.roots), self._operands)
        self.numbers = {v: k for k, v in enumerate(self.order)}
        self._points = {} if graph.has_fold(group.anchors) else self._found_points()

    def _found_far(self, is_written: Callable[[Val], bool]) -> AbstractSet[Val]:
        waiting, seen = list[Val](self.roots), set[Val](self.roots)
        for _ in range(NEAR + 1):
            written: list[Val] = []
            while waiting:
                for operand in self._operands(waiting.pop()):
                    if operand not in seen:
                        seen.add(operand)
                        is_end = self.is_inner(operand) and is_written(operand)
                        (written if is_end else waiting).append(operand)
            waiting = written
        return frozenset(waiting)

    def _found_points(self) -> Mapping[Val, int]:
        """Return the number of points at which a pointwise kernel evaluates values that depend on
        reductions of other kernels, which those evaluate once per row or column.
        """
        found: dict[Val, int] = {}
        for v in reversed(self.order):
            found[v] = max(int(v.numel) if isinstance(v, TensorView) else 1, found.get(v, 1))
            for operand in self._operands(v):
                found[operand] = max(found.get(operand, 1), found[v])
        return {v: n for v, n in found.items() if self.graph.reach(v).folds}

    def _operands(self, v: Val) -> tuple[Val, ...]:
        expr = self.graph.definitions.get(v)
        stops = self._is_stop(v) and v not in self.roots
        return () if expr is None or stops or self._is_empty(v) else expr.inputs

    def _is_stop(self, v: Val) -> bool:
        return v in self.stops or v in self.far or self.is_foreign(v)

    def _is_empty(self, v: Val) -> bool:
        """True for a stored anchor without elements, which is not computed."""
        if not isinstance(v, TensorView) or v.numel or v not in self.roots:
            return False
        return self.graph.anchors[self.graph.number[v]].fold is None

    def is_foreign(self, v: Val) -> bool:
        """True for a reduction or scan of another kernel."""
        return v not in self.roots and isinstance(self.graph.definitions.get(v), FoldOp)

    def is_inner(self, v: Val) -> bool:
        """True for a pointwise intermediate value."""
        if v in self.stops or v in self.roots:
            return False
        return isinstance(self.graph.definitions.get(v), PointwiseOp)

    def choose(
        self, candidates: Mapping[Val, StoreCandidate], written: Mapping[Val, Group]
    ) -> Choice:
        """Choose which values the kernel reads and which it computes."""
        if not candidates:
            read = frozenset(k for k, v in enumerate(self.order) if v in self.stops)
            return Choice(read, frozenset(range(len(self.order))) - read)
        demanded = self._demanded()
        values = [self._value(v, demanded, v in candidates, v in written) for v in self.order]
        wanted = dict.fromkeys(self.numbers[u] for r in self.roots for u in self._operands(r))
        (choice,) = materialize(values, [wanted])
        return Choice(choice.read, choice.computed | {self.numbers[r] for r in self.roots})

    def _demanded(self) -> Mapping[TensorView, Footprint]:
        """Return the elements read of tensors; empty if all tensors are read as a whole."""
        exprs = map(self.graph.definitions.get, self.order)
        if not any(isinstance(e, CatOp | GatherOp) or _is_window(e) for e in exprs):
            return {}
        found = {v for v in self.order if isinstance(v, TensorView) and self._is_stop(v)}
        return self.graph.parts.demanded(list(self.roots), found)

    def _value(
        self, v: Val, demanded: Mapping[TensorView, Footprint], can_be_stored: bool, is_stored: bool
    ) -> Value:
        size, byte = self.graph.bytes_of(v), self.graph.prices.byte
        read = byte * size
        if isinstance(v, TensorView) and v in demanded:
            read = byte * min(size, self.graph.bytes_read(v, demanded[v]))
        read += _L1_READ * v.dtype.itemsize * self._points.get(v, 0)
        write = (0 if is_stored else byte * size) if can_be_stored else _NEVER
        operands = tuple(self.numbers[u] for u in dict.fromkeys(self._operands(v)))
        is_computed = bool(operands) or v in self.roots
        if is_computed or can_be_stored:
            return Value(operands, write, read, self._arithmetic(v) if is_computed else None)
        # A constant has no operands, and costs nothing to compute.
        free = v in self.graph.definitions and v not in self.stops
        return Value((), 0, read, 0 if free else None)

    def _arithmetic(self, v: Val) -> int:
        if isinstance(v, TensorView):
            match self.graph.definitions[v]:
                case PointwiseOp(op):
                    return pointwise.lookup(op).cost * self._points.get(v, int(v.numel))
                case RandomOp(op):
                    return random.lookup(op).cost * int(v.numel)
        return 0


def _is_window(expr: Expr | None) -> bool:
    """True for a view that may leave elements out."""
    steps = expr.output.domain.transforms if isinstance(expr, MoveOp) else ()
    return any(isinstance(step, Resize) for step in steps)
