"""Passes: Fusion -> Fusion, before anything is planned. A pass never changes what a fusion returns.

Inputs stay in place and in order, and bind to the same tensors (they are the calling convention);
an input's logical domain may get dimensions that its root has not. Outputs and updates keep their
order, though one that writes what is there goes, and no pass removes or moves a segment_set that a
result depends on: it is the user's cut.

A pass that finds nothing to do returns the very fusion that it got, so `run` knows when it is done.
Each pass is a file of its name, which is its log channel too ("passes.view_chains"). They share
`rewrite` (putting values in the place of others), ir/view_programs.py (simpler transforms of
views), and what is known of numbers (facts/): uniform values, negative zeros, exact conversions.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

from thunder_fuser.garbage import uncollected
from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.ir.verify import verify as check
from thunder_fuser.passes.broadcast_reductions import broadcast_reductions
from thunder_fuser.passes.cast_chains import cast_chains
from thunder_fuser.passes.cat_of_slices import cat_of_slices
from thunder_fuser.passes.common_subexpressions import common_subexpressions
from thunder_fuser.passes.dead_code import dead_code
from thunder_fuser.passes.fold_broadcasts import fold_broadcasts
from thunder_fuser.passes.fold_constants import fold_constants
from thunder_fuser.passes.random_masks import random_masks
from thunder_fuser.passes.rewrite import Precision
from thunder_fuser.passes.rfactor_reductions import rfactor_reductions
from thunder_fuser.passes.short_sums import short_sums
from thunder_fuser.passes.sums_of_one_hot import sums_of_one_hot
from thunder_fuser.passes.sums_of_pads import sums_of_pads
from thunder_fuser.passes.view_chains import view_chains

PIPELINE: tuple[Callable[[Fusion, Precision], Fusion], ...] = (
    # First, so that the others look at nothing that does not matter.
    dead_code,
    # Before folding and casts, which simplify what is left of a fold.
    broadcast_reductions,
    # Before broadcasts are folded: it asks for the dimension along which nothing differs.
    sums_of_one_hot,
    fold_constants,
    # After folding: an identity between two casts hides that they are neighbours.
    cast_chains,
    random_masks,
    # After casts, which may stand between views only because they did nothing.
    view_chains,
    # After views, which say how what is summed lies.
    short_sums,
    # Needs pads that are one view each.
    sums_of_pads,
    # Needs slices that are one view each, and makes views of cats that are new.
    cat_of_slices,
    broadcast_reductions,
    # When nothing is folded but what differs.
    rfactor_reductions,
    # When equal things look equal.
    common_subexpressions,
    # Last, when broadcasts that are one have one reader.
    fold_broadcasts,
)


@uncollected()
def run(
    fusion: Fusion,
    *,
    precision: Precision = "strict",
    verify: bool = False,
    watch: Callable[[str, Fusion, bool], None] | None = None,
) -> Fusion:
    """The fusion after all passes, in turns until none finds anything; its sizes must be static.

    Results are the same to the last bit; under precision "fast", roundings of intermediate values
    may be skipped. `verify` checks the fusion after every pass and raises InternalError. `watch` is
    shown the name of each pass, what it leaves, and whether that is another fusion.
    """
    idle = 0
    for apply in itertools.cycle(PIPELINE):
        before, fusion = fusion, apply(fusion, precision)
        if watch is not None:
            watch(apply.__name__, fusion, fusion is not before)
        if verify:
            check(fusion, "folded")
        idle = idle + 1 if fusion is before else 0
        if idle == len(PIPELINE):
            break
    return fusion
