"""Updates in place: which of them a kernel may write straight into the input.

Safe iff all that reads the target is computed point by point with the value: then each element is
read by the thread that overwrites it, before it does. And iff nothing can fail half way: where an
index among the data may turn out not to exist, inputs are updated when all have been read.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from thunder_fuser.analysis.layout import View, address_in, loop_order
from thunder_fuser.analysis.pull import Pull
from thunder_fuser.ir.domain import Layout
from thunder_fuser.ir.fusion import Expr, Fusion, GatherOp, TensorView, Val
from thunder_fuser.ir.symint import Context


def updates_in_place(
    fusion: Fusion,
    layouts: dict[TensorView, Layout],
    kernel: Mapping[TensorView, int],
    storage: Mapping[TensorView, TensorView],
    views: Mapping[TensorView, View],
    written: Sequence[TensorView],
    rows: Collection[TensorView],
    loaded: Mapping[TensorView, Collection[TensorView]],
) -> dict[TensorView, TensorView]:
    """Value -> target of the updates that their kernel writes directly; fills in their layouts.

    written  tensors that kernels write; `rows`: those of row kernels, which write nothing in place
    loaded   for each of them, where computing it ends: what its kernel loads
    kernel   that writes a tensor, by number
    """
    if any(isinstance(expr, GatherOp) for expr in fusion.exprs):
        return {}
    values = [u.value for u in fusion.updates]
    targets = [u.target for u in fusion.updates]
    # Memory that other results share as well: it must not become an input's.
    shared = {storage.get(view.base, view.base) for view in views.values()}
    shared |= {storage[t] for t in fusion.results if t in storage}
    found = {
        u.value: u.target
        for u in fusion.updates
        if u.value in written
        and u.value not in rows
        and values.count(u.value) == targets.count(u.target) == 1
        and not u.target.domain.transforms
        and u.value not in shared
    }
    check = _Check(fusion.definitions(), layouts, kernel, written, rows, loaded)
    while unsafe := [v for v in found if not check.may_overwrite(v, found)]:
        for value in unsafe:
            del found[value]
    for value, target in found.items():
        for tensor in (value, *(t for t, owner in storage.items() if owner is value)):
            layouts[tensor] = layouts[target]
    return found


@dataclass(frozen=True, slots=True)
class _Check:
    definitions: Mapping[Val, Expr]
    layouts: Mapping[TensorView, Layout]
    kernel: Mapping[TensorView, int]
    written: Sequence[TensorView]
    rows: Collection[TensorView]
    loaded: Mapping[TensorView, Collection[TensorView]]

    def may_overwrite(self, value: TensorView, in_place: Mapping[TensorView, TensorView]) -> bool:
        target = in_place[value]
        order = loop_order(value, self.layouts[target])
        readers: list[TensorView] = []
        for tensor in self.written:
            if not tensor.numel or not self._reads(tensor, target):
                continue
            destination = self.layouts[in_place.get(tensor, tensor)]
            together = (
                tensor not in self.rows
                and tensor.sizes == value.sizes
                and self.kernel[tensor] == self.kernel[value]
                and loop_order(tensor, destination) == order
            )
            if not together or not self._reads_in_step(tensor, target):
                return False
            readers.append(tensor)
        # What is read by others only would be overwritten by another thread than the readers'.
        return not readers or value in readers

    def _reads(self, tensor: TensorView, target: TensorView) -> bool:
        """Whether computing `tensor` reads `target` at all."""
        seen: set[int] = set()
        stack: list[Val] = [tensor]
        loaded = self.loaded[tensor]
        while stack:
            value = stack.pop()
            if value is target:
                return True
            stops = value in loaded and value is not tensor
            if value.id not in seen and not stops and value in self.definitions:
                seen.add(value.id)
                stack.extend(self.definitions[value].inputs)
        return False

    def _reads_in_step(self, tensor: TensorView, target: TensorView) -> bool:
        """Whether every read of `target` is of the element at the point that is computed."""
        context = Context()
        index = [context.var(f"d{k}", 0, n - 1) for k, n in enumerate(tensor.sizes)]
        pull = Pull(self.definitions, {t: self.layouts[t] for t in self.loaded[tensor]}, context)
        pull.emit(tensor, index)
        here = address_in(target, index, self.layouts[target], context)
        return all(x.address is here for x in pull.graph.loads if x.tensor is target)
