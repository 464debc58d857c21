"""Reports on a compiled function: its fusions, their cost, and refusals.

Everything is read from Thunder's last traces.  A CUDA trace that was made from fake tensors serves
as well as one that has run.
"""

from __future__ import annotations

import copyreg
import reprlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import thunder
from thunder.core.proxies import Proxy, ProxyTag
from thunder.core.pytree import tree_flatten
from thunder.core.trace import TraceCtx

from thunder_fuser.codegen.kernel import Kernel
from thunder_fuser.errors import FuserTypeError, Refusal, counted_refusals
from thunder_fuser.frontends.thunder import repro
from thunder_fuser.frontends.thunder.call import FusionCall
from thunder_fuser.frontends.thunder.compiled import compiled_functions, last_traces
from thunder_fuser.frontends.thunder.fuser import Fuser
from thunder_fuser.frontends.thunder.fusion_record import Record, records_of
from thunder_fuser.frontends.thunder.plans import html
from thunder_fuser.frontends.thunder.plans.naming import ComparedByName, Names, Naming
from thunder_fuser.frontends.thunder.symbol import call_of
from thunder_fuser.ir.fusion import Fusion, Origin
from thunder_fuser.segment.plan import SegmentedFusion, counted
from thunder_fuser.sharding.shardings import Shardings


def _by_name(tag: Any) -> tuple[Callable[..., Any], tuple[Any, str]]:
    return getattr, (ProxyTag, tag._value)


# Thunder's `ProxyTag`s are singletons per name, which pickle must look up and not create.
copyreg.pickle(ProxyTag, _by_name)


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class FusionReport(ComparedByName):
    """One fusion of a compiled function.

    name     name in the trace
    inputs   Thunder's proxies, in calling order
    outputs  Thunder's proxies, in the order in which they are returned

    A report can be pickled and copied; a restored one shows the same and runs nothing. Two are
    equal if they show the same.
    """

    name: str
    inputs: tuple[Proxy, ...]
    outputs: tuple[Proxy, ...]
    _around: tuple[Refusal, ...]
    _call: FusionCall
    _names: Names

    def _named(self) -> tuple[Any, ...]:
        return self.signature, self.fusion, self.plan, self.refusals

    def __hash__(self) -> int:
        return hash(self.signature)

    @property
    def fusion(self) -> Fusion:
        """The fusion before any optimisation pass."""
        return self._call.fusion

    @property
    def plan(self) -> SegmentedFusion:
        """The plan: segments, bytes, kernels."""
        return self._call.plan()

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """Source and launch geometry of every kernel; nothing is compiled."""
        return self._call.kernels()

    @property
    def shardings(self) -> Shardings | None:
        """Placements and collectives of the last call on DTensors; None without such a call."""
        return self._call.shardings

    @property
    def refusals(self) -> tuple[Refusal, ...]:
        """Refusals that bound the fusion, those of its plan's segments, and reasons that segments
        fell back to torch.
        """
        apart = tuple(r for s in self.plan.segments for r in s.refusals)
        return self._around + apart + self._call.in_torch

    @property
    def origins(self) -> tuple[Origin, ...]:
        """Source lines of the user that the fusion computes, as far as Thunder records them."""
        lines = {(e.origin.file, e.origin.line): e.origin for e in self.fusion.exprs}
        return tuple(origin for (file, _), origin in lines.items() if file)

    def repro(self) -> str:
        """Return a script that runs this fusion alone on random inputs and compares with torch."""
        return repro.script(self._call)

    @property
    def signature(self) -> str:
        """The call in the trace: `fuser0(x, y) -> (z)`."""
        inputs = ", ".join(p.name for p in self.inputs)
        outputs = ", ".join(p.name for p in self.outputs)
        return f"{self.name}({inputs}) -> ({outputs})"

    def __str__(self) -> str:
        naming = Naming(self._names, self.plan, self._call.names())
        rows = [self.signature, naming.text()]
        if self.shardings is not None:
            rows += [f"  {line}" for line in str(self.shardings).splitlines()]
        rows += [f"  in torch {naming.named(str(refusal))}" for refusal in self._call.in_torch]
        rows += [f"  refused {text}" for text in counted_refusals(self._around)]
        return "\n".join(rows)

    def __repr__(self) -> str:
        plan = self.plan
        return f"<{self.signature}: {counted(plan.kernels, 'kernel')}, {plan.bytes:,} B>"

    def _repr_html_(self) -> str:
        return html.render(self.signature, self.plan, self.refusals)


def fusions(fn: Any) -> tuple[FusionReport, ...]:
    """Return the fusions of the last run of a `thunder.jit` function: forward, then backward; for
    the result of `thunderfx`, or a `ThunderCompiler`, those of every graph.

    Raises FuserTypeError for an object that Thunder did not compile, FuserValueError before its
    first run.
    """
    found: list[FusionReport] = []
    for function in compiled_functions(fn):
        forward, backward = last_traces(function)
        records = records_of(forward)
        for trace in (forward, backward):
            found += _reports(trace, records) if trace is not None else ()
    return tuple(found)


def fusions_of_trace(trace: TraceCtx) -> tuple[FusionReport, ...]:
    """Return the fusions of one trace, in execution order. FuserTypeError for anything else."""
    if not isinstance(trace, TraceCtx):
        raise FuserTypeError(
            f"fusions_of_trace: expected a trace, such as thunder.last_traces(fn)[-1], got "
            f"{reprlib.repr(trace)}; of a compiled function: thunder_fuser.fusions(fn)"
        )
    return _reports(trace, records_of(trace))


def refusals(fn: Any) -> dict[Refusal, int]:
    """Return the reasons that symbols of the last run stayed with torch, and their counts.

    Takes the same objects as `fusions`. Refusals of equal code, subject and origin are counted
    together, in trace order. A function compiled without this executor has one refusal, `executor`.
    """
    found: dict[tuple[str, str, str], tuple[Refusal, int]] = {}
    for function in compiled_functions(fn):
        forward, _ = last_traces(function)
        records = records_of(forward)
        known = records[-1].all_refusals() if records else _without_fuser(function)
        for refusal in known:
            key = (refusal.code, refusal.subject, refusal.origin)
            first, count = found.get(key, (refusal, 0))
            found[key] = (first, count + 1)
    return dict(found.values())


def _without_fuser(fn: Callable[..., Any]) -> tuple[Refusal, ...]:
    listed = thunder.compile_data(fn).executors_list
    if any(isinstance(e, Fuser) for e in listed):
        return ()
    names = ", ".join(str(e.name) for e in listed)
    text = (
        f"the function was compiled without thunder_fuser (its executors: {names}); "
        "pass executors=[thunder_fuser.executor]"
    )
    return (Refusal("executor", text),)


def saved_for_backward(fn: Callable[..., Any]) -> int:
    """Return the bytes that the last run saves for backward, besides inputs and results."""
    forward, backward = last_traces(fn)
    if backward is None:
        return 0
    results, (kept, _) = forward.bound_symbols[-1].args[:2]
    known = {p.name for p in (*forward.args, *tree_flatten(results)[0]) if isinstance(p, Proxy)}
    return sum(p.numel * p.dtype.bytes for p in kept if p.name not in known)


def _reports(trace: TraceCtx, records: Sequence[Record]) -> tuple[FusionReport, ...]:
    found = []
    for bsym in trace.bound_symbols:
        call = call_of(bsym)
        if call is None:
            continue
        outputs = tuple(p for p in bsym.output if p is not None)
        around = tuple(r for record in records for r in record.around(call.name))
        found.append(FusionReport(call.name, bsym.args, outputs, around, call, Names.of(bsym)))
    return tuple(found)
