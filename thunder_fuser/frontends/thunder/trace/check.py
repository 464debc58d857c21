"""Verifier of traces that a pass has made: uses before definitions, and double definitions.

Thunder runs a trace without a check, and splits it into forward and backward by names. An error of
a pass would show as a NameError in generated code, or as a forward that depends on its own
gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from thunder.core.prims import PrimIDs
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceCtx


def fault(made: TraceCtx, source: TraceCtx, forward: frozenset[str] | None) -> str:
    """Return the first fault of `made` that its source trace `source` does not have, or "".

    forward  names of the forward's results, for a joint trace that is to be split; else None
    """
    if name := _new(_unmade, made, source):
        return f"{name} is read before anything gives it"
    if name := _new(_made_twice, made, source):
        return f"{name} is given twice"
    if forward is not None and (name := _new(partial(_waiting, forward=forward), made, source)):
        return f"{name}, which the forward needs, is computed from a gradient"
    return ""


def _new(
    faults: Callable[[Sequence[BoundSymbol]], list[str]], made: TraceCtx, source: TraceCtx
) -> str:
    """Return the first name at fault in `made` and not in `source`, or ""."""
    if not (found := faults(made.bound_symbols)):
        return ""
    known = set(faults(source.bound_symbols))
    return next((name for name in found if name not in known), "")


def _unmade(symbols: Sequence[BoundSymbol]) -> list[str]:
    """Return names that are read before they are defined: arguments, and faults."""
    made: set[str] = set()
    found = []
    for bsym in symbols:
        found += [p.name for p in bsym.flat_proxy_args if p.name not in made]
        made.update(p.name for p in bsym.flat_proxy_outs)
    return found


def _made_twice(symbols: Sequence[BoundSymbol]) -> list[str]:
    made: set[str] = set()
    found = []
    for bsym in symbols:
        given = {p.name for p in bsym.flat_proxy_outs} - {p.name for p in bsym.flat_proxy_args}
        found += sorted(made & given)
        made |= given
    return found


def _waiting(symbols: Sequence[BoundSymbol], forward: frozenset[str]) -> list[str]:
    """Return names that the forward's results depend on and that depend on a gradient."""
    late: set[str] = set()
    for bsym in symbols:
        if bsym.sym.id is PrimIDs.GET_GRAD or any(p.name in late for p in bsym.flat_proxy_args):
            late.update(p.name for p in bsym.flat_proxy_outs)
    needed, found = set(forward), []
    for bsym in reversed(symbols[:-1]):
        if any(p.name in needed for p in bsym.flat_proxy_outs):
            found += [p.name for p in bsym.flat_proxy_outs if p.name in late]
            needed.update(p.name for p in bsym.flat_proxy_args)
    return found
