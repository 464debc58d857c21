"""Whether a tensor requires a gradient: `x.requires_grad`, `x.requires_grad_()`.

Thunder assumes that no result of an operation requires one: `if y.requires_grad` went the other way
than in eager code. And it keeps attributes that were read once, but an update in place may give a
tensor a history.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from thunder.core import jit_ext
from thunder.core.interpreter import WrappedValue, interpreter_needs_wrap, unwrap
from thunder.core.proxies import TensorProxy

from thunder_fuser.frontends.thunder.autograd.gradient_flags import requires_gradient
from thunder_fuser.frontends.thunder.patches.patched import is_patched
from thunder_fuser.frontends.thunder.patches.tensors.tensor_attributes import METHODS, known
from thunder_fuser.frontends.thunder.updates.made_leaves import ask_gradient

_LOOKASIDES: dict[Callable[..., Any], Callable[..., Any]] = jit_ext._general_jit_lookaside_map
_FLAG = "requires_grad"


def _requires(x: TensorProxy) -> bool:
    return requires_gradient(x) if is_patched() else bool(x.requires_grad)


def _get_attribute(
    original: Callable[..., Any], held: Any, name: WrappedValue, *default: WrappedValue
) -> Any:
    """Return the wrapped attribute of a wrapped value, and `requires_grad` anew each time."""
    if unwrap(name) == _FLAG and isinstance(unwrap(held), TensorProxy) and is_patched():
        held.attribute_wrappers.pop(_FLAG, None)
    return original(held, name, *default)


def _require(self: Any, requires_grad: bool = True) -> Any:
    known("requires_grad_")
    if self.requires_grad != requires_grad:
        ask_gradient(self, requires_grad)
    return self


def register() -> None:
    """Patch Thunder's interpreter to use `_requires`, and add `_require` to its tensors."""
    _LOOKASIDES[TensorProxy.requires_grad.fget] = interpreter_needs_wrap(_requires)
    _LOOKASIDES[getattr] = partial(_get_attribute, _LOOKASIDES[getattr])
    _LOOKASIDES[ask_gradient] = interpreter_needs_wrap(ask_gradient)
    METHODS["requires_grad_"] = _require
