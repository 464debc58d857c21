"""State of the caller in objects written in C: a compiled function that changes it is refused.

`next(batches)`, `for x in generator` and `counts[0] += 1` of an array take effect while the
function is traced, and no call of the compiled function did it again: each had the elements of the
first one. What is written in Python is traced, and changes at each call, and so do lists,
dictionaries, deques and sets (`patches/changes`). Random numbers of Python and NumPy, by
`random.random()`, were those of the first call, too.
"""

from __future__ import annotations

import array
import random
from collections.abc import Callable
from types import WrapperDescriptorType
from typing import Any

import numpy as np
from thunder.core import interpreter
from thunder.core.interpreter import WrappedValue, unwrap

from thunder_fuser.frontends.thunder.patches.guards.value_guards import is_of_caller
from thunder_fuser.frontends.thunder.patches.patched import UntraceableError, ask_first

_GENERATORS = (random.Random, np.random.RandomState, np.random.Generator)
_OWN_GENERATORS = (random.random.__self__, np.random.rand.__self__)  # type: ignore[attr-defined]
_ARRAYS = (np.ndarray, array.array, bytearray)
_IN_PLACE = (
    *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul"),
    *("and", "or", "xor", "lshift", "rshift"),
)
_WRITES = frozenset({"__setitem__", "__delitem__", *(f"__i{name}__" for name in _IN_PLACE)})


def _lookaside(original: Callable[..., Any], fn: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Return what raises in place of a method that changes an object which a prologue can read."""
    wrapped = args[0] if args else None
    if not isinstance(wrapped, WrappedValue):
        return original(fn, *args, **kwargs)
    held, found = unwrap(wrapped), None
    if fn.__name__ == "__next__":
        found = (
            "advances an iterator of its caller ({kind}): each call would have the elements of "
            "the first one; call next outside and pass what it returns, or keep a list and an index"
        )
    elif fn.__name__ in _WRITES and isinstance(held, _ARRAYS):
        found = (
            "writes to an array of its caller ({kind}), which its first call alone would do; write "
            "to it outside, or keep a tensor or a list, to which each call writes"
        )
    if found is None or not is_of_caller(wrapped):
        return original(fn, *args, **kwargs)
    error = UntraceableError(f"a compiled function {found.format(kind=type(held).__name__)}")
    return lambda *_: interpreter.do_raise(error)


def _draw(original: Callable[..., Any], fn: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Return what raises in place of a method that draws numbers of a generator of the caller, or
    of Python's or NumPy's own.
    """
    generator = unwrap(args[0]) if args else None
    if not isinstance(generator, _GENERATORS) or not (
        generator in _OWN_GENERATORS or is_of_caller(args[0])
    ):
        return original(fn, *args, **kwargs)
    kind = f"{type(generator).__module__}.{type(generator).__name__}"
    error = UntraceableError(
        f"a compiled function draws random numbers of Python or NumPy ({kind}.{fn.__name__}): each "
        "call would have those of the first one; draw with torch (torch.rand), or outside, and "
        "pass the number"
    )
    return lambda *_, **__: interpreter.do_raise(error)


def register() -> None:
    """Patch how Thunder's interpreter calls methods of types that are written in C."""
    ask_first(_draw, of=(random.Random.random, random.Random.getrandbits))
    ask_first(
        _draw, kinds=tuple({type(np.random.RandomState.rand), type(np.random.Generator.random)})
    )
    ask_first(_lookaside, kinds=(WrapperDescriptorType,))
