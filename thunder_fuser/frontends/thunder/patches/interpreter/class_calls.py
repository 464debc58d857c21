"""Calls of classes whose `__new__` returns an object of another class, which is initialized once.

Python calls `__init__` only of an object of the class that is called. Thunder calls that of
whatever `__new__` returns: a factory's object was initialized by the arguments of the factory, and
`nn.Buffer(x)`, whose `__new__` returns a tensor, raised an error of a proxy's constructor. For
functions compiled with this executor.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from thunder.core import interpreter
from thunder.core.interpreter import INTERPRETER_SIGNALS, WrappedValue, unwrap, wrap_const

from thunder_fuser.frontends.thunder.patches.patched import is_patched

_LOOKASIDES: dict[Any, Any] = interpreter._default_lookaside_map


def _call(
    original: Callable[..., Any], kind: WrappedValue, /, *args: WrappedValue, **kwargs: WrappedValue
) -> Any:
    """Return the wrapped object that a wrapped class makes, or the interpreter's signal."""
    called = unwrap(kind)
    if called.__new__ is object.__new__ or not is_patched():
        return original(kind, *args, **kwargs)
    made = interpreter._interpret_call(called.__new__, kind, *args, **kwargs)
    if made is INTERPRETER_SIGNALS.EXCEPTION_RAISED:
        return made
    # Not by isinstance, which a metaclass may answer as it likes.
    if called not in type(unwrap(made)).__mro__:
        return made
    initialize = interpreter._interpret_call(getattr, made, wrap_const("__init__"))
    interpreter.populate_attribute_wrapper(initialize, "__self__", made)
    found = interpreter._interpret_call(initialize, *args, **kwargs)
    return found if found is INTERPRETER_SIGNALS.EXCEPTION_RAISED else made


def register() -> None:
    """Patch how Thunder's interpreter calls classes."""
    _LOOKASIDES[type.__call__] = partial(_call, _LOOKASIDES[type.__call__])
