"""Attributes of tensors that a program sets, and gradients that it reads: refused.

Thunder loses `p.data = y`, as momentum encoders write it, where `p` is reached by an iterator such
as `parameters()`, or computed; elsewhere it raised an error about unpacking. It read `p.grad` as it
was in the first call. `x.real = y` writes elements, as `x.real.copy_(y)` does; it was left out
where `x` is computed. For functions compiled with this executor.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from thunder.core import interpreter, jit_ext
from thunder.core.interpreter import WrappedValue, unwrap
from thunder.core.proxies import TensorProxy

from thunder_fuser.frontends.thunder.patches.patched import is_patched
from thunder_fuser.frontends.thunder.patches.tensors.tensor_attributes import METHODS

_LOOKASIDES: dict[Callable[..., Any], Callable[..., Any]] = jit_ext._general_jit_lookaside_map
_REASONS = {
    "data": "it gives the tensor other memory; write x.data.copy_(y), which keeps it",
    "grad": "gradients are accumulated after the call; set them outside of it",
}
_OTHER = "a call does not change the caller's tensors but for their elements; set it outside"
_FLAG = "requires_grad"
_PARTS = ("real", "imag")


def _refused(action: str, name: str, reason: str) -> Any:
    error = NotImplementedError(f"a compiled function {action} x.{name} of a tensor: {reason}")
    return interpreter.do_raise(error)


def _is_given(x: object) -> bool:
    """True for a tensor of the caller's."""
    return isinstance(x, torch.Tensor) or (isinstance(x, TensorProxy) and x.history is not None)


def _set(
    original: Callable[..., Any], target: WrappedValue, name: WrappedValue, value: WrappedValue
) -> Any:
    """Set an attribute of a wrapped value; return None, wrapped, or the interpreter's signal."""
    held, text = unwrap(target), unwrap(name)
    if not isinstance(held, torch.Tensor | TensorProxy) or not is_patched():
        return original(target, name, value)
    if text == _FLAG and isinstance(held, TensorProxy):
        return interpreter._interpret_call(METHODS["requires_grad_"], target, value)
    if text in _PARTS and isinstance(held, TensorProxy):
        return interpreter._interpret_call(_write, target, name, value)
    if text in _REASONS or (text != _FLAG and _is_given(held)):
        return _refused("sets", text, _REASONS.get(text, _OTHER))
    return original(target, name, value)


def _write(x: Any, part: str, value: Any) -> None:
    """Write the elements of a part of complex numbers; the interpreter runs it."""
    getattr(x, part).copy_(value)


def _get(original: Callable[..., Any], held: Any, name: WrappedValue, *default: Any) -> Any:
    """Return a wrapped attribute, or the interpreter's signal."""
    x = unwrap(held)
    is_asked = unwrap(name) == "grad" and isinstance(x, torch.Tensor | TensorProxy) and is_patched()
    if is_asked and _is_given(x) and x.requires_grad:
        return _refused("reads", "grad", "its value is that of one call; pass it as an argument")
    return original(held, name, *default)


def register() -> None:
    """Patch how Thunder's interpreter reads and sets attributes."""
    _LOOKASIDES[setattr] = partial(_set, _LOOKASIDES[setattr])
    _LOOKASIDES[getattr] = partial(_get, _LOOKASIDES[getattr])
