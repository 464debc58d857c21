"""Refusals of calls whose result has a size that the numbers in their operands decide.

Thunder ran `torch.nonzero`, `torch.unique` and the like on tensors without values, and its message
was of how it registers operators. Which they are, torch's tags of operators say. For functions
compiled with this executor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from types import BuiltinFunctionType, FunctionType, MethodDescriptorType
from typing import Any

import torch
from thunder import clang
from thunder.core import interpreter
from thunder.core.dtypes import bool8, uint8
from thunder.core.interpreter import unwrap
from thunder.core.proxies import TensorProxy

from thunder_fuser.frontends.thunder.patches.patched import (
    UnknownNumbersError,
    ask_first,
    is_patched,
)
from thunder_fuser.frontends.thunder.patches.tensors.known_tensors import number_of
from thunder_fuser.frontends.thunder.patches.tensors.tensor_attributes import METHODS

Function = Callable[..., Any]

_FUNCTIONS = (BuiltinFunctionType, FunctionType, MethodDescriptorType)


def _lookaside(original: Function, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Return the replacement of a call on wrapped values, None, or the signal of an exception."""
    if _has_unknown_size(fn) or _decides_size(fn, args, kwargs):
        return interpreter.do_raise(UnknownNumbersError.of_size(fn.__name__))
    return original(fn, *args, **kwargs)


def _decides_size(fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """True for functions whose results have such a size with some arguments only."""
    if fn is torch.where:  # With a condition alone it returns the places where that is true.
        return len(args) + len(kwargs) == 1
    if fn is torch.nn.functional.one_hot:
        classes = unwrap(kwargs.get("num_classes", args[1] if len(args) > 1 else -1))
        return isinstance(classes, int) and classes == -1
    if fn in (torch.tensor_split, torch.Tensor.tensor_split):
        return any(isinstance(unwrap(x), TensorProxy) for x in (*args[1:], *kwargs.values()))
    tensors = [unwrap(x) for x in (*args, *kwargs.values())] if fn is torch.arange else []
    return any(isinstance(x, TensorProxy) and number_of(x) is None for x in tensors)


def _method(name: str, original: Function, /, *args: Any, **kwargs: Any) -> Any:
    if is_patched():
        raise UnknownNumbersError.of_size(name)
    return original(*args, **kwargs)


def _indexed(original: Function, x: Any, /, key: Sequence[Any]) -> Any:
    """Index with tensors; a mask, also of the older kind of bytes, selects as many elements as it
    has true ones.
    """
    masks = [k for k in key if isinstance(k, TensorProxy) and k.dtype in (bool8, uint8)]
    if masks and is_patched():
        raise UnknownNumbersError.of_size("x[mask]")
    return original(x, key)


def _indexed_whole(original: Function, x: Any, /, key: Any) -> Any:
    """Index a tensor of no dimensions, of which a mask of none selects a copy or nothing."""
    if x.ndim:
        return original(x, key)
    return _indexed(original, x, key if isinstance(key, tuple) else (key,))


_OPERATORS: Mapping[str, str] = {"unique": "unique_dim"}
"""Operators of functions that have another name."""


@cache
def _has_unknown_size(function: Any) -> bool:
    """True for such a function of torch, or method of its tensors, with any arguments."""
    name = getattr(function, "__name__", "")
    homes = (torch, torch._C._VariableFunctions, torch.Tensor, torch._C._linalg)
    is_torchs = any(getattr(home, name, None) == function for home in homes)
    operator = getattr(getattr(torch.ops.aten, _OPERATORS.get(name, name), None), "default", None)
    return is_torchs and torch.Tag.dynamic_output_shape in getattr(operator, "tags", ())


def register() -> None:
    """Patch how Thunder looks for replacements to use `_lookaside`, and its methods of tensors."""
    ask_first(_lookaside, kinds=_FUNCTIONS)
    clang._advanced_indexing = partial(_indexed, clang._advanced_indexing)
    clang.getitem = partial(_indexed_whole, clang.getitem)
    for name, original in METHODS.items():
        if _has_unknown_size(getattr(torch.Tensor, name, None)):
            METHODS[name] = partial(_method, name, original)
