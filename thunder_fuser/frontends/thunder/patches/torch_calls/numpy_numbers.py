"""Numbers of NumPy as operands: `x / np.sqrt(x.shape[-1])`, `x.reshape(np.prod(x.shape))`.

Thunder took them for no numbers. Torch takes them for the numbers of Python that they hold, except
where it makes a tensor of them, which has their dtype. For functions compiled with this executor.
"""

from __future__ import annotations

from collections.abc import Callable
from types import WrapperDescriptorType
from typing import Any

import numpy
import torch
from thunder.core.interpreter import interpreter_needs_wrap, unwrap
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import Symbol

from thunder_fuser.frontends.thunder.patches.patched import UntraceableError, ask_first, is_patched

_MAKING_TENSORS = ("tensor", "as_tensor", "asarray")


def _of_numbers(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return the call of a symbol on numbers of Python."""

    def call(symbol: Symbol, *args: Any, **kwargs: Any) -> Any:
        if is_patched():
            if (
                symbol.name in _MAKING_TENSORS
                and len(args) == 1
                and _number(args[0]) is not args[0]
            ):
                kwargs["dtype"] = kwargs.get("dtype") or torch.tensor(args[0]).dtype
            args = tuple(map(_number, args))
            kwargs = {key: _number(x) for key, x in kwargs.items()}
        try:
            return original(symbol, *args, **kwargs)
        except ValueError as error:
            if is_patched() and any(isinstance(x, numpy.ndarray) for x in args):
                raise _refusal(symbol) from error
            raise

    return call


def _refusal(symbol: Symbol) -> UntraceableError:
    return UntraceableError(
        f"{symbol.name} of a tensor and an array of NumPy: make a tensor of the array, "
        "torch.from_numpy(array), which shares its memory"
    )


def _number(value: Any) -> Any:
    """Return the Python number of one of NumPy, also in a list or tuple; any other value itself."""
    if isinstance(value, numpy.generic):
        return value.item()
    if type(value) in (list, tuple) and any(isinstance(x, numpy.generic) for x in value):
        return type(value)(map(_number, value))
    return value


def _lookaside(original: Callable[..., Any], fn: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Return the replacement of a call on wrapped values, or None."""
    is_numpys = issubclass(fn.__objclass__, numpy.generic)
    if is_numpys and any(isinstance(unwrap(x), TensorProxy) for x in args):
        # An operator, which leaves the operation to the tensor.
        return interpreter_needs_wrap(lambda *args: NotImplemented)
    return original(fn, *args, **kwargs)


def register() -> None:
    """Patch how Thunder calls symbols, and operators of NumPy's numbers."""
    Symbol.__call__ = _of_numbers(Symbol.__call__)
    ask_first(_lookaside, kinds=(WrapperDescriptorType,))
