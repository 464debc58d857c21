"""The break point of a pointwise kernel on a host: rows outside of it, their columns inside.

What all rows read again (a weight, a bias, the statistics of a channel) is loaded, widened and put
in the order of registers once for many rows, and waits for them in the nearest cache. A flat loop
of vectors does that for every vector, which takes a core longer than the arithmetic where bf16
meets fp32: to have fp32 in pairs (`lower/vectors/paired_lanes.py`) costs as much as pairs gain.
nvFuser's pointwise scheduler breaks 2D fusions at the same point, and reuses broadcast inputs along
its outer unroll.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.integer.symint import Variable
from thunder_fuser.lower.vectors.lanes import Lanes
from thunder_fuser.lower.vectors.vectorize import RegisterArray

_KEPT_BYTES = 16384
"""Most bytes of row-invariant loads: half of the nearest cache of a core; the other half is for
rows.
"""
_FEWEST_ROWS, _FEWEST_VECTORS = 16, 256
"""Fewest rows and vectors of a block: row-invariant loads are amortised over the rows, the call of
a block over the vectors.
"""


@dataclass(frozen=True, slots=True)
class BreakPoint:
    """Rows of `columns` vectors each, `rows` of them to a block of one thread.

    kept  accesses, by number, that are row-invariant: loaded once a block
    """

    columns: int
    rows: int
    kept: tuple[int, ...]

    @property
    def vectors(self) -> int:
        """Vectors of a block."""
        return self.columns * self.rows


def find_break_point(accesses: Sequence[RegisterArray], lanes: Lanes) -> BreakPoint | None:
    """Return the longest rows whose row-invariant operands fit into the nearest cache; None if
    nothing is row-invariant, or rows are too few.
    """
    periods = {k: _period(access, lanes) for k, access in enumerate(accesses)}
    each = lanes.vector * DataType.Float.itemsize
    for columns in sorted({p for p in periods.values() if p is not None}, reverse=True):
        kept = tuple(k for k, p in periods.items() if p is not None and columns % p == 0)
        rows = max(_FEWEST_ROWS, -(-_FEWEST_VECTORS // columns))
        if lanes.vectors % columns or lanes.vectors < 2 * columns * rows:
            continue
        if columns * each * len(kept) <= _KEPT_BYTES:
            return BreakPoint(columns, rows, kept)
    return None


def _period(access: RegisterArray, lanes: Lanes) -> int | None:
    """Return after how many vectors an access repeats; None: never, or its addresses depend on
    data.
    """
    if access.is_uniform or len(access.variants) != 1 or len(access.variants[0].windows) != 1:
        return None
    found = 1
    for digit, _ in access.variants[0].windows[0].address.terms:
        is_of_vector = isinstance(digit.base, Variable) and digit.base in lanes.u.variables()
        if not is_of_vector or digit.e is None:
            return None
        found = math.lcm(found, digit.s * digit.e)
    return found
