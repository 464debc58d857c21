"""Methods of tensors that are called as functions, such as `torch.Tensor.uniform_(x, 0, 1)`.

Thunder replaces those in its map of torch's functions. All others are descriptors of torch, which
take no proxy: `descriptor 'uniform_' .. doesn't apply to a 'TensorProxy' object`. Here the call is
that of the method that the proxy has, `x.uniform_(0, 1)`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import MethodDescriptorType, WrapperDescriptorType
from typing import Any

import torch
from thunder.core import interpreter
from thunder.core.interpreter import INTERPRETER_SIGNALS, WrappedValue, unwrap, wrap_const
from thunder.core.proxies import TensorProxy

from thunder_fuser.frontends.thunder.patches.patched import ask_first

_DESCRIPTORS = (MethodDescriptorType, WrapperDescriptorType)


def _lookaside(original: Callable[..., Any], fn: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Return the replacement of a call on wrapped values, or None."""
    found = original(fn, *args, **kwargs)
    is_method = getattr(torch.Tensor, fn.__name__, None) is fn
    if found is None and is_method and args and isinstance(unwrap(args[0]), TensorProxy):
        return partial(_call, fn.__name__)
    return found


def _call(name: str, /, x: WrappedValue, *args: WrappedValue, **kwargs: WrappedValue) -> Any:
    """Return the wrapped result of `x.name(..)`, or an interpreter's signal."""
    method = interpreter._interpret_call(getattr, x, wrap_const(name))
    if isinstance(method, INTERPRETER_SIGNALS):
        return method
    return interpreter._interpret_call(method, *args, **kwargs)


def register() -> None:
    """Patch how Thunder looks for replacements to use `_lookaside`."""
    ask_first(_lookaside, kinds=_DESCRIPTORS)
