"""Pieces of rows: the points of short rows by the width of the vectors that divide them.

Vectors of 16 points cross the ends of rows of 28, such as those of an image, so that each lane has
an index, tests and loads of its own. A core instead takes the first 16 columns of all rows, then 8
and then 4, each as a group of its own in which every vector lies in one row. Rows of other lengths
have other pieces, so that sizes that vary from call to call share fewer kernels.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd

from thunder_fuser.lower.body import KernelBody
from thunder_fuser.lower.points.point_groups import PointGroup
from thunder_fuser.lower.points.point_pieces import MOST_PIECES, Cut, piece_at
from thunder_fuser.lower.points.point_rows import ends_of_digits
from thunder_fuser.lower.scalar_graph import forms

LONGEST = 16
"""Vectors of a row from which on so few cross its ends that `point_rows.py` tests each."""


def row_pieces(group: PointGroup, body: KernelBody, widest: int) -> tuple[PointGroup, ...]:
    """Split the rows of a group for vectors of at most `widest` points; return the group itself
    where these cross no ends of rows, for long rows, and if there would be too many pieces.
    """
    length = _row_length(group, widest)
    if length is None or not 1 < length < LONGEST * widest:
        return (group,)
    cuts = [*_cuts(length, widest)]
    if len(cuts) > MOST_PIECES:
        return (group,)
    return tuple(piece_at(group, body, (cut,)) for cut in cuts)


def _row_length(group: PointGroup, widest: int) -> int | None:
    """Return the common length of all rows whose ends vectors cross, or None."""
    indices = [form for node in group.graph for form in forms(node)]
    indices += [address for _, _, address in group.values]
    ends = {end for form in indices for end in ends_of_digits(form, group.point)}
    crossed = {end for end in ends if end % widest and widest % end}
    length = gcd(*crossed)
    return length if length in crossed and group.count % length == 0 else None


def _cuts(length: int, widest: int) -> Iterator[Cut]:
    """Yield ranges of columns, each of whole vectors of a width that is halved from one range to
    the next.
    """
    begin, width = 0, widest
    while begin < length:
        end = length - (length - begin) % width
        if end > begin:
            yield Cut(1, length, begin, end)
        begin, width = end, width // 2
