"""Ties: segments that recompute a common value, whose bits must be equal in all of them.

A plan may recompute a producer in several kernels. They agree to the last bit, and programs rely on
it: the gradient of a maximum compares the operand with its maximum. If one of the segments runs in
torch instead, whose exponential has other last bits, the segments tied to it must run there, too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from thunder_fuser.analysis.reproducible import reproducible_values
from thunder_fuser.ir.fusion import Val
from thunder_fuser.segment.plan import Segment, SegmentedFusion


def tied_to(plan: SegmentedFusion, segments: Iterable[int]) -> dict[int, tuple[int, Val]]:
    """Return the other segments that must run in torch if `segments` do, each with a segment that
    it is tied to and the common value, whose bits depend on what computes it.
    """
    computed = {s.index: _computed(s) for s in plan.segments if s.kernels}
    found: dict[int, tuple[int, Val]] = {}
    left = dict.fromkeys(computed)
    waiting = deque(segments)
    for segment in waiting:
        left.pop(segment, None)
    while waiting:
        segment = waiting.popleft()
        for other in list(left):
            if (value := _shared(computed[segment], computed[other])) is not None:
                found[other] = segment, value
                waiting.append(other)
                del left[other]
    return found


def _computed(segment: Segment) -> dict[Val, bool]:
    """Return the plan's values that a segment computes; True if torch computes the same bits."""
    same = reproducible_values(segment.fusion)
    return {segment.values[e.output.id]: e.output in same for e in segment.fusion.exprs}


def _shared(some: dict[Val, bool], others: dict[Val, bool]) -> Val | None:
    return next((v for v in some if v in others and not (some[v] and others[v])), None)
