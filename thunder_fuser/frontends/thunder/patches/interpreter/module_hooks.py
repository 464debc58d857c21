"""Hooks of modules: the truth of an empty `OrderedDict` in one step, and handles of new hooks.

A call of a module asks eight dictionaries whether there are hooks. Thunder's interpreter answers by
interpreting its own `bool` and `len`, fifty calls for each dictionary: two thirds of the time to
trace a model. The guards of a trace are the same, since neither way adds one.

A program that registers a hook, as models of the transformers library do when they are first asked
for `output_hidden_states`, counts handles in an attribute of their class: Python counts them here.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from thunder.core import interpreter, jit_ext
from thunder.core.interpreter import WrappedValue, wrap_const
from torch.utils.hooks import RemovableHandle

from thunder_fuser.frontends.thunder.patches.patched import ask_first, is_patched

_LOOKASIDES: dict[Callable[..., Any], Callable[..., Any]] = jit_ext._general_jit_lookaside_map
_original: Callable[[WrappedValue], Any] = _LOOKASIDES[bool]


def _truth(value: WrappedValue) -> Any:
    """Return the wrapped truth of a wrapped value, or the interpreter's signal of an exception."""
    if type(value.value) is OrderedDict and not value.value and is_patched():
        return wrap_const(False)
    return _original(value)


@interpreter.make_opaque  # type: ignore[untyped-decorator]
def _init(handle: RemovableHandle, *hooks: Any, **others: Any) -> None:
    RemovableHandle.__init__(handle, *hooks, **others)


def _made(original: Callable[..., Any], fn: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Return the replacement of a call on wrapped values, or None."""
    return interpreter.interpreter_needs_wrap(_init)


def register() -> None:
    """Patch Thunder's interpreter to use `_truth` and `_made`."""
    ask_first(_made, of=(RemovableHandle.__init__,))
    _LOOKASIDES[bool] = _truth
