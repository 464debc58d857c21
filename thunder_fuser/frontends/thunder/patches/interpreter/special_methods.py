"""Methods in Python that a function in C calls: `abs(o)`, `float(o)`, `f"{o}"`, `{o: 1}`.

Thunder's interpreter does not look into what C calls: what `__abs__`, `__float__` or `__hash__`
read of an object was not guarded, and a program went on with the result of its first call. The
methods are interpreted, for functions compiled with this executor.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import BuiltinFunctionType, FunctionType
from typing import Any

from thunder.core import interpreter
from thunder.core.interpreter import INTERPRETER_SIGNALS, WrappedValue, unwrap, wrap_const
from thunder.core.proxies import Proxy

from thunder_fuser.frontends.thunder.patches.changes.container_kinds import listed
from thunder_fuser.frontends.thunder.patches.guards.container_guards import read_elements
from thunder_fuser.frontends.thunder.patches.patched import ask_first, is_patched

_HANDLERS: dict[str, Callable[..., Any]] = interpreter._default_opcode_handler_map
_STRING = ("__str__", "__repr__")
_NUMBER = ("__float__", "__index__")
_METHODS: Mapping[Any, tuple[str, ...]] = {
    abs: ("__abs__",),
    bytes: ("__bytes__",),
    complex: ("__complex__", *_NUMBER),
    dir: ("__dir__",),
    divmod: ("__divmod__",),
    float: _NUMBER,
    format: ("__format__", *_STRING),
    hash: ("__hash__",),
    int: ("__int__", "__index__", "__trunc__"),
    pow: ("__pow__",),
    repr: ("__repr__",),
    round: ("__round__",),
    str: _STRING,
    operator.index: ("__index__",),
    math.ceil: ("__ceil__", *_NUMBER),
    math.floor: ("__floor__", *_NUMBER),
    math.trunc: ("__trunc__",),
}
"""The methods that a function calls of its first argument: the first one that the class has."""
_OF_NUMBERS = frozenset(f for f in vars(math).values() if isinstance(f, BuiltinFunctionType))
_OF_KEYS = frozenset(
    {
        *(dict.__getitem__, dict.__contains__, dict.__setitem__, dict.__delitem__),
        *(dict.get, dict.pop, dict.setdefault),
        *(set.__contains__, set.add, set.discard, set.remove, frozenset.__contains__),
    }
)
"""Methods that look for their second argument by its hash."""
_OF_ITERABLES = frozenset(
    {
        *(set, frozenset, set.update, set.union, set.intersection, set.difference),
        *(set.intersection_update, set.difference_update, set.symmetric_difference_update),
        *(set.symmetric_difference, set.issubset, set.issuperset, set.isdisjoint),
        *(frozenset.union, frozenset.intersection, frozenset.difference, frozenset.isdisjoint),
        *(frozenset.symmetric_difference, frozenset.issubset, frozenset.issuperset),
    }
)
"""Functions that look for what an iterable yields."""
_OF_STRINGS = frozenset({str.__mod__, str.format, str.format_map})


def method_in_python(names: tuple[str, ...], held: Any) -> FunctionType | None:
    """Return the first method in Python by these names, before one that C has."""
    if isinstance(held, Proxy):
        return None
    for name in names:
        found = getattr(type(held), name, None)
        if isinstance(found, FunctionType):
            return found
        if found is not None and found is not getattr(object, name, None):
            return None
    return None


def _call(original: Callable[..., Any], fn: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Return the replacement of a call on wrapped values, or None."""
    method = method_in_python(_METHODS[fn], unwrap(args[0])) if args and not kwargs else None
    if method is None:
        return original(fn, *args, **kwargs)
    if fn is format and method.__name__ in _STRING:
        return None if len(args) > 1 and unwrap(args[1]) else partial(_call_first, method)
    if fn is format and len(args) == 1:
        return lambda held: interpreter._interpret_call(method, held, wrap_const(""))
    if fn in (math.ceil, math.floor) and method.__name__ in _NUMBER:
        return partial(_with_numbers, fn)
    return partial(interpreter._interpret_call, method)


def _call_first(method: FunctionType, held: WrappedValue, *_: WrappedValue) -> Any:
    return interpreter._interpret_call(method, held)


def _call_with_numbers(original: Callable[..., Any], fn: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Return the replacement of a call of `math` on wrapped values, or None."""
    if fn not in _METHODS and any(method_in_python(_NUMBER, unwrap(x)) for x in args):
        return partial(_with_numbers, fn)
    return original(fn, *args, **kwargs)


def _with_numbers(fn: Any, /, *args: WrappedValue, **kwargs: WrappedValue) -> Any:
    """Call a function with the numbers that objects are."""
    numbers = []
    for value in args:
        number = value
        if method_in_python(_NUMBER, unwrap(value)):
            number = interpreter._interpret_call(float, value)
            if number is INTERPRETER_SIGNALS.EXCEPTION_RAISED:
                return number
        numbers.append(number)
    return interpreter._interpret_call(fn, *numbers, **kwargs)


def _call_with_key(original: Callable[..., Any], fn: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Return the replacement of a call on wrapped values, or None, after the key is read."""
    if len(args) > 1 and _read_key(args[1]) is INTERPRETER_SIGNALS.EXCEPTION_RAISED:
        return lambda *_: INTERPRETER_SIGNALS.EXCEPTION_RAISED
    return original(fn, *args, **kwargs)


def _read_key(key: WrappedValue) -> Any:
    """Read what a dictionary or a set reads of a key: its hash, and what it is compared by."""
    held = unwrap(key)
    if type(held) is str:  # As nearly all are.
        return None
    if isinstance(held, tuple):
        read_elements(key)
        return interpreter._interpret_call(_hash_parts, key) if any(_keys_in(held)) else None
    if not _is_own_key(held):
        return None
    return interpreter._interpret_call(_hash_and_compare, key)


def _keys_in(parts: tuple[Any, ...]) -> Iterator[bool]:
    for part in parts:
        yield any(_keys_in(part)) if isinstance(part, tuple) else _is_own_key(part)


def _is_own_key(held: Any) -> bool:
    return (
        method_in_python(("__hash__",), held) is not None
        or method_in_python(("__eq__",), held) is not None
    )


def _hash_and_compare(key: Any) -> None:
    hash(key)
    key == key  # noqa: B015


def _hash_parts(parts: Any) -> None:
    for part in parts:
        if isinstance(part, tuple):
            _hash_parts(part)
        else:
            _hash_and_compare(part)


def _call_with_keys(original: Callable[..., Any], fn: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Return the replacement of a call on wrapped values, or None, after the elements are read."""
    given = []
    for value in args:
        held = unwrap(value)
        is_iterated = method_in_python(("__iter__",), held) is not None
        if is_iterated or (isinstance(held, (list, tuple)) and any(_keys_in((*held,)))):
            value = interpreter._interpret_call(listed, value)
            if value is INTERPRETER_SIGNALS.EXCEPTION_RAISED:
                return lambda *_: INTERPRETER_SIGNALS.EXCEPTION_RAISED
            for key in value.item_wrappers:
                if _read_key(key) is INTERPRETER_SIGNALS.EXCEPTION_RAISED:
                    return lambda *_: INTERPRETER_SIGNALS.EXCEPTION_RAISED
        given.append(value)
    found = original(fn, *given, **kwargs)
    if all(a is b for a, b in zip(given, args, strict=True)):
        return found
    return lambda *_: (found or partial(_call_opaque, fn))(*given)


def _call_opaque(fn: Any, *args: WrappedValue) -> Any:
    return interpreter.interpreter_needs_wrap(lambda *given: fn(*given))(*args)


def _build(original: Callable[..., Any], step: int, inst: Any, /, stack: Any, **state: Any) -> Any:
    """Build a set or a dictionary of what is on the stack, of which each `step`th is a key."""
    if is_patched():
        for place in range(-step * inst.arg, 0, step):
            if _read_key(stack.getitem_wrapped(place)) is INTERPRETER_SIGNALS.EXCEPTION_RAISED:
                return INTERPRETER_SIGNALS.EXCEPTION_RAISED
    return original(inst, stack=stack, **state)


def _add(original: Callable[..., Any], inst: Any, /, stack: Any, **state: Any) -> Any:
    """Add what is on the stack to a set below."""
    if (
        is_patched()
        and _read_key(stack.getitem_wrapped(-1)) is INTERPRETER_SIGNALS.EXCEPTION_RAISED
    ):
        return INTERPRETER_SIGNALS.EXCEPTION_RAISED
    return original(inst, stack=stack, **state)


def _call_with_strings(original: Callable[..., Any], fn: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Return the replacement of a call on wrapped values, or None, after the strings are read that
    objects are printed as.
    """
    for value in (*args[1:], *kwargs.values()):
        if _print(value) is INTERPRETER_SIGNALS.EXCEPTION_RAISED:
            return lambda *_, **__: INTERPRETER_SIGNALS.EXCEPTION_RAISED
    return original(fn, *args, **kwargs)


def _print(value: WrappedValue) -> Any:
    held = unwrap(value)
    if isinstance(held, (list, tuple, dict)):
        value.track_items()
        found: Any = value.item_wrappers
        parts = found.values() if isinstance(found, dict) else found
        return next((s for part in parts if (s := _print(part)) is not None), None)
    for name in ("__format__", *_STRING):
        if (method := method_in_python((name,), held)) is not None:
            given = (wrap_const(""),) if name == "__format__" else ()
            done = interpreter._interpret_call(method, value, *given)
            if done is INTERPRETER_SIGNALS.EXCEPTION_RAISED:
                return done
    return None


def register() -> None:
    """Patch what Thunder's interpreter calls for functions in C that call methods of objects."""
    ask_first(_call_with_numbers, of=_OF_NUMBERS)
    ask_first(_call, of=_METHODS)
    ask_first(_call_with_key, of=_OF_KEYS)
    ask_first(_call_with_keys, of=_OF_ITERABLES)
    ask_first(_call_with_strings, of=_OF_STRINGS)
    _HANDLERS["SET_ADD"] = partial(_add, _HANDLERS["SET_ADD"])
    for name, step in (("BUILD_SET", 1), ("BUILD_MAP", 2)):
        _HANDLERS[name] = partial(_build, _HANDLERS[name], step)
