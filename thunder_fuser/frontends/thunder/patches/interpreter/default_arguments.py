"""Default arguments that are tensors, modules, or collections of them.

Thunder takes default arguments for constants, which a trace cannot hold if they are tensors, also
where the call passes others: such functions raised an error. Here they are what they are in Python,
items of `__defaults__` and `__kwdefaults__` of the function, which each call reads anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from weakref import ref

import torch
from thunder.core import interpreter
from thunder.core.interpreter import PseudoInst, WrappedValue, unwrap, wrap_attribute, wrap_const

from thunder_fuser.frontends.thunder.patches.patched import is_patched

_CONSTANT = (PseudoInst.CONSTANT, PseudoInst.OPAQUE)


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
    if wrapped.provenance.inst in _CONSTANT:
        return
    for name in ("__defaults__", "__kwdefaults__"):
        values = getattr(unwrap(wrapped), name, None)
        if values and _holds_tensors(values):
            found = wrap_attribute(values, wrapped, wrap_const(name))
            interpreter.populate_item_wrappers(found)
            items = found.item_wrappers
            yield from items.values() if isinstance(items, dict) else items


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
