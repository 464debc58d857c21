"""Trace passes for forward values that the backward reads: recomputed ones, and overwritten ones.

Grad transforms may record an operation of the forward once more (Thunder's of a square root).
Merged into one value, it can be saved or recomputed, whichever the planner chooses.

A grad transform reads an operand by its name. If the call, or a later one, updates that operand in
place (`x.clamp_(0)`, `x.mul_(y)`), the name has the new value when the backward runs. Torch's
autograd copies the operand before such a call; so does this pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from thunder.core import prims
from thunder.core.prims import PrimIDs
from thunder.core.proxies import Proxy, TensorProxy, Variable, variableify
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceCtx, from_trace, tracectx

from thunder_fuser.frontends.thunder.claims.table import TABLE
from thunder_fuser.frontends.thunder.claims.targets import targets
from thunder_fuser.frontends.thunder.trace.aliases import Aliases
from thunder_fuser.frontends.thunder.trace.origin import Recorded, is_backward


def with_shared_values(trace: TraceCtx) -> TraceCtx:
    """Return the joint trace with prims of the backward merged into equal ones of the forward.
    Nothing is merged in a trace with in-place updates, where names of views outlive their values.
    """
    symbols = trace.bound_symbols
    if not any(map(is_backward, symbols)) or any(any(targets(b)) for b in symbols):
        return trace
    shared = from_trace(trace)
    # Keyed by operation and operands, as `rhs` is slow to build and to compare.
    known: dict[tuple[object, ...], list[BoundSymbol]] = {}
    swaps: dict[Variable, Proxy] = {}
    for bsym in symbols:
        swapped = bsym.from_bsym_swap_proxies(swaps, skip_output=True) if swaps else bsym
        if _is_arithmetic(bsym):
            alike = known.setdefault((bsym.sym.id, *(p.name for p in swapped.flat_proxy_args)), [])
            if not is_backward(bsym):
                alike.append(bsym)
            elif alike:
                mine = replace(swapped.rhs, backward=False)
                forward = next((b for b in alike if b.rhs == mine), None)
                if forward is not None:
                    pairs = zip(bsym.flat_proxy_outs, forward.flat_proxy_outs, strict=True)
                    swaps.update((variableify(again), once) for again, once in pairs)
                    continue
        shared.bound_symbols.append(swapped)
    return shared if swaps else trace


def _is_arithmetic(bsym: BoundSymbol) -> bool:
    """True for a claimed computing prim, whose results are interchangeable with equal ones."""
    claim = TABLE.get(bsym.sym.id)
    return claim is not None and not bsym.subsymbols and claim.role.is_worth_a_kernel


def with_kept_values(trace: TraceCtx, originals: Mapping[str, str]) -> TraceCtx:
    """Return the trace with a copy of each value that the backward reads and the forward
    overwrites, before the first update of its memory.
    """
    symbols = trace.bound_symbols
    backward = [b for b in symbols if _reads_forward(b)]
    writers = [k for k, b in enumerate(symbols) if not is_backward(b) and any(targets(b))]
    if not backward or not writers:
        return trace
    aliases = Aliases(trace, Recorded(trace, originals))
    written = {k: set(map(aliases.memory, targets(symbols[k]))) for k in writers}
    born = {p.name: k for k, b in reversed([*enumerate(symbols)]) for p in b.flat_proxy_outs}
    lost: dict[int, dict[str, TensorProxy]] = {}
    for proxy in _tensors_read(backward):
        memory, since = aliases.memory(proxy.name), born.get(proxy.name, -1)
        over = next((k for k in writers if k > since and memory in written[k]), None)
        if over is not None:
            lost.setdefault(over, {})[proxy.name] = proxy
    if not lost:
        return trace
    kept = from_trace(trace)
    swaps: dict[Variable, Proxy] = {}
    for k, bsym in enumerate(symbols):
        for proxy in lost.get(k, {}).values():
            with tracectx(kept):
                copy = proxy.replace_name(f"{proxy.name}_kept", disambiguate=True)
            swaps[variableify(proxy)] = copy
            kept.bound_symbols.append(prims.clone.bind(proxy, output=copy))
        swapped = bsym.from_bsym_swap_proxies(swaps) if swaps and _reads_forward(bsym) else bsym
        kept.bound_symbols.append(swapped)
    return kept


def _reads_forward(bsym: BoundSymbol) -> bool:
    """True for a symbol of the backward that may read values; GET_GRAD only names one."""
    return is_backward(bsym) and bsym.sym.id is not PrimIDs.GET_GRAD


def _tensors_read(symbols: list[BoundSymbol]) -> Iterator[TensorProxy]:
    for bsym in symbols:
        yield from (p for p in bsym.flat_proxy_args if isinstance(p, TensorProxy))
