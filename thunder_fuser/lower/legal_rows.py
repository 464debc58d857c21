"""Legality of reduction kernels: in which rows and columns one can compute a body, or why in none.

Of a device it needs to know no more than how many blocks may share a row.
"""

from __future__ import annotations

from thunder_fuser.errors import Refusal
from thunder_fuser.lower.body import KernelBody
from thunder_fuser.lower.row_program import (
    ALONE,
    accumulator_words,
    has_column_totals,
    pull_rows,
    role_of,
)
from thunder_fuser.lower.row_space import Arrangement, arrangements

MAX_TOTALS, MAX_TOTAL_WORDS = 4, 16384
"""What one block that folds rows has registers for: totals of a column, and words of all columns'
totals. Blocks of a cluster divide the columns among themselves.
"""


def legal_arrangement(body: KernelBody, largest_cluster: int = 1) -> Arrangement | Refusal:
    """In which rows and columns one reduction kernel can compute a body, or why in none. Of a
    device it needs to know how many blocks may share a row. Of several ways one whose totals are
    not strided.
    """
    refusals: list[Refusal] = []
    strided: Arrangement | None = None
    for arrangement in arrangements(body):
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
    # What an arrangement lacks that could have done it says more than what could not have.
    return next((r for r in refusals if r.code != "space" and r.text != ALONE), refusals[0])


def has_strided_totals(arrangement: Arrangement, body: KernelBody) -> bool:
    """Whether columns that have totals lie apart in memory: neighbours are in different rows."""
    return arrangement.space.is_outer and has_column_totals(arrangement, body)


def _crowded_columns(
    arrangement: Arrangement, body: KernelBody, largest_cluster: int
) -> Refusal | None:
    """Why registers do not hold totals of columns beside what is folded of each row, or None."""
    columns = arrangement.space.columns
    of_columns = [f for f in body.folds if role_of(f, arrangement) in ("column", "group")]
    words = sum(map(accumulator_words, of_columns))
    most = MAX_TOTAL_WORDS * largest_cluster
    too_many = words > MAX_TOTALS or words * columns > most
    if not too_many or len(of_columns) == len(body.folds):
        return None
    who = "a block has" if largest_cluster == 1 else f"{largest_cluster} blocks of a cluster have"
    text = (
        f"{words} accumulators for each of {columns:,} columns are more than {who} registers for "
        f"({most:,}); it needs a kernel of its own"
    )
    return Refusal("registers", text, of_columns[-1].output.name)
