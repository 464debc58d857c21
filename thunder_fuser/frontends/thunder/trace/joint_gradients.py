"""Gradients of a convolution's input and weight by one call, as eager code has them.

The gradient rule makes a call for each, so that dead code elimination drops what is not wanted. On
a CPU, a second call costs 25 to 60 us: its dispatch, and what it reorders of the operands.
"""

from __future__ import annotations

from thunder.core.symbol import BoundSymbol, Symbol
from thunder.core.trace import TraceCtx, from_trace

from thunder_fuser.frontends.thunder.autograd import convolution
from thunder_fuser.frontends.thunder.trace.dead_code import live, must_run

_, *_APART, _JOINT = convolution.NAMES
"""Names of the calls: for the input, for the weight, and for both."""


def with_joint_gradients(trace: TraceCtx) -> TraceCtx:
    """Return the trace with one call, where the first of the two was, for the gradients of a
    convolution's input and weight, if both are used and nothing is updated in place between them.
    """
    if not any(bsym.sym.name in _APART for bsym in trace.bound_symbols):
        return trace
    symbols: list[BoundSymbol] = []
    first: dict[tuple[str, ...], int] = {}
    for bsym in live(trace.bound_symbols):
        if must_run(bsym):
            first.clear()
        if bsym.sym.name in _APART:
            k = first.setdefault(tuple(p.name for p in bsym.args[:3]), len(symbols))
            if k < len(symbols) and (both := _joint(symbols[k], bsym)):
                symbols[k] = both
                continue
        symbols.append(bsym)
    made = from_trace(trace)
    made.bound_symbols = symbols
    return made


def _joint(a: BoundSymbol, b: BoundSymbol) -> BoundSymbol | None:
    """Return one call for two, of equal tensors, if one gives the gradient of a convolution's input
    and one that of its weight.
    """
    results = {call.sym.name: call.output for call in (a, b)}
    executor = a.sym.executor
    is_pair = results.keys() == {*_APART} and a.args[3:] == b.args[3:]
    if not is_pair or b.sym.executor is not executor:
        return None
    joint: Symbol = executor.opmap[_JOINT]
    return joint.bind(*a.args, output=tuple(results[name] for name in _APART))
