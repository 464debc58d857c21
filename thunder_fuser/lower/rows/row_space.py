"""Iteration space of reductions: rows and columns, their order in memory, and the grid split.

Rows are the points of the dimensions that a reduction keeps, columns those of the dimensions that
it reduces.
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
"""Axis along which the lanes of a vector are consecutive points."""
GridSplit = Literal["none", "rows", "columns"]
"""Axis over which blocks share a reduction, so that it is a grid reduction: none (each block
reduces its rows completely), rows (reductions over the rows), or columns (of each row)."""


@dataclass(frozen=True, slots=True)
class Space:
    """Points of a reduction's input. Its dimensions are those of the input, or parts of them if a
    merged dimension has no single stride in memory.

    sizes   sizes of the dimensions, in row-major order
    folded  reduced dimensions, from the outermost in memory inwards
    kept    kept dimensions, from the outermost in memory inwards
    shape   shape of the input
    """

    sizes: tuple[int, ...]
    folded: tuple[int, ...]
    kept: tuple[int, ...]
    is_outer: bool = False
    """The innermost dimension in memory is a kept one: an outer reduction."""
    shape: tuple[int, ...] = ()
    parts: tuple[tuple[int, ...], ...] = ()
    """For each dimension of the input its parts as dimensions of the space, outermost first."""
    run: int = 0
    """Columns contiguous in memory if the memory order is not the logical one, else 0."""

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
        """Return the dimensions of the space that make up dimensions of the input."""
        return tuple(n for k in dims for n in self.parts[k])

    def whole(self, dims: Collection[int]) -> tuple[int, ...]:
        """Return the dimensions of the input all parts of which are among `dims` of the space."""
        return tuple(k for k, parts in enumerate(self.parts) if all(n in dims for n in parts))

    @property
    def has_parts(self) -> bool:
        """True if a dimension of the input has no single stride in memory."""
        return self.sizes != self.shape

    @property
    def rows(self) -> int:
        return math.prod(self.sizes[k] for k in self.kept)

    @property
    def columns(self) -> int:
        return math.prod(self.sizes[k] for k in self.folded)

    @property
    def turned(self) -> Space:
        """The space with rows and columns exchanged."""
        return replace(self, folded=self.kept, kept=self.folded, is_outer=not self.is_outer, run=0)


def iteration_space(sizes: Sequence[int], folded: Collection[int]) -> tuple[tuple[bool, int], ...]:
    """Return a key that is equal for shapes equal up to merges and splits: (is reduced, size) of
    each maximal run of adjacent reduced, or kept, dimensions; size-1 dimensions are ignored.
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
    """Rows, columns and grid split with which a kernel runs its reductions.

    grouped  row dimensions that some reductions over the rows keep: the outermost ones, so that the
             rows of a group are consecutive
    """

    space: Space
    grid_split: GridSplit
    grouped: tuple[int, ...] = ()

    @property
    def groups(self) -> int:
        return math.prod(self.space.sizes[k] for k in self.grouped)


def arrangements(body: KernelBody, known: Orders | None = None) -> tuple[Arrangement, ...]:
    """Return the arrangements in which one kernel may run the body's reductions, judged by their
    dimensions; they can be scheduled for all sizes. `known`: memory orders of some values.
    """
    spaces = _spaces(body, {} if known is None else known)
    if len(spaces) == 1:
        return (Arrangement(spaces[0], "none"),)
    return tuple(_grouped(space, spaces) for space in spaces)


def _grouped(space: Space, spaces: Sequence[Space]) -> Arrangement:
    """Return an arrangement with reductions over all rows, and over groups of rows if needed."""
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
    """Return further arrangements, equivalent, that are faster for some sizes and devices."""
    spaces = _spaces(body, {})
    if len(spaces) > 1:
        return ()
    (space,) = spaces
    by_columns = Arrangement(space, "columns")
    # Kept dimensions of size 1, as a batch of one has, are one row, and turned one column.
    points = math.prod(space.sizes[k] for k in space.kept)
    return (Arrangement(space.turned, "rows"), by_columns) if points > 1 else (by_columns,)


def _spaces(body: KernelBody, known: Orders) -> tuple[Space, ...]:
    """Return the distinct iteration spaces of a body's reductions; for equal ones the memory order
    of the first.
    """
    found: dict[tuple[tuple[bool, int], ...], Space] = {}
    for fold in body.folds:
        space = Space.of(fold, body, known)
        found.setdefault(iteration_space(space.sizes, space.folded), space)
    return tuple(found.values())
