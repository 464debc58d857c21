"""Iteration space of reductions: which of its points are rows and which are columns, how they lie
in memory, and how a grid splits them.

Rows are the points of the dimensions that a reduction keeps, columns those of the dimensions that
it folds.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from thunder_fuser.analysis.layout import loop_order
from thunder_fuser.ir.domain import Reorder
from thunder_fuser.ir.fusion import FoldOp, MoveOp, PointwiseOp, TensorView
from thunder_fuser.lower.body import KernelBody

LaneAxis = Literal["columns", "rows"]
"""What consecutive lanes of a vector are."""
GridSplit = Literal["none", "rows", "columns"]
"""What blocks share before the last results are ready: nothing (each block finishes its rows), the
rows behind totals, or the columns of each row."""


@dataclass(frozen=True, slots=True)
class Space:
    """The points of a reduction's input. Orders: dimensions from the outermost in
    memory inwards.
    """

    sizes: tuple[int, ...]
    folded: tuple[int, ...]
    kept: tuple[int, ...]
    is_outer: bool = False
    """Neighbours in memory are in different rows."""

    @staticmethod
    def of(
        fold: FoldOp,
        body: KernelBody,
        known: Orders,
    ) -> Space:
        order = _memory_order(fold.input, body, known)
        dims = fold.dims
        return Space(
            fold.input.sizes,
            tuple(k for k in order if k in dims),
            tuple(k for k in order if k not in dims),
            any(fold.input.sizes[k] > 1 for k in order[-1:] if k not in dims),
        )

    @property
    def rows(self) -> int:
        return math.prod(self.sizes[k] for k in self.kept)

    @property
    def columns(self) -> int:
        return math.prod(self.sizes[k] for k in self.folded)

    @property
    def turned(self) -> Space:
        """The same points with rows for columns."""
        return Space(self.sizes, self.kept, self.folded, not self.is_outer)


def iteration_space(sizes: Sequence[int], folded: Collection[int]) -> tuple[tuple[bool, int], ...]:
    """What shapes have in common that are equal up to merges and splits: the sizes of neighbours
    that are all folded, or all kept.
    """
    found: list[tuple[bool, int]] = []
    for k, size in enumerate(sizes):
        if size == 1:
            continue
        if found and found[-1][0] == (k in folded):
            found[-1] = found[-1][0], found[-1][1] * size
        else:
            found.append((k in folded, size))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Arrangement:
    """A way to run reductions: what rows and columns are, and what blocks share.

    grouped  dimensions of the rows that some reductions along rows keep: the outermost of them, so
             that the rows of a group follow one another
    """

    space: Space
    grid_split: GridSplit
    grouped: tuple[int, ...] = ()

    @property
    def groups(self) -> int:
        return math.prod(self.space.sizes[k] for k in self.grouped)


def arrangements(
    body: KernelBody,
) -> tuple[Arrangement, ...]:
    """Ways to run these reductions in one kernel, as far as their dimensions go. They can be
    scheduled whatever the sizes are.
    """
    spaces = _spaces(body)
    if len(spaces) == 1:
        return (Arrangement(spaces[0], "none"),)
    return tuple(_grouped(space, spaces) for space in spaces)


def _grouped(space: Space, spaces: Sequence[Space]) -> Arrangement:
    """An arrangement with totals of all rows, and of groups of rows where a reduction asks."""
    rows = set(space.kept)
    some = [s.folded for s in spaces if s.sizes == space.sizes and set(s.folded) < rows]
    if not some or any(set(folded) != set(some[0]) for folded in some):
        return Arrangement(space, "rows")
    grouped = tuple(k for k in space.kept if k not in some[0])
    within = tuple(k for k in space.kept if k in some[0])
    return Arrangement(replace(space, kept=grouped + within), "rows", grouped)


def alternatives(
    body: KernelBody,
) -> tuple[Arrangement, ...]:
    """Further ways that are better for some sizes and devices, and then compute the same."""
    spaces = _spaces(body)
    if len(spaces) > 1:
        return ()
    (space,) = spaces
    by_columns = Arrangement(space, "columns")
    return (Arrangement(space.turned, "rows"), by_columns) if space.kept else (by_columns,)


def _spaces(
    body: KernelBody,
) -> tuple[Space, ...]:
    """Spaces that differ in what they fold; of those that do not, the first has the order."""
    found: dict[tuple[tuple[bool, int], ...], Space] = {}
    known: Orders = {}
    for fold in body.folds:
        space = Space.of(fold, body, known)
        found.setdefault(iteration_space(space.sizes, space.folded), space)
    return tuple(found.values())


Orders = dict[TensorView, Sequence[int] | None]
"""Dimensions of a tensor from the outermost in memory inwards; None where nothing says."""


def _memory_order(
    tensor: TensorView,
    body: KernelBody,
    known: Orders,
) -> Sequence[int]:
    """Dimensions from the outermost in memory inwards, as far as plain operations show where the
    elements come from: from the first operand that shows it. What is found on the way goes into
    `known`.
    """
    asked = [tensor]
    while asked:
        source = asked[-1]
        if source not in known:
            behind = _behind(source, body)
            if unknown := next((t for t, _ in behind if t not in known), None):
                asked.append(unknown)
                continue
            known[source] = _order_of(source, behind, body, known)
        asked.pop()
    order = known[tensor]
    return order if order is not None else range(tensor.rank)


def _order_of(
    tensor: TensorView, behind: Sequence[Moved], body: KernelBody, known: Orders
) -> Sequence[int] | None:
    if tensor in body.loads:
        # An input with a program lies in memory as its root does, which has other dimensions.
        return None if tensor.domain.transforms else loop_order(tensor, body.loads[tensor])
    for source, move in behind:
        order = known[source]
        if order is not None:
            places = list(order)
            return sorted(range(len(move)), key=lambda k: places.index(move[k]))
    return None


Moved = tuple[TensorView, Sequence[int]]
"""A tensor that has the same elements, and which of its dimensions each is."""


def _behind(tensor: TensorView, body: KernelBody) -> list[Moved]:
    """Tensors that have the elements of this one, or the operands of each, in the same places."""
    if tensor in body.loads:
        return []
    expr = body.producer(tensor)
    if isinstance(expr, MoveOp) and (moves := _moves(expr)):
        order: Sequence[int] = range(tensor.rank)
        for move in reversed(moves):
            order = [move[k] for k in order]
        return [(expr.input, order)]
    if isinstance(expr, PointwiseOp):
        tensors = [v for v in expr.inputs if isinstance(v, TensorView)]
        return [(t, range(tensor.rank)) for t in tensors if t.sizes == tensor.sizes]
    return []


def _moves(view: MoveOp) -> list[tuple[int, ...]]:
    """What a view that only moves dimensions does; nothing for other views."""
    steps = view.output.domain.transforms
    moves = [step.order for step in steps if isinstance(step, Reorder)]
    return moves if len(moves) == len(steps) else []
