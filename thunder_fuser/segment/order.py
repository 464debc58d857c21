"""Execution order of a plan with torch calls: kernels, calls and views in program order.

For the few kernels of a fusion, breadth-first levels are as good as any order. Plans with calls may
have thousands of segments, for which breadth-first order would hold the gradients of all weights at
once. So ready segments run in program order, whose memory the user knows to suffice; and calls that
draw random numbers draw them in that order.

Collectives start as soon as they can, in program order, which all devices have in common: in
different orders, two of them would deadlock. Readers of a result in flight let other segments go
first.
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
    """Renumber segments in program order, dependencies first; no change without torch calls."""
    if not any(s.kind == "opaque" for s in segments):
        return list(segments)
    position = {v: k for k, v in enumerate(fusion.values())}
    made = {t: k for k, s in enumerate(segments) for t in s.outputs}
    ends = [max((position[t] for t in s.outputs), default=0) for s in segments]
    before: list[set[int]] = []
    for k, segment in enumerate(segments):
        owners = [placement.written(t) for t in segment.inputs]
        before.append({made[t] for t in (*segment.inputs, *owners) if t in made} - {k})
    orders: dict[opaque.Order, list[int]] = {}
    for k in sorted(range(len(segments)), key=ends.__getitem__):
        for order in _orders(segments[k]):
            orders.setdefault(order, []).append(k)
    for first, second in (pair for ks in orders.values() for pair in pairwise(ks)):
        before[second].add(first)
    if opaque.Order.COLLECTIVES in orders:
        found = _overlapped(segments, before, ends, device)
    else:
        found = _sorted(before, ends)
    return [replace(segments[k], index=n) for n, k in enumerate(found)]


def _orders(segment: Segment) -> set[opaque.Order]:
    """Return the orders that the call of a segment keeps: one at most."""
    exprs = [e for e in segment.fusion.exprs if isinstance(e, OpaqueOp)]
    found = {opaque.lookup(e.op).order(dict(e.attributes)) for e in exprs}
    return {order for order in found if order is not None}


class _Waiting:
    """Segments that wait for others, by number, and those that are ready: (end, number)."""

    def __init__(self, before: Sequence[Collection[int]], ends: Sequence[int]) -> None:
        self._after: list[list[int]] = [[] for _ in before]
        for k, others in enumerate(before):
            for other in others:
                self._after[other].append(k)
        self._missing = [len(others) for others in before]
        self._ends = ends
        self.ready = [(ends[k], k) for k, count in enumerate(self._missing) if not count]

    def freed_by(self, k: int) -> list[tuple[int, int]]:
        """Return the segments that become ready when `k` is done."""
        found = []
        for other in self._after[k]:
            self._missing[other] -= 1
            if not self._missing[other]:
                found.append((self._ends[other], other))
        return found


def _sorted(before: Sequence[Collection[int]], ends: Sequence[int]) -> list[int]:
    """Return a topological order; of ready segments, the first in the program comes first."""
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
    """Return a topological order for a plan with collectives: of ready segments, the one that can
    begin first; among equal ones, collectives first, then program order.
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
