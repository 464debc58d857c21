"""Refusals of calls whose result has a size that the numbers in their operands decide, or is a
Python bool that they decide.

Thunder ran `torch.nonzero`, `torch.unique`, `torch.equal` and the like on tensors without values,
and its message was of how it registers operators. Which they are, torch's tags of operators say.
For functions compiled with this executor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from types import BuiltinFunctionType, FunctionType, MethodDescriptorType
from typing import Any

import torch
from thunder.core import interpreter
from thunder.core.interpreter import unwrap
from thunder.core.proxies import TensorProxy

from thunder_fuser.frontends.thunder.patches.patched import ask_first, is_patched
from thunder_fuser.frontends.thunder.patches.tensors.tensor_attributes import METHODS

Function = Callable[..., Any]

_FUNCTIONS = (BuiltinFunctionType, FunctionType, MethodDescriptorType)
_SIZE = (
    "the size of its result depends on the numbers in its operands; compile the functions or "
    "modules around it, and call it outside of them"
)
_BOOL = (
    "it returns a Python bool, which depends on the numbers in its operands; {other} is a tensor "
    "that says the same"
)
_BOOLS = {"allclose": "torch.isclose(x, y).all()", "equal": "(x == y).all()"}
"""Functions that return a bool, with tensors of the same meaning."""


def _lookaside(original: Function, fn: Any, *args: Any, **kwargs: Any) -> Any:
    """Return the replacement of a call on wrapped values, None, or the signal of an exception."""
    if isinstance(fn, _FUNCTIONS) and (_is_unknown(fn) or _decides_size(fn, args, kwargs)):
        return interpreter.do_raise(_refusal(fn.__name__))
    return original(fn, *args, **kwargs)


def _decides_size(fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """True for functions whose results have such a size with some arguments only."""
    if fn is torch.where:  # With a condition alone it returns the places where that is true.
        return len(args) + len(kwargs) == 1
    numbers = [*args, *kwargs.values()] if fn is torch.arange else []
    if fn in (torch.tensor_split, torch.Tensor.tensor_split):
        numbers = [*args[1:], *kwargs.values()]
    return any(isinstance(unwrap(x), TensorProxy) for x in numbers)


def _method(name: str, original: Function | None, *args: Any, **kwargs: Any) -> Any:
    if is_patched():
        raise _refusal(name)
    if original is None:
        raise AttributeError(f"Unknown attribute {name}")
    return original(*args, **kwargs)


def _refusal(name: str) -> NotImplementedError:
    other = _BOOLS.get(name)
    return NotImplementedError(f"{name}: {_BOOL.format(other=other) if other else _SIZE}")


@cache
def _is_unknown(function: Any) -> bool:
    """True for such a function of torch, or method of its tensors, with any arguments."""
    name = getattr(function, "__name__", "")
    homes = (torch, torch._C._VariableFunctions, torch.Tensor)
    is_torchs = any(getattr(home, name, None) == function for home in homes)
    operator = getattr(getattr(torch.ops.aten, name, None), "default", None)
    has_unknown_size = torch.Tag.dynamic_output_shape in getattr(operator, "tags", ())
    return is_torchs and (has_unknown_size or name in _BOOLS)


def register() -> None:
    """Patch how Thunder looks for replacements to use `_lookaside`, and its methods of tensors."""
    ask_first(_lookaside)
    for name in (*METHODS, *_BOOLS):
        if _is_unknown(getattr(torch.Tensor, name, None)):
            METHODS[name] = partial(_method, name, METHODS.get(name))
