"""Torch modes (dispatch modes, torch.func transforms) that are on while a fusion is called or
compiled.

Tracers, fake tensors and the transforms of `torch.func` follow torch's operations. A kernel writes
into memory behind their back, so they are given the operations. Compiling, on the other hand, is
nobody's business: the few tensors that it makes are on the CPU, whatever the default device is, and
in no graph.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch.utils._python_dispatch import _disable_current_modes

# By names of this module: every call of a fusion asks.
_transform = torch._C._functorch.peek_interpreter_stack
_is_tracing = torch._C._is_tracing
_dispatch_modes = torch._C._len_torch_dispatch_stack
_function_modes = torch._C._len_torch_function_stack
_KEYS = (torch._C._TorchDispatchModeKey.PROXY, torch._C._TorchDispatchModeKey.FAKE)


def is_transformed() -> bool:
    """Whether a transform of torch.func is under way: vmap, grad, jvp, functionalize."""
    return _transform() is not None


def wants_operations() -> bool:
    """Whether something follows the operations of torch, or stands in for them."""
    if _transform() is not None or _is_tracing():
        return True
    if _dispatch_modes():
        return any(torch._C._get_dispatch_mode(key) is not None for key in _KEYS)
    # Tracers that work before autograd are among the modes for functions as well.
    return bool(_function_modes()) and _is_traced_early()


def _is_traced_early() -> bool:
    from torch._ops import _get_dispatch_mode_pre_dispatch

    return _get_dispatch_mode_pre_dispatch(_KEYS[0]) is not None


@contextlib.contextmanager
def without_modes() -> Iterator[None]:
    """What is computed in here is seen by no mode and changed by none."""
    with _disable_current_modes(), torch._C.DisableTorchFunction():
        yield
