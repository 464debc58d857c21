"""Sectors: what memory moves when some elements of a tensor are read.

Memory moves whole sectors, so that one element of every row costs as much as eight. Elements of a
box lie at a progression of addresses; the sectors are its quotient.
"""

from __future__ import annotations

from collections.abc import Sequence

from thunder_fuser.analysis.progression import Progression, divide, progression
from thunder_fuser.analysis.region import Box, Region, measure, volume


def sector_bytes(region: Region, strides: Sequence[int], itemsize: int, sector: int) -> int:
    """Bytes of the distinct sectors in which the elements of a region lie, at most.

    strides  elements between neighbours, per dimension of the region
    sector   bytes; memory is taken to begin with one
    """
    elements = max(1, sector // itemsize)
    steps = [int(stride) for stride in strides]
    places = [_addresses(box, steps) for box in region.boxes]
    if len(places) == 1 and _is_plain(places[0]):
        (place,) = places
        count = (place.start + place.size - 1) // elements - place.start // elements + 1
        return min(count, int(volume(region))) * max(sector, itemsize)
    touched = tuple((q,) for p in places for q, _ in divide(p, elements))
    count, _ = measure(Region(touched))
    return min(count, int(volume(region))) * max(sector, itemsize)


def _is_plain(place: Progression) -> bool:
    """Whether elements are neighbours, of numbers that stand for no open size."""
    return place.is_interval and type(place.start) is type(place.size) is int


def _addresses(box: Box, strides: Sequence[int]) -> Progression:
    """Where the elements of a box lie, counted in elements; all between the first and the last,
    where they are not nested.
    """
    start = sum(int(p.start) * stride for p, stride in zip(box, strides, strict=True))
    steps = [
        (int(step) * stride, int(count))
        for p, stride in zip(box, strides, strict=True)
        for step, count in p.steps
        if stride
    ]
    steps.sort(reverse=True)
    span = 0
    for step, count in reversed(steps):
        if step <= span:
            return progression(start, [(1, sum(s * (n - 1) for s, n in steps) + 1)])
        span += step * (count - 1)
    return progression(start, steps)
