"""Primitives of a trace whose operands they do not take, or do not give what the trace says.

Thunder's gradients forget a sum where a number took part in an operation on the CPU: what is said
to be a number is a tensor, and is expanded as if it were one. Torch does not read what a trace
says and goes on; a fusion cannot be built from it, which is no fault of the fusion's.
"""

from __future__ import annotations

from collections.abc import Iterable

from thunder.core.proxies import TensorProxy
from thunder.core.pytree import tree_flatten
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceCtx, tracectx


def ill_typed(prims: Iterable[BoundSymbol]) -> str:
    """What a trace says wrongly of the first such primitive, by Thunder's own rule, or ""."""
    for prim in prims:
        said = f"the trace that Thunder made says {prim.sym.name} of {_described(prim)}"
        try:
            with tracectx(TraceCtx(None)):
                given, _ = tree_flatten(prim.sym.meta(*prim.args, **prim.kwargs))
        except Exception as error:
            return f"{said}, which Thunder's own rule refuses: {error}"
        for out, found in zip(prim.flat_proxy_outs, given, strict=False):
            if isinstance(out, TensorProxy) and list(out.shape) != list(found.shape):
                return f"{said} gives {list(out.shape)}; it gives {list(found.shape)}"
    return ""


def _described(prim: BoundSymbol) -> str:
    operands = (p for p in prim.flat_proxy_args if isinstance(p, TensorProxy))
    return ", ".join(f"{p.name}: {p.dtype.shortname()}{list(p.shape)}" for p in operands)
