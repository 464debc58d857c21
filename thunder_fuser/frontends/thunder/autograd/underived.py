"""Operations that torch has no derivative for.

Torch raises an error when a gradient reaches one, not when it is computed: a program may compare
its result, detach it, or never run backward. So a backward that a gradient reaches has a call which
raises torch's error, and all others do not.
"""

from __future__ import annotations

import torch
from thunder.core.prims import get_grad, put_grad
from thunder.core.proxies import TensorProxy
from thunder.executors.torchex import _always_executable, ex


def _meta(gradient: TensorProxy, like: TensorProxy, name: str) -> TensorProxy:
    return TensorProxy(like=like, requires_grad=False)


def _raise(gradient: torch.Tensor, like: torch.Tensor, name: str) -> torch.Tensor:
    raise NotImplementedError(f"the derivative for '{name}' is not implemented.")


_UNDERIVED = ex.register_operator("fuser_underived", meta=_meta, fn=_raise)
ex.register_implementation(_UNDERIVED.id, _UNDERIVED, checker=_always_executable)


def put_underived(result: TensorProxy, name: str, *operands: TensorProxy | float) -> None:
    """Put gradients that raise torch's NotImplementedError where they are computed.

    name  of the operation, and of an operand behind a colon, as torch's error has it
    """
    gradient = get_grad(result)
    for x in operands:
        if isinstance(x, TensorProxy):
            put_grad(x, _UNDERIVED(gradient, x, name))
