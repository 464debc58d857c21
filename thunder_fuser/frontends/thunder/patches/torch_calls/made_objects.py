"""Objects that a program makes and returns, such as the cache of keys and values of a decoder.

Thunder returns tensors, numbers, and lists, dictionaries and dataclasses of these, and raised for
objects of any other class. Here the epilogue makes an object of the same class whose attributes are
those that the traced one has at the end. A dictionary is made of its keys, which may be arguments,
or members of enumerations, and its values; so are the dictionaries and deques of `collections`, as
torchvision's segmentation models return them, and those of a program's own classes. Sets and ranges
have no tensors, and are copied; a pattern of `re` and the like is a constant. For functions
compiled with this executor.
"""

from __future__ import annotations

import re
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import is_dataclass
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from functools import partial
from pathlib import PurePath
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, ModuleType, SimpleNamespace
from typing import Any
from weakref import ReferenceType, WeakKeyDictionary

from thunder.core import jit_ext
from thunder.core.baseutils import is_base_printable
from thunder.core.interpreter import unwrap
from thunder.core.proxies import AnyProxy, Proxy
from thunder.core.pytree import tree_iter
from thunder.executors.pythonex import ex
from torch.nn import Module

from thunder_fuser.frontends.thunder.patches.changes.attributes_set import set_directly, slots_of
from thunder_fuser.frontends.thunder.patches.guards.own_classes import keys_of
from thunder_fuser.frontends.thunder.patches.patched import is_patched
from thunder_fuser.frontends.thunder.patches.torch_calls.named_tuples import is_given

_made: WeakKeyDictionary[Any, dict[int, Any]] = WeakKeyDictionary()
"""For each tracing, by identity: what stands for an object; None while its attributes are built."""


class _Class:
    """A class, and what its object holds: the trace prints no dataclass."""

    def __init__(self, kind: Any, names: Sequence[str]) -> None:
        self.kind, self.names = kind, names


def _new_object(of: _Class, values: Sequence[Any], /) -> Any:
    found = of.kind.__new__(of.kind)
    for name, value in zip(of.names, values, strict=True):
        set_directly(found, name, value)
    return found


_new = ex.register_operator(
    "new_object",
    meta=lambda of, values, /: AnyProxy(None),
    fn=_new_object,
)


def _new_dictionary(
    keys: _Keys, values: Sequence[Any], attributes: Sequence[Any], /
) -> dict[Any, Any]:
    found: dict[Any, Any] = keys.new()
    for key, value in zip(keys.keys, values, strict=True):
        keys.kind.__setitem__(found, key, value)
    for name, value in zip(keys.names, attributes, strict=True):
        set_directly(found, name, value)
    return found


class _Keys:
    """Keys of a dictionary, names of its attributes, and what makes an empty one of its class: the
    epilogue knows no parts of them. A program's own class is not asked: elements are written by the
    methods of the `kind` of dictionary that it is.
    """

    def __init__(self, held: dict[Any, Any]) -> None:
        self.keys, self.names = tuple(keys_of(held)), tuple(_attributes_of(held))
        self.kind: Any = next(k for k in (*_ORDERED_OR_DEFAULT, dict) if isinstance(held, k))
        self._class = type(held)
        self._factory = held.default_factory if isinstance(held, defaultdict) else None

    def new(self) -> Any:
        """Return an empty dictionary."""
        made = self.kind.__new__(self._class)
        if self._factory is not None:
            made.default_factory = self._factory
        return made


class _Copied:
    """A collection of constants that a call copies, or an empty deque that it fills."""

    def __init__(self, held: Any) -> None:
        self.held = held.copy() if isinstance(held, set) else held
        self.new: Any = (
            partial(deque, maxlen=held.maxlen) if isinstance(held, deque) else type(held)
        )


_dictionary = ex.register_operator(
    "new_dictionary",
    meta=lambda keys, values, attributes, /: AnyProxy(None),
    fn=_new_dictionary,
)
_deque = ex.register_operator(
    "new_deque",
    meta=lambda copied, values, /: AnyProxy(None),
    fn=lambda copied, values, /: copied.new(values),
)
_copy = ex.register_operator(
    "new_copy",
    meta=lambda copied, /: AnyProxy(None),
    fn=lambda copied, /: copied.new(copied.held) if copied.new is set else copied.held,
)
_ORDERED_OR_DEFAULT = (OrderedDict, defaultdict)
_CONSTANT = (set, frozenset, range)
_IMMUTABLE = (
    *(BuiltinFunctionType, CodeType, Decimal, Enum, Fraction, PurePath, ReferenceType),
    *(date, re.Match, re.Pattern, time, timedelta),
)
_PRINTED = (str, int, float, bool, type(None))
"""Types of the keys that a trace prints."""


def _is_plain_object(value: Any) -> bool:
    """True for an object that consists of the attributes in its `__dict__` and its slots."""
    kind: Any = type(value)
    return kind is SimpleNamespace or (
        kind.__new__ is object.__new__
        and (type(getattr(value, "__dict__", None)) is dict or hasattr(kind, "__slots__"))
        and not isinstance(value, type | Proxy)
        and kind.__module__.partition(".")[0] not in ("thunder", "builtins")
    )


def _value(original: Callable[[Any], Any], wrapped: Any) -> Any:
    """Return what the epilogue returns for a wrapped result of the program."""
    held = unwrap(wrapped)
    if is_patched() and not is_given(wrapped):
        kind = type(held)
        if (kind is dict and _is_made_of_keys(wrapped)) or _is_another_dictionary(held):
            return _dictionary(_Keys(held), tuple(_items(wrapped)), _attributes(wrapped))
        if kind is deque:
            return _deque(_Copied(deque(maxlen=held.maxlen)), tuple(held))
        if kind in _CONSTANT and not any(isinstance(x, Proxy) for x in held):
            return _copy(_Copied(held))
        if is_dataclass(held) and not isinstance(held, dict) and _is_plain_object(held):
            return _object_of(wrapped)  # Not by its constructor, which has run.
    try:
        return original(wrapped)
    except NotImplementedError:
        if not is_patched():
            raise
        if _is_immutable(held):
            return _copy(_Copied(held))
        if isinstance(held, FunctionType):
            raise NotImplementedError(
                f"the function {held.__qualname__}, which is returned or kept, holds tensors of "
                "the compiled function; make it outside, and pass it tensors as arguments"
            ) from None
        if not _is_plain_object(held):
            raise
    return _object_of(wrapped)


def _is_immutable(held: Any) -> bool:
    """True for a constant, such as a compiled pattern, and for a function or class that holds no
    proxy.
    """
    if isinstance(held, type):
        return not any(_holds_proxies(part, set()) for part in vars(held).values())
    if isinstance(held, FunctionType):
        return not _holds_proxies(held, set())
    if type(held) is tuple:
        return all(is_base_printable(part) or _is_immutable(part) for part in held)
    return isinstance(held, _IMMUTABLE)


def _holds_proxies(held: Any, seen: set[int]) -> bool:
    """True for a proxy, and what has one among its parts."""
    if isinstance(held, Proxy) or id(held) in seen:
        return isinstance(held, Proxy)
    seen.add(id(held))
    if isinstance(held, FunctionType):
        cells = [cell.cell_contents for cell in held.__closure__ or () if cell != CellType()]
        parts: Any = (*cells, held.__defaults__, held.__kwdefaults__)
    elif isinstance(held, dict):
        parts = dict.values(held)
    elif isinstance(held, (list, tuple, set, frozenset, deque)):
        parts = held
    elif isinstance(held, Module | type | ModuleType):
        return False
    else:
        parts = getattr(held, "__dict__", {}).values()
    return any(_holds_proxies(part, seen) for part in parts)


def _object_of(wrapped: Any) -> Any:
    """Return what stands for an object, one for each."""
    held = unwrap(wrapped)
    made = _made.setdefault(jit_ext.get_jit_ctx(), {})
    if id(held) not in made:
        made[id(held)] = None
        of = _Class(type(held), tuple(_attributes_of(held)))
        made[id(held)] = _new(of, _attributes(wrapped))
    if made[id(held)] is None:
        raise NotImplementedError(f"a result with an object of {type(held)} that refers to itself")
    return made[id(held)]


def _is_another_dictionary(held: Any) -> bool:
    """True for one of `collections`, or of a program's own class; dataclasses are Thunder's."""
    is_own = isinstance(held, dict) and type(held) is not dict and not isinstance(held, Proxy)
    return is_own and not is_dataclass(held)


def _is_made_of_keys(wrapped: Any) -> bool:
    """True for a dictionary with keys that a trace does not print."""
    return not any(isinstance(key, Proxy) for key in unwrap(wrapped)) and any(
        type(key) not in _PRINTED or jit_ext.should_register_for_prologue(known.provenance)
        for key, known in wrapped.key_wrappers.items()
    )


def _items(wrapped: Any) -> Iterator[Any]:
    """Yield what the epilogue has for the values of a wrapped dictionary, in order."""
    held = unwrap(wrapped)
    for key in keys_of(held):
        if (known := wrapped.item_wrappers.get(key)) is None:
            yield dict.__getitem__(held, key)
        else:
            yield jit_ext.build_value_from_wrapped(known)


def _attributes(wrapped: Any) -> tuple[Any, ...]:
    known = wrapped.attribute_wrappers
    return tuple(
        jit_ext.build_value_from_wrapped(known[name]) if name in known else _untracked(name, value)
        for name, value in _attributes_of(unwrap(wrapped)).items()
    )


def _attributes_of(held: Any) -> dict[str, Any]:
    """Return what an object holds, by name."""
    slots = {name: getattr(held, name) for name in slots_of(type(held)) if hasattr(held, name)}
    return {**getattr(held, "__dict__", {}), **slots}


def _untracked(name: str, value: Any) -> Any:
    """Return the value of an attribute that no Python code has set, if it is a constant."""
    if _is_immutable(value):
        return _copy(_Copied(value))
    if not all(is_base_printable(leaf) for leaf in tree_iter(value)):
        raise NotImplementedError(f"a result with an attribute {name} that is set in C: {value}")
    return value


def register() -> None:
    """Patch how Thunder makes the results of a function."""
    jit_ext.build_value_from_wrapped = partial(_value, jit_ext.build_value_from_wrapped)
