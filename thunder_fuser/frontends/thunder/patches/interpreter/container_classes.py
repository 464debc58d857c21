"""Objects of a program's own kinds of dictionaries, lists and tuples.

Thunder's interpreter replaces `dict.__new__(cls)` by `cls.__new__(cls)`, which is the program's own
function again, without its arguments: a tuple of `__new__(cls, first, second)` raised. It fills,
reads and writes dictionaries through methods that their class may define, too, where Python uses
the dictionary's own; and forgets what these raise. `frozendict({"a": 1})`, which cannot be written,
was empty: einx keeps arguments in one. Here the container's own methods do that, as in Python. For
functions compiled with this executor.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Any

from thunder.core import interpreter
from thunder.core.interpreter import (
    INTERPRETER_SIGNALS,
    ProvenanceRecord,
    PseudoInst,
    WrappedValue,
    unwrap,
    wrap,
    wrap_const,
)

from thunder_fuser.frontends.thunder.patches.guards.value_guards import path_of
from thunder_fuser.frontends.thunder.patches.patched import is_patched

_LOOKASIDES: dict[Any, Any] = interpreter._default_provenance_tracking_lookaside_map

Method = Callable[..., Any]


def _new_dictionary(cls: WrappedValue, /, *_: WrappedValue, **__: WrappedValue) -> WrappedValue:
    """Return an empty dictionary, which its `__init__` fills."""
    place = ProvenanceRecord(PseudoInst.NEW, inputs=[cls.provenance])
    return wrap(dict.__new__(unwrap(cls)), provenance=place)


def _new_list(cls: WrappedValue, *_: WrappedValue) -> WrappedValue:
    return wrap_const(list.__new__(unwrap(cls)))


def _new_tuple(cls: WrappedValue, *elements: WrappedValue) -> Any:
    """Return the wrapped tuple, or the interpreter's signal of an exception."""
    made = interpreter._interpret_call(tuple.__new__, wrap_const(tuple), *elements)
    if not isinstance(made, WrappedValue):
        return made
    found = wrap(tuple.__new__(unwrap(cls), made.value), provenance=made.provenance)
    found.item_wrappers = made.item_wrappers
    return found


def _made(
    original: Method, make: Method, kind: type, cls: WrappedValue, /, *args: Any, **kw: Any
) -> Any:
    """Make an object of a wrapped class."""
    of = unwrap(cls)
    is_named_tuple = of.__bases__ == (tuple,) and hasattr(of, "_fields")
    # Thunder calls the class, and so its `__init__`, and reads elements by methods of the class.
    is_thunders = of is kind or (of.__new__ is kind.__new__ and kind is dict)
    if is_thunders or is_named_tuple or not is_patched():
        return original(cls, *args, **kw)
    return make(cls, *args, **kw)


def _of_dictionary(held: Any, other: Any) -> None:
    for key in dict.keys(other):
        dict.__setitem__(held, key, dict.__getitem__(other, key))


def _of_keys(held: Any, other: Any) -> None:
    for key in other.keys():  # noqa: SIM118  # a mapping, which need not be iterable
        dict.__setitem__(held, key, other[key])


def _of_pairs(held: Any, other: Any) -> None:
    for key, value in other:
        dict.__setitem__(held, key, value)


def _is_own(held: Any) -> bool:
    """True for a dictionary whose class may have methods of its own. One with an order calls them
    as Thunder does, where it changes or copies.
    """
    return _is_read_as_own(held) and not isinstance(held, OrderedDict)


def _is_read_as_own(held: Any) -> bool:
    """True for a dictionary whose class may have a `__getitem__` of its own, which the methods that
    read it do not call.
    """
    return isinstance(held, dict) and type(held) not in (dict, OrderedDict)


def _update(original: Method, held: WrappedValue, /, *others: WrappedValue, **named: Any) -> Any:
    """Fill a wrapped dictionary; the interpreter's signal, or None wrapped."""
    if not is_patched():
        return original(held, *others, **named)
    fill = partial(_fill_from, held)
    if _is_new(held) and all(type(unwrap(other)) is dict for other in others):
        fill = partial(_fill_new, held)
    elif not any(map(_is_own, map(unwrap, (held, *others)))):
        fill = partial(original, held)
    for other in others:
        found = fill(other)
        if found is INTERPRETER_SIGNALS.EXCEPTION_RAISED:
            return found
    # Not as arguments of Thunder's, whose own is named `self`.
    for name, value in named.items():
        interpreter._interpret_call(dict.__setitem__, held, wrap_const(name), value)
    return wrap_const(None)


def _is_new(held: WrappedValue) -> bool:
    """True for a dictionary that the program has made, other than one of attributes."""
    is_made = path_of(held.provenance) is None and not hasattr(held, "owner")
    return is_made and type(unwrap(held)) is dict


def _fill_new(held: WrappedValue, other: WrappedValue) -> None:
    """Add a dictionary to a new one in one step, where the interpreter takes a loop."""
    held.track_items()
    other.track_items()
    held.value.update(unwrap(other))
    held.key_wrappers.update(other.key_wrappers)
    held.item_wrappers.update(other.item_wrappers)


def _fill_from(held: WrappedValue, other: WrappedValue) -> Any:
    given = unwrap(other)
    is_read_as_one = isinstance(given, dict) and type(given).__iter__ is dict.__iter__
    fill = _of_keys if hasattr(given, "keys") else _of_pairs
    return interpreter._interpret_call(_of_dictionary if is_read_as_one else fill, held, other)


def _fill(original: Method, held: WrappedValue, /, *others: Any, **named: Any) -> Any:
    """Fill a new dictionary, and return the signal of what that raises."""
    if not is_patched():
        return original(held, *others, **named)
    found = _LOOKASIDES[dict.update](held, *others, **named)
    return found if found is INTERPRETER_SIGNALS.EXCEPTION_RAISED else wrap_const(None)


def _get(original: Method, held: WrappedValue, key: WrappedValue) -> Any:
    if not (is_patched() and _is_read_as_own(unwrap(held))):
        return original(held, key)
    assert held.item_wrappers is not None
    missing = getattr(type(held.value), "__missing__", None)
    if missing is not None and not dict.__contains__(held.value, key.value):
        held.track_items()
        return interpreter._interpret_call(missing, held, key)
    try:
        value = dict.__getitem__(held.value, key.value)
    except Exception as error:
        return interpreter.do_raise(error)
    interpreter.populate_single_dict_item_wrapper(value, held, key)
    return held.item_wrappers[key.value]


def _set(
    kind: Any, original: Method, held: WrappedValue, key: WrappedValue, value: WrappedValue
) -> Any:
    if not (is_patched() and _is_read_as_own(unwrap(held))):
        return original(held, key, value)
    held.track_items()
    assert isinstance(held.item_wrappers, dict)
    try:
        kind.__setitem__(held.value, key.value, value.value)
    except Exception as error:
        return interpreter.do_raise(error)
    held.key_wrappers[key.value] = key
    held.item_wrappers[key.value] = value
    return wrap_const(None)


def _has(original: Method, held: WrappedValue, key: WrappedValue) -> Any:
    if not (is_patched() and _is_read_as_own(unwrap(held))):
        return original(held, key)
    place = ProvenanceRecord(PseudoInst.CONTAINS_OP, inputs=[held.provenance, key.provenance])
    return wrap(dict.__contains__(held.value, key.value), provenance=place)


def _delete(kind: Any, original: Method, held: WrappedValue, key: WrappedValue) -> Any:
    if not (is_patched() and _is_read_as_own(unwrap(held))):
        return original(held, key)
    held.track_items()
    assert isinstance(held.item_wrappers, dict)
    try:
        kind.__delitem__(held.value, key.value)
    except Exception as error:
        return interpreter.do_raise(error)
    del held.key_wrappers[key.value], held.item_wrappers[key.value]
    return wrap_const(None)


_ABSENT = object()


def _got(held: Any, key: Any, default: Any = None) -> Any:
    return dict.__getitem__(held, key) if dict.__contains__(held, key) else default


def _popped(held: Any, key: Any, default: Any = _ABSENT) -> Any:
    if default is not _ABSENT and not dict.__contains__(held, key):
        return default
    value = dict.__getitem__(held, key)
    (OrderedDict if isinstance(held, OrderedDict) else dict).__delitem__(held, key)
    return value


def _set_once(held: Any, key: Any, default: Any = None) -> Any:
    if not dict.__contains__(held, key):
        dict.__setitem__(held, key, default)
    return dict.__getitem__(held, key)


def _copied(held: Any) -> dict[Any, Any]:
    copy: dict[Any, Any] = {}
    dict.update(copy, held)
    return copy


def _joined(held: Any, other: Any) -> Any:
    if not isinstance(other, dict):
        return NotImplemented
    joined = dict.copy(held)
    joined.update(other)
    return joined


def _read(original: Method, function: Method, held: WrappedValue, *args: WrappedValue) -> Any:
    """Interpret a function in place of a method that does not call those of a program's class."""
    is_own = _is_read_as_own if function in (_got, _popped) else _is_own
    if not (is_patched() and is_own(unwrap(held))):
        return original(held, *args)
    return interpreter._interpret_call(function, held, *args)


def register() -> None:
    """Patch how Thunder's interpreter makes these objects, and what their methods do."""
    for kind, make in ((dict, _new_dictionary), (list, _new_list), (tuple, _new_tuple)):
        _LOOKASIDES[kind.__new__] = partial(_made, _LOOKASIDES[kind.__new__], make, kind)
    for name, method in (
        ("update", _update),
        ("__getitem__", _get),
        ("__contains__", _has),
    ):
        _LOOKASIDES[getattr(dict, name)] = partial(method, _LOOKASIDES[getattr(dict, name)])
    for kind in (dict, OrderedDict):
        _LOOKASIDES[kind.pop] = partial(_read, _LOOKASIDES[kind.pop], _popped)
        for name, write in (("__setitem__", _set), ("__delitem__", _delete)):
            method = getattr(kind, name)
            _LOOKASIDES[method] = partial(write, kind, _LOOKASIDES[method])
    for name, function in (
        ("get", _got),
        ("setdefault", _set_once),
        ("copy", _copied),
        ("__or__", _joined),
    ):
        read = getattr(dict, name)
        _LOOKASIDES[read] = partial(_read, _LOOKASIDES[read], function)
    _LOOKASIDES[dict.__init__] = partial(_fill, _LOOKASIDES[dict.__init__])
