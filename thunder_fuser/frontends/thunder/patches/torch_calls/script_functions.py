"""Functions of TorchScript: what `torch.jit.script` and `torch.jit.trace` make of functions.

Thunder called them with proxies by a method that pybind11 has made, and took that for a method of
the type of all such methods: the process was aborted. For functions compiled with this executor,
the Python function that they are made of is interpreted, as Dynamo does. A module of TorchScript
keeps no such function, and is refused; pybind11's methods are called as they are, for all.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from thunder.core import interpreter

from thunder_fuser.frontends.thunder.patches.patched import ask_first

_RECORDS = "pybind11_detail_function_record"
"""How the types of what pybind11's functions are bound to begin."""
_original_capsule: Callable[[Any], bool] = interpreter.is_pycapsule


def _lookaside(original: Callable[..., Any], fn: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Return the replacement of a call on wrapped values, or the signal of an exception."""
    made_of = getattr(fn, "_torchdynamo_inline", None)
    if made_of is None:
        reason = (
            f"{type(fn).__name__} of TorchScript, whose operations are not known while a function "
            "is traced; call the module or function that it was made of"
        )
        return interpreter.do_raise(NotImplementedError(reason))
    return partial(interpreter._interpret_call, made_of)


def _is_no_owner(value: Any) -> bool:
    """True for what a builtin function may be bound to without being a method of its type."""
    return type(value).__name__.startswith(_RECORDS) or _original_capsule(value)


def register() -> None:
    """Patch how Thunder's interpreter calls functions of C++."""
    interpreter.is_pycapsule = _is_no_owner
    ask_first(_lookaside, kinds=(torch.jit.ScriptFunction, torch.jit.ScriptModule))
