"""Lists and tuples of a program's own classes: what Python's own methods do with their elements.

Thunder's interpreter keeps track of elements by `len(held)`, `held[k]`, `held.append(x)` and their
like, which the class may define: with a `__len__` that counts otherwise, or raises, as that of
e3nn's `Irrep`, or an `append` that calls `super().append`, such objects raised an error, or a
method ran twice. In Python `list.append(held, x)` calls no method of the class. Nor does it here,
for functions compiled with this executor. A `UserList` was asked for its elements as it was made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import FunctionType
from typing import Any

from thunder.core import interpreter, jit_ext
from thunder.core.interpreter import WrappedValue, unwrap, wrap_const

from thunder_fuser.frontends.thunder.patches.guards.own_classes import (
    kind_of,
    length_of,
    reads_otherwise,
)
from thunder_fuser.frontends.thunder.patches.patched import is_patched

_LOOKASIDES: dict[Any, Any] = interpreter._default_provenance_tracking_lookaside_map

Method = Callable[..., Any]

# ruff: noqa: C416, C419  (interpreted)


def _wrap_items(original: Callable[[WrappedValue], None], held: WrappedValue) -> None:
    """Wrap the elements of a wrapped container, each with the place where it is read."""
    values = unwrap(held)
    kind = kind_of(values)
    if kind is None or not is_patched():
        original(held)
        return
    is_dictionary = kind is dict
    if held.item_wrappers is None:
        held.item_wrappers = {} if is_dictionary else [None] * length_of(values)
    known: Any = held.item_wrappers
    for key, value in kind.items(values) if is_dictionary else enumerate(kind.__iter__(values)):
        if is_dictionary and key not in known:
            interpreter.populate_single_dict_item_wrapper(value, held, wrap_const(key))
        elif not is_dictionary and known[key] is None:
            known[key] = interpreter.wrap_binary_subscr(value, held, key)


# ---- methods on wrapped values


def _get(kind: Any, held: WrappedValue, index: WrappedValue) -> Any:
    held.track_items()
    assert held.item_wrappers is not None
    key = unwrap(index)
    try:
        found = kind.__getitem__(held.value, key)
        wrapped = held.item_wrappers[key]
    except Exception as error:
        return interpreter.do_raise(error)
    if not isinstance(key, slice):
        return wrapped
    part = interpreter.wrap_binary_subscr(found, held, index)
    part.item_wrappers = wrapped
    return part


def _set(kind: Any, held: WrappedValue, index: WrappedValue, value: WrappedValue) -> Any:
    held.track_items()
    assert held.item_wrappers is not None
    wrapped: Any = value
    if isinstance(unwrap(index), slice):
        value = interpreter._interpret_call(list, value)
        if not isinstance(value, WrappedValue):
            return value
        interpreter.populate_item_wrappers(value)
        wrapped = value.item_wrappers
    try:
        kind.__setitem__(held.value, unwrap(index), unwrap(value))
        held.item_wrappers[unwrap(index)] = wrapped
    except Exception as error:
        return interpreter.do_raise(error)
    return wrap_const(None)


def _delete(kind: Any, held: WrappedValue, index: WrappedValue) -> Any:
    held.track_items()
    assert held.item_wrappers is not None
    try:
        kind.__delitem__(held.value, unwrap(index))
        del held.item_wrappers[unwrap(index)]
    except Exception as error:
        return interpreter.do_raise(error)
    return wrap_const(None)


def _init(_: Any, held: WrappedValue, *iterable: WrappedValue) -> Any:
    """Fill a new list."""
    return interpreter._interpret_call(_fill, held, *iterable)


_ON_WRAPPED: dict[str, Method] = {
    "__getitem__": _get,
    "__setitem__": _set,
    "__delitem__": _delete,
    "__init__": _init,
}


# ---- methods that are interpreted, by those above


def _elements(held: Any) -> Iterator[Any]:
    kind = list if isinstance(held, list) else tuple
    k = 0
    while k < kind.__len__(held):
        yield kind.__getitem__(held, k)
        k += 1


def _backwards(held: Any) -> Iterator[Any]:
    for k in range(list.__len__(held) - 1, -1, -1):
        yield list.__getitem__(held, k)


def _fill(held: Any, iterable: Any = ()) -> None:
    list.__setitem__(held, slice(None), [item for item in iterable])


def _contains(held: Any, value: Any) -> bool:
    return any([item is value or item == value for item in _elements(held)])


def _joined(held: Any, other: Any) -> Any:
    if not isinstance(other, list if isinstance(held, list) else tuple):
        raise TypeError(f"can only concatenate with another, not with {type(other).__name__}")
    items = [*_elements(held), *_elements(other)]
    return items if isinstance(held, list) else tuple(items)


def _repeated(held: Any, times: int) -> Any:
    items = [item for _ in range(times) for item in _elements(held)]
    return items if isinstance(held, list) else tuple(items)


def _repeat(held: Any, times: int) -> Any:
    list.__setitem__(held, slice(None), _repeated(held, times))
    return held


def _extend(held: Any, iterable: Any) -> None:
    end = list.__len__(held)
    list.__setitem__(held, slice(end, end), [item for item in iterable])


def _extended(held: Any, iterable: Any) -> Any:
    _extend(held, iterable)
    return held


def _append(held: Any, value: Any) -> None:
    end = list.__len__(held)
    list.__setitem__(held, slice(end, end), [value])


def _insert(held: Any, index: int, value: Any) -> None:
    list.__setitem__(held, slice(index, index), [value])


def _pop(held: Any, index: int = -1) -> Any:
    if not list.__len__(held):
        raise IndexError("pop from empty list")
    value = list.__getitem__(held, index)
    list.__delitem__(held, index)
    return value


def _index(held: Any, value: Any, start: int = 0, stop: int | None = None) -> int:
    for k in range(*slice(start, stop).indices(len([item for item in _elements(held)]))):
        item = (list if isinstance(held, list) else tuple).__getitem__(held, k)
        if item is value or item == value:
            return k
    raise ValueError(f"{value!r} is not in the {'list' if isinstance(held, list) else 'tuple'}")


def _count(held: Any, value: Any) -> int:
    return sum([1 for item in _elements(held) if item is value or item == value])


def _remove(held: Any, value: Any) -> None:
    list.__delitem__(held, _index(held, value))


def _clear(held: Any) -> None:
    list.__delitem__(held, slice(None))


def _copied(held: Any) -> list[Any]:
    return [item for item in _elements(held)]


def _reverse(held: Any) -> None:
    list.__setitem__(held, slice(None), [item for item in _backwards(held)])


def _sort(held: Any, *, key: Any = None, reverse: bool = False) -> None:
    list.__setitem__(held, slice(None), sorted(_elements(held), key=key, reverse=reverse))


_INTERPRETED: dict[str, Method] = {
    "__iter__": _elements,
    "__reversed__": _backwards,
    "__contains__": _contains,
    "__add__": _joined,
    "__mul__": _repeated,
    "__rmul__": _repeated,
    "__iadd__": _extended,
    "__imul__": _repeat,
    "extend": _extend,
    "append": _append,
    "insert": _insert,
    "pop": _pop,
    "index": _index,
    "count": _count,
    "remove": _remove,
    "clear": _clear,
    "copy": _copied,
    "reverse": _reverse,
    "sort": _sort,
}


_MISSING = frozenset({"insert", "remove", "clear", "sort", "count", "__imul__"})
"""Methods of which Thunder has none."""
_OF_ITERABLES = frozenset({"extend", "__init__", "__iadd__"})


def _method(
    original: Method, ours: Method, name: str, held: WrappedValue, /, *args: Any, **kw: Any
) -> Any:
    """Call a method of a wrapped list or tuple."""
    is_ours = name in _MISSING or kind_of(unwrap(held)) is not None
    if not is_ours and name in _OF_ITERABLES:
        is_ours = any(reads_otherwise(unwrap(x)) for x in args)
    call = ours if is_ours and is_patched() else original
    return call(held, *args, **kw)


class _Kinds(type):
    """The type of what stands for `Sequence` where Thunder looks for tensors among elements."""

    def __instancecheck__(cls, held: Any) -> bool:
        """True for sequences with elements of their own; not for one whose methods a program
        defines, such as a `UserList`, which has none before its `__init__` has run.
        """
        if not isinstance(held, Sequence):
            return False
        return not (is_patched() and isinstance(type(held).__getitem__, FunctionType))


class _Elements(metaclass=_Kinds):
    """Sequences whose elements Thunder may ask for."""


def register() -> None:
    """Patch what the methods of lists and tuples do in Thunder's interpreter."""
    for kind in (list, tuple):
        methods = {name: partial(method, kind) for name, method in _ON_WRAPPED.items()}
        for name, function in _INTERPRETED.items():
            methods[name] = partial(interpreter._interpret_call, function)
        for name, ours in methods.items():
            theirs = vars(kind).get(name)
            if theirs is not None:
                _LOOKASIDES[theirs] = partial(_method, _LOOKASIDES[theirs], ours, name)
    interpreter.populate_item_wrappers = partial(_wrap_items, interpreter.populate_item_wrappers)
    jit_ext.Sequence = _Elements
    # Of its own code: `len` of what it interprets is Python's.
    interpreter.len = length_of
    lookasides = interpreter._default_lookaside_map
    lookasides[length_of] = lookasides[len]
