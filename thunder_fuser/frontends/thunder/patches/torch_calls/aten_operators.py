"""Calls of ATen's operators: `torch.ops.aten.add.Tensor(x, y)`.

Thunder raised an error for all of them. Here a call is that of torch's function or method of the
same name, which has the same arguments by position; `slice` is a subscript. Operators without one
are opaque calls, if they only compute tensors (`opaque_calls.py`); others are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

import torch
from thunder.core import interpreter, jit_ext
from thunder.core.interpreter import WrappedValue, interpreter_needs_wrap
from torch._ops import OpOverload, OpOverloadPacket

from thunder_fuser.frontends.thunder.opaque_calls import call_opaquely, computes
from thunder_fuser.frontends.thunder.patches.patched import ask_first

Function = Callable[..., Any]


def _lookaside(original: Function, fn: Any, *args: Any, **kwargs: Any) -> Any:
    """Return the replacement of a call on wrapped values, or None."""
    packet = fn.overloadpacket if isinstance(fn, OpOverload) else fn
    if not packet._qualified_op_name.startswith("aten::"):
        return original(fn, *args, **kwargs)
    name = packet.__name__
    if (function := _OWN.get(name) or _function(name)) is not None:
        return partial(_call, function)
    if not computes(packet):
        reason = (
            f"torch.ops.aten.{name} updates its operands or returns views of them, and torch has "
            "no function of that name: call a function or method of torch that does the same"
        )
        return interpreter.do_raise(NotImplementedError(reason))
    jit_ext.recursively_proxy(*args, **kwargs)
    call = jit_ext.record_source_loc_in_symbol_header(partial(_call_opaquely, fn, name))
    return interpreter_needs_wrap(call)


def _slice(input: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
    return input[(slice(None),) * (dim % input.ndim) + (slice(start, end, step),)]


_OWN: Mapping[str, Function] = {"slice": _slice}
"""Functions in torch's terms for operators that torch has no function for, to be interpreted."""


@cache
def _function(name: str) -> Function | None:
    """Return torch's function of the name, or its method."""
    for home, builtin in (
        (torch, torch._C._VariableFunctions),
        (torch.Tensor, torch._C.TensorBase),
    ):
        if callable(getattr(builtin, name, None)):
            function: Function = getattr(home, name)
            return function
    return None


def _call(function: Function, *args: WrappedValue, **kwargs: WrappedValue) -> Any:
    """Call a function, whose first operand ATen names `self`."""
    named = {"input" if k == "self" else k: x for k, x in kwargs.items()}
    return interpreter._interpret_call(function, *args, **named)


def _call_opaquely(function: Function, name: str, *args: Any, **kwargs: Any) -> Any:
    return call_opaquely(function, name, args, kwargs)


def register() -> None:
    """Patch how Thunder looks for replacements to use `_lookaside`."""
    ask_first(_lookaside, kinds=(OpOverload, OpOverloadPacket))
