"""Layouts of boundary tensors: their dimension order in memory, chosen for producer and readers.

Results have the strides that torch would give them. Boundary tensors may have any dimension order,
and a kernel with strided accesses uses one element of every 32-byte sector that it moves. So each
boundary tensor takes the order with the fewest bytes in strided accesses, counting all tensors of
its producer, inputs included, and of its readers.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from thunder_fuser.analysis.layout import dense_layout
from thunder_fuser.ir.domain import Layout
from thunder_fuser.ir.fusion import ReductionOp, ScanOp, TensorView
from thunder_fuser.lower.body import KernelBody
from thunder_fuser.segment.anchors.graph import AnchorGraph
from thunder_fuser.segment.layouts.strided_accesses import MANY_BYTES, strided_accesses
from thunder_fuser.segment.placement import SameAs
from thunder_fuser.segment.recompute.groups import Group, computed_and_loaded


def order_boundaries(
    graph: AnchorGraph, groups: Sequence[Group], free: Sequence[TensorView]
) -> None:
    """Choose the layouts of `free`: boundary tensors whose memory nothing else shares."""
    involved: dict[TensorView, list[_Reading]] = {}
    readings = [_Reading(group, computed_and_loaded(graph, group)[1]) for group in groups]
    for reading in readings:
        involved.update((t, [reading]) for t in reading.group.outputs)
    for reading in readings:
        for tensor in dict.fromkeys(graph.placement.behind_cuts(t) for t in reading.loaded):
            known = involved.get(tensor)
            if known is not None and known[0] is not reading:
                known.append(reading)
    names: dict[TensorView, list[TensorView]] = {}
    for seen in graph.placement.of(SameAs):
        names.setdefault(graph.placement.behind_cuts(seen), []).append(seen)
    for tensor in free:
        _order(graph, tensor, [tensor, *names.get(tensor, ())], involved[tensor])


@dataclass(frozen=True, slots=True, eq=False)
class _Reading:
    """A kernel with the tensors that it loads.

    known  cache of its bytes in strided accesses, by the layouts of all loaded and written tensors
    """

    group: Group
    loaded: Collection[TensorView]
    known: dict[tuple[Layout, ...], int] = field(default_factory=dict)


def _order(
    graph: AnchorGraph,
    tensor: TensorView,
    names: Sequence[TensorView],
    involved: Sequence[_Reading],
) -> None:
    """Choose the layout of one tensor. `names`: it, and results of cuts that share its memory."""
    order = graph.orders[tensor]
    moving = [k for k in order if tensor.sizes[k] > 1]
    if len(moving) < 2 or tensor.bytes < MANY_BYTES:
        return

    def cost(order: Sequence[int]) -> int:
        layout = dense_layout(tensor, order)
        layouts = ChainMap(dict.fromkeys(names, layout), graph.layouts)
        return sum(_strided(graph, reading, layouts) for reading in involved)

    best, least = tuple(order), cost(order)
    for innermost in reversed(moving[:-1]):
        other = (*(k for k in order if k != innermost), innermost)
        found = cost(other) if least else least
        if found < least:
            best, least = other, found
    graph.orders[tensor] = best
    graph.layouts.update(dict.fromkeys(names, dense_layout(tensor, best)))


def _strided(graph: AnchorGraph, reading: _Reading, layouts: Mapping[TensorView, Layout]) -> int:
    """Return the bytes of tensors that a kernel accesses with strides of a sector or more."""
    group = reading.group
    key = tuple(layouts[t] for t in (*reading.loaded, *group.outputs))
    if key not in reading.known:
        reading.known[key] = _stepped(graph, group, reading.loaded, layouts)
    return reading.known[key]


def _stepped(
    graph: AnchorGraph,
    group: Group,
    loaded: Collection[TensorView],
    layouts: Mapping[TensorView, Layout],
) -> int:
    folds = group.kernel.folds
    body = KernelBody(
        graph.definitions,
        {t: layouts[t] for t in loaded},
        group.outputs,
        [fold for fold in folds if isinstance(fold, ReductionOp)],
        {t: layouts[t] for t in group.outputs},
        scans=[fold for fold in folds if isinstance(fold, ScanOp)],
    )
    sector = graph.prices.device.sector_bytes
    return sum(access.tensor.bytes for access in strided_accesses(body, sector))
