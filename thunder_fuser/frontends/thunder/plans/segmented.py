"""Plans of whole traces: segments and boundaries whose tensors are Thunder's proxies.

This is what NVIDIA/Fuser issue 2473 asks for at its end: which tensors go through memory between
kernels, found without a tensor, a GPU or a compiler, so that a trace transform can weigh real
bytes. A plan covers the whole trace: kernels, torch calls and views in execution order, with one
liveness analysis and one peak.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from thunder.core.devices import to_torch_device
from thunder.core.prims import OpTags, PrimIDs
from thunder.core.proxies import Proxy, TensorProxy
from thunder.core.pytree import tree_flatten
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceCtx

from thunder_fuser.errors import Refusal
from thunder_fuser.frontends.thunder.claims.targets import updates
from thunder_fuser.frontends.thunder.compiled import compiled_functions, last_traces
from thunder_fuser.frontends.thunder.fusion_record import records_of
from thunder_fuser.frontends.thunder.plans.naming import ComparedByName, Names, Naming
from thunder_fuser.frontends.thunder.plans.storages import Storages
from thunder_fuser.frontends.thunder.symbol import call_of
from thunder_fuser.frontends.thunder.trace.torch_work import work_of
from thunder_fuser.runtime.target import planned_for
from thunder_fuser.segment.liveness import Liveness, Step
from thunder_fuser.segment.plan import Kind, SegmentedFusion, counted
from thunder_fuser.segment.regions.budget import Traded


@dataclass(frozen=True, slots=True, eq=False)
class TraceSegment(ComparedByName):
    """One step of a trace: a kernel, a torch call, or a view.

    kind      as in a fusion's plan; "opaque" for torch calls, "alias" for views
    inputs    proxies whose memory it reads
    outputs   proxies that it writes to memory
    alias_of  for views, the proxy whose memory they share
    call      name of the torch call; "" for a segment of a fusion
    """

    kind: Kind
    inputs: tuple[Proxy, ...]
    outputs: tuple[Proxy, ...]
    bytes_read: int
    bytes_written: int
    kernels: int
    alias_of: Proxy | None
    refusals: tuple[Refusal, ...]
    flops: int = 0
    seconds: float = 0.0
    call: str = ""

    @property
    def bytes(self) -> int:
        return self.bytes_read + self.bytes_written

    def __str__(self) -> str:
        inputs, outputs = (", ".join(p.name for p in x) for x in (self.inputs, self.outputs))
        head = f"torch's {self.call}({inputs}) -> ({outputs})"
        if self.kind == "alias":
            return f"{head}: views"
        work = f", {self.flops:,} FLOPs" if self.flops else ""
        times = f", {1e6 * self.seconds:.1f} us" if self.seconds else ""
        return f"{head}: {self.bytes_read:,} B read, {self.bytes_written:,} B written{work}{times}"


@dataclass(frozen=True, slots=True, eq=False)
class TraceBoundary(ComparedByName):
    """A tensor that one segment writes and others read; `reason`: why it is not recomputed."""

    tensor: Proxy
    producer: int
    consumers: tuple[int, ...]
    bytes: int
    reason: str


@dataclass(frozen=True, slots=True)
class SegmentedRegion:
    """A fusion of a trace with its segments, in execution order.

    name  name of the fusion in the trace
    plan  the fusion's own plan, with tensors of the fusion IR
    """

    name: str
    segments: tuple[TraceSegment, ...]
    boundaries: tuple[TraceBoundary, ...]
    plan: SegmentedFusion = field(repr=False)
    _text: str = field(repr=False)

    @property
    def kernels(self) -> int:
        """Number of kernel launches of one call."""
        return self.plan.kernels

    @property
    def bytes(self) -> int:
        """Bytes that the kernels read and write."""
        return self.plan.bytes

    @property
    def bytes_ideal(self) -> int:
        """Bytes if each needed element of inputs and results were moved once, and nothing else."""
        return self.plan.bytes_ideal

    @property
    def peak_bytes(self) -> int:
        """Peak of live bytes that the fusion allocates."""
        return self.plan.peak_bytes

    @property
    def seconds(self) -> float:
        """Estimated time of the kernels in seconds."""
        return self.plan.seconds

    def __str__(self) -> str:
        return f"{self.name}: {self._text}"


@dataclass(frozen=True, slots=True)
class SegmentedTrace:
    """The plan of a whole trace.

    name            "forward" or "backward"
    steps           in execution order: fusions, and torch calls between them
    held            peak bytes in memory during each step, including arguments
    argument_bytes  bytes of the trace's arguments; for a backward including saved tensors
    saved_bytes     for a forward, bytes saved for backward besides arguments and results
    boundaries      tensors that one step writes and others read; steps by position
    traded          effect of the memory budget, if there was one
    """

    name: str
    steps: tuple[SegmentedRegion | TraceSegment, ...]
    held: tuple[int, ...]
    argument_bytes: int
    saved_bytes: int
    boundaries: tuple[TraceBoundary, ...]
    traded: Traded | None = None

    @property
    def regions(self) -> tuple[SegmentedRegion, ...]:
        """The fusions."""
        return tuple(s for s in self.steps if isinstance(s, SegmentedRegion))

    @property
    def calls(self) -> tuple[TraceSegment, ...]:
        """The torch calls that are not views."""
        return tuple(s for s in self.steps if isinstance(s, TraceSegment) and s.kind == "opaque")

    @property
    def segments(self) -> tuple[TraceSegment, ...]:
        """All segments of fusions and torch calls, in execution order."""
        return tuple(
            segment
            for step in self.steps
            for segment in (step.segments if isinstance(step, SegmentedRegion) else (step,))
        )

    @property
    def kernels(self) -> int:
        """Number of kernel launches of fusions; those of torch calls are unknown."""
        return sum(region.kernels for region in self.regions)

    @property
    def bytes(self) -> int:
        """Bytes that kernels and torch calls move."""
        return sum(step.bytes for step in self.steps)

    @property
    def flops(self) -> int:
        """FLOPs of the torch calls that `ir/tables/opaque.py` has a row for."""
        return sum(call.flops for call in self.calls)

    @property
    def seconds(self) -> float:
        """Estimated time of all steps in seconds, run one after the other."""
        return sum(step.seconds for step in self.steps)

    @property
    def peak_bytes(self) -> int:
        """Peak bytes in memory, including arguments."""
        return max((self.argument_bytes, *self.held))

    def __str__(self) -> str:
        calls = counted(len(self.calls), "torch call")
        saved = f", {self.saved_bytes:,} B saved for backward" if self.saved_bytes else ""
        head = (
            f"{self.name}: {counted(self.kernels, 'kernel')} and {calls}, {self.bytes:,} B"
            f" moved, {self.flops:,} FLOPs, peak {self.peak_bytes:,} B{saved}"
        )
        rows = [head, *([f"  {self.traded}"] if self.traded is not None else ())]
        for step, held in zip(self.steps, self.held, strict=True):
            text = str(step).replace("\n", "\n  ")
            rows.append(f"  {text}" + ("" if "\n" in text else f", {held:,} B held"))
        return "\n".join(rows)


def segments(source: Any) -> tuple[SegmentedTrace, ...]:
    """Return the plan of a trace, or of the traces of a compiled function: forward, then backward.

    Takes a trace, or the objects that `fusions` takes. Raises FuserTypeError for an object that
    Thunder did not compile, FuserValueError before its first run.
    """
    if isinstance(source, TraceCtx):
        return (_planned(source, Storages(source), () if _unpacked(source) else None),)
    found = []
    for function in compiled_functions(source):
        forward, backward = last_traces(function)
        storages = Storages(forward)
        traded = next((r.traded for r in reversed(records_of(forward))), None)
        found.append(replace(_planned(forward, storages), traded=traded))
        if backward is not None:
            behind = Storages(backward)
            behind.share(_given(backward), storages)
            # A saved tensor may be a view of an argument or a result, which the caller keeps alive.
            whole = storages.of((*_flat(forward.args), *_results(forward)[0]))
            saved = _results(forward)[1]
            kept = {p.name for p in saved if storages.of((p,)) <= whole}
            found.append(replace(_planned(backward, behind, kept), traded=traded))
    return tuple(found)


_SILENT = frozenset(
    {PrimIDs.UNPACK_TRIVIAL, PrimIDs.UNPACK_SEQUENCE, PrimIDs.RETURN, PrimIDs.DEL, PrimIDs.COMMENT}
)


def _planned(
    trace: TraceCtx, storages: Storages, kept: Collection[str] | None = None
) -> SegmentedTrace:
    """Return the plan of a final trace. `kept`: names of a backward's arguments that the caller
    keeps alive; None: all.
    """
    symbols = [b for b in trace.bound_symbols if is_step(b)]
    given = _given(trace)
    arguments = storages.of(given)
    results, saved = _results(trace)
    steps: list[SegmentedRegion | TraceSegment] = []
    lives: list[Step] = []
    alive, came = set(arguments), set(arguments)
    for bsym in symbols:
        # Operands first: a tensor without a producer gets a storage of its own.
        read, found = storages.of(bsym.flat_proxy_args), storages.run(bsym)
        came |= read - alive
        fresh = found - read - alive
        alive |= read | found
        step = _step(bsym, storages, fresh)
        within = int(step.peak_bytes) if isinstance(step, SegmentedRegion) else 0
        steps.append(step)
        lives.append(Step(read | found, fresh, within))
    stays = storages.of([*(p for p in given if kept is None or p.name in kept), *results, *saved])
    alive_then = Liveness(tuple(lives), storages.sizes, stays, frozenset(came))
    size = storages.sizes.__getitem__
    return SegmentedTrace(
        "backward" if _unpacked(trace) else "forward",
        tuple(steps),
        tuple(level.during for level in alive_then.levels()),
        sum(map(size, arguments)),
        sum(map(size, storages.of(saved) - storages.of((*given, *results)))),
        tuple(_boundaries(symbols, steps, storages, [step.gives for step in lives])),
    )


def _unpacked(trace: TraceCtx) -> list[BoundSymbol]:
    """Return the symbols that unpack the lists of a backward's arguments."""
    return [b for b in trace.bound_symbols if b.sym.id is PrimIDs.UNPACK_SEQUENCE]


def _given(trace: TraceCtx) -> list[Proxy]:
    """Return the tensor arguments of a trace."""
    lists = _unpacked(trace)
    if not lists:
        return _flat(trace.args)
    return [p for b in lists for p in b.flat_proxy_outs if isinstance(p, TensorProxy)]


def is_step(bsym: BoundSymbol) -> bool:
    """True if a symbol of a final trace is a step of its plan: no unpacking, del or return."""
    return bsym.sym.id not in _SILENT and bool(
        bsym.flat_proxy_outs or call_of(bsym) is not None or updates(bsym)
    )


def _flat(values: Any) -> list[Proxy]:
    flat, _ = tree_flatten(values)
    return [p for p in flat if isinstance(p, TensorProxy)]


def _results(trace: TraceCtx) -> tuple[list[Proxy], list[Proxy]]:
    """Return the results of a trace, and the tensors that it saves for backward."""
    returned = trace.bound_symbols[-1].args
    if len(returned) == 2 and isinstance(returned[0], Mapping) and "flat_output" in returned[0]:
        return _flat(returned[0]), _flat(returned[1])
    return _flat(returned), []


def _boundaries(
    symbols: Sequence[BoundSymbol],
    steps: Sequence[SegmentedRegion | TraceSegment],
    storages: Storages,
    made: Sequence[frozenset[int]],
) -> Iterator[TraceBoundary]:
    """Yield storages that one step writes and others read, under the first name of each."""
    readers: dict[int, list[int]] = {}
    for k, bsym in enumerate(symbols):
        if not _is_view(steps[k]):
            for storage in storages.of(bsym.flat_proxy_args):
                readers.setdefault(storage, []).append(k)
    for k, bsym in enumerate(symbols):
        seen: set[int] = set()
        for proxy in bsym.flat_proxy_outs:
            for storage in (storages.of((proxy,)) & made[k]) - seen:
                seen.add(storage)
                consumers = tuple(n for n in readers.get(storage, ()) if n != k)
                if consumers:
                    reason = _reason(steps[k], [steps[n] for n in consumers])
                    yield TraceBoundary(proxy, k, consumers, storages.sizes[storage], reason)


def _reason(
    producer: SegmentedRegion | TraceSegment, consumers: Sequence[SegmentedRegion | TraceSegment]
) -> str:
    calls = dict.fromkeys(c.call for c in consumers if isinstance(c, TraceSegment))
    if isinstance(producer, TraceSegment):
        return f"torch's {producer.call} gives it"
    if calls:
        return f"torch's {' and '.join(calls)} reads it"
    return "another fusion reads it"


def _is_view(step: SegmentedRegion | TraceSegment) -> bool:
    return isinstance(step, TraceSegment) and step.kind == "alias"


def _step(
    bsym: BoundSymbol, storages: Storages, fresh: frozenset[int]
) -> SegmentedRegion | TraceSegment:
    if call_of(bsym) is not None:
        return _region(bsym)
    inputs, outputs = (
        tuple({p.name: p for p in proxies if isinstance(p, TensorProxy)}.values())
        for proxies in (bsym.flat_proxy_args, bsym.flat_proxy_outs)
    )
    work = work_of(bsym)
    device = to_torch_device((*outputs, *inputs)[0].device) if outputs or inputs else None
    moved = inputs, outputs, work.bytes_read, work.bytes_written
    seconds = work.seconds(planned_for(device))
    segment = TraceSegment("opaque", *moved, 0, None, (), work.flops, seconds, bsym.sym.name)
    if fresh or not inputs or _writes(bsym):
        return segment
    base = next((p for p in inputs if storages.of((p,)) == storages.of(outputs[:1])), inputs[0])
    return replace(segment, kind="alias", bytes_read=0, bytes_written=0, seconds=0.0, alias_of=base)


def _writes(bsym: BoundSymbol) -> bool:
    """True if a call writes into the memory of an argument."""
    is_named_so = bsym.sym.name.endswith("_") and not bsym.sym.name.endswith("__")
    return is_named_so or updates(bsym) or OpTags.IN_PLACE in (bsym.sym.tags or ())


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
            s.flops,
            s.seconds,
        )
        for s in plan.segments
    )
    boundaries = tuple(
        TraceBoundary(names.proxy(b.tensor), b.producer, b.consumers, b.bytes, b.reason)
        for b in plan.boundaries
    )
    return SegmentedRegion(call.name, steps, boundaries, plan, names.text())
