"""Operators of other libraries than torch: `torch.ops.torchvision.roi_align(x, boxes, size)`, or
functions that `torch.library.custom_op` makes operators.

Thunder raised an error for those that are not registered with it. Here they are opaque calls
(`opaque_calls.py`), as they are for torch.compile: their types of results are those of the
operator's fake implementation, their gradients those that it registers with autograd. This requires
an operator that only computes tensors; others are refused.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from thunder.core import interpreter, jit_ext
from thunder.core.interpreter import interpreter_needs_wrap
from torch._ops import OpOverload, OpOverloadPacket
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException

from thunder_fuser.frontends.thunder.opaque_calls import call_opaquely, computes
from thunder_fuser.frontends.thunder.patches.patched import (
    OUTSIDE,
    UnknownNumbersError,
    ask_first,
)

Function = Callable[..., Any]

_KNOWN: dict[Any, Any] = jit_ext._torch_to_thunder_function_map
_OF_TORCH = frozenset(("aten", "prim", "prims", "profiler", "rngprims", "inductor", "debugprims"))
_COLLECTIVES = ("c10d", "fsdp", "symm_mem")
_OF_UNKNOWN_SIZES = (DataDependentOutputException, DynamicOutputShapeException)


def _lookaside(original: Function, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Return the replacement of a call on wrapped values, or None."""
    packet = fn.overloadpacket if isinstance(fn, OpOverload) else fn
    if fn in _KNOWN or packet in _KNOWN or not _is_of_library(packet):
        return original(fn, *args, **kwargs)
    if reason := _refused(packet):
        return interpreter.do_raise(NotImplementedError(f"{packet}: {reason}"))
    jit_ext.recursively_proxy(*args, **kwargs)
    call = jit_ext.record_source_loc_in_symbol_header(partial(_call, fn))
    return interpreter_needs_wrap(call)


def _is_of_library(packet: OpOverloadPacket) -> bool:
    library = packet._qualified_op_name.split("::")[0]
    return library not in _OF_TORCH and not any(name in library for name in _COLLECTIVES)


@cache
def _refused(packet: OpOverloadPacket) -> str:
    """Return why an operator cannot be recorded as one call; empty if it can."""
    if not computes(packet):
        return (
            "the operator updates its operands, returns views of them, or no tensor, as its schema "
            f"says; {OUTSIDE}"
        )
    overloads = (getattr(packet, name) for name in packet.overloads())
    if any(torch.Tag.nondeterministic_seeded in overload.tags for overload in overloads):
        return f"the operator draws random numbers, as its tags say; {OUTSIDE}"
    return ""


def _call(function: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Record a call; its name is that of the operator, with the overload if that is given."""
    try:
        return call_opaquely(function, str(function).replace(".", "_"), args, kwargs)
    except NotImplementedError as error:
        # Thunder's, of what the operator raised on tensors without values.
        cause = error.__cause__
        if isinstance(cause, _OF_UNKNOWN_SIZES):
            raise UnknownNumbersError.of_size(function) from error
        raise cause or error from None


def register() -> None:
    """Patch how Thunder finds replacements, by `_lookaside`."""
    ask_first(_lookaside, kinds=(OpOverload, OpOverloadPacket))
