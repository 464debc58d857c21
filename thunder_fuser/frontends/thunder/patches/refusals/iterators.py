"""Iterators of the caller: a compiled function that advances one is refused.

`next(batches)` and `for x in generator` take the elements while the function is traced, and a call
of the compiled function took none: it kept those of the first call. An iterator whose class is
written in Python is traced like any object, and advances at each call.
"""

from __future__ import annotations

from collections.abc import Callable
from types import WrapperDescriptorType
from typing import Any

from thunder.core import interpreter
from thunder.core.interpreter import WrappedValue, unwrap

from thunder_fuser.frontends.thunder.patches.guards.value_guards import is_of_caller
from thunder_fuser.frontends.thunder.patches.patched import UntraceableError, ask_first


def _lookaside(original: Callable[..., Any], fn: Any, *args: Any, **kwargs: Any) -> Any:
    """Return what raises in place of `__next__` of an iterator that a prologue can read."""
    iterator = args[0] if args and fn.__name__ == "__next__" else None
    if not isinstance(iterator, WrappedValue) or not is_of_caller(iterator):
        return original(fn, *args, **kwargs)
    error = UntraceableError(
        f"a compiled function advances an iterator of its caller, a "
        f"{type(unwrap(iterator)).__name__}: each call would have the elements of the first one; "
        "call next outside, and pass what it returns, or keep a list and an index"
    )
    return lambda *_: interpreter.do_raise(error)


def register() -> None:
    """Patch how Thunder's interpreter advances iterators that are written in C."""
    ask_first(_lookaside, kinds=(WrapperDescriptorType,))
