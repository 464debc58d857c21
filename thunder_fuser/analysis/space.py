"""The iteration space of a reduction, and what can be computed over it in one kernel.

Rows are the points of the dimensions that a reduction keeps, columns those of the dimensions that
it folds. A reduction's result is ready at its row and nowhere else: whether everything that a
kernel is to compute can be pulled at a row and a column is what makes it legal. It is asked, not
matched by patterns.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from thunder_fuser.analysis.layout import loop_order
from thunder_fuser.analysis.pull import Pull, Unreadable
from thunder_fuser.analysis.value import Conjunction, Value, ValueGraph
from thunder_fuser.errors import Refusal
from thunder_fuser.ir.domain import Layout
from thunder_fuser.ir.fusion import Expr, ReductionOp, TensorView, Val
from thunder_fuser.ir.symint import Context, Form

LaneAxis = Literal["columns", "rows"]
"""What consecutive lanes of a vector are."""


@dataclass(frozen=True, slots=True)
class Space:
    """The points of a reduction's input. Orders: dimensions from the outermost in
    memory inwards.
    """

    sizes: tuple[int, ...]
    folded: tuple[int, ...]
    kept: tuple[int, ...]

    @staticmethod
    def of(fold: ReductionOp, memory: Mapping[TensorView, Layout]) -> Space:
        tensor = fold.input
        # An input with a program lies in memory as its root does, which has other dimensions.
        stored = tensor in memory and not tensor.domain.transforms
        order = loop_order(tensor, memory[tensor]) if stored else range(tensor.rank)
        dims = fold.dims
        return Space(
            tensor.sizes,
            tuple(k for k in order if k in dims),
            tuple(k for k in order if k not in dims),
        )

    @property
    def rows(self) -> int:
        return math.prod(self.sizes[k] for k in self.kept)

    @property
    def columns(self) -> int:
        return math.prod(self.sizes[k] for k in self.folded)


@dataclass(frozen=True, slots=True)
class PulledRows:
    """What a row kernel computes: values of reductions' elements and of stores, with addresses."""

    graph: ValueGraph
    folds: tuple[tuple[ReductionOp, Value], ...]
    wide: tuple[tuple[TensorView, Value, Form], ...]
    narrow: tuple[tuple[TensorView, Value, Form], ...]
    lane_index: Form
    inside: Conjunction


def refuse_rows(
    outputs: Sequence[TensorView],
    folds: Sequence[ReductionOp],
    definitions: Mapping[Val, Expr],
    memory: Mapping[TensorView, Layout],
) -> Refusal | None:
    """Why one row kernel cannot compute `outputs` and `folds`, or None. Needs no device."""
    space = Space.of(folds[0], memory)
    for fold in folds:
        if Space.of(fold, memory) != space:
            other = folds[0].output.name
            return Refusal("space", f"it folds other dimensions than {other}", fold.output.name)
    destinations = dict.fromkeys(outputs, None)
    found = pull_rows("columns", 1, space, outputs, folds, definitions, memory, destinations)
    return found if isinstance(found, Refusal) else None


def pull_rows(
    axis: LaneAxis,
    vector: int,
    space: Space,
    outputs: Sequence[TensorView],
    folds: Sequence[ReductionOp],
    definitions: Mapping[Val, Expr],
    memory: Mapping[TensorView, Layout],
    destinations: Mapping[TensorView, Layout | None],
) -> PulledRows | Refusal:
    """Pull everything at a row and a column; a Refusal where a stage has not what is wanted."""
    context = Context()
    many = {"columns": space.columns, "rows": space.rows}
    extent = many[axis]
    many[axis] = -(-max(extent, 1) // vector) * vector
    row = context.var("r", 0, max(many["rows"] - 1, 0))
    column = context.var("c", 0, max(many["columns"] - 1, 0))
    lane_index = column if axis == "columns" else row
    inside: Conjunction = () if many[axis] == extent else (extent - 1 - lane_index,)
    index = _index(space, row, column)
    narrow_index = [index[k] for k in range(len(space.sizes)) if k in space.kept]
    pull = Pull(definitions, memory, context, inside)
    made: list[tuple[ReductionOp, Value]] = []
    wide: list[tuple[TensorView, Value, Form]] = []
    narrow: list[tuple[TensorView, Value, Form]] = []
    try:
        for fold in folds:
            made.append((fold, pull.emit(fold.input, index)))
            pull.fold_at(fold.output, narrow_index)
        for tensor in outputs:
            point = _point(tensor, space, index, narrow_index)
            if point is None:
                return Refusal("shape", "it has other points than the reductions", tensor.name)
            layout = destinations[tensor]
            address = context.const(0)
            if layout is not None:
                terms = (i * s for i, s in zip(point, layout.strides, strict=True))
                address = sum(terms, address)
            kind = wide if point is index else narrow
            kind.append((tensor, pull.emit(tensor, point), address))
    except Unreadable as error:
        return Refusal("stage", str(error), error.tensor.name)
    return PulledRows(pull.graph, tuple(made), tuple(wide), tuple(narrow), lane_index, inside)


def _index(space: Space, row: Form, column: Form) -> list[Form]:
    """The point of a row and a column, one form per dimension."""
    index: list[Form] = [row] * len(space.sizes)
    for point, dims in ((row, space.kept), (column, space.folded)):
        for k in reversed(dims):
            point, index[k] = divmod(point, max(space.sizes[k], 1))
    return index


def _point(
    tensor: TensorView, space: Space, index: Sequence[Form], narrow: Sequence[Form]
) -> Sequence[Form] | None:
    """Where a tensor is written from: at every point, at every row, or nowhere in this space."""
    if tensor.sizes == space.sizes:
        return index
    if tensor.sizes == tuple(n for k, n in enumerate(space.sizes) if k in space.kept):
        return narrow
    if tensor.sizes == tuple(n if k in space.kept else 1 for k, n in enumerate(space.sizes)):
        return [i if k in space.kept else i * 0 for k, i in enumerate(index)]
    return None
