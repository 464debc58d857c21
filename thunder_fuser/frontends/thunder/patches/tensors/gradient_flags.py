"""Whether a tensor requires a gradient: `x.requires_grad`, `x.requires_grad_()`.

Thunder assumes that no result of an operation requires one: `if y.requires_grad` went the other way
than in eager code. And it keeps attributes that were read once, but an update in place may give a
tensor a history. A program may ask gradients of a tensor that it makes: what results may then be is
decided at the end of the trace (`updates/made_leaves.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import chain
from typing import Any

from thunder.core import dtypes, jit_ext
from thunder.core.interpreter import WrappedValue, interpreter_needs_wrap, unwrap
from thunder.core.proxies import ProxyTag, TensorProxy
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import get_tracectx

from thunder_fuser.frontends.thunder.autograd.gradient_flags import (
    is_differentiable,
    requires_gradient,
)
from thunder_fuser.frontends.thunder.patches.patched import is_patched
from thunder_fuser.frontends.thunder.patches.tensors.tensor_attributes import METHODS, known

_LOOKASIDES: dict[Callable[..., Any], Callable[..., Any]] = jit_ext._general_jit_lookaside_map
_FLAG = "requires_grad"
INSTEAD = (
    "gradients are computed of arguments alone; call it before the compiled function, or x.detach()"
    " in it"
)
"""Way out for what asks gradients of other tensors."""


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
        _ask(self, requires_grad)
    return self


def _ask(x: TensorProxy, requires_grad: bool) -> None:
    """Make a new tensor a leaf of autograd's graph. Raises RuntimeError for a tensor without
    gradients, as torch does, and NotImplementedError for an argument, for one with a history, and
    for one of which others have been computed already, which have none.
    """
    if requires_grad and not dtypes.is_inexact_dtype(x.dtype):
        raise RuntimeError("only Tensors of floating point dtype can require gradients")
    symbols = chain.from_iterable(get_tracectx().scopes)
    if not requires_grad or x.history is not None or any(_computes_of(x, s) for s in symbols):
        raise NotImplementedError(
            f"x.requires_grad_({requires_grad}) in a compiled function: {INSTEAD}"
        )
    x.tags.add(ProxyTag.LEAF_OF_TORCH)


def _computes_of(x: TensorProxy, symbol: BoundSymbol) -> bool:
    """True if a call computes another tensor of `x`, which may have a gradient, or updates `x`."""
    if all(p.name != x.name for p in symbol.flat_proxy_args):
        return False
    outs = symbol.flat_proxy_outs
    return not outs or any(is_differentiable(p) and p.name != x.name for p in outs)


def register() -> None:
    """Patch Thunder's interpreter to use `_requires`, and add `_require` to its tensors."""
    _LOOKASIDES[TensorProxy.requires_grad.fget] = interpreter_needs_wrap(_requires)
    _LOOKASIDES[getattr] = partial(_get_attribute, _LOOKASIDES[getattr])
    _LOOKASIDES[_ask] = interpreter_needs_wrap(_ask)
    METHODS["requires_grad_"] = _require
