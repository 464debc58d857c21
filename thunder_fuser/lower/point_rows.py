"""Vectors of a flat loop that lie in one row, where rows are no whole number of vectors.

What differs from row to row (a statistic, a label) is then an element for each lane, although
nearly all vectors have one row. For those, lanes count columns: what belongs to the row is the same
for all lanes, is loaded once, and is divided for once. A test of the first lane's column says which
vectors these are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import gcd

from thunder_fuser.ir.integer.symint import Form, Variable
from thunder_fuser.lower.lanes import LaneForms, Lanes
from thunder_fuser.lower.scalar_graph import Condition


class RowLanes(Lanes):
    """The lanes of a flat loop where none of them begins another row of `length` points.

    inside  holds of the vectors for which that is so
    """

    def __init__(self, flat: Lanes, length: int) -> None:
        context, last = flat.index.context, flat.index.hi
        assert last is not None
        row = context.var("row", 0, last // length)
        column = context.var("column", 0, length - 1)
        first = flat(flat.index).substitute({flat.v: 0})
        steps = [
            {flat.index: row * length + column},
            {row: first // length, column: first % length + flat.v},
        ]
        LaneForms.__init__(self, steps, flat.v, flat.vector, flat.vectors)
        self.index = flat.index
        self.u = flat.u
        self.length = length
        self.inside: Condition = length - flat.vector - first % length


def row_length(forms: Iterable[Form], lanes: Lanes) -> int | None:
    """The length of rows by which all of some forms go on, where vectors lie across the ends of
    rows; None where there are no such rows, or none cross.
    """
    if lanes.vector == 1:
        return None
    ends = {end for form in forms for end in _ends(form, lanes.index)}
    length = gcd(*(end for end in ends if end % lanes.vector))
    if length not in ends or any(length % end and end % length for end in ends):
        return None
    return length


def _ends(form: Form, index: Form) -> Iterator[int]:
    """The numbers at whose multiples digits of the index change, but for the lowest."""
    ((counted, _),) = index.terms
    assert isinstance(counted.base, Variable)
    for digit, _ in form.terms:
        if digit.base is counted.base:
            yield from (n for n in (digit.s, digit.e and digit.s * digit.e) if n and n > 1)
        elif isinstance(digit.base, Form):
            yield from _ends(digit.base, index)
