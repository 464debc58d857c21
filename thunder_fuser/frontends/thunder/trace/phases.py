"""Trace pass that moves symbols which only the backward needs behind the first GET_GRAD.

A grad transform may compute something before it gets the gradient, such as where a relu is 0.
Thunder's split moves it to the backward, and so regions are formed as if it were there already;
before the gradient it would be a kernel of its own, with a result that goes through memory.
"""

from __future__ import annotations

from thunder.core.prims import OpTags, PrimIDs
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceCtx, from_trace

from thunder_fuser.frontends.thunder.claims.targets import updates
from thunder_fuser.frontends.thunder.trace.origin import is_backward

_EFFECTS = frozenset({OpTags.DONT_DCE, OpTags.IN_PLACE, OpTags.RANDOM_OP})


def in_phases(trace: TraceCtx) -> TraceCtx:
    """Return the trace with such symbols behind the first GET_GRADs; the same object if none."""
    symbols = trace.bound_symbols
    gradients = [b.sym.id is PrimIDs.GET_GRAD for b in symbols]
    if True not in gradients:
        return trace
    start = gradients.index(True)
    end = next(k for k in range(start, len(symbols)) if not gradients[k])
    needed: set[str] = set()
    kept: list[BoundSymbol] = []
    moved: list[BoundSymbol] = []
    for k in reversed(range(start)):
        bsym = symbols[k]
        if updates(bsym):
            # Reads cannot move behind an update.
            kept += reversed(symbols[: k + 1])
            break
        if _may_wait(bsym) and needed.isdisjoint(p.name for p in bsym.flat_proxy_outs):
            moved.append(bsym)
        else:
            kept.append(bsym)
            needed.update(p.name for p in bsym.flat_proxy_args)
    if not moved:
        return trace
    found = from_trace(trace)
    found.bound_symbols = [*kept[::-1], *symbols[start:end], *moved[::-1], *symbols[end:]]
    return found


def has_gradients(trace: TraceCtx) -> bool:
    """True if a joint trace reads an incoming gradient. Thunder drops the arguments of a backward
    that reads none of them, and fails when it is called.
    """
    return any(b.sym.id is PrimIDs.GET_GRAD for b in trace.bound_symbols)


def _may_wait(bsym: BoundSymbol) -> bool:
    """True for a symbol of the backward with results and without side effects."""
    return is_backward(bsym) and bool(bsym.flat_proxy_outs) and _is_pure(bsym)


def _is_pure(bsym: BoundSymbol) -> bool:
    return _EFFECTS.isdisjoint(bsym.sym.tags or ()) and all(map(_is_pure, bsym.subsymbols))
