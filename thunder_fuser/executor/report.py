"""Questions about a compiled function: which fusions it has, what they cost, what was refused.

Everything is answered from Thunder's last traces.  A trace for CUDA that was made from fake tensors
answers as well as one that has run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import thunder
from thunder.core.proxies import Proxy
from thunder.core.pytree import tree_flatten
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceCtx

from thunder_fuser.codegen.kernel import Kernel
from thunder_fuser.errors import FuserTypeError, FuserValueError, Refusal, counted_refusals
from thunder_fuser.executor import html, repro
from thunder_fuser.executor.call import FusionCall
from thunder_fuser.executor.compilation import Record, records_of
from thunder_fuser.executor.naming import Naming
from thunder_fuser.executor.symbol import call_of
from thunder_fuser.ir.fusion import Fusion, Origin
from thunder_fuser.segment.plan import SegmentedFusion


@dataclass(frozen=True, slots=True)
class FusionReport:
    """One fusion of a compiled function.

    name     as the trace calls it
    inputs   Thunder's proxies, in calling order
    outputs  Thunder's proxies, in the order in which they are returned
    """

    name: str
    inputs: tuple[Proxy, ...]
    outputs: tuple[Proxy, ...]
    _around: tuple[Refusal, ...] = field(repr=False)
    _call: FusionCall = field(repr=False)
    _bsym: BoundSymbol = field(repr=False)

    @property
    def fusion(self) -> Fusion:
        """What it computes, as it was before any optimisation."""
        return self._call.fusion

    @property
    def plan(self) -> SegmentedFusion:
        """How: segments, bytes, kernels."""
        return self._call.plan()

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """Source and launch geometry of every kernel; compiles nothing."""
        return self._call.kernels()

    @property
    def refusals(self) -> tuple[Refusal, ...]:
        """What kept the fusion from being larger, then what its plan refused."""
        return self._around + tuple(r for s in self.plan.segments for r in s.refusals)

    @property
    def origins(self) -> tuple[Origin, ...]:
        """The user's lines that it computes, as far as Thunder remembers them."""
        lines = {(e.origin.file, e.origin.line): e.origin for e in self.fusion.exprs}
        return tuple(origin for (file, _), origin in lines.items() if file)

    def repro(self) -> str:
        """A script that runs this fusion alone on random inputs and checks it."""
        return repro.script(self._call)

    @property
    def signature(self) -> str:
        """Its call in the trace: `fuser0(x, y) -> (z)`."""
        inputs = ", ".join(p.name for p in self.inputs)
        outputs = ", ".join(p.name for p in self.outputs)
        return f"{self.name}({inputs}) -> ({outputs})"

    def __str__(self) -> str:
        rows = [self.signature, Naming(self._bsym, self.plan, self._call.names()).text()]
        rows += [f"  refused {text}" for text in counted_refusals(self._around)]
        return "\n".join(rows)

    def _repr_html_(self) -> str:
        return html.render(self)


def fusions(fn: Callable[..., Any]) -> tuple[FusionReport, ...]:
    """The fusions of the last run of a `thunder.jit` function: forward, then backward.

    Raises FuserTypeError for another function, FuserValueError before the first run.
    """
    forward, backward = last_traces(fn)
    records = records_of(forward)
    found = _reports(forward, records)
    return found if backward is None else found + _reports(backward, records)


def fusions_of_trace(trace: TraceCtx) -> tuple[FusionReport, ...]:
    """The fusions of one trace, in execution order."""
    return _reports(trace, records_of(trace))


def refusals(fn: Callable[..., Any]) -> dict[Refusal, int]:
    """Why symbols of the last run's function stayed with torch, and how many symbols each time.

    Refusals with one code, subject and origin are counted together, in the order of the trace.
    """
    forward, _ = last_traces(fn)
    records = records_of(forward)
    found: dict[tuple[str, str, str], tuple[Refusal, int]] = {}
    for refusal in records[-1].all_refusals() if records else ():
        key = (refusal.code, refusal.subject, refusal.origin)
        first, count = found.get(key, (refusal, 0))
        found[key] = (first, count + 1)
    return dict(found.values())


def saved_for_backward(fn: Callable[..., Any]) -> int:
    """Bytes of tensors that the last run keeps for its backward, beside inputs and results."""
    forward, backward = last_traces(fn)
    if backward is None:
        return 0
    results, (kept, _) = forward.bound_symbols[-1].args[:2]
    known = {p.name for p in (*forward.args, *tree_flatten(results)[0]) if isinstance(p, Proxy)}
    return sum(p.numel * p.dtype.bytes for p in kept if p.name not in known)


def last_traces(fn: Callable[..., Any]) -> tuple[TraceCtx, TraceCtx | None]:
    """The final forward and backward traces of the cache entry that was used last."""
    stats = thunder.compile_stats(fn)
    if stats is None:
        raise FuserTypeError(f"{fn!r} was not made by thunder.jit")
    if not stats.last_traces:
        raise FuserValueError(f"{fn!r} has not been called yet: its traces are made by a call")
    # Thunder updates the last backward traces only when it compiles, so take the entry's own.
    for entry in stats.interpreter_cache:
        if entry.computation_traces is stats.last_traces:
            backward = entry.backward_traces
            break
    else:
        backward = stats.last_backward_traces
    return stats.last_traces[-1], backward[-1] if backward else None


def _reports(trace: TraceCtx, records: Sequence[Record]) -> tuple[FusionReport, ...]:
    found = []
    for bsym in trace.bound_symbols:
        call = call_of(bsym)
        if call is None:
            continue
        outputs = tuple(p for p in bsym.output if p is not None)
        around = tuple(r for record in records for r in record.around(call.name))
        found.append(FusionReport(call.name, bsym.args, outputs, around, call, bsym))
    return tuple(found)
