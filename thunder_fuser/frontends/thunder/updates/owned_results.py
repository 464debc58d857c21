"""Calls that copy in torch but that Thunder composes of views only, such as `repeat`: they end with
a copy where a program could see the difference.

The parts of such a call that are not fused are torch's views, so an update of its operand would
show in its result, and one of its result in elements that are expanded from one. A program can see
that if the memory is updated in the trace, or if the result is returned. A result that is updated
has the call's own order in memory (a norm's), which views of what is computed before have not. The
copies are added when the trace is made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import thunder
from thunder.core import prims, update_aliases
from thunder.core.proxies import TensorProxy, variableify
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceCtx, tracectx

from thunder_fuser.frontends.thunder.claims.operands import elements, is_static
from thunder_fuser.frontends.thunder.claims.table import TABLE
from thunder_fuser.frontends.thunder.claims.targets import primitives
from thunder_fuser.frontends.thunder.patches.patched import is_patched
from thunder_fuser.frontends.thunder.trace.call_facts import gives_new_memory, has_own_order
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
    memories, updated, returned = _memories(symbols, owners)
    for k, shown in reversed(owners.items()):
        result = symbols[k].flat_proxy_outs[0]
        memory = memories.get(result.name)
        if shown.shows and memory in updated | returned:
            symbols[k] = _ending_with_copy(symbols[k], result, trace)
        elif not shown.shows and memory in updated:
            symbols[k : k + 1] = _and_copy(symbols[k], result, trace)


class _Shown(NamedTuple):
    """A tensor that the only result of a call shows, by its parts, where torch copies it.

    shows  it is an argument, or expanded: else it is only in another order in memory
    """

    name: str
    shows: bool


def _shown_tensor(symbol: BoundSymbol) -> _Shown | None:
    outs = symbol.flat_proxy_outs
    if len(outs) != 1 or not isinstance(outs[0], TensorProxy) or not gives_new_memory(symbol):
        return None
    sources = {
        prim.flat_proxy_outs[0].name: (prim.flat_proxy_args[0], prim.flat_proxy_outs[0])
        for prim in primitives([symbol])
        if prim.sym.id in TABLE and TABLE[prim.sym.id].role in _SHOW_THEIR_SOURCE
    }
    given = {x.name for x in symbol.flat_proxy_args}
    name, is_expanded, is_view = outs[0].name, False, False
    while name not in given and name in sources:
        source, shown = sources[name]
        name = source.name
        if is_static(shown.shape) and is_static(source.shape):
            is_expanded |= elements(shown) > elements(source)
            is_view |= tuple(shown.shape) != tuple(source.shape)
    if name == outs[0].name:
        return None
    shows = name in given or is_expanded
    return _Shown(name, shows) if shows or (is_view and has_own_order(symbol)) else None


def _memories(
    symbols: Sequence[BoundSymbol], owners: Mapping[int, _Shown]
) -> tuple[dict[str, str], set[str], set[str]]:
    """Return the first tensor in the memory of each view and update, and of each result in
    `owners` as if it were a view, by name; and which of these are updated, and returned.
    """
    memories: dict[str, str] = {}
    updated, returned = set[str](), set[str]()
    for k, symbol in enumerate(symbols):
        given = [x.name for x in symbol.flat_proxy_args]
        if symbol.sym is prims.python_return:
            returned.update(memories[name] for name in given if name in memories)
        if not given:
            continue
        source = owners[k].name if k in owners else given[0]
        memory = memories.get(source, source)
        is_update = update_aliases._is_inplace_op(symbol)
        if is_update:
            updated.add(memory)
        if is_update or k in owners or update_aliases._is_view_creation_op(symbol):
            memories |= dict.fromkeys((x.name for x in symbol.flat_proxy_outs), memory)
    return memories, updated, returned


def _ending_with_copy(symbol: BoundSymbol, result: TensorProxy, trace: TraceCtx) -> BoundSymbol:
    shown = _named_apart(result, trace)
    swaps = {variableify(result): shown}
    parts = [part.from_bsym_swap_proxies(swaps) for part in symbol.subsymbols]
    return symbol.from_bsym(subsymbols=[*parts, prims.clone.bind(shown, output=result)])


def _and_copy(symbol: BoundSymbol, result: TensorProxy, trace: TraceCtx) -> list[BoundSymbol]:
    """Return the call, whose gradient rule may record it anew, and a copy of its result."""
    shown = _named_apart(result, trace)
    call = symbol.from_bsym_swap_proxies({variableify(result): shown})
    return [call, prims.clone.bind(shown, output=result)]


def _named_apart(result: TensorProxy, trace: TraceCtx) -> TensorProxy:
    with tracectx(trace):
        found: TensorProxy = result.replace_name(f"{result.name}_shown", disambiguate=True)
    return found


def register() -> None:
    """Patch how Thunder makes a trace."""
    thunder.thunder_general_jit = partial(_traced, thunder.thunder_general_jit)
