"""Recomputation for a memory budget: forward calls to rerun, their cost, the trace with reruns.

A recomputed call is copied into the backward, right before its first reader there. That trace is
then planned as usual: copies are fused with their readers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet

from thunder.core.devices import to_torch_device
from thunder.core.dtypes import is_float_dtype
from thunder.core.prims import OpTags, PrimIDs
from thunder.core.proxies import FutureTensorProxy, Proxy, TensorProxy, Variable, variableify
from thunder.core.symbol import BoundSymbol, BoundSymbolTag
from thunder.core.trace import TraceCtx, from_trace, tracectx

from thunder_fuser.frontends.thunder.autograd.attention import NAMES, Attention
from thunder_fuser.frontends.thunder.claims.table import TABLE, flatten, role
from thunder_fuser.frontends.thunder.claims.targets import updates
from thunder_fuser.frontends.thunder.regions.formation import RegionCandidate, TraceInfo
from thunder_fuser.frontends.thunder.regions.joint_graph import trace_graph
from thunder_fuser.frontends.thunder.trace.origin import is_backward
from thunder_fuser.frontends.thunder.trace.torch_work import bytes_of, work_of
from thunder_fuser.ir.dag import backward_slice
from thunder_fuser.runtime.target import planned_for
from thunder_fuser.segment.prices import PriceUnits
from thunder_fuser.segment.regions.budget import Choices, Rerun
from thunder_fuser.segment.regions.joint_graph import Role


def choices_of(
    trace: TraceCtx, facts: TraceInfo, is_fusible: Callable[[BoundSymbol], bool]
) -> Choices:
    """Return the calls that the backward of a joint trace could recompute. Call k of the choices is
    symbol k of the trace.
    """
    symbols = trace.bound_symbols
    graph = trace_graph([RegionCandidate((b,), None) for b in symbols], {}, facts).graph
    # Operands of torch calls must be in memory.
    stored = {p.name for b in symbols[:-1] if not is_fusible(b) for p in b.flat_proxy_args}
    compared = _compared(symbols[:-1])
    reruns = [
        _rerun(b, facts, is_fusible(b), stored)
        if not _runs_in_backward(b) and k not in compared and _may_repeat(b, facts)
        else None
        for k, b in enumerate(symbols)
    ]
    device = next((to_torch_device(p.device) for b in symbols for p in _tensors(b)), None)
    return Choices(graph, reruns, PriceUnits.of(planned_for(device)).byte)


def _compared(symbols: Sequence[BoundSymbol]) -> set[int]:
    """Return positions of forward symbols that are not elementwise and whose results the backward
    compares for equality: the gradient of a maximum goes to the elements that are equal to it. A
    rerun in another kernel may reduce in another order, so that no element might be equal.
    """
    found: set[int] = set()
    needed: set[str] = set()
    for k in reversed(range(len(symbols))):
        bsym = symbols[k]
        prims = list(flatten(bsym))
        for prim in prims:
            if prim.sym.id in _EQUALITY:
                needed.update(p.name for p in _floating(prim))
        if needed.isdisjoint(p.name for p in bsym.flat_proxy_outs):
            continue
        if not _runs_in_backward(bsym) and not all(map(_is_elementwise, prims)):
            found.add(k)
        else:
            needed.update(p.name for p in bsym.flat_proxy_args)
    return found


_EQUALITY = (PrimIDs.EQ, PrimIDs.NE)


def _floating(prim: BoundSymbol) -> Iterator[TensorProxy]:
    """Yield the floating-point operands of a prim."""
    for p in prim.flat_proxy_args:
        if isinstance(p, TensorProxy) and is_float_dtype(p.dtype):
            yield p


def _is_elementwise(prim: BoundSymbol) -> bool:
    """True if a prim is bitwise equal in any kernel: neither a reduction nor a whole call."""
    is_whole = not isinstance(prim.sym.id, PrimIDs)
    return not is_whole and OpTags.REDUCTION_OP not in (prim.sym.tags or ())


def with_reruns(
    trace: TraceCtx, choices: Choices, again: AbstractSet[int], originals: dict[str, str]
) -> TraceCtx:
    """Return the joint trace that recomputes the values `again`; original names of the new ones are
    added to `originals`.
    """
    symbols = trace.bound_symbols
    copied = [symbols[k] for k in choices.calls(again)]
    return _Copier(trace, copied, {id(symbols[k]) for k in choices.late}, originals).trace


def _may_repeat(bsym: BoundSymbol, facts: TraceInfo) -> bool:
    """True if a symbol has the same results wherever it runs: no draws, updates, or futures."""
    if bsym.sym.id is PrimIDs.UNPACK_TRIVIAL or not bsym.flat_proxy_outs:
        return False
    proxies = (*bsym.flat_proxy_args, *bsym.flat_proxy_outs)
    if any(isinstance(p, FutureTensorProxy) for p in proxies):
        return False
    if updates(bsym) or any(facts.aliases.is_updated(p.name) for p in proxies):
        return False
    return not _is_random(bsym)


def _rerun(
    bsym: BoundSymbol, facts: TraceInfo, is_fusible: bool, stored: AbstractSet[str]
) -> Rerun:
    """Return the cost of running a symbol again."""
    outs = _tensors(bsym)
    if not outs:
        return Rerun(0, 0.0, 0, is_fusible, False)
    info = planned_for(to_torch_device(outs[0].device))
    prices = PriceUnits.of(info)
    unit = info.launch_seconds / prices.launch
    work, is_view = work_of(bsym), _shows(bsym, outs, facts)
    if is_fusible:
        price = sum(map(_arithmetic, flatten(bsym)))
        made = [p for p in outs if p.name in stored and not _shows(bsym, [p], facts)]
        # A kernel has to write results that torch calls read, and these read them back.
        price += prices(1, 2 * sum(map(bytes_of, made))) if made else 0
    else:
        price = 0 if is_view else round(work.seconds(info) / unit)
    return Rerun(price, price * unit, work.flops, is_fusible, not is_view)


def _shows(bsym: BoundSymbol, outs: Iterable[Proxy], facts: TraceInfo) -> bool:
    """True if all results alias operands."""
    memory = facts.aliases.memory
    read = {memory(p.name) for p in bsym.flat_proxy_args}
    return all(memory(p.name) in read for p in outs)


class _Copier:
    """Builds a joint trace with copies of symbols before their first reader in the backward."""

    def __init__(
        self,
        trace: TraceCtx,
        copied: Sequence[BoundSymbol],
        late: set[int],
        originals: dict[str, str],
    ) -> None:
        self.trace = from_trace(trace)
        self._originals = originals
        self._position = {id(b): k for k, b in enumerate(copied)}
        self._symbols = {id(b): b for b in copied}
        self._makes = {p.name: b for b in copied for p in b.flat_proxy_outs}
        self._late = {k for k in late if k in self._position}
        self._done: set[int] = set()
        self._swaps: dict[Variable, Proxy] = {}
        for bsym in trace.bound_symbols:
            if id(bsym) in self._late:
                continue
            if _reads(bsym):
                self._ensure(bsym)
                bsym = bsym.from_bsym_swap_proxies(self._swaps)
            self.trace.bound_symbols.append(bsym)

    def _ensure(self, reader: BoundSymbol) -> None:
        """Copy the recomputed symbols that a symbol of the backward depends on."""
        missing = backward_slice([id(b) for b in self._waits_for(reader)], self._before)
        for key in sorted(missing, key=self._position.__getitem__):
            bsym = self._symbols[key]
            self._done.add(id(bsym))
            is_late = id(bsym) in self._late
            swaps = dict(self._swaps)
            if not is_late:
                given = {p.name for p in bsym.flat_proxy_args}
                for proxy in _definitions(bsym):
                    if proxy.name not in given and variableify(proxy) not in swaps:
                        swaps[variableify(proxy)] = self._fresh(proxy)
                for proxy in bsym.flat_proxy_outs:
                    if proxy.name not in given:
                        self._swaps[variableify(proxy)] = swaps[variableify(proxy)]
            copy = bsym.from_bsym_swap_proxies(swaps)
            tags = copy.tags | {BoundSymbolTag.BACKWARD}
            self.trace.bound_symbols.append(copy.from_bsym(tags=tags))

    def _waits_for(self, bsym: BoundSymbol) -> list[BoundSymbol]:
        made = (self._makes.get(p.name) for p in bsym.flat_proxy_args)
        return [b for b in made if b is not None and id(b) not in self._done]

    def _before(self, key: int) -> list[int]:
        return [id(b) for b in self._waits_for(self._symbols[key])]

    def _fresh(self, proxy: Proxy) -> Proxy:
        with tracectx(self.trace):
            new = proxy.replace_name(f"{proxy.name}_again", disambiguate=True)
        self._originals[new.name] = self._originals.get(proxy.name, proxy.name)
        return new


def _definitions(bsym: BoundSymbol) -> Iterator[Proxy]:
    """Yield the results of a symbol, then those of its subsymbols, recursively."""
    yield from bsym.flat_proxy_outs
    for part in bsym.subsymbols:
        yield from _definitions(part)


def _tensors(bsym: BoundSymbol) -> list[TensorProxy]:
    return [p for p in bsym.flat_proxy_outs if isinstance(p, TensorProxy)]


def _arithmetic(prim: BoundSymbol) -> int:
    """Return the fp32 instructions of a claimed prim over all elements; 0 for data movement."""
    if not role(prim).is_worth_a_kernel:
        return 0
    tensors = [
        p for p in (*prim.flat_proxy_args, *prim.flat_proxy_outs) if isinstance(p, TensorProxy)
    ]
    folds = 2 if TABLE[prim.sym.id].role in (Role.REDUCE, Role.SCAN) else 1
    cost: int = TABLE[prim.sym.id].cost
    return folds * cost * max((p.numel for p in tensors), default=1)


def _is_random(bsym: BoundSymbol) -> bool:
    """True if a symbol, or a subsymbol, draws random numbers or has another side effect. Attention
    draws if it has dropout.
    """
    if bsym.sym.name in NAMES[:2]:
        return bool(Attention(*bsym.args, **bsym.kwargs).dropout_p)
    tags = bsym.sym.tags or ()
    effects = (OpTags.RANDOM_OP, OpTags.DONT_DCE, OpTags.IN_PLACE, OpTags.CTX_MANAGER_ENTER_EXIT_OP)
    return any(tag in tags for tag in effects) or any(map(_is_random, bsym.subsymbols))


def _runs_in_backward(bsym: BoundSymbol) -> bool:
    return is_backward(bsym) or bsym.sym.id is PrimIDs.GET_GRAD


def _reads(bsym: BoundSymbol) -> bool:
    """True for a symbol that reads values in the backward; GET_GRAD only names one."""
    return is_backward(bsym) and bsym.sym.id is not PrimIDs.GET_GRAD
