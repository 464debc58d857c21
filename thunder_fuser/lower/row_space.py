"""Iteration space of reductions: which of its points are rows and which are columns, how they lie
in memory, and how a grid splits them.

Rows are the points of the dimensions that a reduction keeps, columns those of the dimensions that
it folds.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from thunder_fuser.ir.fusion import FoldOp
from thunder_fuser.lower.body import KernelBody
from thunder_fuser.lower.memory_order import Orders, memory_order

LaneAxis = Literal["columns", "rows"]
"""What consecutive lanes of a vector are."""
GridSplit = Literal["none", "rows", "columns"]
"""What blocks share before the last results are ready: nothing (each block finishes its rows), the
rows behind totals, or the columns of each row."""


@dataclass(frozen=True, slots=True)
class Space:
    """The points of a reduction's input. Its dimensions are those of the input, or parts of them
    where a merged one is not one walk through memory.

    sizes   of the dimensions, in row-major order
    folded  from the outermost in memory inwards
    kept    likewise
    shape   of the input
    """

    sizes: tuple[int, ...]
    folded: tuple[int, ...]
    kept: tuple[int, ...]
    is_outer: bool = False
    """Neighbours in memory are in different rows."""
    shape: tuple[int, ...] = ()
    parts: tuple[tuple[int, ...], ...] = ()
    """The dimensions of the space that each dimension of the input is, the outermost first."""
    run: int = 0
    """Columns that are neighbours in memory, where its order is not the logical one."""

    @staticmethod
    def of(
        fold: FoldOp,
        body: KernelBody,
        known: Orders,
    ) -> Space:
        memory = memory_order(fold.input, body, known)
        sizes = tuple(size for parts in memory.sizes for size in parts)
        numbers = iter(range(len(sizes)))
        parts = tuple(tuple(next(numbers) for _ in each) for each in memory.sizes)
        order = [(k, parts[k][n]) for k, n in memory.order]
        dims = fold.dims
        beside = itertools.takewhile(lambda each: each[0] in dims, reversed(order))
        in_order = [n for _, n in order if sizes[n] > 1]
        return Space(
            sizes,
            tuple(n for k, n in order if k in dims),
            tuple(n for k, n in order if k not in dims),
            any(sizes[n] > 1 for k, n in order[-1:] if k not in dims),
            fold.input.sizes,
            parts,
            0 if in_order == sorted(in_order) else math.prod(sizes[n] for _, n in beside),
        )

    def parts_of(self, dims: Iterable[int]) -> tuple[int, ...]:
        """Dimensions of the input as those of the space."""
        return tuple(n for k in dims for n in self.parts[k])

    def whole(self, dims: Collection[int]) -> tuple[int, ...]:
        """Dimensions of the input that are whole among some of the space."""
        return tuple(k for k, parts in enumerate(self.parts) if all(n in dims for n in parts))

    @property
    def has_parts(self) -> bool:
        """Whether a dimension of the input is several walks through memory."""
        return self.sizes != self.shape

    @property
    def rows(self) -> int:
        return math.prod(self.sizes[k] for k in self.kept)

    @property
    def columns(self) -> int:
        return math.prod(self.sizes[k] for k in self.folded)

    @property
    def turned(self) -> Space:
        """The same points with rows for columns."""
        return replace(self, folded=self.kept, kept=self.folded, is_outer=not self.is_outer, run=0)


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
    alike = [space.parts_of(s.whole(s.folded)) for s in spaces if s.shape == space.shape]
    some = [folded for folded in alike if set(folded) < rows]
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
