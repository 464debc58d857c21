"""Functions of torch that update their first operand: `torch.sigmoid_(x)`, `F.elu_(x)`.

Thunder knows those of which it has a method, `torch.relu_`. Here a function that is a method, too,
is that method of the tensor, and the activations that are none copy what the function without the
underscore computes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from types import BuiltinFunctionType
from typing import Any

import torch
import torch.nn.functional as F
from thunder.core import interpreter, jit_ext

from thunder_fuser.frontends.thunder.patches.patched import ask_first

Function = Callable[..., Any]

_HOMES = (torch._C._VariableFunctions, torch._C._nn)


def _lookaside(original: Function, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Return the replacement of a call on wrapped values, or None."""
    update = _update(fn)
    if update is None:
        return original(fn, *args, **kwargs)
    return partial(interpreter._interpret_call, update)


@cache
def _update(function: Function) -> Function | None:
    """Return what does the same by methods, to be interpreted; None for all other functions."""
    name = getattr(function, "__name__", "")
    if not name.endswith("_") or name.startswith("_"):
        return None
    if function in jit_ext._general_jit_lookaside_map:
        return None
    if not any(getattr(home, name, None) == function for home in _HOMES):
        return None
    if hasattr(torch.Tensor, name):
        return lambda input, *args, **kwargs: getattr(input, name)(*args, **kwargs)
    computed: Function | None = getattr(F, name[:-1], None)
    if computed is None:
        return None
    return lambda input, *args, **kwargs: input.copy_(computed(input, *args, **kwargs))


def register() -> None:
    """Patch how Thunder looks for replacements to use `_lookaside`."""
    ask_first(_lookaside, kinds=(BuiltinFunctionType,))
