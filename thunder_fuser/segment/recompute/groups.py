"""Kernels of a partition, and the tensors that pass between them through memory."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field

from thunder_fuser.ir.dag import backward_slice
from thunder_fuser.ir.fusion import TensorView, Val
from thunder_fuser.segment.anchors.anchors import Anchors
from thunder_fuser.segment.anchors.graph import AnchorGraph
from thunder_fuser.segment.legality import Legal


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
