"""Plans in the words of a trace: segments and boundaries whose tensors are Thunder's proxies.

What NVIDIA/Fuser issue 2473 asks for at its end: which tensors go through memory between the
kernels of a fusion, without a tensor, a GPU or a compiler, so that a transform of traces can weigh
real bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from thunder.core.proxies import Proxy
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceCtx

from thunder_fuser.errors import Refusal
from thunder_fuser.frontends.thunder.compiled import all_traces
from thunder_fuser.frontends.thunder.naming import Names, Naming
from thunder_fuser.frontends.thunder.symbol import call_of
from thunder_fuser.segment.plan import Kind, SegmentedFusion


@dataclass(frozen=True, slots=True)
class TraceSegment:
    """One step of a fusion: a kernel, or what costs nothing.

    kind      map and row are kernels, alias are views, join is what kernels have written in pieces
    inputs    proxies whose memory it reads
    outputs   proxies that it leaves in memory
    alias_of  for views, the proxy whose memory they share
    """

    kind: Kind
    inputs: tuple[Proxy, ...]
    outputs: tuple[Proxy, ...]
    bytes_read: int
    bytes_written: int
    kernels: int
    alias_of: Proxy | None
    refusals: tuple[Refusal, ...]


@dataclass(frozen=True, slots=True)
class TraceBoundary:
    """A tensor that one segment writes and others read; `reason` says why it is not computed
    again.
    """

    tensor: Proxy
    producer: int
    consumers: tuple[int, ...]
    bytes: int
    reason: str


@dataclass(frozen=True, slots=True)
class SegmentedRegion:
    """A fusion of a trace as it is cut into segments, in execution order.

    name  of the fusion in the trace
    plan  the same in the fusion's own terms
    """

    name: str
    segments: tuple[TraceSegment, ...]
    boundaries: tuple[TraceBoundary, ...]
    plan: SegmentedFusion = field(repr=False)
    _text: str = field(repr=False)

    @property
    def kernels(self) -> int:
        """Launches of one call."""
        return self.plan.kernels

    @property
    def bytes(self) -> int:
        """Bytes that the kernels move."""
        return self.plan.bytes

    @property
    def bytes_ideal(self) -> int:
        """Bytes if only inputs and results touched memory, each needed element once."""
        return self.plan.bytes_ideal

    @property
    def peak_bytes(self) -> int:
        """Most bytes alive at once of what the fusion allocates."""
        return self.plan.peak_bytes

    def __str__(self) -> str:
        return f"{self.name}: {self._text}"


def segments(source: Any) -> tuple[SegmentedRegion, ...]:
    """The segments of every fusion of a trace, or of what `fusions` takes: forward, then backward.

    Raises FuserTypeError for what Thunder did not compile, FuserValueError before the first run.
    """
    traces = [source] if isinstance(source, TraceCtx) else all_traces(source)
    return tuple(
        _region(bsym)
        for trace in traces
        for bsym in trace.bound_symbols
        if call_of(bsym) is not None
    )


def _region(bsym: BoundSymbol) -> SegmentedRegion:
    call = call_of(bsym)
    assert call is not None
    plan = call.plan()
    names = Naming(Names.of(bsym), plan, call.names())
    steps = tuple(
        TraceSegment(
            s.kind,
            tuple(map(names.proxy, s.inputs)),
            tuple(map(names.proxy, s.outputs)),
            s.bytes_read,
            s.bytes_written,
            s.kernels,
            names.proxy(s.alias_of) if s.alias_of is not None else None,
            s.refusals,
        )
        for s in plan.segments
    )
    boundaries = tuple(
        TraceBoundary(names.proxy(b.tensor), b.producer, b.consumers, b.bytes, b.reason)
        for b in plan.boundaries
    )
    return SegmentedRegion(call.name, steps, boundaries, plan, names.text())
