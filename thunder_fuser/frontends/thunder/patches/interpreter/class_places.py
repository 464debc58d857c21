"""Attributes of classes that are read through objects which the program makes: `Block().scale`.

What an object of the caller has of its class is read again through the object. One that the trace
makes has no place, so that a number, list or tensor of its class was that of the first call, and
what the program appended to a list there was appended once. Here such an attribute is one of the
class, which the prologue holds. For functions compiled with this executor.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import FunctionType
from typing import Any
from weakref import WeakKeyDictionary

from thunder.core import interpreter, jit_ext
from thunder.core.interpreter import (
    INTERPRETER_SIGNALS,
    ProvenanceRecord,
    PseudoInst,
    WrappedValue,
    unwrap,
    wrap,
)
from thunder.core.proxies import Proxy

from thunder_fuser.frontends.thunder.patches.guards.absent_attributes import (
    guard_presence,
    own_attributes,
)
from thunder_fuser.frontends.thunder.patches.guards.code_names import is_constant
from thunder_fuser.frontends.thunder.patches.guards.own_classes import Reading
from thunder_fuser.frontends.thunder.patches.guards.value_guards import is_of_caller
from thunder_fuser.frontends.thunder.patches.interpreter.dictionary_keys import place_read
from thunder_fuser.frontends.thunder.patches.patched import is_patched

_LOOKASIDES: dict[Callable[..., Any], Callable[..., Any]] = jit_ext._general_jit_lookaside_map

_places: WeakKeyDictionary[Any, dict[type, ProvenanceRecord]] = WeakKeyDictionary()
"""Places of classes, by trace."""


class _Held(Reading):
    """An object that the prologue holds."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def of(self, held: Any) -> Any:
        return self.value


def placed(kind: type) -> WrappedValue:
    """Return a wrapped class of the program, at a place from which a prologue reads it."""
    known = _places.setdefault(jit_ext.get_jit_ctx(), {})
    if kind not in known:
        # Of the arguments, as a reading needs an object: each trace makes their place anew.
        root = ProvenanceRecord(PseudoInst.INPUT_ARGS, inputs=[])
        known[kind] = place_read(root, _Held(kind))
    # If the program has read the class by a name, that is its place.
    return wrap(kind, provenance=known[kind])


def _get_attribute(
    original: Callable[..., Any], held: WrappedValue, name: WrappedValue, *default: WrappedValue
) -> Any:
    """Return a wrapped attribute, or the interpreter's signal."""
    text, value = unwrap(name), unwrap(held)
    if not isinstance(text, str) or text.startswith("__") or isinstance(value, type | Proxy):
        return original(held, name, *default)
    if (kind := _class_with(held, text)) is not None:
        return interpreter._interpret_call(getattr, placed(kind), name)
    found = original(held, name, *default)
    is_missing = bool(default) or found is INTERPRETER_SIGNALS.EXCEPTION_RAISED
    if is_missing and not hasattr(value, text):
        _guard_presence(held, text, False)
    return found


def _has_attribute(original: Callable[..., Any], held: WrappedValue, name: WrappedValue) -> Any:
    """`hasattr`; return a bool, wrapped, or the interpreter's signal."""
    answer, text = original(held, name), unwrap(name)
    is_known = isinstance(answer, WrappedValue) and isinstance(text, str)
    if is_known and (not answer.value or text not in own_attributes(held)):
        _guard_presence(held, text, bool(answer.value))
    return answer


def _guard_presence(held: WrappedValue, name: str, has: bool) -> None:
    """Guard whether the class of an object of the trace has an attribute."""
    kind = type(unwrap(held))
    is_own = hasattr(kind, name) is has and not is_constant(kind)
    if is_own and is_patched() and not is_of_caller(held):
        guard_presence(placed(kind), name, has)


def _class_with(held: WrappedValue, name: str) -> type | None:
    """Return a class of the program of which an attribute is read that is no method, property or
    the like: that of an object of the trace, or a base that `super()` looks into.
    """
    value = unwrap(held)
    kind = type(value)
    bases = kind.__mro__
    if is_super := kind is super:
        kinds = value.__self_class__.__mro__
        bases = kinds[kinds.index(value.__thisclass__) + 1 :]
    elif is_constant(kind):
        return None
    home = next((base for base in bases if name in vars(base)), None)
    if home is None or is_constant(home):
        return None
    found = vars(home)[name]
    if isinstance(found, Proxy) or hasattr(type(found), "__get__") or not is_patched():
        return None
    if is_super:
        return home
    is_plain = not isinstance(kind.__getattribute__, FunctionType)
    is_own = name in own_attributes(held)
    return kind if is_plain and not is_own and not is_of_caller(held) else None


def register() -> None:
    """Patch how Thunder's interpreter reads attributes."""
    _LOOKASIDES[getattr] = partial(_get_attribute, _LOOKASIDES[getattr])
    _LOOKASIDES[hasattr] = partial(_has_attribute, _LOOKASIDES[hasattr])
