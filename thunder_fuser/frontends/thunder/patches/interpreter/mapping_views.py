"""Keys of dictionaries that a C function iterates over: `max(table.keys())`, `set(iter(table))`.

What Thunder's interpreter makes of `keys()` and of an iterator of keys has methods for the
interpreter alone: a C function got an error, or its signals without an end. Here they are what
Python's own are, too. For all of Thunder, since they cannot know who compiles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from thunder.core import interpreter
from thunder.core.interpreter import MappingKeysIterator, MappingKeysView, WrappedValue

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


def register() -> None:
    """Patch the views and iterators of Thunder's interpreter."""
    for kind, name, of_python in (
        (MappingKeysView, "__iter__", _keys),
        (MappingKeysView, "__reversed__", _reversed_keys),
        (MappingKeysIterator, "__next__", _next_key),
    ):
        method = getattr(kind, name)
        both = _in_both(method, of_python)
        setattr(kind, name, both)
        _LOOKASIDES[both] = _LOOKASIDES[method]
