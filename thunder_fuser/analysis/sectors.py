"""Memory sectors touched when some elements of a tensor are read.

Memory transfers whole sectors, so that one element of every row costs as much as eight. Addresses
of a box's elements are a progression; the sectors are its quotient.
"""

from __future__ import annotations

from collections.abc import Sequence

from thunder_fuser.analysis.progression import Progression, divide, progression
from thunder_fuser.analysis.region import Box, Region, measure, volume


def sector_bytes(region: Region, strides: Sequence[int], itemsize: int, sector: int) -> int:
    """Bytes of the distinct sectors that contain the elements of a region, at most.

    strides  in elements, per dimension of the region
    sector   in bytes; memory is assumed to be aligned to a sector
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
    """True if the elements are contiguous, and the numbers are plain ints, not counts."""
    return place.is_interval and type(place.start) is type(place.size) is int


def _addresses(box: Box, strides: Sequence[int]) -> Progression:
    """Addresses, in elements, of a box's elements; the whole range from the first to the last if
    the strides are not nested.
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
