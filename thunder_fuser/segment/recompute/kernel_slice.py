"""What a kernel may compute: the backward slice of its anchors, priced for the minimum cut."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from functools import cached_property

from thunder_fuser.analysis.footprint import Footprint
from thunder_fuser.ir.dag import topological_order
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
from thunder_fuser.segment.anchors.anchors import members
from thunder_fuser.segment.anchors.graph import AnchorGraph
from thunder_fuser.segment.recompute.groups import Group, StoreCandidate
from thunder_fuser.segment.recompute.min_cut import INFINITE
from thunder_fuser.segment.recompute.price_bounds import Value
from thunder_fuser.segment.recompute.store_or_recompute import Choice, materialize

_NEVER = INFINITE >> 20
_NEAR = 2
"""Longest chain of stored values, one computed from the other, that a kernel may recompute."""
_L1_READ = 1
"""Price of a byte from L1: per clock, as many bytes as fp32 instructions of threads."""


class KernelSlice:
    """Backward slice of a kernel's anchors up to loaded tensors; operands come before results.

    is_written  True for a value that is stored anyway
    far         such values beyond _NEAR others, whose operands are not considered. Without this
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
        # Choices are made again with fewer candidates.
        self._priced: dict[tuple[Val, bool, bool], Value] = {}

    def _found_far(self, is_written: Callable[[Val], bool]) -> AbstractSet[Val]:
        waiting, seen = list[Val](self.roots), set[Val](self.roots)
        for _ in range(_NEAR + 1):
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
        values = [self._value(v, v in candidates, v in written) for v in self.order]
        wanted = dict.fromkeys(self.numbers[u] for r in self.roots for u in self._operands(r))
        (choice,) = materialize(values, [wanted])
        return Choice(choice.read, choice.computed | {self.numbers[r] for r in self.roots})

    @cached_property
    def _demanded(self) -> Mapping[TensorView, Footprint]:
        """Return the elements read of tensors; empty if all tensors are read as a whole."""
        exprs = map(self.graph.definitions.get, self.order)
        if not any(isinstance(e, CatOp | GatherOp) or _is_window(e) for e in exprs):
            return {}
        found = {v for v in self.order if isinstance(v, TensorView) and self._is_stop(v)}
        return self.graph.parts.demanded(list(self.roots), found)

    def _value(self, v: Val, can_be_stored: bool, is_stored: bool) -> Value:
        key = v, can_be_stored, is_stored
        if key not in self._priced:
            self._priced[key] = self._price(*key)
        return self._priced[key]

    def _price(self, v: Val, can_be_stored: bool, is_stored: bool) -> Value:
        size, byte = self.graph.bytes_of(v), self.graph.prices.byte
        read = byte * size
        if isinstance(v, TensorView) and v in self._demanded:
            read = byte * min(size, self.graph.bytes_read(v, self._demanded[v]))
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
