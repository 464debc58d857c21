"""Objects that a program makes and returns, such as the cache of keys and values of a decoder.

Thunder returns tensors, numbers, and lists, dictionaries and dataclasses of these, and raised for
objects of any other class. Here the epilogue makes an object of the same class whose attributes are
those that the traced one has at the end. A dictionary is made of its keys, which may be arguments,
or members of enumerations, and its values. For functions compiled with this executor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from thunder.core import jit_ext
from thunder.core.baseutils import is_base_printable
from thunder.core.interpreter import unwrap
from thunder.core.proxies import AnyProxy, Proxy
from thunder.core.pytree import tree_iter
from thunder.executors.pythonex import ex

from thunder_fuser.frontends.thunder.patches.patched import is_patched
from thunder_fuser.frontends.thunder.patches.torch_calls.named_tuples import print_new

_made: WeakKeyDictionary[Any, dict[int, Any]] = WeakKeyDictionary()
"""For each tracing, by identity: what stands for an object; None while its attributes are built."""


def _new_object(kind: type, names: Sequence[str], values: Sequence[Any], /) -> Any:
    found: Any = object.__new__(kind)
    found.__dict__.update(zip(names, values, strict=True))
    return found


_new = ex.register_operator(
    "new_object",
    meta=lambda kind, names, values, /: AnyProxy(None),
    fn=_new_object,
    python_printer=print_new,
)


def _new_dictionary(keys: _Keys, values: Sequence[Any], /) -> dict[Any, Any]:
    return dict(zip(keys.keys, values, strict=True))


class _Keys:
    """Keys of a dictionary, of which the epilogue knows no parts."""

    def __init__(self, keys: Iterable[Any]) -> None:
        self.keys = tuple(keys)


_dictionary = ex.register_operator(
    "new_dictionary", meta=lambda keys, values, /: AnyProxy(None), fn=_new_dictionary
)
_PRINTED = (str, int, float, bool, type(None))
"""Types of the keys that a trace prints."""


def _is_plain_object(value: Any) -> bool:
    """True for an object that consists of the attributes in its `__dict__`."""
    kind: Any = type(value)
    return (
        kind.__new__ is object.__new__
        and type(getattr(value, "__dict__", None)) is dict
        and not any(vars(base).get("__slots__") for base in kind.__mro__)
        and not isinstance(value, type | Proxy)
        and kind.__module__.partition(".")[0] not in ("thunder", "builtins")
    )


def _value(original: Callable[[Any], Any], wrapped: Any) -> Any:
    """Return what the epilogue returns for a wrapped result of the program."""
    held = unwrap(wrapped)
    if type(held) is dict and _is_made_of_keys(wrapped) and is_patched():
        return _dictionary(_Keys(held), tuple(_items(wrapped)))
    try:
        return original(wrapped)
    except NotImplementedError:
        if not (is_patched() and _is_plain_object(held)):
            raise
    made = _made.setdefault(jit_ext.get_jit_ctx(), {})
    if id(held) not in made:
        made[id(held)] = None
        made[id(held)] = _new(type(held), tuple(vars(held)), _attributes(wrapped))
    if made[id(held)] is None:
        raise NotImplementedError(f"a result with an object of {type(held)} that refers to itself")
    return made[id(held)]


def _is_made_of_keys(wrapped: Any) -> bool:
    """True for a dictionary of the program with keys that a trace does not print."""
    if hasattr(wrapped, "anyproxy") or jit_ext.should_register_for_prologue(wrapped.provenance):
        return False
    return not any(isinstance(key, Proxy) for key in unwrap(wrapped)) and any(
        type(key) not in _PRINTED or jit_ext.should_register_for_prologue(known.provenance)
        for key, known in wrapped.key_wrappers.items()
    )


def _items(wrapped: Any) -> Iterator[Any]:
    """Yield what the epilogue has for the values of a wrapped dictionary, in order."""
    for key, value in unwrap(wrapped).items():
        known = wrapped.item_wrappers.get(key)
        yield value if known is None else jit_ext.build_value_from_wrapped(known)


def _attributes(wrapped: Any) -> tuple[Any, ...]:
    known = wrapped.attribute_wrappers
    return tuple(
        jit_ext.build_value_from_wrapped(known[name]) if name in known else _untracked(name, value)
        for name, value in vars(unwrap(wrapped)).items()
    )


def _untracked(name: str, value: Any) -> Any:
    """Return the value of an attribute that no Python code has set, if it is a constant."""
    if not all(is_base_printable(leaf) for leaf in tree_iter(value)):
        raise NotImplementedError(f"a result with an attribute {name} that is set in C: {value}")
    return value


def register() -> None:
    """Patch how Thunder makes the results of a function."""
    jit_ext.build_value_from_wrapped = partial(_value, jit_ext.build_value_from_wrapped)
