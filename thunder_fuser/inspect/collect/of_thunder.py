"""Report data of functions compiled by Thunder, from their final traces."""

from __future__ import annotations

import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from inspect import ismethod
from typing import Any

import thunder
from thunder.core.devices import to_torch_device
from thunder.core.prims import PrimIDs
from thunder.core.proxies import Proxy, TensorProxy
from thunder.core.pytree import tree_flatten
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceCtx

from thunder_fuser.errors import Refusal
from thunder_fuser.frontends.thunder.call import FusionCall
from thunder_fuser.frontends.thunder.claims.table import refuse
from thunder_fuser.frontends.thunder.compiled import compiled_functions, stages
from thunder_fuser.frontends.thunder.distributed.collectives import NAMED_WAIT
from thunder_fuser.frontends.thunder.fusion_record import records_of
from thunder_fuser.frontends.thunder.plans.naming import Names, Naming
from thunder_fuser.frontends.thunder.plans.report import refusals
from thunder_fuser.frontends.thunder.plans.segmented import is_step
from thunder_fuser.frontends.thunder.plans.storages import Storages
from thunder_fuser.frontends.thunder.repro import script
from thunder_fuser.frontends.thunder.symbol import call_of
from thunder_fuser.frontends.thunder.trace.torch_work import bytes_of, work_of
from thunder_fuser.inspect.collect.details import Budget, detail_of, differences
from thunder_fuser.inspect.collect.of_plan import steps_of_plan
from thunder_fuser.inspect.data.program import (
    Detail,
    Kind,
    Part,
    Program,
    Role,
    Step,
    Tensor,
    beside,
)
from thunder_fuser.inspect.data.refusals import refused
from thunder_fuser.log import Status, status
from thunder_fuser.runtime.target import planned_for
from thunder_fuser.segment.plan import SegmentedFusion

_COLLECTIVES = (
    "torch_all_gather",
    "torch_all_reduce",
    "torch_reduce_scatter",
    "torch_broadcast",
    "torch_wait",
    "all_gather",
    "all_reduce",
    "reduce_scatter",
    "wait",
    NAMED_WAIT,
    "all_to_all",
)


def program_of_function(fn: Any, details: bool) -> Program:
    """Return the program of the last run of `fn`; for an object of `thunderfx`, of all its graphs.
    `details`: with sources and resources of each kernel.

    Raises FuserTypeError if Thunder did not compile `fn`, FuserValueError before the first run.
    """
    functions = compiled_functions(fn)
    made = [_of_function(function, details) for function in functions]
    if len(made) == 1:
        return replace(made[0], name=_name_of(fn))
    return beside([(f"graph {k}, ", p) for k, p in enumerate(made)], _name_of(fn))


def _of_function(function: Callable[..., Any], details: bool) -> Program:
    maker = _Maker(details)
    before, behind = stages(function)
    forward, backward = before[-1], behind[-1] if behind else None
    storages = Storages(forward)
    maker.add(forward, "program" if backward is None else "forward", storages, before)
    if backward is not None:
        kept = [p for b in backward.bound_symbols for p in _unpacked(b)]
        of_backward = Storages(backward)
        of_backward.share(kept, storages)
        maker.add(backward, "backward", of_backward, behind)
    told = [refusal for refusal, count in refusals(function).items() for _ in range(count)]
    return maker.made("", told)


def program_of_traces(traces: Sequence[TraceCtx], name: str, details: bool) -> Program:
    """Return the program of final traces: two are a forward and its backward."""
    maker = _Maker(details)
    titles = ["forward", "backward"] if len(traces) == 2 else ["program"] * len(traces)
    for trace, title in zip(traces, titles, strict=True):
        maker.add(trace, title, Storages(trace), [trace])
    records = [record for trace in traces for record in records_of(trace)]
    return maker.made(name, [refusal for record in records for refusal in record.all_refusals()])


def _unpacked(bsym: BoundSymbol) -> list[Proxy]:
    """Saved tensors that a backward unpacks from a list."""
    return list(bsym.flat_proxy_outs) if bsym.sym.id is PrimIDs.UNPACK_SEQUENCE else []


def _name_of(given: Any) -> str:
    """Name of a compiled function for the user, also inside Dynamo's wrappers."""
    data = thunder.compile_data(given)
    original = data.fn if data is not None else getattr(given, "_func", given)
    for inside in ("_torchdynamo_orig_callable", "_orig_mod"):
        original = getattr(original, inside, original)
    # A method gets the name of its owner; builtins have `__self__`, too, but are no methods.
    if ismethod(original):
        original = original.__self__
    return str(getattr(original, "__name__", None) or type(original).__name__)


class _Maker:
    """Builder of a Program, part by part."""

    def __init__(self, details: bool) -> None:
        self._has_details = details
        self._budget = Budget()
        self._steps: list[Step] = []
        self._parts: list[Part] = []
        self._tensors: dict[str, Tensor] = {}
        self._aliases: dict[str, str] = {}
        self._details: list[Detail] = []
        self._known: dict[object, int] = {}
        self._computed: Counter[str] = Counter()
        self._inner: dict[str, tuple[str, ...]] = {}
        self._device = ""
        self._apart: list[Refusal] = []
        self._told: dict[tuple[object, int], list[Refusal]] = {}

    def add(
        self, trace: TraceCtx, title: str, storages: Storages, passed: Sequence[TraceCtx]
    ) -> None:
        """Append the steps of a trace as a part. `storages` follows the trace's memory symbol by
        symbol; `passed` is the trace after each pass.
        """
        with status("reporting", total=len(trace.bound_symbols)) as progress:
            self._add(trace, title, storages, passed, progress)

    def _add(
        self,
        trace: TraceCtx,
        title: str,
        storages: Storages,
        passed: Sequence[TraceCtx],
        progress: Status,
    ) -> None:
        first, part = len(self._steps), len(self._parts)
        ideal = 0
        roles = _roles(trace)
        owners: dict[int, str] = {}
        for bsym in trace.bound_symbols:
            progress.step(bsym.sym.name)
            if bsym.sym.id is PrimIDs.DEL:
                self._free([p.name for p in bsym.flat_proxy_args])
                continue
            if not is_step(bsym):
                continue
            read = storages.of(bsym.flat_proxy_args)
            found = storages.run(bsym)
            for proxy in (*bsym.flat_proxy_args, *bsym.flat_proxy_outs):
                if isinstance(proxy, TensorProxy):
                    self._note(proxy, roles.get(proxy.name, "inner"))
                    (storage,) = storages.of((proxy,))
                    self._lies_in(proxy.name, owners.setdefault(storage, proxy.name))
            call = call_of(bsym)
            if call is not None:
                self._add_fusion(bsym, call, part)
                ideal += int(call.plan().bytes_ideal)
            else:
                self._append(_step_of_call(bsym, part, is_view=bool(read) and found <= read))
        told = tuple(differences(list(map(_told, passed)))) if self._has_details else ()
        self._parts.append(Part(title, first, len(self._steps), ideal, told))

    def made(self, name: str, told: Sequence[Refusal]) -> Program:
        """Return the program; tensors that several fusions compute are marked as recomputed."""
        again = {n for n, count in self._computed.items() if count > 1}
        steps = tuple(
            replace(s, recomputes=tuple(n for n in self._inner.get(s.name, ()) if n in again))
            for s in self._steps
        )
        return Program(
            name,
            tuple(self._parts),
            tuple(_between_calls(steps, self._owner)),
            self._tensors,
            self._device,
            refused(told),
            refused(self._apart),
            tuple(self._details),
            self._aliases,
        )

    def _note(self, proxy: TensorProxy, role: Role) -> None:
        known = self._tensors.get(proxy.name)
        if known is None:
            size = bytes_of(proxy)
            dtype = proxy.dtype.shortname()
            shape = tuple(map(int, proxy.shape))
            self._tensors[proxy.name] = Tensor(proxy.name, shape, dtype, size, role)
        elif known.role == "inner" and role != "argument":
            self._tensors[proxy.name] = replace(known, role=role)

    def _append(self, step: Step) -> None:
        self._steps.append(replace(step, number=len(self._steps)))

    def _free(self, names: Sequence[str]) -> None:
        if self._steps:
            last = self._steps[-1]
            self._steps[-1] = replace(last, frees=(*last.frees, *names))

    def _owner(self, name: str) -> str:
        while name in self._aliases:
            name = self._aliases[name]
        return name

    def _lies_in(self, name: str, owner: str) -> None:
        # The backward's arguments have the names that the forward gave them.
        owner = self._owner(owner)
        if name != owner:
            self._aliases.setdefault(name, owner)

    def _add_fusion(self, bsym: BoundSymbol, call: FusionCall, part: int) -> None:
        plan = call.plan()
        self._device = self._device or (plan.device.name if plan.device else "")
        naming = Naming(Names.of(bsym), plan, call.names())
        detail = self._detail(call, plan, naming) if self._has_details else None
        inner = tuple(p.name for p in Names.of(bsym).inner if isinstance(p, TensorProxy))
        self._computed.update(set(inner))
        for segment in plan.segments:
            # Equal fusions have the same refusals, under the names of the first.
            self._apart += self._told.setdefault(
                (call.compiled, segment.index),
                [
                    replace(r, text=naming.named(r.text), subject=naming.named(r.subject))
                    for r in segment.refusals
                ],
            )
            for tensor in (*segment.inputs, *segment.outputs):
                proxy = naming.proxy(tensor)
                if isinstance(proxy, TensorProxy):
                    self._note(proxy, "inner")
        for step in steps_of_plan(
            plan, lambda t: naming.proxy(t).name, naming.named, call.name, part
        ):
            self._inner[step.name] = inner
            self._append(replace(step, detail=detail))
        self._free(self._shown_by_results(plan, naming))

    def _shown_by_results(self, plan: SegmentedFusion, naming: Naming) -> list[str]:
        """Names of tensors that a kernel writes and of which only views are returned; the views
        keep them in memory.
        """
        own = {*plan.fusion.outputs, *plan.fusion.inputs}
        found: dict[str, None] = {}
        for result in plan.fusion.outputs:
            root = plan.placement.root(result)
            name, proxy = naming.proxy(root).name, naming.proxy(result)
            if root not in own and isinstance(proxy, TensorProxy) and name != proxy.name:
                self._lies_in(name, proxy.name)
                found[name] = None
        return list(found)

    def _detail(self, call: FusionCall, plan: SegmentedFusion, naming: Naming) -> int:
        """Index of the fusion's detail, which equal fusions share."""
        where = self._known.setdefault(call.compiled, len(self._details))
        if where == len(self._details):
            latest = call.compiled.latest
            self._details.append(
                detail_of(
                    call.name,
                    call.fusion,
                    plan,
                    naming.named(plan.listing(times=True)),
                    latest.kernels if latest else (),
                    script(call),
                    self._budget,
                )
            )
        else:
            known = self._details[where]
            self._details[where] = replace(known, names=(*known.names, call.name))
        return where


def _between_calls(steps: Sequence[Step], owner: Callable[[str], str]) -> Iterator[Step]:
    """Give kernels without another reason the torch calls around them as the reason. `owner` maps a
    view to the tensor whose memory it lies in.
    """
    writers = {name: step for step in steps for name in step.writes}
    readers: defaultdict[str, list[Step]] = defaultdict(list)
    for step in steps:
        for name in step.reads:
            readers[owner(name)].append(step)
    for step in steps:
        if step.reasons or not step.is_ours:
            yield step
            continue
        found = {owner(name) for name in step.reads} & writers.keys()
        before = _calls(writers[n] for n in sorted(found, key=lambda n: writers[n].number))
        after = _calls(r for n in step.writes for r in readers[owner(n)] if r.number > step.number)
        told = [f"reads what torch makes ({before})"] * bool(before)
        told += [f"torch reads what it makes ({after})"] * bool(after)
        yield replace(step, reasons=("; ".join(told),) if told else ())


def _calls(steps: Iterable[Step]) -> str:
    return ", ".join(dict.fromkeys(s.name for s in steps if s.kind in ("torch", "communication")))


def _told(trace: TraceCtx) -> tuple[str, str]:
    """Title and text of a trace: the pass that made it, and its bound symbols, one per line without
    subsymbols.
    """
    made = re.sub(r"^# Constructed by | \(took .*$", "", str(trace.get_provenance() or "the trace"))
    lines = str(trace).splitlines()
    kept = [line for line in lines if line.strip() and not line.lstrip().startswith("#")]
    return (made if not trace.get_provenance() else f"after {made}"), "\n".join(kept)


def _roles(trace: TraceCtx) -> dict[str, Role]:
    """Roles of the arguments, results and saved tensors of a trace, by name."""
    found: dict[str, Role] = {}
    returned = trace.bound_symbols[-1]
    args = returned.args
    # A forward with gradients returns (results, (saved tensors, other saved values)).
    has_saved = len(args) == 2 and isinstance(args[1], tuple) and len(args[1]) == 2
    kept, given = (args[1][0], args[0]) if has_saved else ((), args)
    found |= {p.name: "saved" for p in _proxies(kept)}
    found |= {p.name: "result" for p in _proxies(given)}
    for bsym in trace.bound_symbols:
        if bsym.sym.id is PrimIDs.UNPACK_TRIVIAL:
            found |= {p.name: "argument" for p in bsym.flat_proxy_outs}
        elif bsym.sym.id is PrimIDs.UNPACK_SEQUENCE:
            found |= {p.name: "argument" for p in bsym.flat_proxy_outs if p.name not in found}
    return found


def _proxies(tree: Any) -> Iterator[Proxy]:
    yield from (p for p in tree_flatten(tree)[0] if isinstance(p, TensorProxy))


def _step_of_call(bsym: BoundSymbol, part: int, is_view: bool) -> Step:
    """Step of a call that another executor runs, or of attention."""
    name = bsym.sym.name
    kind: Kind = "communication" if name.startswith(_COLLECTIVES) else "torch"
    reads, writes = (
        list({p.name: p for p in proxies if isinstance(p, TensorProxy)}.values())
        for proxies in (bsym.flat_proxy_args, bsym.flat_proxy_outs)
    )
    where = bsym.source_filename
    line = f"{where}:{bsym.source_positions.lineno}" if where and bsym.source_positions else ""
    shapes = [(tuple(p.shape), p.dtype) for p in (*reads, *writes)]
    found = Step(
        number=0,
        part=part,
        kind="view" if is_view else kind,
        name=name,
        fusion="",
        operations=(name,),
        reads=tuple(p.name for p in reads),
        writes=tuple(p.name for p in writes),
        bytes_read=0,
        bytes_written=0,
        key=hashlib.sha256(f"{name} {shapes}".encode()).hexdigest(),
        lines=(line,) if line else (),
    )
    if "wait" in name and kind == "communication":
        # The collective that it waits for moved the bytes, even if the wait renames the result.
        return replace(found, kind=kind)
    if is_view:
        return found
    work = work_of(bsym)
    device = to_torch_device((*writes, *reads)[0].device) if reads or writes else None
    return replace(
        found,
        bytes_read=work.bytes_read,
        bytes_written=work.bytes_written,
        flops=work.flops,
        seconds=work.seconds(planned_for(device)),
        reasons=tuple(dict.fromkeys(r.text for r in refuse(bsym))),
    )
