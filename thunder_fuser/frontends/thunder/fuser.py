"""The Thunder executor: claims prims, forms regions, and replaces each region by one fusion call.

Thunder passes the joint forward and backward trace to `fusion_pass`, splits the result into the
augmented forward and the backward, and saves for backward the forward values that backward fusions
read.  Its rematerialization is not used: it weighs tensors by dtype alone.  Nor is its common
subexpression elimination, which merges two random tensors or two clones into one; inside a fusion
the passes of the fusion IR do that work.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from thunder.core.prims import PrimIDs
from thunder.core.proxies import Proxy, unvariableify
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceCtx, TraceProvenance, from_trace
from thunder.extend import FUEL_LEVEL, FusionExecutor, get_executor, register_executor

from thunder_fuser.config import current
from thunder_fuser.errors import FuserValueError, InternalError, Refusal
from thunder_fuser.frontends.thunder import jit_options, repro
from thunder_fuser.frontends.thunder.autograd import attention, convolution, gradients, indexing
from thunder_fuser.frontends.thunder.autograd.statistics import with_statistics
from thunder_fuser.frontends.thunder.call import FusionCall, KnownFusions
from thunder_fuser.frontends.thunder.claims.table import (
    TABLE,
    flatten,
    operands,
    refusal_of,
    refuse_call,
    role,
)
from thunder_fuser.frontends.thunder.distributed import data_parallel
from thunder_fuser.frontends.thunder.dynamic_sizes import sizes_of
from thunder_fuser.frontends.thunder.first_calls import compile_together
from thunder_fuser.frontends.thunder.fuel import Tank
from thunder_fuser.frontends.thunder.fusion_record import FusionRecord
from thunder_fuser.frontends.thunder.lookasides import lookasides
from thunder_fuser.frontends.thunder.memory.saved_values import with_kept_values, with_shared_values
from thunder_fuser.frontends.thunder.memory.within_budget import within_budget
from thunder_fuser.frontends.thunder.regions import formation
from thunder_fuser.frontends.thunder.regions.joint_graph import TraceGraph, trace_graph
from thunder_fuser.frontends.thunder.regions.primitives import primitives
from thunder_fuser.frontends.thunder.regions.to_fusion import RegionProgram
from thunder_fuser.frontends.thunder.remembered import look_through
from thunder_fuser.frontends.thunder.stand_ins import with_stand_ins
from thunder_fuser.frontends.thunder.symbol import bind_fusion
from thunder_fuser.frontends.thunder.trace.check import fault
from thunder_fuser.frontends.thunder.trace.dead_code import live
from thunder_fuser.frontends.thunder.trace.ill_typed import ill_typed
from thunder_fuser.frontends.thunder.trace.joint_gradients import with_joint_gradients
from thunder_fuser.frontends.thunder.trace.origin import Recorded
from thunder_fuser.frontends.thunder.trace.phases import has_gradients, in_phases
from thunder_fuser.frontends.thunder.trace.retype import Retyped, retype
from thunder_fuser.frontends.thunder.trace.rng_state import RngStates
from thunder_fuser.frontends.thunder.trace.rng_state import register as register_draw
from thunder_fuser.frontends.thunder.trace.single_assignment import single_assignment
from thunder_fuser.frontends.thunder.updates.written_by_torch import written_in_place
from thunder_fuser.garbage import uncollected
from thunder_fuser.observers import Watch
from thunder_fuser.runtime.fallback import warn_of_failure
from thunder_fuser.segment.regions.joining import join
from thunder_fuser.segment.regions.joint_graph import Partition, Role
from thunder_fuser.segment.regions.rematerialization import Rematerialization
from thunder_fuser.segment.regions.splitting import split
from thunder_fuser.segment.regions.storages import saved_bytes

logger = logging.getLogger(__name__)


def _is_claimed(symbol: PrimIDs | str, *args: Any, **kwargs: Any) -> bool:
    return symbol in TABLE and refuse_call(symbol, args, kwargs) is None


class _Fused(NamedTuple):
    """Bound symbols that replace a region: the fusion call, if anything is computed, and views."""

    call: Sequence[BoundSymbol]
    views: Sequence[BoundSymbol]


class _Planned(NamedTuple):
    """A trace with fusions, its fusion record, and the analyses that it was planned with.

    partition  partition of the joint graph, whose regions became fusions
    """

    trace: TraceCtx
    record: FusionRecord
    facts: formation.TraceInfo
    partition: Partition
    rematerialize: Rematerialization

    @property
    def saved_bytes(self) -> int:
        """Bytes that the forward saves for the backward, besides its arguments and results."""
        regions = self.rematerialize(self.partition)
        return saved_bytes(self.rematerialize.graph, self.partition, regions)


class Fuser(FusionExecutor):  # type: ignore[misc]
    """Fusion executor for pointwise operations, reductions and views; instance: `executor`."""

    patches_thunder = True
    """Marks the executor for `patches/patched.py`, which cannot import this file."""
    traces_whole_tensors = True
    """Marks the executor for `distributed/dtensors.py`: DTensors are traced as plain tensors."""

    def __init__(self, name: str = "thunder_fuser", prefix: str = "fuser") -> None:
        """Register claims and gradient transforms. `prefix`: prefix of the names of fusions, which
        two fusers in one list of executors need to have different.
        """
        super().__init__(name)
        self._prefix = prefix
        self._tank = Tank()
        self._draw = register_draw(self)
        for calls in (attention, convolution, data_parallel, indexing):
            calls.register(self)
        for theirs, own in with_stand_ins(lookasides()).items():
            self._lookasides.setdefault(theirs, own)
        for symbol in {**TABLE, **gradients.RULES}:
            self.register_supported(
                symbol, partial(_is_claimed, symbol), grad_transform=gradients.RULES.get(symbol)
            )

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies, also in another process, are the executor that is registered by that name."""
        return _registered, (self.name,)

    def __iter__(self) -> Iterator[Fuser]:
        """Iterate as a list of one executor, so that Thunder accepts `executors=executor`."""
        yield self

    def can_execute(self, bsym: BoundSymbol) -> bool:
        """True if the bound symbol is claimed by `TABLE`, or by a registered operator."""
        if bsym.sym.id in TABLE:
            return refusal_of(bsym) is None
        return bool(super().can_execute(bsym))

    def can_fuse(self, bsym: BoundSymbol) -> bool:
        """True if the bound symbol is claimed, or all of its subsymbols can be fused. A call with
        attention or a convolution among its subsymbols is not fused: torch's kernels are better.
        """
        if self._is_call(bsym):
            return bool(self.can_execute(bsym))
        return bool(super().can_fuse(bsym)) and not any(map(self._has_call, bsym.subsymbols))

    def _is_call(self, bsym: BoundSymbol) -> bool:
        """True if the claim is an execution transform, i.e. the symbol becomes a torch call."""
        claim = self.implmap.get(bsym.sym.id)
        return claim is not None and claim.execution_transform is not None

    def _has_call(self, bsym: BoundSymbol) -> bool:
        return self._is_call(bsym) or any(map(self._has_call, bsym.subsymbols))

    def get_fuel(self, amount: int = 1, /) -> bool:
        """Consume `amount` of optimization fuel if that much is left; one fusion costs 1."""
        return self._tank.take(amount, current())

    def set_fuel(self, value: int | FUEL_LEVEL) -> None:
        """Set the number of further fusions that may be made."""
        self._tank.set(value)

    @uncollected()
    def fusion_pass(self, trace: TraceCtx) -> TraceCtx:
        """Return the trace with every profitable region replaced by one fusion call. If the pass
        fails, the trace is returned unchanged with a warning; option `strict` raises instead.
        """
        start = time.perf_counter_ns()
        may_reorder, saves_like_torch = jit_options.may_reorder(), jit_options.saves_like_torch()
        budget = jit_options.memory_budget()
        jit_options.warn_of_nvfusers(self.name)
        watch = Watch(self.name, trace)
        try:
            watch("trace", trace, detail="before fusion")
            fused = self._planned(trace, may_reorder, saves_like_torch, budget)
        except Exception as error:
            if current().strict:
                raise
            warn_of_failure(f"a trace that {self.name} got", error, repro.save_trace(trace))
            return trace
        milliseconds = (time.perf_counter_ns() - start) // 1_000_000
        fused.set_provenance(
            TraceProvenance(f"Fusion by {self.name} (took {milliseconds} milliseconds)")
        )
        watch("trace", fused, detail="with fusions")
        return fused

    def _planned(
        self, trace: TraceCtx, may_reorder: bool, saves_like_torch: bool, budget: float | None
    ) -> TraceCtx:
        """Return the trace with fusions. `budget`: memory budget of a joint trace, as in
        `within_budget`.
        """
        fuel, given = copy(self._tank), trace
        look_through(trace.bound_symbols)
        trace = in_phases(data_parallel.scheduled(trace, self._is_fusible, self.opmap))
        trace, originals = single_assignment(trace)
        trace = with_kept_values(with_shared_values(trace), originals)
        trace = written_in_place(with_joint_gradients(trace), originals)

        def plan(trace: TraceCtx, originals: Mapping[str, str]) -> _Planned:
            # A plan that is made again has the fuel of the first one.
            self._tank = copy(fuel)
            return self._fused(trace, originals, may_reorder, saves_like_torch)

        fused, traded = within_budget(trace, originals, budget, plan, self._is_fusible)
        for refusal in fused.record.finish(trace, traded).all_refusals():
            logger.debug("%s", refusal)
        # Constant gradients, which read no GET_GRAD, are left to torch: see `has_gradients`.
        are_constants = has_gradients(given) and not has_gradients(fused.trace)
        return given if are_constants else fused.trace

    def _fused(
        self,
        trace: TraceCtx,
        originals: Mapping[str, str],
        may_reorder: bool,
        saves_like_torch: bool,
    ) -> _Planned:
        """Return a trace of which every value is assigned once with its fusions."""
        retyped = self._retyped(trace)
        trace = retyped.trace
        recorded = Recorded(trace, originals)
        record = FusionRecord(recorded)
        draws = RngStates(trace, recorded, self._draw)
        facts = formation.survey(trace, recorded, saves_like_torch=saves_like_torch)
        fusible = self._fusible(retyped, record)
        parts = list(formation.form(trace, facts, lambda bsym: id(bsym) in fusible))
        prims = {
            k: primitives(p, recorded, draws, facts) for k, p in enumerate(parts) if p.is_fusible
        }
        traced = trace_graph(parts, prims, facts)
        rematerialize = Rematerialization(traced.graph)
        partition = traced.partition
        if may_reorder:
            partition = join(traced.graph, partition, rematerialize)
        partition = split(traced.graph, partition, rematerialize)
        parts = [self._fuelled(p) for p in traced.parts(partition)]
        partition = tuple(
            unit if part.is_fusible else unit._replace(place=None)
            for unit, part in zip(partition, parts, strict=True)
        )
        none = partial(KnownFusions, sizes_of(trace))
        partition, fused = self._fuse_all(traced, partition, parts, rematerialize, none)
        result = from_trace(trace)
        result.bound_symbols = live(list(draws.drawn(_with_fusions(parts, fused, record))))
        if wrong := fault(result, trace, None if facts.forward is None else facts.kept):
            raise InternalError(f"in the trace with fusions, {wrong}")
        return _Planned(result, record, facts, partition, rematerialize)

    def _retyped(self, trace: TraceCtx) -> Retyped:
        """Return the trace with torch's result types, and with statistics for gradients."""
        retyped = retype(trace, self._is_fusible)

        def is_fusible(bsym: BoundSymbol) -> bool:
            return id(bsym) not in retyped.left and self._is_fusible(bsym)

        return replace(retyped, trace=with_statistics(retyped.trace, is_fusible))

    def fuse(self, region: Any, fusion_counter: int) -> BoundSymbol:
        """Return the bound symbol of one fusion that replaces a region; nothing is compiled yet.

        `region` has `.inputs` and `.outputs` (variables) and `.bound_symbols`.  Thunder calls this
        again after it has changed any of them.
        """
        return self._fuse(region, fusion_counter, KnownFusions())

    def _fuse(self, region: Any, fusion_counter: int, known: KnownFusions) -> BoundSymbol:
        inputs: list[Proxy] = [unvariableify(x) for x in region.inputs]
        outputs: list[Proxy] = [unvariableify(x) for x in region.outputs]
        prims = _live([prim for b in region.bound_symbols for prim in flatten(b)], outputs)
        if not outputs:
            # In-place updates only.  Thunder drops calls without results, so return one of them.
            outputs = [prims[-1].flat_proxy_outs[0]]
        read = {p.name for p in outputs} | {p.name for b in prims for p in operands(b)}
        inputs = [p for p in inputs if p.name in read]
        device = formation.device_of_region(prims, outputs)
        name = f"{self._prefix}{fusion_counter}"
        call = FusionCall(name, RegionProgram(inputs, prims, outputs, device), known)
        logger.info(
            "%s: %d primitives, %d inputs, %d outputs", name, *map(len, (prims, inputs, outputs))
        )
        return bind_fusion(self, call, inputs, outputs, prims)

    def _fusible(self, retyped: Retyped, record: FusionRecord) -> set[int]:
        """Return the `id`s of symbols of claimed prims whose result types are torch's."""
        symbols = retyped.trace.bound_symbols
        fusible = {id(bsym) for bsym in symbols if self._is_fusible(bsym)}
        refused = {k: r for k, r in retyped.left.items() if k in fusible}
        for bsym in symbols:
            if id(bsym) in refused:
                record.refused((bsym,), (refused[id(bsym)],))
        return fusible - refused.keys()

    def _is_fusible(self, bsym: BoundSymbol) -> bool:
        # A symbol that another executor has claimed is not fused, even if its subsymbols could be.
        return bsym.sym.executor is None and bool(self.can_fuse(bsym))

    def _fuelled(self, part: formation.RegionCandidate) -> formation.RegionCandidate:
        """Return the part, with a refusal if it could be fused but no fuel is left."""
        if not part.is_fusible or self.get_fuel():
            return part
        return replace(part, refusals=(Refusal("fuel", "no optimization fuel is left"),))

    def _fuse_all(
        self,
        traced: TraceGraph,
        partition: Partition,
        parts: list[formation.RegionCandidate],
        rematerialize: Rematerialization,
        none_known: Callable[[], KnownFusions],
    ) -> tuple[Partition, dict[int, _Fused]]:
        """Build the fusions, by position of their part. A part that cannot be built is refused in
        `parts` and left to torch; rematerialization is then decided again, as boundary tensors
        change.
        """
        while True:
            found: dict[int, _Fused] = {}
            known = none_known()
            regions = {k: traced.region(r) for k, r in rematerialize(partition).items()}
            for k, region in regions.items():
                number = sum(bool(fused.call) for fused in found.values())
                try:
                    call = [self._fuse(region, number, known)] if region.is_call else []
                    found[k] = _Fused(call, region.views)
                except Exception as error:
                    refusal = _unbuildable(region, f"{self._prefix}{number}", error)
                    parts[k] = replace(parts[k], refusals=(refusal,))
                    left = partition[k]._replace(place=None)
                    partition = (*partition[:k], left, *partition[k + 1 :])
                    break
            else:
                calls = {k: fused.call[0] for k, fused in found.items() if fused.call}
                compile_together(parts, regions, calls)
                return partition, found


def _with_fusions(
    parts: Sequence[formation.RegionCandidate], fused: Mapping[int, _Fused], record: FusionRecord
) -> list[BoundSymbol]:
    """Return the symbols of the parts, fusions in place of regions, and note both in `record`."""
    symbols: list[BoundSymbol] = []
    for k, part in enumerate(parts):
        if not part.is_fusible:
            record.refused(part.symbols, part.refusals)
            symbols += part.symbols
        elif k in fused:
            for call in fused[k].call:
                record.fused(call.sym.name, part.symbols)
            symbols += (*fused[k].call, *fused[k].views)
    return symbols


def _unbuildable(region: formation.Region, name: str, error: Exception) -> Refusal:
    """Return the reason that a region cannot be built: an ill-typed trace, or a bug of this
    package, which is raised under `strict`.
    """
    if wrong := ill_typed(region.bound_symbols):
        return Refusal("ill-typed", wrong)
    if current().strict:
        raise error
    warn_of_failure(name, error, "")
    return Refusal("bug", f"{type(error).__name__}: {error}")


def _live(prims: Sequence[BoundSymbol], outputs: Sequence[Proxy]) -> list[BoundSymbol]:
    """Return the prims that the outputs depend on, and all in-place updates."""
    needed = {p.name for p in outputs}
    kept = []
    for prim in reversed(prims):
        updates = role(prim) is Role.UPDATE
        if updates or any(p.name in needed for p in prim.flat_proxy_outs):
            kept.append(prim)
            needed |= {p.name for p in operands(prim)}
    return kept[::-1]


def _registered(name: str) -> Fuser:
    found = get_executor(name)
    if not isinstance(found, Fuser):
        raise FuserValueError(
            f"executor {name!r} is copied as the one that is registered by its name, and there is "
            "none; register it: thunder.extend.register_executor(...)"
        )
    return found


executor: Fuser = register_executor(Fuser())
"""The executor for `thunder.jit(..., executors=[...])`, registered as "thunder_fuser"."""
