"""Read-only views of dictionaries: `types.MappingProxyType(table)`, and `vars(kind)` of a class.

Thunder's interpreter calls their methods, which are written in C, and what they returned was that
of the first call. Here a program reads a dictionary of the same items, each of which has the place
where it is in the view. For functions compiled with this executor.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import MappingProxyType
from typing import Any

from thunder.core import interpreter
from thunder.core.interpreter import ProvenanceRecord, PseudoInst, WrappedValue, unwrap, wrap

from thunder_fuser.frontends.thunder.patches.guards.expected_values import Expected
from thunder_fuser.frontends.thunder.patches.guards.value_guards import add_guard, is_of_caller
from thunder_fuser.frontends.thunder.patches.patched import ask_first

_NAMES = (
    *("__contains__", "__eq__", "__iter__", "__len__", "__ne__", "__or__", "__reversed__"),
    *("copy", "get", "items", "keys", "values"),
)
_AS_A_WHOLE: dict[Any, Any] = {vars(MappingProxyType)[name]: vars(dict)[name] for name in _NAMES}


class _OfKeys(Expected):
    """The keys of a view, in order."""

    def __init__(self, held: MappingProxyType[Any, Any]) -> None:
        super().__init__([*held])

    def holds(self, given: Any) -> bool:
        return isinstance(given, MappingProxyType) and [*given] == self.value

    def __repr__(self) -> str:
        return f"a view of a dictionary with the keys {self.value}"


def _lookaside(original: Callable[..., Any], fn: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Return the replacement of a call on wrapped values, or None."""
    held = args[0] if args else None
    if not isinstance(held, WrappedValue) or not is_of_caller(held):
        return original(fn, *args, **kwargs)
    if fn is MappingProxyType.__getitem__:
        return _item
    return partial(_call, _AS_A_WHOLE[fn])


def _item(held: WrappedValue, key: WrappedValue) -> Any:
    try:
        found = unwrap(held)[unwrap(key)]
    except Exception as error:
        add_guard(held.provenance, _OfKeys(unwrap(held)))
        return interpreter.do_raise(error)
    return interpreter.wrap_binary_subscr(found, held, key)


def _call(method: Any, held: WrappedValue, *args: WrappedValue) -> Any:
    add_guard(held.provenance, _OfKeys(unwrap(held)))
    return interpreter._interpret_call(method, _as_dictionary(held), *args)


def _as_dictionary(held: WrappedValue) -> WrappedValue:
    """Return a wrapped dictionary of the items in a wrapped view."""
    made = wrap({}, provenance=ProvenanceRecord(PseudoInst.NEW, inputs=[]))
    for name, value in unwrap(held).items():
        key = interpreter.wrap_const(name)
        made.value[name] = value
        made.key_wrappers[name] = key
        made.item_wrappers[name] = interpreter.wrap_binary_subscr(value, held, key)
    made.has_item_tracking = True
    return made


def register() -> None:
    """Patch what Thunder's interpreter calls for methods of read-only views."""
    ask_first(_lookaside, of=(MappingProxyType.__getitem__, *_AS_A_WHOLE))
