"""In-place updates: selection of those that a kernel may write directly into the input.

This is safe iff all readers of the target are computed pointwise with the value: then each element
is read by the thread that overwrites it, before it does. And iff no kernel can fail half way: with
data-dependent indices, which may be out of range, inputs are updated after all reads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import dataclass

from thunder_fuser.analysis.layout import address_in, loop_order
from thunder_fuser.ir.dag import backward_slice
from thunder_fuser.ir.domain import Layout
from thunder_fuser.ir.fusion import Expr, Fusion, GatherOp, TensorView, Val
from thunder_fuser.ir.integer.symint import Context
from thunder_fuser.lower.body import KernelBody
from thunder_fuser.lower.pull import Pull
from thunder_fuser.segment.placement import Placement, SameAs, Updates


@dataclass(frozen=True, slots=True)
class Writer:
    """A kernel or call, as a writer of tensors.

    outputs       tensors that it writes
    loaded        values that it loads, at which the computation of outputs stops
    is_reduction  it may write elements that other threads still have to read
    """

    outputs: tuple[TensorView, ...]
    loaded: Container[Val]
    is_reduction: bool


def updates_in_place(
    fusion: Fusion,
    placement: Placement,
    kernels: Sequence[Writer],
    calls: Sequence[Writer] = (),
    windows: Collection[TensorView] = (),
) -> dict[TensorView, TensorView]:
    """Return value -> target of the updates that their kernel writes directly, and place them
    there. Inputs that `calls` of torch read are not overwritten before. `windows`: values of which
    kernels write no more than pieces, where nothing is read of the inputs.
    """
    if not fusion.updates or any(isinstance(expr, GatherOp) for expr in fusion.exprs):
        return {}
    kernel = {t: k for k in kernels for t in k.outputs}
    found = _candidates(fusion, placement, {*kernel, *windows})
    readers: dict[TensorView, list[TensorView]] = {u.target: [] for u in fusion.updates}
    reading = kernel | {t: call for call in calls for t in call.outputs}
    check = _Check(fusion.definitions(), placement.layouts, reading, readers)
    for tensor in reading:
        for source in check.sources(tensor) if tensor.numel else ():
            if source in readers:
                readers[source].append(tensor)
    while unsafe := [v for v in found if v not in windows and not check.may_overwrite(v, found)]:
        for value in unsafe:
            del found[value]
    for value, target in found.items():
        placement.put(value, Updates(target), placement.layouts[target])
    for tensor in placement.of(SameAs):
        if (owner := placement.behind_cuts(tensor)) in found:
            placement.layouts[tensor] = placement.layouts[found[owner]]
    return found


def _candidates(
    fusion: Fusion, placement: Placement, written: Container[TensorView]
) -> dict[TensorView, TensorView]:
    """Return value -> target of the updates whose value kernels write, into memory of its own."""
    values = Counter(u.value for u in fusion.updates)
    targets = Counter(u.target for u in fusion.updates)
    # Memory shared with other results must not become an input's.
    behind = placement.of(SameAs)
    shared = {placement.behind_cuts(view.base) for view in placement.views.values()}
    shared |= {placement.behind_cuts(t) for t in fusion.results if t in behind}
    return {
        u.value: u.target
        for u in fusion.updates
        if u.value in written
        and values[u.value] == targets[u.target] == 1
        and not u.target.domain.transforms
        # Kernels receive the value of a CPU scalar tensor, not its memory.
        and not u.target.is_cpu
        and u.value not in shared
    }


@dataclass(frozen=True, slots=True)
class _Check:
    """Safety check of in-place updates. kernel: writer of each tensor; readers: of each target."""

    definitions: Mapping[Val, Expr]
    layouts: Mapping[TensorView, Layout]
    kernel: Mapping[TensorView, Writer]
    readers: Mapping[TensorView, Sequence[TensorView]]

    def may_overwrite(self, value: TensorView, in_place: Mapping[TensorView, TensorView]) -> bool:
        target = in_place[value]
        readers = self.readers[target]
        if not readers:
            return True
        if self.kernel[value].is_reduction:
            return False
        order = loop_order(value, self.layouts[target])
        for tensor in readers:
            destination = self.layouts[in_place.get(tensor, tensor)]
            together = (
                not self.kernel[tensor].is_reduction
                and tensor.sizes == value.sizes
                and self.kernel[tensor] is self.kernel[value]
                and loop_order(tensor, destination) == order
            )
            if not together or not self._reads_in_step(tensor, target):
                return False
        # Read by other values only, an element would be overwritten by another thread.
        return value in readers

    def sources(self, tensor: TensorView) -> list[TensorView]:
        """Return the tensors that the computation of `tensor` loads, in order."""
        loaded = self.kernel[tensor].loaded

        def is_loaded(value: Val) -> bool:
            return value in loaded and value is not tensor

        def producers(value: Val) -> tuple[Val, ...]:
            expr = None if is_loaded(value) else self.definitions.get(value)
            return expr.inputs if expr else ()

        needed = backward_slice(list[Val]((tensor,)), producers)
        return [v for v in needed if isinstance(v, TensorView) and is_loaded(v)]

    def _reads_in_step(self, tensor: TensorView, target: TensorView) -> bool:
        """True if `tensor` reads `target` only at the element of the point that is computed."""
        context = Context()
        index = [context.var(f"d{k}", 0, n - 1) for k, n in enumerate(tensor.sizes)]
        loads = {t: self.layouts[t] for t in self.sources(tensor)}
        pull = Pull(KernelBody(self.definitions, loads), context)
        pull.emit(tensor, index)
        here = address_in(target, index, self.layouts[target], context)
        return all(x.address is here for x in pull.graph.loads if x.tensor is target)
