"""Order of a plan that calls torch: kernels, calls and views one after the other as the program has
them.

Levels, breadth first, are as good as any order for the few kernels of a fusion. Calls make programs
of thousands of segments, of which memory would hold all weights' gradients at once. So what is
ready runs in the order of the program, of which the user knows that its memory suffices; and calls
that draw random numbers draw them in that order.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import pairwise

from thunder_fuser.ir.fusion import Fusion, OpaqueOp
from thunder_fuser.ir.tables import opaque
from thunder_fuser.segment.placement import Placement
from thunder_fuser.segment.plan import Segment


def in_program_order(
    segments: Sequence[Segment], fusion: Fusion, placement: Placement
) -> list[Segment]:
    """The same segments, numbered anew; each comes after those whose results it reads."""
    if not any(s.kind == "opaque" for s in segments):
        return list(segments)
    position = {v: k for k, v in enumerate(fusion.values())}
    made = {t: k for k, s in enumerate(segments) for t in s.outputs}
    ends = [max((position[t] for t in s.outputs), default=0) for s in segments]
    drawing = sorted((k for k, s in enumerate(segments) if _draws(s)), key=ends.__getitem__)
    before: list[set[int]] = []
    for k, segment in enumerate(segments):
        owners = [placement.written(t) for t in segment.inputs]
        before.append({made[t] for t in (*segment.inputs, *owners) if t in made} - {k})
    for first, second in pairwise(drawing):
        before[second].add(first)
    order = _sorted(before, ends)
    return [replace(segments[k], index=n) for n, k in enumerate(order)]


def _draws(segment: Segment) -> bool:
    exprs = [e for e in segment.fusion.exprs if isinstance(e, OpaqueOp)]
    return any(opaque.lookup(e.op).is_random(dict(e.attributes)) for e in exprs)


def _sorted(before: Sequence[Collection[int]], ends: Sequence[int]) -> list[int]:
    """All numbers, each after those before it; of those that are ready the first in the program."""
    after: list[list[int]] = [[] for _ in before]
    for k, others in enumerate(before):
        for other in others:
            after[other].append(k)
    missing = [len(others) for others in before]
    ready = [(ends[k], k) for k, count in enumerate(missing) if not count]
    heapq.heapify(ready)
    found: list[int] = []
    while ready:
        _, k = heapq.heappop(ready)
        found.append(k)
        for other in after[k]:
            missing[other] -= 1
            if not missing[other]:
                heapq.heappush(ready, (ends[other], other))
    assert len(found) == len(before), "segments wait for each other"
    return found
