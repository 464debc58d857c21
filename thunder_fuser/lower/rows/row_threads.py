"""Parameters of the thread mapping of reductions. Schedules choose a mapping by them; the planner,
which sees no schedule, predicts it by them (`segment/partition/bandwidth_loss.py`).
"""

from __future__ import annotations

VECTORS_PER_THREAD, MANY_VECTORS_PER_THREAD = 2, 4
"""Vectors of a row per thread if several warps share the row. The larger figure is for rows that
occupy all multiprocessors all the same: then there are more, smaller blocks, which wait at their
barriers at different times.
"""
OUTER_ROWS, FEWEST_OUTER_ROWS = 8, 4
"""Outer reductions: vectors of adjacent rows that a block accesses together, which makes whole
cache lines: the preferred number, and the one if there are too few rows.
"""
OUTER_COLUMNS = 4
"""Outer reductions with several threads per row: columns that a thread has in flight."""


def power_of_two(number: int) -> int:
    """Return the smallest power of two that is not smaller."""
    return 1 << max(number - 1, 0).bit_length()
