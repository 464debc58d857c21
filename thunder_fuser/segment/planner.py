"""Planner: split a fusion into segments in execution order, with boundary tensors between them.

The plan is the cheapest of a few: with cats written whole or in pieces, with inputs of reductions
copied to another layout or not. `search.py` divides each, `assembly.py` makes segments of it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from thunder_fuser.analysis.layout import layouts_of_inputs
from thunder_fuser.analysis.torch_strides import TorchMemory, torch_memory
from thunder_fuser.device import DeviceInfo
from thunder_fuser.device_table import H200
from thunder_fuser.garbage import uncollected
from thunder_fuser.ir.domain import Layout
from thunder_fuser.ir.fusion import Fusion, TensorView
from thunder_fuser.segment.anchors.cat_slices import Sliced, cat_as_slices, joined_tensors
from thunder_fuser.segment.anchors.graph import AnchorGraph
from thunder_fuser.segment.anchors.inner_orders import inner_orders
from thunder_fuser.segment.anchors.limits import Limited, limited
from thunder_fuser.segment.anchors.update_windows import with_windows
from thunder_fuser.segment.assembly import PlanAssembly
from thunder_fuser.segment.layouts.layout_conversion import converted, strided
from thunder_fuser.segment.plan import SegmentedFusion
from thunder_fuser.segment.prices import PriceUnits
from thunder_fuser.segment.shared_pieces import SharedPieces, shared_pieces

Optimise = Callable[[Fusion], Fusion]

MAX_TRIALS = 4
"""Most candidate tensors that are also tried one by one as slices written by several kernels."""


def partition_after(
    optimise: Optimise, fusion: Fusion, layouts: Sequence[Layout] | None, device: DeviceInfo
) -> SegmentedFusion:
    """Optimise a static fusion and plan the result. Outputs have the strides that torch gives those
    of the fusion before the passes: row-major after transpose, pad; not after pad, transpose.
    """
    optimised = optimise(fusion)
    if optimised is fusion:
        return partition(fusion, layouts, device=device)
    promised = _of_outputs(fusion, layouts)
    return partition(optimised, layouts, device=device, promised=promised)


@uncollected()
def partition(
    fusion: Fusion,
    layouts: Sequence[Layout] | None = None,
    device: DeviceInfo = H200,
    promised: Sequence[TorchMemory] = (),
) -> SegmentedFusion:
    """Plan a static fusion. `layouts`: those of its tensor inputs (default: as declared).
    `device`: the one whose time is minimised. `promised`: strides and memory of the outputs
    (default: those that torch gives the outputs of `fusion`).
    """
    within = limited(fusion)
    best = _with_slices(within, layouts, device, promised)
    strides = strided(best, device)
    changed = converted(within, best, strides) if strides else None
    if changed is None:
        return best
    # Results keep the memory layout that they have without the copies.
    known = promised or _of_outputs(fusion, layouts)
    found = _with_slices(changed, layouts, device, known)
    return found if _price(found, device) < _price(best, device) else best


def _of_outputs(fusion: Fusion, layouts: Sequence[Layout] | None) -> tuple[TorchMemory, ...]:
    memory = torch_memory(fusion, layouts_of_inputs(fusion, layouts))
    return tuple(memory[t] for t in fusion.outputs)


def _price(plan: SegmentedFusion, device: DeviceInfo) -> int:
    """Return the price of a plan's launches and of all bytes moved, wasted ones included."""
    wasted = sum(s.wasted for s in strided(plan, device))
    # Bytes read before come from the device's cache, in about half of the time.
    wasted += sum(s.bytes for s in shared_pieces(plan, device)) // 2
    return PriceUnits.of(device)(plan.kernels, int(plan.bytes) + wasted)


def _with_slices(
    within: Limited,
    layouts: Sequence[Layout] | None,
    device: DeviceInfo,
    promised: Sequence[TorchMemory],
) -> SegmentedFusion:
    """Plan a fusion; kernels write cats piece by piece where that is cheaper."""

    def planned(joined: Sequence[TensorView], windows: Sliced | None = None) -> SegmentedFusion:
        sliced = windows or Sliced(within.fusion, {}, {}, {})
        if tensors := (*within.joined, *joined):
            sliced = cat_as_slices(within.fusion, tensors, orders(), pieces)
        graph = AnchorGraph(sliced.fusion, layouts, device, within.cuts, promised, sliced)
        return PlanAssembly(graph).plan()

    @functools.cache
    def orders() -> Mapping[TensorView, Sequence[int]]:
        known = layouts_of_inputs(within.fusion, layouts)
        return inner_orders(within.fusion, torch_memory(within.fusion, known, promised))

    pieces: Sequence[TensorView] = ()
    best = planned(())
    if windows := with_windows(within.fusion, layouts):
        found = planned((), windows)
        # No plan moves less than the windows, whether or not it is better to write more.
        best = replace(best, bytes_ideal=found.bytes_ideal)
        is_legal = windows.memory.keys() <= found.placement.updates.keys()
        if is_legal and _price(found, device) < _price(best, device):
            best = found
    joined: tuple[TensorView, ...] = ()
    known = within.fusion.definitions()
    shared = shared_pieces(best, device)
    pieces = [t for s in shared for t in s.pieces]
    collected = _collected(best, shared)
    tensors = [t for t in collected if t in known and t not in within.joined]
    # All at once; then, if they are few, with each single tensor toggled.
    trials = [tensors, *([t] for t in tensors if 1 < len(tensors) <= MAX_TRIALS)]
    for changed in trials if tensors else ():
        trial = tuple(t for t in tensors if (t in joined) != (t in changed))
        found = planned(trial)
        if found.bytes <= best.bytes and _price(found, device) < _price(best, device):
            best, joined = found, trial
        if best.bytes == best.bytes_ideal:
            break
    return best


def _collected(pulled: SegmentedFusion, shared: Sequence[SharedPieces]) -> list[TensorView]:
    """Return candidates for piecewise writing: tensors that a kernel assembles from boundary
    tensors or from inputs of reductions, and those whose pieces read the same tensors. Calls of
    torch write nothing in pieces.
    """
    written = [b for b in pulled.boundaries if pulled.segments[b.producer].kernels]
    consumers = {k for b in written for k in b.consumers}
    folded = {t for s in pulled.segments if s.folds for t in s.inputs}
    late = [
        s
        for s in pulled.segments
        if s.index in consumers or (s.kind == "pointwise" and not folded.isdisjoint(s.inputs))
    ]
    tensors = (*(t for s in late for t in s.outputs), *(t for s in shared for t in s.outputs))
    layouts = {t: pulled.placement.layouts[t] for t in tensors}
    pieces = [t for s in shared for t in s.pieces]
    return joined_tensors(pulled.fusion, layouts, pieces) if layouts else []
