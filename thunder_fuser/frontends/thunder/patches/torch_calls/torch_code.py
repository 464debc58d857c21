"""Functions of torch that are interpreted, as the user's code is, or that do nothing in a trace.

Thunder has an operation for `interpolate`, which raises for the modes "area" and "bicubic", and
with antialiasing; torch's function calls pools and operations that are fused or run in torch. And
the ranges of `torch.profiler.record_function` begin and end in operations that Thunder does not
know; a compiled function has none. For functions compiled with this executor.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from thunder.core.interpreter import unwrap, wrap_const
from torch.autograd.profiler import record_function
from torch.nn import functional

from thunder_fuser.frontends.thunder.patches.patched import ask_first

Function = Callable[..., Any]

_SIGNATURE = inspect.signature(functional.interpolate)
_MODES = ("nearest", "nearest-exact", "linear", "bilinear", "trilinear")


def _lookaside(original: Function, fn: Any, *args: Any, **kwargs: Any) -> Any:
    """Return the replacement of a call on wrapped values, or None, which interprets it."""
    if fn is functional.interpolate and _is_unknown(*args, **kwargs):
        return None
    if fn is record_function.__enter__:
        return lambda held: held
    if fn is record_function.__exit__:
        return lambda *raised: wrap_const(None)
    return original(fn, *args, **kwargs)


def _is_unknown(*args: Any, **kwargs: Any) -> bool:
    """True for an interpolation that is none of Thunder's."""
    try:
        given = _SIGNATURE.bind(*args, **kwargs).arguments
    except TypeError:
        return False
    named = {name: unwrap(value) for name, value in given.items()}
    return named.get("mode", "nearest") not in _MODES or bool(named.get("antialias"))


def register() -> None:
    """Patch how Thunder looks for replacements to use `_lookaside`."""
    ask_first(_lookaside)
