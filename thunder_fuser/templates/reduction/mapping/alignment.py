"""Rows that are not aligned: vectors aligned in memory, whose first and last lanes may be outside
the row.
"""

from __future__ import annotations

from typing import TypeGuard

from thunder_fuser.device import DeviceInfo
from thunder_fuser.errors import Refusal
from thunder_fuser.ir.tables import reductions
from thunder_fuser.lower.index.index_arithmetic import has_arithmetic
from thunder_fuser.lower.rows.row_program import PulledRows
from thunder_fuser.lower.rows.row_space import Arrangement, LaneAxis
from thunder_fuser.lower.scalar_graph import forms

_FEWEST_VECTORS = 16
"""Fewest vectors of a row to align: one or two of them are partial."""


def may_align(arrangement: Arrangement, axis: LaneAxis, vector: int, device: DeviceInfo) -> bool:
    """True if rows may begin within vectors of memory, and have more than a few. A host's vectors
    begin anywhere.
    """
    space = arrangement.space
    if axis == "rows" or device.threads_are_serial or space.is_outer or len(space.folded) > 1:
        return False
    return space.columns % vector != 0 and space.columns >= _FEWEST_VECTORS * vector


def is_aligned(pulled: PulledRows | Refusal) -> TypeGuard[PulledRows]:
    """True if vectors of rows can be aligned in memory. A thread then has other columns in each
    row, which column reductions do not allow, and lanes before a row: moments of whole vectors
    count from the first, and counters of random numbers, for one, are divided, which processors do
    not do right for negative numbers.
    """
    if isinstance(pulled, Refusal) or any(t.at in ("column", "group") for t in pulled.totals):
        return False
    folds = [*(fold for fold, _, _ in pulled.folds), *(total.fold for total in pulled.totals)]
    taken = (reductions.lookup(fold.op).accumulator for fold in folds)
    if any(accumulator.vector and not accumulator.pads for accumulator in taken):
        return False
    mentioned = [f for node in pulled.graph for f in forms(node)]
    mentioned += [address for _, _, address in (*pulled.element_stores, *pulled.row_stores)]
    return has_arithmetic(mentioned)
