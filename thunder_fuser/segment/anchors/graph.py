"""The anchor graph: which values of a fusion are anchors, and what each reads.

A result that is a view of memory which exists anyway is no anchor.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace

from thunder_fuser.analysis.aliases import View, aligned_layout, copy_chain, view_of
from thunder_fuser.analysis.footprint import Footprint
from thunder_fuser.analysis.isomorphism import Parts
from thunder_fuser.analysis.layout import dense_layout, layouts_of_inputs
from thunder_fuser.analysis.region import Region, everything
from thunder_fuser.analysis.sectors import sector_bytes
from thunder_fuser.analysis.torch_strides import TorchMemory, torch_memory
from thunder_fuser.device import DeviceInfo
from thunder_fuser.device_table import H200
from thunder_fuser.errors import FuserValueError, Refusal
from thunder_fuser.ir.domain import Layout, static
from thunder_fuser.ir.fusion import (
    CutOp,
    Expr,
    FoldOp,
    Fusion,
    OpaqueOp,
    TensorView,
    Val,
)
from thunder_fuser.ir.tables import opaque
from thunder_fuser.segment.anchors.anchors import Anchor, Anchors, Dependencies, members, union
from thunder_fuser.segment.anchors.cat_slices import Sliced
from thunder_fuser.segment.anchors.inner_orders import inner_orders
from thunder_fuser.segment.placement import Argument, Placement, SameAs, SliceOf, ViewOf
from thunder_fuser.segment.prices import PriceUnits

_NOTHING = Dependencies()


class AnchorGraph:
    """A fusion as a graph of anchors, with facts about its tensors that depend on no kernel.

    placement  of tensors in memory: inputs, stored anchors, views, and results of cuts, which share
               the memory of their inputs
    anchors    in program order; `number` maps tensors to their positions
    prices     of the target device
    parts      of the fusion, with cached results of isomorphic ones
    in_order   anchors that the operands of each order's calls are made of, call by call
    """

    def __init__(
        self,
        fusion: Fusion,
        layouts: Sequence[Layout] | None,
        device: DeviceInfo = H200,
        reasons: Mapping[TensorView, Refusal] | None = None,
        promised: Sequence[TorchMemory] = (),
        sliced: Sliced | None = None,
    ) -> None:
        """`reasons`: of cuts that the planner added. `promised`: strides and memory of the outputs.
        `sliced`: pieces that kernels write into slices of other tensors.
        """
        self.fusion = fusion
        self.definitions: Mapping[Val, Expr] = fusion.definitions()
        self.reasons = dict(reasons or {})
        self.prices = PriceUnits.of(device)
        self.parts = Parts(fusion)
        self.sliced = sliced or Sliced(fusion, {}, {}, {})
        self.placement = _placed(self.sliced, layouts)
        self.layouts = self.placement.layouts
        memory = torch_memory(fusion, self.layouts, promised)
        self._promised = {t: memory[t] for t in fusion.results}
        self._input_number = {t: k for k, t in enumerate(fusion.tensor_inputs)}
        orders = inner_orders(fusion, memory)
        self.orders: dict[TensorView, Sequence[int]] = {**orders, **self.sliced.orders}
        self._bytes: dict[Val, int] = {}
        self._view_count = self._count_views()
        self._written = self.sliced.written
        self._updating = {u.value for u in fusion.updates}
        self._has_folds = any(isinstance(expr, FoldOp) for expr in fusion.exprs)
        # What the walk fills.
        self.anchors: list[Anchor] = []
        self.number: dict[TensorView, int] = {}
        self.in_order: dict[opaque.Order, list[Anchors]] = {}
        self._reach: dict[Val, Dependencies] = {
            t: Dependencies(sources=frozenset({t})) for t in fusion.tensor_inputs
        }
        self._walk()
        # Results and operands of torch's calls.
        calls = [e for results in fusion.calls().values() for e in results]
        self.calls = {e.output: e for e in calls if e.output in self.layouts}
        self.called = frozenset(t for e in self.calls.values() for t in e.inputs)
        # Tensors in memory that every kernel reads where it needs them.
        given = (*fusion.tensor_inputs, *self.sliced.memory)
        self.stops = frozenset((*given, *self.placement.of(SameAs), *self.calls))
        self.users = self._users()

    def reach(self, value: Val) -> Dependencies:
        """Return the leaves of a value's computation; for a fold, those of its operand."""
        return self._reach.get(value, _NOTHING)

    def has_fold(self, anchors: Anchors) -> bool:
        """True if a kernel of these anchors does a reduction or a scan."""
        return any(self.anchors[k].fold is not None for k in members(anchors))

    def bytes_of(self, value: Val) -> int:
        """Return bytes moved by writing or fully reading a tensor; 0 for scalars. Kernels write
        broadcast elements repeatedly; inputs may hold them once, or with gaps (whole sectors).
        """
        if not isinstance(value, TensorView):
            return 0
        if value not in self._bytes:
            if value in self.definitions:
                self._bytes[value] = int(value.bytes)
            else:
                whole = everything(value.domain.root)
                self._bytes[value] = self._moved(value, whole, self.layouts[value].strides)
        return self._bytes[value]

    def bytes_read(self, tensor: TensorView, read: Footprint) -> int:
        """Return bytes of the sectors that hold the elements read; without an exact footprint, as
        for data-dependent indices, the bytes of the elements alone.
        """
        if not read.exact:
            return int(read.elements) * tensor.dtype.itemsize
        layout = self.layouts.get(tensor)
        strides = (layout or self.layout_of(tensor)).strides
        return self._moved(tensor, read.region, strides)

    def bytes_wanted(self, tensor: TensorView, read: Footprint) -> int:
        """Return distinct bytes of the elements read: elements of an expanded input that share
        memory count once.
        """
        itemsize = tensor.dtype.itemsize
        if tensor in self.definitions or not _repeats(tensor, layout := self.layouts[tensor]):
            return read.elements * itemsize
        region = read.region if read.exact else everything(tensor.domain.root)
        distinct = sector_bytes(region, layout.strides, itemsize, itemsize)
        return min(read.elements * itemsize, distinct)

    def _moved(self, tensor: TensorView, region: Region, strides: Sequence[int]) -> int:
        sector = self.prices.device.sector_bytes
        return sector_bytes(region, strides, tensor.dtype.itemsize, sector)

    def layout_of(self, tensor: TensorView) -> Layout:
        """Return the layout of a tensor that a kernel writes."""
        return self.sliced.layout(tensor) or dense_layout(tensor, self.orders[tensor])

    def _walk(self) -> None:
        """Find anchors, views and the leaves of each value, in program order."""
        wanted = {*self.fusion.roots, *self.sliced.written}
        # Memory that an update overwrites cannot be shared with a result, or across a cut.
        overwritten = {u.target for u in self.fusion.updates}
        bases = set(self.layouts) - overwritten
        needed = self._needed()
        for expr in self.fusion.exprs:
            output = expr.output
            if not isinstance(output, TensorView) or not (output in wanted or output in needed):
                continue
            for operand in expr.inputs:
                known = self.seen(operand)
                here = self._reach.get(output)
                self._reach[output] = known if here is None else here.with_(known)
            if output in self.sliced.late:
                self._wait_for_readers(output, self.sliced.late[output])
            if isinstance(expr, FoldOp) and (output.numel or output in needed):
                self._anchor(output, expr, is_stored=False)
            if isinstance(expr, OpaqueOp) and (output.numel or output in needed):
                self._call(expr, output, bases)
                continue
            source = expr.input if isinstance(expr, CutOp) else None
            if source is not None and source not in overwritten:
                self._settle(source, bases)
                self._cut(output, source)
                bases.add(output)
            elif output in wanted:
                self._settle(output, bases)
            if output in self.sliced.memory:
                self._write_windows(output)

    def seen(self, operand: Val) -> Dependencies:
        """Return what reading an operand depends on: its fold, or the leaves of its computation."""
        number = self.number.get(operand) if isinstance(operand, TensorView) else None
        if number is not None and self.anchors[number].fold is not None:
            return Dependencies(folds=1 << number)
        return self.reach(operand)

    def _settle(self, tensor: TensorView, bases: set[TensorView]) -> None:
        """Make a tensor a view, joined pieces or a stored anchor, unless it has a layout."""
        if tensor in self.layouts:
            return
        view = None
        is_joined = tensor in self.sliced.pieces
        if not is_joined and tensor not in self._written:
            view = self.view_of(tensor, bases, self.layouts)
            seen = self._seen_through(tensor) if view is None else None
            if seen is not None:
                self._settle(seen, bases)
                view = self.view_of(tensor, bases, self.layouts)
        if view is not None:
            self.add_view(tensor, view)
        else:
            # Pieces come before the joined tensor, which needs no kernel then.
            if not is_joined:
                self._anchor(tensor, None, is_stored=True)
            self.layouts[tensor] = self.layout_of(tensor)
        bases.add(tensor)

    def view_of(
        self, tensor: TensorView, bases: Set[TensorView], layouts: Mapping[TensorView, Layout]
    ) -> View | None:
        """Return a tensor as a view of one of `bases`, or None. None also for a result that is no
        such view in torch: a reshape of a copying reshape is no view of the original.
        """
        view = view_of(tensor, self.fusion, bases, layouts)
        expected = self._promised.get(tensor)
        if view is None or expected is None:
            return view
        source = self._input_number.get(view.base)
        return view if expected.is_at(view.sizes, view.strides, source) else None

    def add_view(self, tensor: TensorView, view: View) -> None:
        """Place a result in the memory of another tensor, as a view."""
        base = self.layouts[view.base].alignment
        layout = aligned_layout(view, tensor.dtype.itemsize, base)
        self.placement.put(tensor, ViewOf(view), layout)

    def _seen_through(self, tensor: TensorView) -> TensorView | None:
        """Return the smallest computed source that is better stored than a result that is a view of
        it: it takes less memory, has other views, or its points are those of reductions.
        """
        if tensor in self._updating:
            return None
        better = [source for source in self._sources(tensor) if self._is_better(source, tensor)]
        return min(better, key=lambda source: source.numel, default=None)

    def _is_better(self, source: TensorView, tensor: TensorView) -> bool:
        if source.numel > tensor.numel or isinstance(self.placement.get(source), SliceOf):
            return False
        dense = self.layout_of(source)
        view = self.view_of(tensor, {source}, {source: dense})
        if view is None:
            return False
        is_moved = _steps(view.sizes, view.strides) != _steps(source.sizes, dense.strides)
        is_shared = self._view_count[source] > 1
        return source.numel < tensor.numel or is_shared or (self._has_folds and is_moved)

    def _count_views(self) -> Counter[TensorView]:
        """Return for each tensor how many tensors in memory are it or a view of it: results, cuts
        and operands of torch's calls.
        """
        cut = (e.input for e in self.fusion.exprs if isinstance(e, CutOp))
        read = (t for calls in self.fusion.calls().values() for e in calls for t in e.inputs)
        shown = dict.fromkeys((*self.fusion.results, *cut, *read))
        return Counter(source for t in shown for source in (t, *self._sources(t)))

    def _sources(self, tensor: TensorView) -> list[TensorView]:
        """Return computed or copied tensors on a tensor's chain of views, from its start."""
        _, *sources = copy_chain(tensor, self.fusion)
        return [source for source in reversed(sources) if source in self.definitions]

    def _anchor(self, tensor: TensorView, fold: FoldOp | None, *, is_stored: bool) -> None:
        known = self.number.get(tensor)
        if known is None:
            self.number[tensor] = len(self.anchors)
            reach = self.reach(tensor) if tensor.numel or fold is not None else Dependencies()
            self.anchors.append(Anchor(tensor, fold, reach, is_stored))
        else:
            found = self.anchors[known]
            self.anchors[known] = Anchor(tensor, found.fold, found.reach, is_stored)

    def _cut(self, output: TensorView, source: TensorView) -> None:
        """Make readers of `output` run in a later kernel than the producer of `source`."""
        self.placement.put(output, SameAs(source), self._logical_layout(source))
        self._reach[output] = replace(self._makers(source), sources=frozenset({output}))

    def _write_windows(self, output: TensorView) -> None:
        """Make readers of an updated input run in later kernels than those of its windows."""
        told = Refusal("update", "later kernels read the updated input that it is a window of")
        for piece in self.sliced.pieces[output]:
            self.reasons.setdefault(piece, replace(told, subject=piece.name))
        self._reach[output] = replace(self._makers(output), sources=frozenset({output}))

    def _wait_for_readers(self, piece: TensorView, target: TensorView) -> None:
        """Make a piece of an updated input wait for all readers of the input."""
        readers = (1 << k for k, a in enumerate(self.anchors) if target in a.reach.sources)
        reach = self.reach(piece)
        self._reach[piece] = replace(reach, earlier=reach.earlier | union(readers))
        told = Refusal(
            "update", "it is computed from elements of an input that it overwrites later"
        )
        for stored in map(self.placement.behind_cuts, reach.sources):
            if stored in self.definitions:
                self.reasons.setdefault(stored, replace(told, subject=stored.name))

    def _makers(self, tensor: TensorView) -> Dependencies:
        """Return the anchors of a tensor in memory, the `behind` of its readers: itself or its
        pieces; for a result of torch, the anchors that the call depends on.
        """
        made = self.placement.written(tensor)
        parts = self.sliced.pieces.get(made, (made,))
        if isinstance(self.definitions.get(made), OpaqueOp) and made not in self.number:
            return replace(self.reach(made), sources=frozenset())
        return Dependencies(0, union(1 << self.number[p] for p in parts if p in self.number))

    def _call(self, expr: OpaqueOp, output: TensorView, bases: set[TensorView]) -> None:
        """Store the operands and the result of a torch call; readers run in later kernels."""
        reach = Dependencies(sources=frozenset({output}))
        for operand in expr.inputs:
            self._settle(operand, bases)
            reach = reach.with_(self._makers(operand))
            made = self.placement.written(operand)
            told = Refusal("call", f"torch's {expr.op} reads it", made.name)
            for part in self.sliced.pieces.get(made, (made,)):
                self.reasons.setdefault(part, told)
        self.layouts[output] = self.layout_of(output)
        order = opaque.lookup(expr.op).order(dict(expr.attributes))
        if order is not None:
            before = self.in_order.setdefault(order, [])
            reach = replace(reach, earlier=reach.earlier | union(before))
            before.append(reach.behind)
        self._reach[output] = reach
        bases.add(output)

    def _needed(self) -> set[Val]:
        """Return values that non-empty results depend on. Empty results depend on nothing, even if
        they are reductions; but a reduction of an empty tensor may have elements.
        """
        returned: set[Val] = {*self.fusion.roots, *self.sliced.written}
        needed: set[Val] = set()
        for expr in reversed(self.fusion.exprs):
            out = expr.output
            is_empty = isinstance(out, TensorView) and not out.numel
            if out in needed or (out in returned and not is_empty):
                needed.update(expr.inputs)
        return needed

    def _users(self) -> list[Anchors]:
        """Return for each anchor the set of anchors that read its fold."""
        found = [0] * len(self.anchors)
        for k, anchor in enumerate(self.anchors):
            for fold in members(anchor.reach.folds):
                found[fold] |= 1 << k
        return found

    def _logical_layout(self, tensor: TensorView) -> Layout:
        """Return the layout of a tensor in its logical dimensions, for readers after a cut."""
        layout = self.layouts[tensor]
        if tensor in self.definitions or not tensor.domain.transforms:
            return layout
        if not tensor.numel:
            return dense_layout(tensor, range(tensor.rank))
        view = view_of(tensor, self.fusion, {tensor}, self.layouts)
        if view is None or view.offset:
            raise FuserValueError(
                f"segment_set of {tensor}: the memory of an input that is {tensor.domain} has no "
                "strides for these dimensions; take the segment_set of what is computed from it"
            )
        return Layout(view.strides, layout.alignment)


def _steps(sizes: Sequence[int], strides: Sequence[int]) -> list[tuple[int, int]]:
    """Return (size, stride) of the dimensions with several elements."""
    return [(n, step) for n, step in zip(sizes, strides, strict=True) if n > 1]


def _placed(sliced: Sliced, layouts: Sequence[Layout] | None) -> Placement:
    """Return the placement of a fusion's inputs and of pieces that are slices of other tensors."""
    found = Placement(layouts_of_inputs(sliced.fusion, layouts))
    for tensor in sliced.fusion.tensor_inputs:
        found.put(tensor, Argument())
    for piece, view in sliced.slices.items():
        found.put(piece, SliceOf(view))
    return found


def _repeats(tensor: TensorView, layout: Layout) -> bool:
    """True if an input has stride 0 in a dimension that is not declared broadcast."""
    dims = zip(tensor.domain.root, layout.strides, strict=True)
    return any(not stride and not d.is_broadcast and static(d.extent) > 1 for d, stride in dims)
