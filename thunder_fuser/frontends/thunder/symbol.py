"""A fusion as a bound symbol of a trace, in the form that Thunder's own tools expect.

Flat lists of proxies as arguments and results, the prims as subsymbols, a name that ends in
digits, and a `meta`, because the trace checker calls symbols again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from thunder.core.proxies import Proxy
from thunder.core.symbol import BoundSymbol, Symbol
from thunder.extend import FusionExecutor

from thunder_fuser.frontends.thunder.call import FusionCall
from thunder_fuser.frontends.thunder.memory.of_fusion import register_memory


def bind_fusion(
    executor: FusionExecutor,
    call: FusionCall,
    inputs: Sequence[Proxy],
    outputs: Sequence[Proxy],
    prims: Sequence[BoundSymbol],
) -> BoundSymbol:
    """Return the bound symbol that calls `call` on `inputs` for `outputs`, with `prims` as its
    subsymbols.
    """

    def meta(*args: Proxy) -> tuple[Proxy, ...]:
        return tuple(outputs)

    def give_context(bsym: BoundSymbol) -> None:
        bsym._call_ctx = {call.name: call}

    # Thunder looks up tools by id.  It includes the name, as symbols with the same id are equal.
    identity = f"{executor.name}.{call.name}"
    register_memory(identity)
    symbol = Symbol(
        name=call.name,
        meta=meta,
        id=identity,
        is_fusion=True,
        executor=executor,
        _bind_postprocess=give_context,
    )
    return symbol.bind(*inputs, output=list(outputs), subsymbols=tuple(map(_kept, prims)))


def _kept(prim: BoundSymbol) -> BoundSymbol:
    """Return a prim that Thunder's passes keep: they drop symbols that have no parts and are not
    prims, such as the `torch.zeros` that its autograd inserts for results that are not used.
    """
    if prim.subsymbols or prim.sym.is_prim:
        return prim
    return prim.from_bsym(sym=replace(prim.sym, is_prim=True))


def call_of(bsym: BoundSymbol) -> FusionCall | None:
    """Return the `FusionCall` of a bound symbol, or None if it is not a fusion of this executor."""
    if not bsym.sym.is_fusion or not bsym._call_ctx:
        return None
    found: Any = bsym._call_ctx.get(bsym.sym.name)
    return found if isinstance(found, FusionCall) else None
