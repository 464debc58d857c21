"""Plans in the words of a trace: segments and boundaries whose tensors are Thunder's proxies.

What NVIDIA/Fuser issue 2473 asks for at its end: which tensors go through memory between the
kernels of a fusion, without a tensor, a GPU or a compiler, so that a transform of traces can weigh
real bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from thunder.core.devices import to_device
from thunder.core.dtypes import to_dtype
from thunder.core.proxies import Proxy, TensorProxy
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceCtx, detached_trace

from thunder_fuser.errors import Refusal
from thunder_fuser.executor.report import last_traces
from thunder_fuser.executor.symbol import call_of
from thunder_fuser.ir.fusion import TensorView
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

    A value that the trace has no name for, because it exists inside a primitive, has a proxy of its
    own.
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
    plan  the same in the fusion's own terms; it prints
    """

    name: str
    segments: tuple[TraceSegment, ...]
    boundaries: tuple[TraceBoundary, ...]
    plan: SegmentedFusion = field(repr=False)

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
        return f"{self.name}: {self.plan}"


def segments(source: Callable[..., Any] | TraceCtx) -> tuple[SegmentedRegion, ...]:
    """The segments of every fusion of a trace, or of a `thunder.jit` function's last run: forward,
    then backward.

    Raises FuserTypeError for another function, FuserValueError before the first run.
    """
    traces = (source,) if isinstance(source, TraceCtx) else last_traces(source)
    return tuple(
        _region(bsym)
        for trace in traces
        if trace is not None
        for bsym in trace.bound_symbols
        if call_of(bsym) is not None
    )


def _region(bsym: BoundSymbol) -> SegmentedRegion:
    call = call_of(bsym)
    assert call is not None
    plan = call.plan()
    names = _Names(bsym, plan)
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
    return SegmentedRegion(call.name, steps, boundaries, plan)


class _Names:
    """The proxies of a plan's tensors."""

    def __init__(self, bsym: BoundSymbol, plan: SegmentedFusion) -> None:
        self._definitions = plan.fusion.definitions()
        self._device = next(p.device for p in (*bsym.output, *bsym.args) if hasattr(p, "device"))
        self._known = {p.name: p for b in bsym.subsymbols for p in b.flat_proxy_outs}
        outputs = zip(plan.fusion.outputs, bsym.output, strict=False)
        self._proxies: dict[object, Proxy] = {t: p for t, p in outputs if p is not None}
        self._proxies |= dict(zip(plan.fusion.inputs, bsym.args, strict=True))
        # An update in place has the memory of its target.
        for update in plan.fusion.updates:
            self._proxies.setdefault(update.value, self._proxies[update.target])

    def proxy(self, tensor: TensorView) -> Proxy:
        if tensor not in self._proxies:
            self._proxies[tensor] = self._inner(tensor)
        return self._proxies[tensor]

    def _inner(self, tensor: TensorView) -> Proxy:
        name = self._definitions[tensor].origin.result
        known = self._known.get(name)
        shape, dtype = tuple(tensor.sizes), to_dtype(tensor.dtype.torch)
        if known is not None and (tuple(known.shape), known.dtype) == (shape, dtype):
            return known
        with detached_trace():
            # One value of a primitive that has several.
            return TensorProxy(
                f"{name}_{tensor.name}", shape=shape, device=to_device(self._device), dtype=dtype
            )
