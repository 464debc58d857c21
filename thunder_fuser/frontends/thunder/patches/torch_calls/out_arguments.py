"""`out=` of torch functions: the result, then an update of the given tensor.

Thunder's operations have no such argument, or refuse it, also where it is None. The power iteration
of `spectral_norm` writes to its buffers that way.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import thunder.torch as ltorch
import torch
from thunder.core.compile_data import get_compile_data
from thunder.core.interpreter import INTERPRETER_SIGNALS, interpreter_needs_wrap, unwrap
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import Symbol
from torch._ops import OpOverloadPacket

from thunder_fuser.frontends.thunder.autograd.gradient_flags import requires_gradient
from thunder_fuser.frontends.thunder.patches.patched import ask_first

Function = Callable[..., Any]


def _lookaside(original: Function, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Return the replacement of a call on wrapped values, or None."""
    out = kwargs.get("out")
    is_given = isinstance(unwrap(out), TensorProxy)
    if out is None or not (is_given or (unwrap(out) is None and _takes_out(_name(fn)))):
        return original(fn, *args, **kwargs)
    found = original(fn, *args, **{k: v for k, v in kwargs.items() if k != "out"})
    return partial(_written if is_given else _returned, found) if callable(found) else found


def _name(fn: Any) -> str:
    name: str = fn.name if isinstance(fn, Symbol) else getattr(fn, "__name__", "")
    return name


@cache
def _takes_out(name: str) -> bool:
    """True for the name of an operator of torch that has this argument."""
    packet = getattr(torch.ops.aten, name, None)
    return isinstance(packet, OpOverloadPacket) and any("out" in o for o in packet.overloads())


def _returned(function: Function, /, *args: Any, out: Any, **kwargs: Any) -> Any:
    """Call a replacement without `out`, which is None."""
    return function(*args, **kwargs)


def _written(function: Function, /, *args: Any, out: Any, **kwargs: Any) -> Any:
    """Call a replacement without `out`, and copy its result there; return the updated tensor."""
    found = function(*args, **kwargs)
    if found is INTERPRETER_SIGNALS.EXCEPTION_RAISED:
        return found
    return interpreter_needs_wrap(_write)(out, found, *args)


def _write(out: TensorProxy, result: Any, *operands: Any) -> TensorProxy:
    if not isinstance(result, TensorProxy) or tuple(result.shape) != tuple(out.shape):
        sizes = [list(result.shape)] if isinstance(result, TensorProxy) else type(result).__name__
        raise NotImplementedError(
            f"out=..: the result is {sizes}, and the tensor {list(out.shape)}; torch would resize "
            "it, which a compiled function does not: give a tensor of the result's size"
        )
    tensors = [x for x in (out, *operands) if isinstance(x, TensorProxy)]
    if get_compile_data().is_grad_enabled and any(map(requires_gradient, tensors)):
        raise RuntimeError(
            "functions with out=... arguments don't support automatic differentiation, but one of "
            "the arguments requires grad."
        )
    written: TensorProxy = ltorch.copy_(out, result)
    return written


def register() -> None:
    """Patch how Thunder looks for replacements to use `_lookaside`."""
    ask_first(_lookaside)
