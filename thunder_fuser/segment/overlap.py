"""Time of a plan whose collectives run beside its kernels: each starts when its operand is there,
and the first that reads its result waits for it. Collectives on one link follow each other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

from thunder_fuser.ir.fusion import OpaqueOp, TensorView
from thunder_fuser.ir.tables.collectives import ROUNDS
from thunder_fuser.segment.plan import Segment


def collective_of(segment: Segment) -> OpaqueOp | None:
    """The collective that a segment calls, if it is one."""
    if segment.kind != "opaque":
        return None
    calls = [e for e in segment.fusion.exprs if isinstance(e, OpaqueOp)]
    return calls[0] if calls and calls[0].op in ROUNDS else None


@dataclass(slots=True)
class Clock:
    """When the device and each link have done what they were given so far, and when a tensor that
    is being communicated has arrived.
    """

    work: float = 0.0
    links: defaultdict[Hashable, float] = field(default_factory=lambda: defaultdict(float))
    arrivals: dict[TensorView, float] = field(default_factory=dict)

    def arrival(self, tensors: Iterable[TensorView]) -> float:
        """When the last of some tensors has arrived."""
        return max((self.arrivals.get(t, 0.0) for t in tensors), default=0.0)

    def run(self, segment: Segment, seconds: float, link: Hashable = None) -> None:
        """The next segment; `link`: what a collective runs on."""
        ready = self.arrival(segment.inputs)
        if link is not None:
            begin = max(self.work, ready, self.links[link])
            self.links[link] = begin + seconds
            self.arrivals |= dict.fromkeys(segment.outputs, self.links[link])
        elif segment.kind in ("alias", "concat"):
            # A view of what has not arrived waits for nothing.
            self.arrivals |= dict.fromkeys(segment.outputs, ready)
        else:
            self.work = max(self.work, ready) + seconds

    @property
    def seconds(self) -> float:
        """When everything is done."""
        return max((self.work, *self.links.values()))
