"""Overlap of communication and compute: collectives run at the same time as kernels and
calls. Each starts when its operand is ready; the first reader of the result waits for it.
Collectives on one link run one after the other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from thunder_fuser.device import DeviceInfo
from thunder_fuser.ir.fusion import OpaqueOp, TensorView
from thunder_fuser.ir.tables.collectives import ROUNDS, sent_of_call
from thunder_fuser.segment.placement import Placement
from thunder_fuser.segment.plan import Segment

_UNKNOWN_LINK = 0.1
"""Link bandwidth as a fraction of memory bandwidth, where the link between devices is unknown."""


def collective_of(segment: Segment) -> OpaqueOp | None:
    """Return the collective that a segment calls, or None."""
    if segment.kind != "opaque":
        return None
    calls = [e for e in segment.fusion.exprs if isinstance(e, OpaqueOp)]
    return calls[0] if calls and calls[0].op in ROUNDS else None


def awaited(segments: Sequence[Segment], placement: Placement) -> list[Segment]:
    """Set `awaited_by` of collectives: the first segment that touches the memory of the result, or
    overwrites the operand; -1 if none does. Views of results in flight do not wait.
    """
    found: dict[int, int] = {}
    pending: dict[int, tuple[set[TensorView], set[TensorView]]] = {}
    root = placement.root
    for k, segment in enumerate(segments):
        if segment.kind == "alias":
            continue
        written = set(map(root, segment.outputs))
        touched = written.union(map(root, segment.inputs))
        for number, (result, read) in list(pending.items()):
            if not (result.isdisjoint(touched) and read.isdisjoint(written)):
                found[number] = k
                del pending[number]
        if collective_of(segment) is not None:
            pending[k] = written, set(map(root, segment.inputs))
    found |= dict.fromkeys(pending, -1)
    return [replace(s, awaited_by=found.get(k)) for k, s in enumerate(segments)]


def link_seconds(call: OpaqueOp, device: DeviceInfo) -> float | None:
    """Return the seconds of a ring collective on its link; None if no link that reaches all its
    devices is known, or there is one device only.
    """
    given = dict(call.attributes)
    size, span = given["size"], given["span"]
    assert isinstance(size, int)
    assert isinstance(span, int)
    link = device.link(span)
    if link is None or size == 1:
        return None
    return link.seconds(bytes_sent(call), ROUNDS[call.op] * (size - 1))


def bytes_sent(call: OpaqueOp) -> int:
    """Return the bytes that each device sends in a collective."""
    whole = max(int(call.inputs[0].bytes), int(call.output.bytes))
    return sent_of_call(call.op, whole, dict(call.attributes))


def rough_seconds(segment: Segment, device: DeviceInfo) -> float:
    """Estimate the seconds of a segment before its kernel is lowered."""
    call = collective_of(segment)
    if call is not None:
        known = link_seconds(call, device)
        if known is None:
            known = bytes_sent(call) / (_UNKNOWN_LINK * device.copy_bandwidth)
        return device.collective_seconds + known
    if segment.kind in ("alias", "concat"):
        return 0.0
    sizes = [t.dtype.itemsize for t in segment.inputs if t.dtype.is_floating]
    arithmetic = int(segment.flops) / device.product_rate(next(iter(sizes), 4))
    return device.launch_seconds + max(int(segment.bytes) / device.copy_bandwidth, arithmetic)


@dataclass(slots=True)
class Clock:
    """Simulated time in seconds.

    work      when the device has finished its segments so far
    links     when each link has
    arrivals  when each communicated tensor has arrived
    """

    work: float = 0.0
    links: defaultdict[Hashable, float] = field(default_factory=lambda: defaultdict(float))
    arrivals: dict[TensorView, float] = field(default_factory=dict)

    def arrival(self, tensors: Iterable[TensorView]) -> float:
        """Return when the last of some tensors has arrived."""
        return max((self.arrivals.get(t, 0.0) for t in tensors), default=0.0)

    def run(self, segment: Segment, seconds: float, link: Hashable = None) -> None:
        """Advance by the next segment; `link`: the one that a collective runs on."""
        ready = self.arrival(segment.inputs)
        if link is not None:
            begin = max(self.work, ready, self.links[link])
            self.links[link] = begin + seconds
            self.arrivals |= dict.fromkeys(segment.outputs, self.links[link])
        elif segment.kind in ("alias", "concat"):
            # A view of a tensor in flight does not wait.
            self.arrivals |= dict.fromkeys(segment.outputs, ready)
        else:
            self.work = max(self.work, ready) + seconds

    @property
    def seconds(self) -> float:
        """End of the last segment or collective."""
        return max((self.work, *self.links.values()))
