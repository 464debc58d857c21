"""The truth of an empty `OrderedDict`, such as the hooks of a module, in one step.

A call of a module asks eight dictionaries whether there are hooks. Thunder's interpreter answers by
interpreting its own `bool` and `len`, fifty calls for each dictionary: two thirds of the time to
trace a model. The guards of a trace are the same, since neither way adds one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from thunder.core import jit_ext
from thunder.core.interpreter import WrappedValue, wrap_const

from thunder_fuser.frontends.thunder.patches.patched import is_patched

_LOOKASIDES: dict[Callable[..., Any], Callable[..., Any]] = jit_ext._general_jit_lookaside_map
_original: Callable[[WrappedValue], Any] = _LOOKASIDES[bool]


def _truth(value: WrappedValue) -> Any:
    """Return the wrapped truth of a wrapped value, or the interpreter's signal of an exception."""
    if type(value.value) is OrderedDict and not value.value and is_patched():
        return wrap_const(False)
    return _original(value)


def register() -> None:
    """Patch Thunder's interpreter to use `_truth`."""
    _LOOKASIDES[bool] = _truth
