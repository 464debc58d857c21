"""`module.to(dtype)` in a traced function: nothing where its tensors have that dtype already.

Routers in transformers convert their classifier to its own dtype at each call (NLLB-MoE), to undo
what a loader of 8-bit weights may have done. Thunder interpreted how torch moves a module, down to
a function that it does not know. A module that would have to change raises. For functions compiled
with this executor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import torch
from thunder.core import interpreter
from thunder.core.devices import Device, to_torch_device
from thunder.core.dtypes import dtype as DType
from thunder.core.dtypes import to_torch_dtype
from thunder.core.interpreter import WrappedValue, unwrap
from thunder.core.proxies import TensorProxy
from torch import nn

from thunder_fuser.frontends.thunder.patches.patched import ask_first

_DTYPES = {
    nn.Module.float: torch.float32,
    nn.Module.double: torch.float64,
    nn.Module.half: torch.float16,
    nn.Module.bfloat16: torch.bfloat16,
}
_REASON = (
    "the tensors of a module are converted and moved once, outside of the compiled function; they "
    "would change for every other call, too"
)


def _lookaside(original: Callable[..., Any], fn: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Return what replaces such a call of a wrapped module: the module, or what raises."""
    module, *given = map(unwrap, args)
    options = {name: unwrap(x) for name, x in kwargs.items()}
    if isinstance(module, nn.Module) and _is_already(module, fn, given, options):
        return _itself
    name = f"{type(module).__name__}.{fn.__name__}"
    error = NotImplementedError(f"{name} in a compiled function: {_REASON}")
    return lambda *args, **kwargs: interpreter.do_raise(error)


def _itself(module: WrappedValue, /, *args: Any, **kwargs: Any) -> WrappedValue:
    return module


def _is_already(module: nn.Module, fn: Any, given: list[Any], options: dict[str, Any]) -> bool:
    """True if the call would change no tensor of the module."""
    if fn in _DTYPES:
        device, dtype = None, _DTYPES[fn]
    else:
        args = [_as_torch(x) for x in given]
        kwargs = {name: _as_torch(x) for name, x in options.items()}
        device, dtype, _, memory_format = torch._C._nn._parse_to(*args, **kwargs)
        if memory_format is not None:
            return False
    return all(
        (dtype is None or to_torch_dtype(x.dtype) == dtype or not _is_converted(x))
        and (device is None or to_torch_device(x.device) == device)
        for x in _tensors(module)
    )


def _as_torch(x: Any) -> Any:
    if isinstance(x, DType):
        return to_torch_dtype(x)
    if isinstance(x, Device):
        return to_torch_device(x)
    if isinstance(x, TensorProxy):
        return torch.empty((), dtype=to_torch_dtype(x.dtype), device=to_torch_device(x.device))
    return x


def _tensors(module: nn.Module) -> Iterator[Any]:
    return chain(module.parameters(), module.buffers())


def _is_converted(x: Any) -> bool:
    dtype = to_torch_dtype(x.dtype)
    return bool(dtype.is_floating_point or dtype.is_complex)


def register() -> None:
    """Patch how Thunder looks for replacements."""
    ask_first(_lookaside, of=(nn.Module.to, *_DTYPES))
