"""Options of new tensors that change nothing: `torch.zeros(3, layout=torch.strided)`.

Thunder's functions do not take `layout`, `pin_memory` and `requires_grad`, and raised a TypeError;
`torch.signal.windows` and other code of torch hands them on with their defaults. Here these are
left out of a call. Others are refused as before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any

import torch
from thunder.core.interpreter import WrappedValue, unwrap
from thunder.core.symbol import Symbol
from torch._ops import OpOverloadPacket

from thunder_fuser.frontends.thunder.patches.patched import ask_first

Function = Callable[..., Any]

_DEFAULTS: Mapping[str, Sequence[Any]] = {
    "layout": (None, torch.strided),
    "pin_memory": (None, False),
    "requires_grad": (False,),
}


def _lookaside(original: Function, fn: Any, /, *args: Any, **kwargs: WrappedValue) -> Any:
    """Return the replacement of a call on wrapped values, without these options, or None."""
    found = original(fn, *args, **kwargs)
    if found is None or kwargs.keys().isdisjoint(_DEFAULTS):
        return found
    name = fn.name if isinstance(fn, Symbol) else getattr(fn, "__name__", "")
    if not _makes_tensors(name):
        return found
    left_out = [k for k, known in _DEFAULTS.items() if k in kwargs and unwrap(kwargs[k]) in known]
    return partial(_without, found, left_out) if left_out else found


def _without(function: Function, names: Sequence[str], /, *args: Any, **kwargs: Any) -> Any:
    return function(*args, **{k: x for k, x in kwargs.items() if k not in names})


@cache
def _makes_tensors(name: str) -> bool:
    """True for the name of an operator that takes the options of a new tensor."""
    packet = getattr(torch.ops.aten, name, None)
    if not isinstance(packet, OpOverloadPacket):
        return False
    schemas = (getattr(packet, overload)._schema for overload in packet.overloads())
    return any(argument.name == "pin_memory" for s in schemas for argument in s.arguments)


def register() -> None:
    """Patch how Thunder looks for replacements to use `_lookaside`."""
    ask_first(_lookaside)
