"""Statistics of calls that are claimed as a whole, as values that a forward can save.

A claim builds a call as a whole, so that its intermediate values are not in the trace. The maximum
of a row and the logarithm of its sum of exponentials are two scalars per row, with which a backward
that recomputes log_softmax reads each element once and reduces nothing. The statistics are
subsymbols of the call, so that a call that is left to torch does not change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from thunder.core.dtypes import to_dtype
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import BoundSymbol, BoundSymbolTag, Symbol
from thunder.core.trace import TraceCtx, from_trace, tracectx
from thunder.core.utils import canonicalize_dim, get_computation_dtype

from thunder_fuser.frontends.thunder.claims.claim import Apart

IsWhole = Callable[[BoundSymbol], bool]


def _symbol(name: str) -> Symbol:
    return Symbol(name, id=name, is_prim=True)


_LARGEST = _symbol("log_softmax_largest")
_LOGARITHM = _symbol("log_softmax_logarithm")
_SHIFTED = _symbol("log_softmax_shifted")


def _of_log_softmax(call: BoundSymbol) -> list[BoundSymbol]:
    x, dim = call.args
    dtype = to_dtype(call.kwargs.get("dtype") or x.dtype)
    axis = canonicalize_dim(x.ndim, dim)
    shape = [1 if k == axis else size for k, size in enumerate(x.shape)]
    wide = get_computation_dtype(dtype)
    largest, logarithm = (TensorProxy(shape=shape, device=x.device, dtype=wide) for _ in range(2))
    return [
        _LARGEST.bind(x, dim, dtype=dtype, output=largest),
        _LOGARITHM.bind(x, largest, dim, dtype=dtype, output=logarithm),
        _SHIFTED.bind(x, largest, logarithm, dtype=dtype, output=call.output),
    ]


_PARTS: Mapping[object, Callable[[BoundSymbol], list[BoundSymbol]]] = {
    "torch.log_softmax": _of_log_softmax,
}


def with_statistics(trace: TraceCtx, is_whole: IsWhole) -> TraceCtx:
    """Return the joint trace in which calls of `_PARTS` have subsymbols that compute their
    statistics, then the result from these.

    `is_whole`: predicate of calls that are claimed as a whole and would be fused.
    """
    symbols = trace.bound_symbols
    if not any(BoundSymbolTag.BACKWARD in b.tags for b in symbols):
        return trace
    if not any(b.sym.id in _PARTS and is_whole(b) for b in symbols):
        return trace
    found = from_trace(trace)
    with tracectx(found):
        found.bound_symbols = [
            b.from_bsym(subsymbols=_PARTS[b.sym.id](b), tags=b.tags | {Apart.STATISTICS})
            if b.sym.id in _PARTS and is_whole(b)
            else b
            for b in symbols
        ]
    return found
