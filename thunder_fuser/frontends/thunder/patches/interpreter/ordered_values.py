"""`sorted`, `max` and `min` with a key, or of objects that are compared in Python; `groupby`.

C calls the key and the comparisons, into which Thunder's interpreter does not look: what they read
was not guarded, and a program had the order of its first call. Here the keys and comparisons are
interpreted, and C orders keys that are numbers, strings or tuples of these. For functions compiled
with this executor.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from thunder.core import interpreter
from thunder.core.interpreter import unwrap

from thunder_fuser.frontends.thunder.patches.interpreter.special_methods import method_in_python
from thunder_fuser.frontends.thunder.patches.patched import ask_first

# ruff: noqa: C416  (interpreted)

_NOTHING = object()
_COMPARISONS = ("__lt__", "__gt__")


def _sorted(values: Iterable[Any], /, *, key: Any = None, reverse: Any = False) -> list[Any]:
    items = [value for value in values]
    keys = items if key is None else [key(item) for item in items]
    order = _order_by_methods if _are_compared_in_python(keys) else _order
    return [items[place] for place in order(keys, reverse)]


def _largest(*values: Any, key: Any = None, default: Any = _NOTHING) -> Any:
    return _extreme("max", values, key, default)


def _smallest(*values: Any, key: Any = None, default: Any = _NOTHING) -> Any:
    return _extreme("min", values, key, default)


def _extreme(name: str, values: tuple[Any, ...], key: Any, default: Any) -> Any:
    items = [value for value in (values[0] if len(values) == 1 else values)]
    if not items:
        if default is _NOTHING:
            raise ValueError(f"{name}() iterable argument is empty")
        return default
    keys = items if key is None else [key(item) for item in items]
    if not _are_compared_in_python(keys):
        return items[_place(keys, name)]
    found = 0
    for place in range(1, len(keys)):
        better = keys[place] > keys[found] if name == "max" else keys[place] < keys[found]
        if better:
            found = place
    return items[found]


def _group(iterable: Iterable[Any], key: Any = None) -> Iterator[Any]:
    groups: list[tuple[Any, list[Any]]] = []
    for value in iterable:
        found = value if key is None else key(value)
        if groups and groups[-1][0] == found:
            groups[-1][1].append(value)
        else:
            groups.append((found, [value]))
    for found, members in groups:
        yield found, iter(members)


def _order_by_methods(keys: Sequence[Any], reverse: Any) -> list[int]:
    """Return the places of the keys in order, by insertion: equal keys stay in order."""
    places: list[int] = []
    for place in range(len(keys)):
        low, high = 0, len(places)
        while low < high:
            middle = (low + high) // 2
            if reverse:
                comes_before = keys[places[middle]] < keys[place]
            else:
                comes_before = keys[place] < keys[places[middle]]
            if comes_before:
                high = middle
            else:
                low = middle + 1
        places.insert(low, place)
    return places


@interpreter.make_opaque  # type: ignore[untyped-decorator]
def _order(keys: Sequence[Any], reverse: Any) -> list[int]:
    return sorted(range(len(keys)), key=keys.__getitem__, reverse=reverse)


@interpreter.make_opaque  # type: ignore[untyped-decorator]
def _place(keys: Sequence[Any], name: str) -> int:
    return (max if name == "max" else min)(range(len(keys)), key=keys.__getitem__)


@interpreter.make_opaque  # type: ignore[untyped-decorator]
def _are_compared_in_python(keys: Sequence[Any]) -> bool:
    return any(map(_is_compared_in_python, keys))


def _is_compared_in_python(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(map(_is_compared_in_python, value))
    return any(method_in_python((name,), value) is not None for name in _COMPARISONS)


_INTERPRETED: dict[Any, Callable[..., Any]] = {sorted: _sorted, max: _largest, min: _smallest}


def _lookaside(original: Callable[..., Any], fn: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Return the replacement of a call on wrapped values, or None."""
    given = [unwrap(value) for value in args]
    compared = given[0] if len(given) == 1 and isinstance(given[0], (list, tuple)) else given
    key = unwrap(kwargs["key"]) if "key" in kwargs else None
    is_iterated = len(given) == 1 and method_in_python(("__iter__",), given[0]) is not None
    if key is None and not is_iterated and not _is_compared_in_python(compared):
        return original(fn, *args, **kwargs)
    return partial(interpreter._interpret_call, _INTERPRETED[fn])


def _grouped(original: Callable[..., Any], fn: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Return the replacement of `groupby`."""
    return partial(interpreter._interpret_call, _group)


def register() -> None:
    """Patch what Thunder's interpreter calls for functions that order elements."""
    ask_first(_lookaside, of=_INTERPRETED)
    ask_first(_grouped, of=(itertools.groupby,))
