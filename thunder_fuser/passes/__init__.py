"""Passes: Fusion -> Fusion, before planning. A pass never changes what a fusion returns.

Inputs stay in place and in order, and bind to the same tensors (they are the calling convention);
an input's logical domain may get dimensions that its root has not. Outputs and updates keep their
order, though an update that writes the value already there is removed, and no pass removes or moves
a segment_set that a result depends on: it is the user's cut.

A pass that finds nothing to do returns the very fusion that it got, so that `run` detects the fixed
point. Each pass is a file of its name, which is its log channel too ("passes.view_chains"). They
share `rewrite` (replacement of values), ir/view_programs.py (simplified transforms of views), and
facts about values (facts/): uniform values, negative zeros, exact conversions.
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
from thunder_fuser.passes.contract_products import contract_products
from thunder_fuser.passes.dead_code import dead_code
from thunder_fuser.passes.empty_calls import empty_calls
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
    # First, so that the others do not look at dead code.
    dead_code,
    # Before constants, which these are.
    empty_calls,
    # Before constants and casts, which simplify what is left of a reduction.
    broadcast_reductions,
    # Before broadcasts are folded: it needs the dimension along which a value is constant.
    sums_of_one_hot,
    fold_constants,
    # After constant folding: an identity between two casts hides that they are adjacent.
    cast_chains,
    random_masks,
    # After casts, which may stand between views only because they did nothing.
    view_chains,
    # After views, which determine the memory order of what is summed.
    short_sums,
    # After short sums, whose additions read products.
    contract_products,
    # Needs pads that are one view each.
    sums_of_pads,
    # Needs slices that are one view each, and makes views of cats that are new.
    cat_of_slices,
    broadcast_reductions,
    # When no reduction of equal elements is left.
    rfactor_reductions,
    # When equal expressions are in equal form.
    common_subexpressions,
    # Last, when common broadcasts have one reader.
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
    """The fusion after all passes, repeated until none changes it; its sizes must be static.

    Results are bitwise unchanged, except where a pass reorders a reduction of floats
    (broadcast_reductions, rfactor_reductions); under precision "fast", roundings of intermediate
    values may be skipped. `verify` checks what every pass made and raises InternalError; the fusion
    itself is checked behind the first pass, and the result once more, in case a pass changed its
    argument in place.
    `watch` is called with each pass's name, its result, and True if that is another fusion.
    """
    idle = 0
    checked: Fusion | None = None
    for apply in itertools.cycle(PIPELINE):
        before, fusion = fusion, apply(fusion, precision)
        if watch is not None:
            watch(apply.__name__, fusion, fusion is not before)
        # Most passes return the very fusion that they got, and it was checked then.
        if verify and fusion is not checked:
            checked = check(fusion, "folded")
        idle = idle + 1 if fusion is before else 0
        if idle == len(PIPELINE):
            break
    return check(fusion, "folded") if verify else fusion
