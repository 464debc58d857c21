"""What updates read and return, in a form from which Thunder can group the tensors of one memory.

- `v += w` gives `v` another name, which is in no group: a later update through it did not reach
  other tensors of that memory, nor did updates of them reach it. What reads the result of an update
  reads `v` itself.
- Of the operands of an update Thunder considers only its target: `v += w` read `w` as it was before
  an update through a view of `w`. A mark before the update reads the other operands.
"""

from __future__ import annotations

from thunder.core import update_aliases
from thunder.core.prims import PrimIDs
from thunder.core.proxies import Proxy, TensorProxy, Variable, variableify
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceCtx, from_trace

from thunder_fuser.frontends.thunder.updates.effects import effect

_read = effect("fuser_read", lambda *tensors: None)


def with_operands_read(trace: TraceCtx) -> TraceCtx:
    """Return the trace, before `update_aliases` is inserted, with marks before updates, and with
    readers of their results reading what was updated.
    """
    swaps: dict[Variable, Proxy] = {}
    symbols: list[BoundSymbol] = []
    for symbol in trace.bound_symbols:
        swapped = symbol.from_bsym_swap_proxies(swaps, skip_output=True) if swaps else symbol
        if update_aliases._is_inplace_op(swapped):
            target, *others = swapped.flat_proxy_args
            read = {x.name: x for x in others if isinstance(x, TensorProxy)}
            if read.keys() - {target.name}:
                symbols.append(_read.bind(*read.values(), output=None))
            if _returns_target(swapped):
                swaps[variableify(swapped.flat_proxy_outs[0])] = target
        symbols.append(swapped)
    return _with_symbols(trace, symbols)


def without_marks(trace: TraceCtx) -> TraceCtx:
    return _with_symbols(trace, [s for s in trace.bound_symbols if s.sym.id != _read.id])


def _with_symbols(trace: TraceCtx, symbols: list[BoundSymbol]) -> TraceCtx:
    found = from_trace(trace)
    found.bound_symbols = symbols
    found.set_provenance(trace.get_provenance())
    return found


def _returns_target(symbol: BoundSymbol) -> bool:
    """True if the only result of an update is the tensor that it updates."""
    last = symbol
    while last.subsymbols:
        last = last.subsymbols[-1]
    if last.sym.id is not PrimIDs.COPY_ or len(symbol.flat_proxy_outs) != 1:
        return False
    is_result = last.output.name == symbol.flat_proxy_outs[0].name
    return bool(is_result and last.args[1].name == symbol.flat_proxy_args[0].name)
