"""Whether a tensor requires a gradient: `x.requires_grad`, `x.requires_grad_()`.

Thunder knows that of arguments, but assumes that no result of an operation requires one:
`if y.requires_grad` went the other way than in eager code. Here a result requires a gradient if an
operand of its operation does, under torch's grad mode.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any

from thunder.core import dtypes, jit_ext
from thunder.core.interpreter import interpreter_needs_wrap
from thunder.core.proxies import ProxyTag, TensorProxy

from thunder_fuser.frontends.thunder.patches.patched import is_patched
from thunder_fuser.frontends.thunder.patches.tensors.tensor_attributes import METHODS, known

_LOOKASIDES: dict[Callable[..., Any], Callable[..., Any]] = jit_ext._general_jit_lookaside_map
_DETACH = "torch.detach"


def _requires(x: TensorProxy) -> bool:
    """True if a gradient goes from `x` to an argument that requires one."""
    if x.requires_grad or not is_patched():
        return bool(x.requires_grad)
    names: set[str] = set()
    for bsym in chain.from_iterable(jit_ext.get_jit_ctx().computation_trace.scopes):
        operands = (p for p in bsym.flat_proxy_args if isinstance(p, TensorProxy))
        if bsym.sym.id == _DETACH:
            continue
        if any(p.requires_grad or p.name in names for p in operands):
            names.update(p.name for p in bsym.flat_proxy_outs if _is_differentiable(p))
    return x.name in names


def _is_differentiable(x: Any) -> bool:
    return (
        isinstance(x, TensorProxy)
        and dtypes.is_inexact_dtype(x.dtype)
        and ProxyTag.DETACHED_AUTOGRAD_GRAPH not in x.tags
    )


def _require(self: Any, requires_grad: bool = True) -> Any:
    known("requires_grad_")
    if self.requires_grad != requires_grad:
        raise NotImplementedError(
            f"x.requires_grad_({requires_grad}) in a compiled function: gradients are computed of "
            "its arguments alone; call it before the compiled function, or x.detach() in it"
        )
    return self


def register() -> None:
    """Patch Thunder's interpreter to use `_requires`, and add `_require` to its tensors."""
    _LOOKASIDES[TensorProxy.requires_grad.fget] = interpreter_needs_wrap(_requires)
    METHODS["requires_grad_"] = _require
