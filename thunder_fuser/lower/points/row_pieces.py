"""Pieces of rows: the points of rows by the width of the vectors that divide them.

Vectors of 16 points cross the ends of rows of 28, such as those of an image, so that each lane has
an index, tests and loads of its own. A core instead takes the first 16 columns of all rows, then 8
and then 4, each as a group of its own in which every vector lies in one row. So is each vector at a
border of the image, within which a test of the column changes: its lanes are known, and the vectors
between have no tests. Rows of other lengths have other pieces, so that sizes that vary from call to
call share fewer kernels.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Container, Iterator
from itertools import groupby

from thunder_fuser.ir.integer.symint import Form
from thunder_fuser.lower.body import KernelBody
from thunder_fuser.lower.points.point_groups import PointGroup
from thunder_fuser.lower.points.point_pieces import MOST_PIECES, Cut, piece_at
from thunder_fuser.lower.points.point_rows import ends_of_digits
from thunder_fuser.lower.scalar_graph import Condition, Select, forms

LONGEST = 16
"""Vectors of a row from which on so few cross its ends that `point_rows.py` tests each, unless the
row has tests of its own.
"""


def row_pieces(
    group: PointGroup, body: KernelBody, widest: int
) -> Iterator[tuple[PointGroup, ...]]:
    """Yield ways to split the rows of a group for vectors of at most `widest` points: none where
    these neither cross ends of rows nor have tests, for long rows without tests, and if there would
    be too many pieces.
    """
    for length in _row_lengths(group, widest):
        changes = _changes(group, length)
        if length >= LONGEST * widest and not changes:
            continue
        alone = {column // widest for column in changes if column % widest}
        most = MOST_PIECES
        if not _is_alike(group, length, widest):
            alone, most = {*range(length // widest)}, LONGEST
        cuts = [*_cuts(length, widest, alone)]
        if 1 < len(cuts) <= most:
            yield tuple(piece_at(group, body, (cut,)) for cut in cuts)


def _row_lengths(group: PointGroup, widest: int) -> Iterator[int]:
    """Yield the common length of all rows whose ends vectors cross, or of the shortest ones of
    whole vectors. If it is shorter than a vector, as where each element is read three times, yield
    also that of the rows which consist of such.
    """
    indices = [form for node in group.graph for form in forms(node)]
    indices += [address for _, _, address in group.values]
    ends = {end for form in indices for end in ends_of_digits(form, group.point)}
    crossed = {end for end in ends if end % widest and widest % end}
    rows = sorted(crossed or {end for end in ends if end % widest == 0})
    for length in rows[:2]:
        if any(end % length and length % end for end in rows) or group.count % length:
            return
        yield length
        if length >= widest:
            return


def _changes(group: PointGroup, length: int) -> set[int]:
    """Return the columns at which tests of the column change, as at a border of an image. A test
    changes once in a row, in which no digit of the column repeats.
    """
    conditions = {c for node in group.graph if isinstance(node, Select) for c in node.conditions}
    found = (_change(condition, group.point, length) for condition in conditions)
    return {column for column in found if column is not None}


def _change(condition: Condition, point: Form, length: int) -> int | None:
    """Return the first column at which a condition differs from the one before, in a row of
    `length`; None if there is none, or if it depends on more than the column.
    """

    def holds(column: int) -> bool | None:
        value = condition.substitute({point: column})
        return value.const >= 0 if value.is_constant else None

    first, last = holds(0), holds(length - 1)
    if first is last or None in (first, last):
        return None
    return bisect_left(range(length), True, key=lambda column: holds(column) is not first)


def _is_alike(group: PointGroup, length: int, widest: int) -> bool:
    """True if the lanes of each vector of a row are at the same distances in memory. They are not
    where an image is made larger by a factor that does not divide vectors: lane v of vector k reads
    element `(16 * k + v) // 3`, which is a shuffle of a wide load if k is known.
    """
    if length < widest:
        return True
    whole = Cut(1, length, 0, length - length % widest)
    for address in {form for node in group.graph for form in forms(node)}:
        lanes = (group.point * widest + lane for lane in range(widest))
        first, *others = (address.substitute({group.point: whole.place(at)}) for at in lanes)
        if not all((other - first).is_constant for other in others):
            return False
    return True


def _cuts(length: int, widest: int, alone: Container[int]) -> Iterator[Cut]:
    """Yield ranges of columns, each of whole vectors of a width that is halved from one range to
    the next; a vector in `alone` is a range of its own, where each lane is known.
    """
    begin = 0
    for _, members in groupby(range(length // widest), lambda k: k if k in alone else -1):
        end = begin + len([*members]) * widest
        yield Cut(1, length, begin, end)
        begin = end
    width = widest // 2
    while begin < length:
        end = length - (length - begin) % width
        if end > begin:
            yield Cut(1, length, begin, end)
        begin, width = end, width // 2
