"""Vectors of a flat loop within one row, if the row length is no multiple of the vector width.

Values per row (a statistic, a label) are then loaded for each lane, although nearly all vectors lie
in one row. For those vectors lanes are expressed by columns: per-row values are uniform, loaded
once, and their index is divided once. A test of the first lane's column selects these vectors.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import gcd

from thunder_fuser.ir.integer.symint import Form, Variable
from thunder_fuser.lower.scalar_graph import Condition
from thunder_fuser.lower.vectors.lanes import LaneForms, Lanes


class RowLanes(Lanes):
    """Lanes of a flat loop for vectors that lie within one row of `length` points.

    inside  condition under which a vector does
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
    """Return the row length in the forms' digits of the loop index, if vectors cross row ends; None
    if no vector does, or if the forms have no common row length.
    """
    if lanes.vector == 1:
        return None
    ends = {end for form in forms for end in ends_of_digits(form, lanes.index)}
    length = gcd(*(end for end in ends if end % lanes.vector))
    if length not in ends or any(length % end and end % length for end in ends):
        return None
    return length


def ends_of_digits(form: Form, index: Form) -> Iterator[int]:
    """Yield the periods, above 1, at whose multiples digits of the index in a form change."""
    ((counted, _),) = index.terms
    assert isinstance(counted.base, Variable)
    for digit, _ in form.terms:
        if digit.base is counted.base:
            yield from (n for n in (digit.s, digit.e and digit.s * digit.e) if n and n > 1)
        elif isinstance(digit.base, Form):
            yield from ends_of_digits(digit.base, index)
