"""Candidate bodies: what a kernel may load, and what its legality does not depend on.

Legality is asked of many sets of anchors of one fusion. The answer depends on what lies between a
kernel's own folds and its outputs. What lies in front, such as a residual stream through all layers
before, matters only by its order in memory, which is found once for all kernels.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from thunder_fuser.ir.domain import Layout
from thunder_fuser.ir.fusion import TensorView, Val
from thunder_fuser.lower.body import KernelBody
from thunder_fuser.lower.index.index_forms import WIDE
from thunder_fuser.lower.memory_order import MemoryOrder, followed, traced_order
from thunder_fuser.segment.anchors.anchors import Anchors, union
from thunder_fuser.segment.anchors.graph import AnchorGraph


@dataclass(frozen=True, slots=True)
class Loadable(Mapping[TensorView, Layout]):
    """Tensors that a kernel may load, for the legality test: those in memory except for its own
    folds, and stored anchors that depend on none of these. It may recompute the latter instead,
    which it can wherever it could load them.
    """

    graph: AnchorGraph
    memory: Mapping[TensorView, Layout]
    folds: Anchors
    outputs: AbstractSet[TensorView]

    def __contains__(self, value: object) -> bool:
        number = self.graph.number.get(value)  # type: ignore[call-overload]
        if number is None:
            return value in self.memory
        if self.folds >> number & 1:
            return False
        if value in self.memory:
            return True
        anchor = self.graph.anchors[number]
        waits = anchor.reach.folds & self.folds
        return anchor.is_stored and not waits and value not in self.outputs

    def __getitem__(self, tensor: TensorView) -> Layout:
        if tensor not in self:
            raise KeyError(tensor)
        return self.memory[tensor] if tensor in self.memory else self.graph.layout_of(tensor)

    def __iter__(self) -> Iterator[TensorView]:
        return iter([t for t in (*self.memory, *self.graph.number) if t in self])

    def __len__(self) -> int:
        return sum(1 for _ in self)


@dataclass(frozen=True, slots=True)
class Given(Container[Val]):
    """Values that depend on none of a kernel's folds: it has them at every point."""

    graph: AnchorGraph
    folds: Anchors

    def __contains__(self, value: object) -> bool:
        return not self.graph.seen(value).folds & self.folds  # type: ignore[arg-type]


class Ends(Container[Val]):
    """Values at which the part that legality depends on ends: loads, and given values. Given
    integers are not among them, since they may be indices with a form (`lower/index`).
    """

    def __init__(self, body: KernelBody) -> None:
        self._body = body
        self._known: dict[object, bool] = {}

    def __contains__(self, value: object) -> bool:
        found = self._known.get(value)
        if found is None:
            is_given = isinstance(value, TensorView) and value.dtype not in WIDE
            found = (is_given and value in self._body.given) or value in self._body.loads
            self._known[value] = found
        return found


class CommonOrders:
    """Memory orders of values in kernels that load every anchor in memory: one walk for all."""

    def __init__(self, graph: AnchorGraph, memory: Mapping[TensorView, Layout]) -> None:
        self._graph = graph
        self._body = KernelBody(graph.definitions, Loadable(graph, memory, 0, frozenset()))
        self._known: dict[TensorView, MemoryOrder | None] = {}
        self._loaded: dict[TensorView, Anchors] = {}

    def within(self, body: KernelBody) -> KnownOrders:
        """The orders that hold in a kernel, too."""
        numbers = (self._graph.number.get(t) for t in body.outputs)
        written = union(1 << k for k in numbers if k is not None)
        return KnownOrders(self, body.given, written)

    def of(self, tensor: TensorView) -> tuple[MemoryOrder | None, Anchors]:
        """The order of a tensor; None if it cannot be traced to loads. Also the anchors at which
        tracing it ends.
        """
        order = traced_order(tensor, self._body, self._known)
        waiting = [tensor]
        while waiting:
            source = waiting[-1]
            behind = followed(source, self._body)
            if unknown := [t for t in behind if t not in self._loaded]:
                waiting += unknown
                continue
            waiting.pop()
            own = self._graph.number.get(source) if source in self._body.loads else None
            ends = union(map(self._loaded.__getitem__, behind))
            self._loaded[source] = ends if own is None else 1 << own
        return order, self._loaded[tensor]


class KnownOrders(dict[TensorView, "MemoryOrder | None"]):
    """Memory orders of one kernel's values. Those of given values are the common ones, unless they
    are traced to an anchor that the kernel writes (`written`), so that it does not load it.
    """

    def __init__(self, common: CommonOrders, given: Container[Val], written: Anchors) -> None:
        super().__init__()
        self._common = common
        self._given = given
        self._written = written

    def __contains__(self, tensor: object) -> bool:
        if super().__contains__(tensor):
            return True
        if not isinstance(tensor, TensorView) or tensor not in self._given:
            return False
        order, ends = self._common.of(tensor)
        if not ends & self._written:
            self[tensor] = order
        return not ends & self._written
