"""Calls that copy in torch but that Thunder composes of views only, such as `repeat`: they end with
a copy where a program could see the difference.

The parts of such a call that are not fused are torch's views, so an update of its operand would
show in its result, and one of its result in elements that are expanded from one. A program can see
that if the memory is updated in the trace, or if the result is returned. The copies are added when
the trace is made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import thunder
from thunder.core import prims, update_aliases
from thunder.core.proxies import TensorProxy, variableify
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceCtx, tracectx

from thunder_fuser.frontends.thunder.claims.operands import is_static
from thunder_fuser.frontends.thunder.claims.table import TABLE
from thunder_fuser.frontends.thunder.claims.targets import primitives
from thunder_fuser.frontends.thunder.patches.patched import is_patched
from thunder_fuser.frontends.thunder.trace.call_facts import gives_new_memory
from thunder_fuser.segment.regions.joint_graph import Role

_SHOW_THEIR_SOURCE = frozenset({Role.VIEW, Role.RENAME})


def _traced(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return the traces of a function, in which such calls end with a copy."""
    found = original(*args, **kwargs)
    if is_patched():
        end_with_copies(found.computation_trace)
    return found


def end_with_copies(trace: TraceCtx) -> None:
    """Complete the calls of a new trace in place."""
    symbols = trace.bound_symbols
    owners = {k: shown for k, s in enumerate(symbols) if (shown := _shown_tensor(s)) is not None}
    if not owners:
        return
    memories, seen = _memories(symbols, owners)
    for k in owners:
        result = symbols[k].flat_proxy_outs[0]
        if memories.get(result.name) in seen:
            symbols[k] = _ending_with_copy(symbols[k], result, trace)


def _shown_tensor(symbol: BoundSymbol) -> str | None:
    """Return the name of the tensor that the only result of a call shows, by its parts, if torch
    copies it: an argument, or what the call computes and then expands; else None.
    """
    outs = symbol.flat_proxy_outs
    if len(outs) != 1 or not isinstance(outs[0], TensorProxy) or not gives_new_memory(symbol):
        return None
    sources = {
        prim.flat_proxy_outs[0].name: (prim.flat_proxy_args[0], prim.flat_proxy_outs[0])
        for prim in primitives([symbol])
        if prim.sym.id in TABLE and TABLE[prim.sym.id].role in _SHOW_THEIR_SOURCE
    }
    given = {x.name for x in symbol.flat_proxy_args}
    name, is_expanded = outs[0].name, False
    while name not in given and name in sources:
        source, shown = sources[name]
        name = source.name
        is_expanded |= is_static(shown.shape) and shown.numel > source.numel
    return name if name != outs[0].name and (name in given or is_expanded) else None


def _memories(
    symbols: Sequence[BoundSymbol], owners: dict[int, str]
) -> tuple[dict[str, str], set[str]]:
    """Return the first tensor in the memory of each view and update, and of each result in
    `owners` as if it were a view, by name; and which of these are updated or returned.
    """
    memories: dict[str, str] = {}
    seen: set[str] = set()
    for k, symbol in enumerate(symbols):
        given = [x.name for x in symbol.flat_proxy_args]
        if symbol.sym is prims.python_return:
            seen.update(memories[name] for name in given if name in memories)
        if not given:
            continue
        source = owners.get(k, given[0])
        memory = memories.get(source, source)
        is_update = update_aliases._is_inplace_op(symbol)
        if is_update:
            seen.add(memory)
        if is_update or k in owners or update_aliases._is_view_creation_op(symbol):
            memories |= dict.fromkeys((x.name for x in symbol.flat_proxy_outs), memory)
    return memories, seen


def _ending_with_copy(symbol: BoundSymbol, result: TensorProxy, trace: TraceCtx) -> BoundSymbol:
    with tracectx(trace):
        shown = result.replace_name(f"{result.name}_shown", disambiguate=True)
    swaps = {variableify(result): shown}
    parts = [part.from_bsym_swap_proxies(swaps) for part in symbol.subsymbols]
    return symbol.from_bsym(subsymbols=[*parts, prims.clone.bind(shown, output=result)])


def register() -> None:
    """Patch how Thunder makes a trace."""
    thunder.thunder_general_jit = partial(_traced, thunder.thunder_general_jit)
