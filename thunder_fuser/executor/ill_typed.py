"""Symbols of which a trace says something impossible: a shape that their operands do not give.

Some of Thunder's rules for gradients forget a sum: the gradient of a number that was multiplied
with a tensor is called a number, and is a tensor when it runs. Torch does not read what a trace
says, so such symbols, and all that reads of them, stay with torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Set

import torch
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import BoundSymbol

from thunder_fuser.errors import Refusal
from thunder_fuser.executor.claims.claim import Role
from thunder_fuser.executor.claims.table import TABLE, flatten


def ill_typed(symbols: Iterable[BoundSymbol], fusible: Set[int]) -> dict[int, Refusal]:
    """Refusals of such symbols, by `id`; `symbols` are a whole trace in order.

    fusible  of the symbols that consist of claimed primitives, by `id`
    """
    refused: dict[int, Refusal] = {}
    wrong: set[str] = set()
    for bsym in symbols:
        text = _said_wrongly(bsym) if id(bsym) in fusible else ""
        if read := next((p.name for p in bsym.flat_proxy_args if p.name in wrong), ""):
            text = f"it reads {read}, whose sizes the trace that Thunder made says wrongly"
        if text:
            wrong.update(p.name for p in bsym.flat_proxy_outs)
            refused[id(bsym)] = Refusal("ill-typed", text)
    return refused


def _said_wrongly(bsym: BoundSymbol) -> str:
    """What the trace says of a symbol, and what its operands give, where the two differ."""
    for prim in flatten(bsym):
        operands = [p for p in prim.flat_proxy_args if isinstance(p, TensorProxy)]
        results = [p for p in prim.flat_proxy_outs if isinstance(p, TensorProxy)]
        if TABLE[prim.sym.id].role is not Role.COMPUTE or not operands:
            continue
        given = _broadcast(operands)
        for out in results:
            if list(out.shape) != given:
                return (
                    f"the trace that Thunder made says {_described(out)} of {prim.sym.name}, which "
                    f"gives {given or 'nothing'} of {', '.join(map(_described, operands))}"
                )
    return ""


def _broadcast(operands: Iterable[TensorProxy]) -> list[int] | None:
    try:
        return list(torch.broadcast_shapes(*(p.shape for p in operands)))
    except RuntimeError:
        return None


def _described(proxy: TensorProxy) -> str:
    return f"{proxy.name}: {proxy.dtype.shortname()}{list(proxy.shape)}"
