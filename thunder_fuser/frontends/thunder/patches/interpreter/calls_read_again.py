"""Functions with a cache, `functools.lru_cache`, weak references, and context variables, which a
prologue calls, or reads, again.

What such a call returns is kept elsewhere, and is the caller's: the tensor of a cached function was
an error, and the object of a weak reference a constant of the first call. Here the prologue makes
the call again, so that a program has the tensor that is in the cache now, as in Python. For
functions compiled with this executor.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any
from weakref import ReferenceType

import torch
from thunder.core import devices, dtypes, interpreter
from thunder.core.interpreter import ProvenanceRecord, PseudoInst, WrappedValue, unwrap, wrap

from thunder_fuser.frontends.thunder.patches.changes.context_variables_set import is_set
from thunder_fuser.frontends.thunder.patches.guards.expected_values import Same
from thunder_fuser.frontends.thunder.patches.guards.own_classes import Reading
from thunder_fuser.frontends.thunder.patches.guards.value_guards import (
    add_guard,
    is_of_caller,
    path_of,
)
from thunder_fuser.frontends.thunder.patches.interpreter.dictionary_keys import place_read
from thunder_fuser.frontends.thunder.patches.patched import ask_first

_CACHED: type = type(functools.lru_cache(int))
_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.Size)
_CONSTANTS = (
    *_PLAIN,
    *(torch.dtype, torch.device, torch.memory_format, torch.layout),
)


class _Call(Reading):
    """A call with constants."""

    def __init__(self, args: Sequence[Any] = (), named: Mapping[str, Any] | None = None) -> None:
        self.args, self.named = args, named or {}

    def of(self, held: Any) -> Any:
        return held(*self.args, **self.named)


class _ValueOfVariable(Reading):
    """The value of a context variable."""

    def of(self, held: Any) -> Any:
        return held.get()


def _lookaside(original: Callable[..., Any], fn: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Return the replacement of a call on wrapped values, or None."""
    called = _wrapper_of(fn)
    given = [_constant(value) for value in (*args, *kwargs.values())]
    if called is None or path_of(called.provenance) is None or None in given:
        # A reference has the hash of what it refers to, which may have none.
        is_reference = isinstance(fn, ReferenceType)
        return functools.partial(_referent, fn) if is_reference else original(fn, *args, **kwargs)
    return functools.partial(_called, called)


def _referent(reference: ReferenceType[Any]) -> WrappedValue:
    """Return the wrapped object of a reference that the program has made."""
    return wrap(reference(), provenance=ProvenanceRecord(PseudoInst.NEW, inputs=[]))


def _wrapper_of(fn: Any) -> WrappedValue | None:
    """Return what the interpreter knows of a function, such as its place."""
    known = interpreter.get_interpreterruntimectx()._known_wrappers.get(id(fn))
    found = None if known is None else known[0]()
    return found if found is not None and found.value is fn else None


def _constant(value: WrappedValue) -> tuple[Any] | None:
    """Return a value that a call can be repeated with, in a tuple; None for others."""
    held = unwrap(value)
    if isinstance(held, dtypes.dtype):
        return (dtypes.to_torch_dtype(held),)
    if isinstance(held, devices.Device):
        return (devices.to_torch_device(held),)
    is_size = isinstance(held, torch.Size) and all(type(n) is int for n in held)
    if is_size or (isinstance(held, tuple) and value.provenance.inst is PseudoInst.CONSTANT):
        return (held,)
    if type(held) is tuple:
        value.track_items()
        parts = [_constant(part) for part in value.item_wrappers]
        return None if None in parts else (tuple(part[0] for part in parts if part),)
    if type(held) in _CONSTANTS or isinstance(held, type):
        return (held,)
    # The same object: a cache looks for it by its hash.
    return (held,) if is_of_caller(value) and not isinstance(held, torch.Tensor) else None


def _called(called: WrappedValue, /, *args: WrappedValue, **kwargs: WrappedValue) -> Any:
    """Return the wrapped result of a call, or the interpreter's signal."""
    given = []
    for value in (*args, *kwargs.values()):
        held = _constant(value)
        assert held is not None
        if is_of_caller(value) and held[0] is unwrap(value) and type(held[0]) not in _PLAIN:
            add_guard(value.provenance, Same(held[0]))
        given.append(held[0])
    call = _Call(given[: len(args)], dict(zip(kwargs, given[len(args) :], strict=True)))
    try:
        found = call.of(unwrap(called))
    except Exception as error:
        return interpreter.do_raise(error)
    return wrap(found, provenance=place_read(called.provenance, call))


def _variable(original: Callable[..., Any], fn: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Return the replacement of `variable.get()`, or None."""
    if not args or not isinstance(variable := unwrap(args[0]), ContextVar) or is_set(variable):
        return original(fn, *args, **kwargs)
    try:
        found = variable.get()
    except LookupError:
        return original(fn, *args, **kwargs)
    if not is_of_caller(args[0]):
        return original(fn, *args, **kwargs)
    place = place_read(args[0].provenance, _ValueOfVariable())
    return lambda *_, **__: wrap(found, provenance=place)


def register() -> None:
    """Patch what Thunder's interpreter calls for caches, weak references and variables."""
    ask_first(_variable, of=(ContextVar.get,))
    ask_first(_lookaside, kinds=(_CACHED, ReferenceType))
