"""ZeRO-3: the backward gathers parameters again, so that the forward need not save them.

Thunder's joint trace gathers each parameter once, and would save the gathered tensor for backward.
Values that the forward computes only from parameters (a cast, a broadcast, a parameter without its
padding) are recomputed, too.
"""

from __future__ import annotations

from collections.abc import Iterator

from thunder.core.prims import OpTags, PrimIDs
from thunder.core.proxies import Proxy, TensorProxy, Variable, variableify
from thunder.core.symbol import BoundSymbol, BoundSymbolTag
from thunder.core.trace import TraceCtx, from_trace, tracectx

from thunder_fuser.frontends.thunder.claims.targets import updates
from thunder_fuser.frontends.thunder.distributed.collectives import ALL_GATHER, collectives
from thunder_fuser.frontends.thunder.trace.origin import is_backward


def with_gathers_again(trace: TraceCtx) -> TraceCtx:
    """Return the joint trace with parameters gathered again in the backward, which reads none that
    the forward gathered.
    """
    again = _Again(trace)
    if not again.makers or not any(map(is_backward, trace.bound_symbols)):
        return trace
    for bsym in trace.bound_symbols:
        again.add(bsym)
    return again.new


class _Again:
    """Builder of the trace with repeated gathers.

    makers  by name, the symbols that gather parameters or compute values from these alone
    swaps   values of the forward, and their replacements in the backward
    """

    def __init__(self, trace: TraceCtx) -> None:
        self.new = from_trace(trace)
        self.swaps: dict[Variable, Proxy] = {}
        self.makers: dict[str, BoundSymbol] = {}
        for each in collectives(trace, ALL_GATHER):
            if not each.is_backward:
                self.makers[each.start.output.name] = each.start
                self.makers[each.result.name] = each.wait
        for bsym in trace.bound_symbols:
            if self.makers and _may_repeat(bsym) and self._is_of_parameters(bsym):
                self.makers.update((p.name, bsym) for p in bsym.flat_proxy_outs)

    def _is_of_parameters(self, bsym: BoundSymbol) -> bool:
        read = bsym.flat_proxy_args
        return bool(read) and all(p.name in self.makers for p in read)

    def add(self, bsym: BoundSymbol) -> None:
        """Append a symbol, preceded by the repeated gathers that it needs."""
        if is_backward(bsym) and bsym.sym.id is not PrimIDs.GET_GRAD:
            for proxy in bsym.flat_proxy_args:
                self.new.bound_symbols += self._made_again(proxy)
            bsym = bsym.from_bsym_swap_proxies(self.swaps)
        self.new.bound_symbols.append(bsym)

    def _made_again(self, proxy: Proxy) -> Iterator[BoundSymbol]:
        maker = self.makers.get(proxy.name)
        if maker is None or variableify(proxy) in self.swaps:
            return
        for operand in maker.flat_proxy_args:
            yield from self._made_again(operand)
        with tracectx(self.new):
            for out in maker.flat_proxy_outs:
                fresh = out.replace_name(f"{out.name}_again", disambiguate=True)
                self.swaps[variableify(out)] = fresh
        copy = maker.from_bsym_swap_proxies(self.swaps)
        yield copy.from_bsym(tags=copy.tags | {BoundSymbolTag.BACKWARD})


def _may_repeat(bsym: BoundSymbol) -> bool:
    """True for a symbol of the forward whose results are tensors, and the same wherever it runs."""
    tags = {tag for part in _parts(bsym) for tag in part.sym.tags or ()}
    return (
        not is_backward(bsym)
        and bsym.sym.id is not PrimIDs.UNPACK_TRIVIAL
        and bool(bsym.flat_proxy_outs)
        and all(isinstance(p, TensorProxy) for p in bsym.flat_proxy_outs)
        and not updates(bsym)
        and tags.isdisjoint({OpTags.RANDOM_OP, OpTags.DONT_DCE, OpTags.IN_PLACE})
    )


def _parts(bsym: BoundSymbol) -> Iterator[BoundSymbol]:
    yield bsym
    for part in bsym.subsymbols:
        yield from _parts(part)
