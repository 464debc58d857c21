"""Order of a plan that calls torch: kernels, calls and views one after the other as the program has
them.

Levels, breadth first, are as good as any order for the few kernels of a fusion. Calls make programs
of thousands of segments, of which memory would hold all weights' gradients at once. So what is
ready runs in the order of the program, of which the user knows that its memory suffices; and calls
that draw random numbers draw them in that order.

Collectives start as soon as they can, in the order of the program, which all devices have in
common: two that were started in another order would wait for each other for ever. What reads a
result that is still on its way lets others go first.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import pairwise

from thunder_fuser.device import DeviceInfo
from thunder_fuser.ir.fusion import Fusion, OpaqueOp
from thunder_fuser.ir.tables import opaque
from thunder_fuser.segment.communication_overlap import Clock, collective_of, rough_seconds
from thunder_fuser.segment.placement import Placement
from thunder_fuser.segment.plan import Segment


def in_program_order(
    segments: Sequence[Segment], fusion: Fusion, placement: Placement, device: DeviceInfo
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
    sending = sorted((k for k, s in enumerate(segments) if collective_of(s)), key=ends.__getitem__)
    for first, second in (*pairwise(drawing), *pairwise(sending)):
        before[second].add(first)
    if sending:
        order = _overlapped(segments, before, ends, device)
    else:
        order = _sorted(before, ends)
    return [replace(segments[k], index=n) for n, k in enumerate(order)]


def _draws(segment: Segment) -> bool:
    exprs = [e for e in segment.fusion.exprs if isinstance(e, OpaqueOp)]
    return any(opaque.lookup(e.op).is_random(dict(e.attributes)) for e in exprs)


class _Waiting:
    """Numbers that wait for others, and those that are ready: (end, number)."""

    def __init__(self, before: Sequence[Collection[int]], ends: Sequence[int]) -> None:
        self._after: list[list[int]] = [[] for _ in before]
        for k, others in enumerate(before):
            for other in others:
                self._after[other].append(k)
        self._missing = [len(others) for others in before]
        self._ends = ends
        self.ready = [(ends[k], k) for k, count in enumerate(self._missing) if not count]

    def freed_by(self, k: int) -> list[tuple[int, int]]:
        """What is ready now that `k` is done."""
        found = []
        for other in self._after[k]:
            self._missing[other] -= 1
            if not self._missing[other]:
                found.append((self._ends[other], other))
        return found


def _sorted(before: Sequence[Collection[int]], ends: Sequence[int]) -> list[int]:
    """All numbers, each after those before it; of those that are ready the first in the program."""
    waiting = _Waiting(before, ends)
    ready, found = waiting.ready, list[int]()
    heapq.heapify(ready)
    while ready:
        _, k = heapq.heappop(ready)
        found.append(k)
        for freed in waiting.freed_by(k):
            heapq.heappush(ready, freed)
    assert len(found) == len(before), "segments wait for each other"
    return found


def _overlapped(
    segments: Sequence[Segment],
    before: Sequence[Collection[int]],
    ends: Sequence[int],
    device: DeviceInfo,
) -> list[int]:
    """The same of a program that communicates: of what is ready, what waits for the least time, and
    of those that wait for nothing collectives first.
    """
    waiting, clock = _Waiting(before, ends), Clock()
    ready, found = waiting.ready, list[int]()
    while ready:

        def rank(item: tuple[int, int]) -> tuple[float, bool, tuple[int, int]]:
            segment = segments[item[1]]
            begin = max(clock.arrival(segment.inputs), clock.work)
            return begin, collective_of(segment) is None, item

        chosen = min(ready, key=rank)
        ready.remove(chosen)
        segment, call = segments[chosen[1]], collective_of(segments[chosen[1]])
        link = None if call is None else dict(call.attributes)["axis"]
        clock.run(segment, rough_seconds(segment, device), link)
        found.append(chosen[1])
        ready += waiting.freed_by(chosen[1])
    assert len(found) == len(before), "segments wait for each other"
    return found
