"""Legality of reduction kernels: the arrangement in which one can compute a body, or a Refusal.

The only device property it depends on is the number of blocks that may share a row.
"""

from __future__ import annotations

from thunder_fuser.errors import Refusal
from thunder_fuser.lower.body import KernelBody
from thunder_fuser.lower.memory_order import Orders
from thunder_fuser.lower.register_budget import BLOCK_ACCUMULATORS, COLUMN_ACCUMULATORS
from thunder_fuser.lower.rows.roles import ALONE, accumulator_words, has_column_totals, role_of
from thunder_fuser.lower.rows.row_program import pull_rows
from thunder_fuser.lower.rows.row_space import Arrangement, arrangements


def legal_arrangement(
    body: KernelBody, largest_cluster: int = 1, known: Orders | None = None
) -> Arrangement | Refusal:
    """Return an arrangement in which one reduction kernel can compute a body, or a Refusal.
    Arrangements without strided column accumulators come first. `largest_cluster`: blocks that may
    share a row.
    """
    refusals: list[Refusal] = []
    strided: Arrangement | None = None
    for arrangement in arrangements(body, known):
        found = _crowded_columns(arrangement, body, largest_cluster) or pull_rows(
            "columns", 1, arrangement, body
        )
        if isinstance(found, Refusal):
            refusals.append(found)
        elif not has_strided_totals(arrangement, body):
            return arrangement
        else:
            strided = strided or arrangement
    if strided is not None:
        return strided
    # Refusals of arrangements that nearly fit are more informative than those of others.
    return next((r for r in refusals if r.code != "space" and r.text != ALONE), refusals[0])


def has_strided_totals(arrangement: Arrangement, body: KernelBody) -> bool:
    """True if columns with accumulators are strided in memory: an outer reduction's."""
    return arrangement.space.is_outer and has_column_totals(arrangement, body)


def _crowded_columns(
    arrangement: Arrangement, body: KernelBody, largest_cluster: int
) -> Refusal | None:
    """Return why registers cannot hold column accumulators and row reductions, or None."""
    columns = arrangement.space.columns
    of_columns = [f for f in body.folds if role_of(f, arrangement) in ("column", "group")]
    words = sum(map(accumulator_words, of_columns))
    most = BLOCK_ACCUMULATORS * largest_cluster
    too_many = words > COLUMN_ACCUMULATORS or words * columns > most
    if not too_many or len(of_columns) == len(body.folds):
        return None
    who = "a block has" if largest_cluster == 1 else f"{largest_cluster} blocks of a cluster have"
    text = (
        f"{words} accumulators for each of {columns:,} columns are more than {who} registers for "
        f"({most:,}); it needs a kernel of its own"
    )
    return Refusal("registers", text, of_columns[-1].output.name)
