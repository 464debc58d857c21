"""Check for ill-typed prims: operands that a prim rejects, or results of other shapes than stated.

Thunder's gradients omit a sum where a 0-dim CPU tensor took part in an operation: a gradient that
should be 0-dim is a larger tensor, and is expanded as if it were 0-dim. Torch ignores stated shapes
and continues; a fusion cannot be built from them, which is no error of the fusion's.
"""

from __future__ import annotations

from collections.abc import Iterable

from thunder.core.proxies import TensorProxy
from thunder.core.pytree import tree_flatten
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceCtx, tracectx


def ill_typed(prims: Iterable[BoundSymbol]) -> str:
    """Describe the first ill-typed prim by Thunder's own meta function; "" if there is none."""
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
