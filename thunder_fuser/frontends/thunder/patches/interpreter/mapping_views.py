"""Views of dictionaries: `max(table.keys())`, `table.keys() & names`, `len(table.items())`.

What Thunder's interpreter makes of `keys()` and of an iterator of keys has methods for the
interpreter alone: a C function got an error, or its signals without an end; and views were not
compared as the sets that they are. Here they are what Python's own are, too. The methods are those
of all of Thunder, since a view cannot know who compiles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from thunder.core import interpreter
from thunder.core.interpreter import (
    INTERPRETER_SIGNALS,
    MappingItemsIterator,
    MappingItemsWrapper,
    MappingKeysIterator,
    MappingKeysView,
    MappingValuesIterator,
    MappingValuesWrapper,
    WrappedValue,
    unwrap,
)

from thunder_fuser.frontends.thunder.patches.patched import is_patched

_HANDLERS: dict[str, Callable[..., Any]] = interpreter._default_opcode_handler_map
_LIKE_SETS = (MappingKeysView, MappingItemsWrapper)
_LOOKASIDES: dict[Any, Any] = interpreter._default_provenance_tracking_lookaside_map


def _keys(view: Any) -> Iterator[Any]:
    keys: Iterator[Any] = iter(view._mapping)
    return keys


def _reversed_keys(view: Any) -> Iterator[Any]:
    keys: Iterator[Any] = reversed(view._mapping)
    return keys


def _next_key(iterator: Any) -> Any:
    return next(iterator._underlying_key_iterator)


def _in_both(of_interpreter: Callable[..., Any], of_python: Callable[..., Any]) -> Any:
    """Return a method for wrapped objects and others."""

    def method(self: Any) -> Any:
        return (of_interpreter if isinstance(self, WrappedValue) else of_python)(self)

    return method


# ---- interpreted


def _as_set(view: Any) -> set[Any]:
    return {element for element in view}  # noqa: C416


def _length(view: Any) -> int:
    return len(view._mapping)


def _reversed_items(view: Any) -> Any:
    return MappingItemsIterator(view._mapping, is_reversed=True)


def _reversed_values(view: Any) -> Any:
    return MappingValuesIterator(view._mapping, is_reversed=True)


def _is_disjoint(view: Any, other: Any) -> bool:
    return _as_set(view).isdisjoint(other)


def _and(view: Any, other: Any) -> set[Any]:
    return _as_set(view).intersection(other)


def _or(view: Any, other: Any) -> set[Any]:
    return _as_set(view).union(other)


def _xor(view: Any, other: Any) -> set[Any]:
    return _as_set(view).symmetric_difference(other)


def _minus(view: Any, other: Any) -> set[Any]:
    return _as_set(view).difference(other)


def _minus_view(view: Any, other: Any) -> set[Any]:
    return set(other).difference(_as_set(view))


_OF_SETS: dict[str, Callable[..., Any]] = {
    "__and__": _and,
    "__rand__": _and,
    "__or__": _or,
    "__ror__": _or,
    "__xor__": _xor,
    "__rxor__": _xor,
    "__sub__": _minus,
    "__rsub__": _minus_view,
    "isdisjoint": _is_disjoint,
}


def _compare(original: Callable[..., Any], inst: Any, /, stack: Any, **state: Any) -> Any:
    """Compare the two values on the stack, views as the sets of their elements."""
    pair = stack.getitem_wrapped(-2), stack.getitem_wrapped(-1)
    if is_patched() and any(isinstance(unwrap(value), _LIKE_SETS) for value in pair):
        for _ in pair:
            stack.pop_wrapped()
        for value in pair:
            is_view = isinstance(unwrap(value), _LIKE_SETS)
            found = interpreter._interpret_call(_as_set, value) if is_view else value
            if found is INTERPRETER_SIGNALS.EXCEPTION_RAISED:
                return found
            stack.append(found)
    return original(inst, stack=stack, **state)


def register() -> None:
    """Patch the views and iterators of Thunder's interpreter."""
    for view in _LIKE_SETS:
        for name, method in _OF_SETS.items():
            setattr(view, name, method)
    for view, reversed_view in (
        (MappingItemsWrapper, _reversed_items),
        (MappingValuesWrapper, _reversed_values),
    ):
        view.__len__, view.__reversed__ = _length, reversed_view
    MappingKeysView.__len__ = _length
    _HANDLERS["COMPARE_OP"] = partial(_compare, _HANDLERS["COMPARE_OP"])
    for kind, name, of_python in (
        (MappingKeysView, "__iter__", _keys),
        (MappingKeysView, "__reversed__", _reversed_keys),
        (MappingKeysIterator, "__next__", _next_key),
    ):
        method = getattr(kind, name)
        both = _in_both(method, of_python)
        setattr(kind, name, both)
        _LOOKASIDES[both] = _LOOKASIDES[method]
