"""The type of an object or tensor, `type(o)`, for functions compiled with this executor.

The class of an object is a place that a prologue reads again: `o.__class__`. Thunder's interpreter
gave it none, so that what was read of it, as `type(self).scale`, was not guarded: a program went on
with the number of its first call. The type of a tensor was that of a proxy: `type(x) is
torch.Tensor` was False. Thunder's own code, which is interpreted too, is told that of a proxy.
With three arguments, `type` makes a class.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from thunder.core import interpreter
from thunder.core.interpreter import (
    ProvenanceRecord,
    PseudoInst,
    WrappedValue,
    interpreter_needs_wrap,
    unwrap,
    wrap,
    wrap_const,
)
from thunder.core.proxies import TensorProxy

from thunder_fuser.frontends.thunder.patches.guards.value_guards import is_of_caller
from thunder_fuser.frontends.thunder.patches.patched import is_patched

_LOOKASIDES: dict[Callable[..., Any], Callable[..., Any]] = interpreter._default_lookaside_map


def class_of(held: WrappedValue) -> WrappedValue:
    """Return the wrapped class of a wrapped object: a constant if the object is of the trace."""
    kind = type(unwrap(held))
    if not is_of_caller(held) or getattr(unwrap(held), "__class__", None) is not kind:
        return wrap_const(kind)
    return interpreter.wrap_attribute(kind, held, wrap_const("__class__"))


def held_by_class(held: WrappedValue, kind: type, name: str) -> WrappedValue:
    """Return what `kind`, among the bases of an object's class, has by a name, as it lies there:
    a descriptor, not what it returns.
    """
    found, place, bases = vars(kind)[name], class_of(held).provenance, type(unwrap(held)).__mro__
    if place.inst is PseudoInst.CONSTANT or kind not in bases:
        return wrap_const(found)
    for step, key in (
        (PseudoInst.LOAD_ATTR, "__mro__"),
        (PseudoInst.BINARY_SUBSCR, bases.index(kind)),
        (PseudoInst.LOAD_ATTR, "__dict__"),
        (PseudoInst.BINARY_SUBSCR, name),
    ):
        place = ProvenanceRecord(step, inputs=[place, wrap_const(key).provenance])
    return wrap(found, provenance=place)


def _type(original: Callable[..., Any], held: WrappedValue, *parts: WrappedValue) -> Any:
    """`type` of wrapped values; return a class, wrapped, or the interpreter's signal.

    `parts`: bases and attributes of a new class with the name `held`.
    """
    if parts:
        return interpreter_needs_wrap(type)(held, *parts)
    if not is_patched():
        return original(held)
    if isinstance(unwrap(held), TensorProxy) and _is_asked_by_the_program():
        is_parameter = issubclass(held.python_typ, torch.nn.Parameter)
        return wrap_const(torch.nn.Parameter if is_parameter else torch.Tensor)
    return class_of(held) if is_of_caller(held) else original(held)


def _is_asked_by_the_program() -> bool:
    frame = interpreter.get_interpreterruntimectx().peek_frame_stack()
    return frame is None or not frame.module.startswith("thunder.")


def register() -> None:
    """Patch what Thunder's interpreter returns for the type of an object."""
    _LOOKASIDES[type] = partial(_type, _LOOKASIDES[type])
