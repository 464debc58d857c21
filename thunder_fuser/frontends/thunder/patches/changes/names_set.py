"""Names from outside that a traced function binds: `global step; step += 1`, `nonlocal`, and
attributes of objects that have them in slots.

Thunder 0.2.6 binds them while it traces: the caller was left with proxies of the trace, and later
calls changed nothing. Here they are given back their values when the trace is made, and are bound
by each call of the compiled function. For functions compiled with this executor.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import CodeType, WrapperDescriptorType
from typing import Any

import thunder
from thunder.core import interpreter, jit_ext
from thunder.core.interpreter import (
    INTERPRETER_SIGNALS,
    WrappedValue,
    interpreter_needs_wrap,
    unwrap,
)
from thunder.core.prims import OpTags
from thunder.core.proxies import Proxy
from thunder.core.trace import TraceCtx, tracectx
from thunder.executors.pythonex import ex

from thunder_fuser.frontends.thunder.patches.changes.attributes_set import (
    built,
    delete_attribute,
    of_trace,
    set_attribute,
    set_directly,
    slots_of,
)
from thunder_fuser.frontends.thunder.patches.guards.absent_attributes import guard_presence
from thunder_fuser.frontends.thunder.patches.guards.value_guards import as_given, path_of
from thunder_fuser.frontends.thunder.patches.patched import ask_first, is_patched

_LOOKASIDES: dict[Callable[..., Any], Callable[..., Any]] = jit_ext._general_jit_lookaside_map
_HANDLERS: dict[str, Callable[..., Any]] = interpreter._default_opcode_handler_map
_CONTENTS = "cell_contents"
_UNBOUND = object()


def _set_global(names: dict[str, Any], name: str, value: Any, /) -> None:
    names[name] = of_trace(value)


_set_global_symbol = ex.register_operator(
    "set_global",
    meta=lambda names, name, value, /: None,
    fn=_set_global,
    tags=[OpTags.DONT_DCE],
)


@dataclass(frozen=True, slots=True)
class Binding:
    """A name from outside: the object or the globals that bind it, and its value before."""

    home: WrappedValue
    name: str
    before: Any

    @classmethod
    def of(cls, home: WrappedValue, name: str) -> Binding:
        """Return the binding of an attribute, such as `_CONTENTS` of a cell, or a global name."""
        if isinstance(home.value, dict):
            return cls(home, name, home.value.get(name, _UNBOUND))
        return cls(home, name, getattr(home.value, name, _UNBOUND))

    def restore(self) -> None:
        """Bind the name as it was before."""
        is_global = isinstance(self.home.value, dict)
        is_slot = self.name in slots_of(type(self.home.value))
        if self.before is not _UNBOUND:
            bind = _set_global if is_global else set_directly if is_slot else setattr
            bind(self.home.value, self.name, self.before)
        elif is_global:
            self.home.value.pop(self.name, None)
        elif hasattr(self.home.value, self.name):
            delattr(self.home.value, self.name)

    def write(self, epilogue: TraceCtx) -> None:
        """Write the last value of the name to the epilogue."""
        target = Proxy(history=as_given(self.home.provenance))
        with tracectx(epilogue):
            epilogue.add_name(target.name)
            if isinstance(self.home.value, dict):
                value = built(self.name, self.home.item_wrappers[self.name])
                _set_global_symbol(target, self.name, value)
            elif (last := self.home.attribute_wrappers.get(self.name)) is not None:
                set_attribute(target, self.name, built(self.name, last))
            else:
                delete_attribute(target, self.name)


class _Tracing(threading.local):
    """Names that the traces of this thread have bound, by home and name."""

    bound: dict[tuple[int, str], Binding] | None = None


_tracing = _Tracing()


def bindings() -> dict[tuple[int, str], Binding] | None:
    """Return what the trace of this thread has bound; None if there is none."""
    return _tracing.bound


def remember(home: WrappedValue, name: str, kind: type[Binding] = Binding) -> bool:
    """Remember a name before it is bound for the first time, or deleted; return if it is."""
    if _tracing.bound is None:
        return False
    key = id(home.value), name
    if key in _tracing.bound:
        return False
    _tracing.bound[key] = kind.of(home, name)
    return True


def _remember(home: WrappedValue, name: str) -> bool:
    """Remember a name of an object that an epilogue can reach."""
    return path_of(home.provenance) is not None and remember(home, name)


def _store_cell(
    original: Callable[..., Any], inst: Any, /, frame: Any, co: CodeType, **state: Any
) -> Any:
    # Python 3.10 counts cells apart from locals.
    first = 0 if sys.version_info >= (3, 11) else co.co_nlocals
    _remember(frame.localsplus[first + inst.arg], _CONTENTS)
    return original(inst, frame=frame, co=co, **state)


def _store_global(original: Callable[..., Any], inst: Any, /, frame: Any, **state: Any) -> Any:
    _remember(frame.globals, inst.argval)
    return original(inst, frame=frame, **state)


def _delete(original: Callable[..., Any], inst: Any, /, stack: Any, **state: Any) -> Any:
    target = stack.getitem_wrapped(-1)
    if _remember_deleted(target, inst.argval):
        target.attribute_wrappers.pop(inst.argval, None)
    return original(inst, stack=stack, **state)


def _delete_by_name(original: Callable[..., Any], target: WrappedValue, name: WrappedValue) -> Any:
    if is_patched():
        _remember_deleted(target, unwrap(name))
    return original(target, name)


def _remember_deleted(target: WrappedValue, name: str) -> bool:
    """Remember what a slot holds that is deleted, and guard that it is there, or is not."""
    held = unwrap(target)
    if _is_in_dictionary(held, name):
        return False
    if _remember(target, name):
        guard_presence(target, name, hasattr(held, name))
    return True


def _lookaside(original: Callable[..., Any], fn: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Return the replacement of a call on wrapped values, or None."""
    if fn.__name__ != "__setattr__" or len(args) != 3:
        return original(fn, *args, **kwargs)
    target, name = args[0], unwrap(args[1])
    if _is_in_dictionary(unwrap(target), name):
        return _LOOKASIDES[object.__setattr__]
    _remember(target, name)
    return partial(_set_slot, interpreter_needs_wrap(partial(_set, fn)))


def _is_in_dictionary(held: Any, name: str) -> bool:
    """True if an attribute of an object is in a dictionary of its own, and not in a slot."""
    return type(getattr(held, "__dict__", None)) is dict and name not in slots_of(type(held))


def _set(function: Callable[..., None], held: Any, name: str, value: Any) -> None:
    function(held, name, value)


def _set_slot(
    set_: Callable[..., Any], target: WrappedValue, name: WrappedValue, value: WrappedValue
) -> Any:
    """Set a slot, and let reads of it find the wrapped value; return None, wrapped, or the
    interpreter's signal.
    """
    done = set_(target, name, value)
    is_set = done is not INTERPRETER_SIGNALS.EXCEPTION_RAISED
    if is_set and unwrap(name) in slots_of(type(unwrap(target))):
        target.attribute_wrappers[unwrap(name)] = value
    return done


def _write_changes(original: Callable[..., None], ctx: Any, epilogue: TraceCtx) -> None:
    """Write the bindings to the epilogue, and undo them before guards are made of what is read."""
    original(ctx, epilogue)
    for binding in (_tracing.bound or {}).values():
        binding.write(epilogue)
    _restore()


def _restore() -> None:
    for binding in (_tracing.bound or {}).values():
        binding.restore()


def _traced(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return the traces of a function, and leave the names of its caller as they were."""
    if not is_patched():
        return original(*args, **kwargs)
    outer, _tracing.bound = _tracing.bound, {}
    try:
        return original(*args, **kwargs)
    finally:
        _restore()
        _tracing.bound = outer


def register() -> None:
    """Patch Thunder's interpreter and tracer to remember, write and undo bindings."""
    _HANDLERS["STORE_DEREF"] = partial(_store_cell, _HANDLERS["STORE_DEREF"])
    _HANDLERS["DELETE_ATTR"] = partial(_delete, _HANDLERS["DELETE_ATTR"])
    _HANDLERS["STORE_GLOBAL"] = partial(_store_global, _HANDLERS["STORE_GLOBAL"])
    ask_first(_lookaside, kinds=(WrapperDescriptorType,))
    _LOOKASIDES[delattr] = partial(_delete_by_name, _LOOKASIDES[delattr])
    process = jit_ext.process_recorded_modifications
    jit_ext.process_recorded_modifications = partial(_write_changes, process)
    thunder.thunder_general_jit = partial(_traced, thunder.thunder_general_jit)
