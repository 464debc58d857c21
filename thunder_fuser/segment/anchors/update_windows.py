"""Partial in-place updates (slice scatters): of `x[index] = value`, kernels write what the index
selects, its windows.

The new value of `x` is a select between the value and `x`, for each window. A kernel over all of
its points would read and write all of `x`: for one position of a key-value cache, a thousand times
the bytes. Here windows are pieces, which kernels write into the memory of `x`; the rest of the new
value is there already. Readers of the new value run in later kernels. Old elements of a window may
not be read at all, since they might be overwritten before.

`planner.py` plans both ways: where all of `x` is read or written anyway, one kernel is better.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from operator import mul

from thunder_fuser.analysis.aliases import View
from thunder_fuser.analysis.footprint import Footprint, footprint
from thunder_fuser.analysis.layout import layouts_of_inputs
from thunder_fuser.analysis.progression import are_apart
from thunder_fuser.analysis.region import Box, pushed
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.domain import Layout, iteration, tensor_domain
from thunder_fuser.ir.fusion import (
    CopyOp,
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


def with_windows(fusion: Fusion, layouts: Sequence[Layout] | None) -> Sliced | None:
    """Rewrite a fusion so that kernels write the windows of updated inputs; None where no update is
    of windows.
    """
    given = layouts_of_inputs(fusion, layouts)
    found: Mapping[Update, Sequence[_Window]]
    found = {u: w for u in fusion.updates if (w := _windows(u, fusion.definitions()))}
    while found:
        pieces = _Pieces(fusion)
        for update, windows in found.items():
            pieces.join(update.value, windows, given[update.target])
        sliced = pieces.sliced()
        read = _read(sliced)
        kept = {u: windows for u, windows in found.items() if _spares(read.get(u.target), windows)}
        if len(kept) == len(found):
            return sliced
        found = kept
    return None


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
    """Return the windows in which a new value may differ from its target, the first to be written
    first; None if it is no chain of selects by boxes that are apart.
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
        found.append(_Window(box, steps, written, expr.origin))
    pairs = combinations([window.box for window in found], 2)
    return found[::-1] if all(any(map(are_apart, *pair)) for pair in pairs) else None


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
    """Pieces of updated inputs. `of`: those of each new value."""

    def __init__(self, fusion: Fusion) -> None:
        self.of: dict[TensorView, tuple[TensorView, ...]] = {}
        self._fusion = fusion
        self._slices: dict[TensorView, View] = {}
        self._memory: dict[TensorView, Layout] = {}
        self._added: dict[Val, list[Expr]] = {}
        self._next = max(v.id for v in fusion.values())

    def join(self, value: TensorView, windows: Sequence[_Window], layout: Layout) -> None:
        """Join the new value of an input with this layout from its windows."""
        added = [self._written(window) for window in windows]
        made = [expr.output for expr in added]
        self.of[value] = tuple(t for t in made if isinstance(t, TensorView))
        self._slices |= {
            piece: window.view(value, layout.strides)
            for piece, window in zip(self.of[value], windows, strict=True)
        }
        self._memory[value] = layout
        self._added[value] = added

    def _written(self, window: _Window) -> Expr:
        """Return the expression of what is written to a window: a part of its value."""
        value = window.value
        expr = self._fusion.definitions().get(value)
        if isinstance(expr, FullOp):
            value = expr.fill
        self._next += 1
        if not isinstance(value, TensorView):
            domain = tensor_domain([iteration(n) for n in window.sizes])
            made = TensorView(self._next, window.value.dtype, domain)
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
        made = TensorView(self._next, value.dtype, tensor_domain(value.domain.logical, program))
        return move_op(name, value, made, fill, window.origin)

    def sliced(self) -> Sliced:
        """Return the fusion with the pieces in front of what they are joined to."""
        exprs = (
            e for expr in self._fusion.exprs for e in (*self._added.get(expr.output, ()), expr)
        )
        fusion = replace(self._fusion, exprs=tuple(exprs))
        return Sliced(fusion, self.of, self._slices, {}, self._memory)
