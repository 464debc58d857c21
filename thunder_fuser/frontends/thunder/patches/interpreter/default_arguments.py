"""Default arguments that are tensors, modules, or objects that can change, such as lists.

Thunder takes default arguments for constants, which a trace cannot hold if they are tensors, also
where the call passes others: such functions raised an error, and those with a list or an object
kept what was in it at the first call. Here they are what they are in Python, items of
`__defaults__` and `__kwdefaults__` of the function, which each call reads anew.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from functools import partial
from types import BuiltinFunctionType, EllipsisType, FunctionType, ModuleType
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch
from thunder.core import interpreter, jit_ext
from thunder.core.interpreter import (
    ProvenanceRecord,
    PseudoInst,
    WrappedValue,
    unwrap,
    wrap,
    wrap_attribute,
    wrap_const,
)
from thunder.core.proxies import AnyProxy
from thunder.executors.pythonex import ex

from thunder_fuser.frontends.thunder.patches.guards.value_guards import path_of
from thunder_fuser.frontends.thunder.patches.interpreter.dictionary_keys import KeyProxy, held_key
from thunder_fuser.frontends.thunder.patches.patched import is_patched

_CONSTANT = (
    *(type(None), bool, int, float, complex, str, bytes, range, type, EllipsisType, Enum),
    *(FunctionType, BuiltinFunctionType, ModuleType, re.Pattern),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format),
)
"""Types whose values a trace may hold. All else, such as a list, is read at each call."""
_held: WeakKeyDictionary[Any, dict[_Default, ProvenanceRecord]] = WeakKeyDictionary()
"""Where the prologue of each tracing reads default arguments of functions that it holds."""


def _run(
    original: Callable[..., Any],
    compiling: Any,
    running: Any,
    wrapped: Any,
    /,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Run a function. The interpreter finds the wrapper of a value as long as it lives."""
    held = []
    if isinstance(wrapped, WrappedValue) and is_patched():
        held = list(_defaults(wrapped))
    for default in held:
        running._known_wrappers[id(default.original_value)] = (ref(default),)
    return original(compiling, running, wrapped, *args, **kwargs)


def _defaults(wrapped: WrappedValue) -> Iterator[WrappedValue]:
    """Return the wrapped default arguments of a function, if one of them can change."""
    is_readable = path_of(wrapped.provenance) is not None
    for name in ("__defaults__", "__kwdefaults__"):
        values = getattr(unwrap(wrapped), name, None) or ()
        items = dict(values if isinstance(values, dict) else enumerate(values))
        if not any(map(_can_change, items.values())):
            continue
        if not is_readable:
            for key, value in items.items():
                yield wrap(value, provenance=_place(_Default(unwrap(wrapped), name, key)))
            continue
        found = wrap_attribute(values, wrapped, wrap_const(name))
        interpreter.populate_item_wrappers(found)
        held = found.item_wrappers
        yield from held.values() if isinstance(held, dict) else held


@dataclass(frozen=True)
class _Default:
    """A default argument of a method of an object that the program makes: the prologue, which
    cannot read the object, holds the function.
    """

    function: Any
    attribute: str
    key: int | str

    def read(self) -> Any:
        return getattr(self.function, self.attribute)[self.key]


_read = ex.register_operator(
    "default_argument",
    meta=lambda _, default, /: AnyProxy(None),
    fn=lambda _, default: default.read(),
)


class _KeyOfDefault(KeyProxy):
    reader = _read


def _place(default: _Default) -> ProvenanceRecord:
    known = _held.setdefault(jit_ext.get_jit_ctx(), {})
    if default not in known:
        inputs = [
            ProvenanceRecord(PseudoInst.INPUT_ARGS, inputs=[]),
            held_key(default, _KeyOfDefault),
        ]
        known[default] = ProvenanceRecord(PseudoInst.BINARY_SUBSCR, inputs=inputs)
    return known[default]


def _can_change(x: Any) -> bool:
    """False for what is a constant for Python also."""
    if type(x) in (tuple, frozenset):
        return any(map(_can_change, x))
    return not (type(x) is object or isinstance(x, _CONSTANT))


def register() -> None:
    """Patch how Thunder's interpreter calls a function."""
    original = interpreter._setup_frame_and_run_python_function
    interpreter._setup_frame_and_run_python_function = partial(_run, original)
