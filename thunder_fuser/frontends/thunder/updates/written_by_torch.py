"""Reinplacing: scatters and indexed writes that torch does in place, such as `index_copy_` of a
key-value cache.

Thunder records a new tensor and a copy of all of it into the old one. Torch has methods that write
what changes, as eager code does: a call whose result is copied into its first operand, and used for
nothing else, becomes such a method.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from thunder.core.prims import PrimIDs
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import BoundSymbol, Symbol
from thunder.core.trace import TraceCtx, from_trace
from thunder.executors.torchex import ex as torch_executor

from thunder_fuser.frontends.thunder.claims.targets import primitives
from thunder_fuser.frontends.thunder.trace.aliases import SETITEM, WRITES, Aliases
from thunder_fuser.frontends.thunder.trace.origin import Recorded
from thunder_fuser.frontends.thunder.updates.effects import in_place


def _set_items(x: torch.Tensor, index: Any, value: Any) -> torch.Tensor:
    x[index] = value
    return x


_IN_PLACE: Mapping[object, Symbol] = MappingProxyType(
    {
        **{name: in_place(f"{name}_", getattr(torch.Tensor, f"{name}_")) for name in WRITES},
        SETITEM: in_place("setitem_", _set_items),
        PrimIDs.INDEX_PUT: in_place("index_put_", torch.Tensor.index_put_),
    }
)
"""By id of a primitive, or by name of a function of Thunder's torch executor."""


def written_in_place(trace: TraceCtx, originals: Mapping[str, str]) -> TraceCtx:
    """Return a trace, of which every value is assigned once, with methods for such calls."""
    symbols = trace.bound_symbols
    calls = [k for k, symbol in enumerate(symbols) if _method(symbol) is not None]
    if not calls:
        return trace
    found = _Copies(symbols, Aliases(trace, Recorded(trace, originals)))
    copies = {k: found.copied_by(k) for k in calls}
    replaced = {copy: _written(symbols[k], symbols[copy]) for k, copy in copies.items() if copy}
    gone = {k for k, copy in copies.items() if copy}
    made = from_trace(trace)
    made.bound_symbols = [replaced.get(k, s) for k, s in enumerate(symbols) if k not in gone]
    return made


def _method(symbol: BoundSymbol) -> Symbol | None:
    """Return the method that does a call in place, or None."""
    is_of_torch = symbol.sym.executor is torch_executor
    return _IN_PLACE.get(symbol.sym.name if is_of_torch else symbol.sym.id)


def _written(call: BoundSymbol, copy: BoundSymbol) -> BoundSymbol:
    """Return the symbol that does a call, and what copies its result, in place."""
    method, (update,) = _method(call), primitives([copy])
    assert method is not None
    args = (update.args[1], *call.args[1:])
    return method.bind(*args, output=copy.output, **call.kwargs)


class _Copies:
    """Copies of results of calls into the calls' first operands."""

    def __init__(self, symbols: Sequence[BoundSymbol], aliases: Aliases) -> None:
        self._symbols = symbols
        self._aliases = aliases
        self._readers: dict[str, list[int]] = {}
        for k, symbol in enumerate(symbols):
            for name in {p.name for p in symbol.flat_proxy_args}:
                self._readers.setdefault(name, []).append(k)

    def copied_by(self, call: int) -> int | None:
        """Return the number of the symbol that copies a call's result, which nothing else reads,
        into its first operand; None where torch's method would do something else.
        """
        symbol = self._symbols[call]
        copy = call + 1
        while self._symbols[copy].sym.id is PrimIDs.UPDATE_ALIASES:
            copy += 1
        updates = [*primitives([self._symbols[copy]])]
        if len(updates) != 1 or updates[0].sym.id is not PrimIDs.COPY_:
            return None
        value, target = updates[0].args[:2]
        is_alone = self._readers.get(symbol.output.name) == [copy]
        is_same = value is symbol.output or value.name == symbol.output.name
        alike = (value.shape, value.dtype) == (target.shape, target.dtype)
        return copy if is_alone and is_same and alike and self._writes(symbol, target) else None

    def _writes(self, call: BoundSymbol, target: TensorProxy) -> bool:
        """True if a call's first operand is the target, and no other one lies in its memory."""
        names, first = self._aliases, call.args[0] if call.args else None
        if not isinstance(first, TensorProxy):
            return False
        others = [p.name for p in call.flat_proxy_args if isinstance(p, TensorProxy)]
        others.remove(first.name)
        is_target = names.tensor(first.name) == names.tensor(target.name)
        return is_target and names.memory(first.name) not in map(names.memory, others)
