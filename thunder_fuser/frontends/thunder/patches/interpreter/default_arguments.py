"""Default arguments that are tensors, modules, or collections of them.

Thunder takes default arguments for constants, which a trace cannot hold if they are tensors, also
where the call passes others: such functions raised an error. Here they are what they are in Python,
items of `__defaults__` and `__kwdefaults__` of the function, which each call reads anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
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
    """Return the wrapped default arguments of a function, if there are tensors among them."""
    is_readable = path_of(wrapped.provenance) is not None
    for name in ("__defaults__", "__kwdefaults__"):
        values = getattr(unwrap(wrapped), name, None)
        if not values or not _holds_tensors(values):
            continue
        if not is_readable:
            for key, value in values.items() if isinstance(values, dict) else enumerate(values):
                yield wrap(value, provenance=_place(_Default(unwrap(wrapped), name, key)))
            continue
        found = wrap_attribute(values, wrapped, wrap_const(name))
        interpreter.populate_item_wrappers(found)
        items = found.item_wrappers
        yield from items.values() if isinstance(items, dict) else items


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


def _holds_tensors(x: object) -> bool:
    if isinstance(x, (tuple, list)):
        return any(map(_holds_tensors, x))
    if isinstance(x, dict):
        return any(map(_holds_tensors, x.values()))
    return isinstance(x, (torch.Tensor, torch.nn.Module))


def register() -> None:
    """Patch how Thunder's interpreter calls a function."""
    original = interpreter._setup_frame_and_run_python_function
    interpreter._setup_frame_and_run_python_function = partial(_run, original)
