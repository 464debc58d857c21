"""Partition: which tensors go through memory, and which kernel writes each of them.

So far only the user cuts (`segment_set`). Everything between two cuts is one segment, for a map
kernel can hold any number of pointwise regions side by side; results that are views of memory that
exists anyway become alias segments. Cuts by cost come with a later stage, in this same place.
"""

from __future__ import annotations

from collections.abc import Sequence

from thunder_fuser.analysis.footprint import footprint
from thunder_fuser.analysis.layout import (
    View,
    address_in,
    declared_layout,
    dense_layout,
    loop_order,
    memory_orders,
    view_of,
)
from thunder_fuser.analysis.pull import Pull
from thunder_fuser.ir.domain import Layout
from thunder_fuser.ir.fusion import Expr, Fusion, TensorView, Val, ViewOp
from thunder_fuser.ir.symint import Context
from thunder_fuser.segment.plan import Boundary, Segment, SegmentedFusion

MAX_OUTPUTS = 128
"""Outputs of one kernel: keeps parameter lists within what every GPU takes."""


def partition(fusion: Fusion, layouts: Sequence[Layout] | None = None) -> SegmentedFusion:
    """The plan of a static fusion. `layouts` of its tensor inputs (default: as they are
    declared).
    """
    return _Partition(fusion, layouts).plan()


class _Partition:
    def __init__(self, fusion: Fusion, layouts: Sequence[Layout] | None) -> None:
        self.fusion = fusion
        self.definitions: dict[Val, Expr] = fusion.definitions()
        tensors = fusion.tensor_inputs
        given = layouts or [declared_layout(t) for t in tensors]
        self.layouts: dict[TensorView, Layout] = dict(zip(tensors, given, strict=True))
        self.orders = memory_orders(fusion, self.layouts)
        # A segment_set result is its input, seen from behind the cut.
        self.storage: dict[TensorView, TensorView] = {}
        self.views: dict[TensorView, View] = {}
        self.level: dict[TensorView, int] = dict.fromkeys(tensors, -1)

    def plan(self) -> SegmentedFusion:
        kernels = self._materialise()
        in_place = self._in_place(kernels)
        segments: list[Segment] = []
        made: dict[TensorView, int] = {}
        for depth in sorted({self.level[t] for t in (*kernels, *self.views)}):
            group = [t for t in kernels if self.level[t] == depth]
            for first in range(0, len(group), MAX_OUTPUTS):
                outputs = tuple(group[first : first + MAX_OUTPUTS])
                segments.append(self._map_segment(len(segments), outputs))
                made.update(dict.fromkeys(outputs, len(segments) - 1))
            for tensor, view in self.views.items():
                if self.level[tensor] == depth:
                    segments.append(_alias_segment(len(segments), tensor, view))
                    made[tensor] = len(segments) - 1
        return SegmentedFusion(
            self.fusion,
            tuple(segments),
            self._boundaries(segments, made),
            self.layouts,
            self.storage,
            in_place,
            self._ideal(kernels),
        )

    # ---- what must exist in memory

    def _materialise(self) -> list[TensorView]:
        """Tensors that kernels write, in SSA order; fills `views`, `storage`, `layouts` and
        `level`.
        """
        results = set(self.fusion.results)
        # What an update overwrites cannot lend its memory to a result, nor to one side of a cut.
        overwritten = {u.target for u in self.fusion.updates}
        bases = set(self.layouts) - overwritten
        kernels: list[TensorView] = []

        def settle(tensor: TensorView) -> None:
            """Decide how `tensor` comes to be in memory, unless that is decided."""
            if tensor in bases or tensor in self.layouts:
                return
            view = view_of(tensor, self.definitions, bases, self.layouts)
            if view is None:
                self.layouts[tensor] = dense_layout(tensor, self.orders[tensor])
                self.level[tensor] = self._depth(tensor)
                kernels.append(tensor)
            else:
                self.views[tensor] = view
                self.layouts[tensor] = Layout(view.strides, self._alignment(view, tensor))
                self.level[tensor] = self.level[view.base]
            bases.add(tensor)

        for expr in self.fusion.exprs:
            if not isinstance(expr.output, TensorView):
                continue
            if (
                isinstance(expr, ViewOp)
                and expr.op == "segment_set"
                and expr.input not in overwritten
            ):
                settle(expr.input)
                owner = self.storage.get(expr.input, expr.input)
                self.storage[expr.output] = owner
                self.layouts[expr.output] = self.layouts[expr.input]
                # Behind the cut: whatever reads this runs in a later kernel.
                self.level[expr.output] = self.level[expr.input]
                bases.add(expr.output)
            elif expr.output in results:
                settle(expr.output)
        return kernels

    def _alignment(self, view: View, tensor: TensorView) -> int:
        """Bytes that the view's first element is aligned to."""
        shift = view.offset * tensor.dtype.itemsize
        base = self.layouts[view.base].alignment
        return base if shift == 0 else min(base, shift & -shift)

    def _depth(self, tensor: TensorView) -> int:
        """One more than the deepest cut that computing the tensor reads across."""
        deepest = -1
        seen: set[int] = set()
        stack: list[Val] = [tensor]
        while stack:
            value = stack.pop()
            if value.id in seen or not isinstance(value, TensorView):
                continue
            seen.add(value.id)
            if value in self.storage:
                deepest = max(deepest, self.level[value])
            elif value in self.definitions:
                stack.extend(self.definitions[value].inputs)
        return deepest + 1

    # ---- segments

    def _stops(self) -> set[TensorView]:
        return {*self.fusion.tensor_inputs, *self.storage}

    def _map_segment(self, index: int, outputs: tuple[TensorView, ...]) -> Segment:
        reads = footprint(self.fusion, outputs, self._stops())
        read = {t: f for t, f in reads.items() if not t.is_cpu}
        owners = dict.fromkeys(self.storage.get(t, t) for t in read)
        cone = self._cone(outputs)
        return Segment(
            index,
            "map",
            tuple(owners),
            outputs,
            tuple(e.op for e in self.fusion.exprs if e.output in cone and e.op != "cast"),
            bytes_read=sum(f.elements * t.dtype.itemsize for t, f in read.items()),
            bytes_written=sum(t.bytes for t in outputs),
            kernels=int(any(t.numel for t in outputs)),
        )

    def _cone(self, outputs: Sequence[TensorView]) -> set[Val]:
        """Everything that a segment computes."""
        seen: set[Val] = set()
        stack: list[Val] = list(outputs)
        while stack:
            value = stack.pop()
            if value not in seen and value not in self.storage and value in self.definitions:
                seen.add(value)
                stack.extend(self.definitions[value].inputs)
        return seen

    def _boundaries(
        self, segments: Sequence[Segment], made: dict[TensorView, int]
    ) -> tuple[Boundary, ...]:
        found: list[Boundary] = []
        for tensor in dict.fromkeys(self.storage.values()):
            readers = tuple(s.index for s in segments if s.kind == "map" and tensor in s.inputs)
            producer = made.get(tensor)
            if producer is not None and tensor not in self.views and readers:
                reason = "the definition cuts here (segment_set)"
                found.append(Boundary(tensor, producer, readers, tensor.bytes, reason))
        return tuple(found)

    def _ideal(self, kernels: Sequence[TensorView]) -> int:
        """Bytes if nothing but inputs and results touched memory."""
        results = [t for t in self.fusion.results if t in set(kernels)]
        reads = footprint(self.fusion, results, set(self.fusion.tensor_inputs))
        read = sum(f.elements * t.dtype.itemsize for t, f in reads.items() if not t.is_cpu)
        return read + sum(t.bytes for t in results)

    # ---- updates

    def _in_place(self, kernels: Sequence[TensorView]) -> dict[TensorView, TensorView]:
        """Updates whose kernel may write the input directly: value -> target.

        Safe iff all that reads the target is computed point by point with the value: then each
        element is read by the thread that overwrites it, before it does. Fills in their layouts.
        """
        written = [u.value for u in self.fusion.updates]
        targets = [u.target for u in self.fusion.updates]
        # Memory that other results share as well: it must not become an input's.
        shared = {self.storage.get(view.base, view.base) for view in self.views.values()}
        shared |= {self.storage[t] for t in self.fusion.results if t in self.storage}
        found = {
            u.value: u.target
            for u in self.fusion.updates
            if u.value in kernels
            and written.count(u.value) == targets.count(u.target) == 1
            and not u.target.domain.transforms
            and u.value not in shared
        }
        while unsafe := [v for v in found if not self._may_overwrite(v, found, kernels)]:
            for value in unsafe:
                del found[value]
        for value, target in found.items():
            for tensor in (value, *(t for t, owner in self.storage.items() if owner is value)):
                self.layouts[tensor] = self.layouts[target]
        return found

    def _may_overwrite(
        self,
        value: TensorView,
        in_place: dict[TensorView, TensorView],
        kernels: Sequence[TensorView],
    ) -> bool:
        target = in_place[value]
        order = loop_order(value, self.layouts[target])
        readers: list[TensorView] = []
        for tensor in kernels:
            if not tensor.numel:
                continue
            context = Context()
            index = [context.var(f"d{k}", 0, n - 1) for k, n in enumerate(tensor.sizes)]
            memory = {t: self.layouts[t] for t in self._stops()}
            pull = Pull(self.definitions, memory, context)
            pull.emit(tensor, index)
            loads = [load for load in pull.graph.loads if load.tensor is target]
            if not loads:
                continue
            destination = self.layouts[in_place.get(tensor, tensor)]
            together = (
                tensor.sizes == value.sizes
                and self.level[tensor] == self.level[value]
                and loop_order(tensor, destination) == order
            )
            if not together:
                return False
            here = address_in(target, index, self.layouts[target], context)
            if any(load.address is not here for load in loads):
                return False
            readers.append(tensor)
        # What is read by others only would be overwritten by another thread than the readers'.
        return not readers or value in readers


def _alias_segment(index: int, tensor: TensorView, view: View) -> Segment:
    return Segment(index, "alias", (view.base,), (tensor,), (), views=(view,))
