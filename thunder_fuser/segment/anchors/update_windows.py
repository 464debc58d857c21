"""Partial in-place updates (slice scatters): of `x[index] = value`, kernels write what the index
selects, its windows.

The new value of `x` is a select between the value and `x`, for each window. A kernel over all of
its points would read and write all of `x`: for one position of a key-value cache, a thousand times
the bytes. Here windows are pieces, which kernels write into the memory of `x`; the rest of the new
value is there already. Readers of the new value run in later kernels. Where windows overlap,
what is overwritten is cut out of the earlier ones. Where old elements of a window are read, it is
written at the end, after all readers of the old value; what is computed from old elements is stored
before.

`planner.py` plans both ways: where all of `x` is read or written anyway, one kernel is better.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import mul

from thunder_fuser.analysis.aliases import View
from thunder_fuser.analysis.footprint import Footprint, footprint
from thunder_fuser.analysis.layout import layouts_of_inputs
from thunder_fuser.analysis.progression import are_apart
from thunder_fuser.analysis.region import Box, pushed, without
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.domain import IterDomain, Layout, Transform, iteration, tensor_domain
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import (
    CopyOp,
    CutOp,
    Expr,
    FullOp,
    Fusion,
    Origin,
    PadOp,
    PointwiseOp,
    Scalar,
    TensorView,
    Update,
    Val,
    ViewOp,
    move_op,
)
from thunder_fuser.ir.view_programs import pads, simplified, view_name
from thunder_fuser.segment.anchors.cat_slices import Sliced

MAX_PARTS = 16
"""Most parts of a window, what later ones overwrite being cut out."""


def with_windows(fusion: Fusion, layouts: Sequence[Layout] | None) -> Sliced | None:
    """Rewrite a fusion so that kernels write the windows of updated inputs; None where no update is
    of windows.
    """
    given = layouts_of_inputs(fusion, layouts)
    found: Mapping[Update, Sequence[_Window]]
    found = {u: w for u in fusion.updates if (w := _windows(u, fusion.definitions()))}
    late: set[Update] = set()
    while found:
        pieces = _Pieces(fusion, late)
        for update, windows in found.items():
            pieces.join(update, windows, given[update.target])
        sliced = pieces.sliced()
        read = _read(sliced)
        unsafe = {u for u in found if not _spares(read.get(u.target), found[u])} - late
        if not unsafe:
            return sliced
        if _can_wait(fusion, late | unsafe):
            late |= unsafe
        else:
            found = {u: windows for u, windows in found.items() if u not in unsafe}
    return None


def _can_wait(fusion: Fusion, updates: Collection[Update]) -> bool:
    """True if windows of these updates can be written after all readers of the old values: what
    depends on the new ones reads nothing that depends on the inputs otherwise. Calls of torch run
    in an order of their own.
    """
    old, new = {u.target for u in updates}, {u.value for u in updates}
    if fusion.calls() or len(new) < len(updates):
        return False
    before, after = set[Val](old), set[Val](new)
    for expr in fusion.exprs:
        of_old, of_new = (not values.isdisjoint(expr.inputs) for values in (before, after))
        if of_new and (of_old or expr.output in new):
            return False
        if of_new:
            after.add(expr.output)
        elif of_old and expr.output not in new:
            before.add(expr.output)
    return True


def _read(sliced: Sliced) -> Mapping[TensorView, Footprint]:
    """Return what is read of inputs, other than through the new values of those with windows."""
    fusion = sliced.fusion
    others = (t for t in fusion.roots if t not in sliced.memory)
    return footprint(fusion, (*others, *sliced.slices), {*fusion.inputs, *sliced.memory})


@dataclass(frozen=True, slots=True)
class _Window:
    """A box of an input, in even `steps` along each dimension, and what is written there: a number,
    or a tensor of all sizes of the input of which the box is taken.
    """

    box: Box
    steps: tuple[int, ...]
    value: Val
    origin: Origin

    @property
    def starts(self) -> tuple[int, ...]:
        return tuple(p.start for p in self.box)

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(p.size for p in self.box)

    def view(self, whole: TensorView, strides: Sequence[int]) -> View:
        """Return the box as a view of a tensor with these strides."""
        offset = sum(map(mul, self.starts, strides))
        return View(whole, self.sizes, tuple(map(mul, self.steps, strides)), offset)


def _spares(read: Footprint | None, windows: Sequence[_Window]) -> bool:
    """True if nothing is read of an input where its windows are."""
    if read is None:
        return True
    pairs = ((box, window.box) for box in read.region.boxes for window in windows)
    return read.exact and all(any(map(are_apart, *pair)) for pair in pairs)


def _windows(update: Update, definitions: Mapping[Val, Expr]) -> list[_Window] | None:
    """Return the windows in which a new value may differ from its target, all apart, the first to
    be written first; None if it is no chain of selects by boxes.
    """
    found: list[_Window] = []
    value: Val = update.value
    while value is not update.target and not update.target.domain.transforms:
        expr = definitions.get(value)
        if not isinstance(expr, PointwiseOp) or expr.op != "where":
            return None
        mask, written, value = expr.inputs
        box = _true_in(mask, definitions)
        if box is None or not all(_has_sizes(v, update.target) for v in (mask, written, value)):
            return None
        steps = tuple(p.stride for p in box if p.stride is not None)
        if len(steps) < len(box) or written.dtype is not update.target.dtype:
            return None
        parts = _parts(box, [window.box for window in found])
        if parts is None or len(parts) > MAX_PARTS:
            return None
        found += [_Window(part, steps, written, expr.origin) for part in parts]
    return found[::-1]


def _parts(box: Box, holes: Sequence[Box]) -> list[Box] | None:
    """Return boxes that make up what the holes leave of a box; None where they are no boxes."""
    found = [box]
    for hole in holes:
        cut = [without(part, hole) for part in found]
        if None in cut:
            return None
        found = [part for parts in cut if parts for part in parts]
    return found


def _true_in(mask: Val, definitions: Mapping[Val, Expr]) -> Box | None:
    """Return the box in which a mask is true; None if it is another mask."""
    pad = definitions.get(mask)
    inside = definitions.get(pad.input) if isinstance(pad, PadOp) else None
    if not isinstance(pad, PadOp) or not isinstance(inside, FullOp):
        return None
    if (_constant(inside.fill), _constant(pad.fill)) != (True, False):
        return None
    return pushed(pad.output.domain.root, pad.output.domain.transforms)


def _constant(value: Val) -> object:
    return value.value if isinstance(value, Scalar) else None


def _has_sizes(value: Val, target: TensorView) -> bool:
    return not isinstance(value, TensorView) or value.sizes == target.sizes


class _Pieces:
    """Pieces of updated inputs. `of`: those of each new value. `late`: updates whose windows are
    written at the end.
    """

    def __init__(self, fusion: Fusion, late: Collection[Update]) -> None:
        self.of: dict[TensorView, tuple[TensorView, ...]] = {}
        self._fusion = fusion
        self._old = {u.target for u in late}
        self._waiting = {u.value for u in late}
        self._slices: dict[TensorView, View] = {}
        self._memory: dict[TensorView, Layout] = {}
        self._added: dict[Val, list[Expr]] = {}
        self._stored: list[Expr] = []
        self._late: dict[TensorView, TensorView] = {}
        self._next = max(v.id for v in fusion.values())

    def join(self, update: Update, windows: Sequence[_Window], layout: Layout) -> None:
        """Join the new value of an input with this layout from its windows."""
        value = update.value
        added = [self._written(window) for window in windows]
        if value in self._waiting:
            added = list(map(self._stored_first, added))
        made = [expr.output for expr in added]
        self.of[value] = tuple(t for t in made if isinstance(t, TensorView))
        self._slices |= {
            piece: window.view(value, layout.strides)
            for piece, window in zip(self.of[value], windows, strict=True)
        }
        self._memory[value] = layout
        self._added[value] = added
        if value in self._waiting:
            self._late |= dict.fromkeys(self.of[value], update.target)

    def _stored_first(self, expr: Expr) -> Expr:
        """Return the expression of what is written to a window at the end: a copy of what is stored
        before, where it depends on old elements of such windows.
        """
        made, read = expr.output, self._fusion.backward_slice(expr.inputs, ())
        if self._old.isdisjoint(v for e in (expr, *read) for v in e.inputs):
            return expr
        assert isinstance(made, TensorView)
        kept, piece = (self._tensor(made.dtype, made.domain.logical) for _ in range(2))
        self._stored += [expr, CutOp(made, kept, expr.origin)]
        return CopyOp(kept, piece, expr.origin)

    def _written(self, window: _Window) -> Expr:
        """Return the expression of what is written to a window: a part of its value."""
        value = window.value
        expr = self._fusion.definitions().get(value)
        if isinstance(expr, FullOp):
            value = expr.fill
        if not isinstance(value, TensorView):
            made = self._tensor(window.value.dtype, [iteration(n) for n in window.sizes])
            return FullOp(value, made, window.origin)
        ends = [p.last + 1 for p in window.box]
        part = FusionBuilder().slice(value, window.starts, ends, window.steps)
        steps, fill = part.domain.transforms, None
        if isinstance(expr, ViewOp | CopyOp | PadOp):
            value, steps = expr.input, (*expr.output.domain.transforms, *steps)
            fill = expr.fill if isinstance(expr, PadOp) else None
        program = simplified(value.domain.logical, steps)
        fill = fill if pads(program) else None
        name = view_name(program, pads=fill is not None) if program else "set"
        made = self._tensor(value.dtype, value.domain.logical, program)
        return move_op(name, value, made, fill, window.origin)

    def _tensor(
        self, dtype: DataType, dims: Sequence[IterDomain], program: Sequence[Transform] = ()
    ) -> TensorView:
        self._next += 1
        return TensorView(self._next, dtype, tensor_domain(dims, program))

    def sliced(self) -> Sliced:
        """Return the fusion with the pieces in front of what they are joined to: at the end, before
        the readers of new values, where they wait for those of old ones.
        """
        first, last, after = list[Expr](), list[Expr](), set[Val](self._waiting)
        for expr in self._fusion.exprs:
            waits = expr.output in after or not after.isdisjoint(expr.inputs)
            if waits:
                after.add(expr.output)
            (last if waits else first).extend((*self._added.get(expr.output, ()), expr))
        fusion = replace(self._fusion, exprs=(*first, *self._stored, *last))
        return Sliced(fusion, self.of, self._slices, {}, self._memory, self._late)
