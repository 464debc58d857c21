"""How threads divide the rows of a reduction: figures that schedules choose a mapping by, and that
the planner, which sees no schedule, foresees it by (`segment/bandwidth_loss.py`).
"""

from __future__ import annotations

VECTORS_PER_THREAD, MANY_VECTORS_PER_THREAD = 2, 4
"""Of a row that several warps share; and where rows are enough for all multiprocessors all the
same: then smaller blocks are more of them, which wait for their own threads at different times.
"""
OUTER_ROWS, FEWEST_OUTER_ROWS = 8, 4
"""Vectors of rows that lie side by side in a block's accesses: whole cache lines where there are
rows enough, and where there are not.
"""
OUTER_COLUMNS = 4
"""Columns that a thread has under way at once, where several share such rows."""
