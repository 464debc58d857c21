"""Calls of ATen's operators: `torch.ops.aten.add.Tensor(x, y)`.

Thunder raised an error for all of them. Here a call is that of torch's function or method of the
same name, which has the same arguments by position; `slice` and `index` are subscripts. Operators
without one are opaque calls, if they only compute tensors (`opaque_calls.py`); others are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

import torch
from thunder.core import interpreter, jit_ext
from thunder.core.interpreter import WrappedValue, interpreter_needs_wrap, unwrap, wrap_const
from torch._ops import OpOverload, OpOverloadPacket, _OpNamespace, _Ops

from thunder_fuser.frontends.thunder.opaque_calls import call_opaquely, computes
from thunder_fuser.frontends.thunder.patches.patched import ask_first, is_patched

Function = Callable[..., Any]

_LOOKASIDES: dict[Function, Function] = jit_ext._general_jit_lookaside_map
_HOLDERS = (_Ops, _OpNamespace, OpOverloadPacket)
"""What holds operators: `torch.ops`, `torch.ops.aten`, `torch.ops.aten.add`."""


def _lookaside(original: Function, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Return the replacement of a call on wrapped values, or None."""
    packet = fn.overloadpacket if isinstance(fn, OpOverload) else fn
    if not packet._qualified_op_name.startswith("aten::"):
        return original(fn, *args, **kwargs)
    name = packet.__name__
    if (function := _OWN.get(name) or _function(name)) is not None:
        return partial(_call, function, _defaults(packet, len(args)))
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


def _index(input: Any, indices: Any) -> Any:
    return input[tuple([slice(None) if index is None else index for index in indices])]


def _size(input: Any, dim: Any = None) -> Any:
    return input.size() if dim is None else input.size(dim)


def _alias(input: Any) -> Any:
    return input.view_as(input)


def _copy(input: Any, src: Any, non_blocking: bool = False) -> Any:
    return input.clone().copy_(src)


_OWN: Mapping[str, Function] = {
    "slice": _slice,
    "index": _index,
    "alias": _alias,
    "copy": _copy,
    "sym_size": _size,
    "sym_numel": lambda input: input.numel(),
}
"""Functions in torch's terms for operators that torch has no function for, to be interpreted."""

_HOMES = ((torch, torch._C._VariableFunctions), (torch.Tensor, torch._C.TensorBase))
"""Where functions of torch are, and which of them are operators."""


@cache
def _function(name: str) -> Function | None:
    """Return torch's function of the name, or its method."""
    for home, builtin in _HOMES:
        function: Function | None = getattr(home, name, None)
        if callable(getattr(builtin, name, None)) and function is not None:
            return function
    activation: Function | None = getattr(torch._C._nn, name, None)
    is_traced = name.endswith("_") or activation in jit_ext._general_jit_lookaside_map
    return activation if is_traced else None


def _defaults(packet: OpOverloadPacket, count: int) -> dict[str, Any]:
    """Return what an operator called with so many arguments takes for others where torch's function
    takes something else: losses are reduced by their mean, and not at all by the function.
    """
    first = getattr(packet, packet.overloads()[0])
    return {
        argument.name: argument.default_value
        for argument in first._schema.arguments[count:]
        if argument.name == "reduction" and argument.has_default_value()
    }


def _call(
    function: Function, defaults: Mapping[str, Any], /, *args: WrappedValue, **kwargs: WrappedValue
) -> Any:
    """Call a function, whose first operand ATen names `self`."""
    others = {k: wrap_const(value) for k, value in defaults.items()}
    named = {"input" if k == "self" else k: x for k, x in (others | kwargs).items()}
    return interpreter._interpret_call(function, *args, **named)


def _call_opaquely(function: Function, name: str, /, *args: Any, **kwargs: Any) -> Any:
    return call_opaquely(function, name, args, kwargs)


def _get(original: Function, held: Any, name: WrappedValue, *default: Any) -> Any:
    """Return a wrapped attribute. Torch keeps each operator in its namespace when it is first asked
    for, which is no change that the traced function makes.
    """
    if isinstance(unwrap(held), _HOLDERS) and is_patched():
        getattr(unwrap(held), unwrap(name), None)
    return original(held, name, *default)


def register() -> None:
    """Patch how Thunder finds replacements, by `_lookaside`, and attributes of `torch.ops`."""
    ask_first(_lookaside, kinds=(OpOverload, OpOverloadPacket))
    _LOOKASIDES[getattr] = partial(_get, _LOOKASIDES[getattr])
