"""Roles of reductions in a kernel: complete at each row, or in a grid reduction of all blocks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from thunder_fuser.errors import Refusal
from thunder_fuser.ir.domain import shape_text
from thunder_fuser.ir.fusion import ReductionOp, TensorView
from thunder_fuser.ir.tables import reductions
from thunder_fuser.lower.body import KernelBody
from thunder_fuser.lower.rows.row_points import is_over
from thunder_fuser.lower.rows.row_space import Arrangement

Point = Literal["column", "group", "row", "one"]
"""Points of a grid reduction's result: each column, each column of each group of rows, each row, or
a single point.
"""
Role = Literal["fold"] | Point
"""Role of a reduction in an arrangement: complete at each row ("fold"), or a grid reduction, with
the points of its result.
"""
Roles = Mapping[TensorView, Role | None]
MANY_GROUPS, FEWEST_ROWS = 512, 32
"""More groups of rows than `MANY_GROUPS` have partial results that do not stay in caches: then each
group needs `FEWEST_ROWS` rows, so that they are small compared to the rows.
"""
ALONE = "its blocks would have nothing to share"


def has_column_totals(arrangement: Arrangement, body: KernelBody) -> bool:
    """True if there are column accumulators: threads own columns over all rows of a block."""
    return any(role_of(fold, arrangement) in ("column", "group") for fold in body.folds)


def role_of(fold: ReductionOp, arrangement: Arrangement) -> Role | None:
    """Return the role of a reduction in an arrangement; None if it has none."""
    space = arrangement.space
    if is_over(fold, space, space.folded):
        return "row" if arrangement.grid_split == "columns" else "fold"
    if arrangement.grid_split != "rows":
        return None
    if is_over(fold, space, space.kept):
        return "column"
    within = set(space.kept) - set(arrangement.grouped)
    is_alike = arrangement.grouped and fold.input.sizes == space.shape
    if is_alike and set(space.parts_of(fold.dims)) == within:
        return "group"
    is_whole = fold.output.numel == 1
    return "one" if is_whole and fold.input.numel == space.rows else None


def refuse_roles(roles: Roles, arrangement: Arrangement, body: KernelBody) -> Refusal | None:
    """Return why the roles of a body's reductions do not fit the arrangement, or None."""
    space, folds = arrangement.space, body.folds
    for fold in folds:
        if roles[fold.output] is None:
            text = (
                f"it reduces {_reduced(fold)}, {folds[0].output.name} reduces {_reduced(folds[0])}"
            )
            way_out = "a kernel has one set of rows, so that each needs its own"
            return Refusal("space", f"{text}: {way_out}", fold.output.name)
    has_totals = any(role != "fold" for role in roles.values())
    if (arrangement.grid_split == "none") == has_totals:
        return Refusal("grid_split", ALONE, folds[0].output.name)
    of_columns = [f for f in folds if roles[f.output] in ("column", "group")]
    of_group = space.rows // max(arrangement.groups, 1)
    if arrangement.groups > MANY_GROUPS and of_group < FEWEST_ROWS:
        text = (
            f"{arrangement.groups:,} groups of {of_group} rows have column accumulators of their "
            f"own, which one kernel keeps in memory until all of its blocks are ready: that pays "
            f"for {FEWEST_ROWS} rows or more; what reads them is in another kernel"
        )
        return Refusal("grid_split", text, of_columns[-1].output.name)
    return None


def _reduced(fold: ReductionOp) -> str:
    """Return a text that names the dimensions a reduction reduces."""
    dims = ", ".join(map(str, fold.dims))
    return f"dimension{'s' if len(fold.dims) > 1 else ''} {dims} of {shape_text(fold.input.sizes)}"


def accumulator_words(fold: ReductionOp) -> int:
    """Return the 32-bit registers of a reduction's accumulator."""
    each = max(1, fold.accumulate.itemsize // 4)
    return each * reductions.lookup(fold.op).accumulator.words
