"""Torch modes (dispatch modes, torch.func transforms) active while a fusion is called or compiled.

Tracers, fake tensors and `torch.func` transforms intercept torch operations. They do not see the
memory writes of a kernel, so under them the fusion runs as torch operations. Compilation disables
all modes: the few tensors that it makes are on the CPU, whatever the default device is, and in no
graph.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch.autograd import forward_ad
from torch.utils._python_dispatch import _disable_current_modes

# Module-level aliases, because every call of a fusion uses them.
_transform = torch._C._functorch.peek_interpreter_stack
_is_tracing = torch._C._is_tracing
_dispatch_modes = torch._C._len_torch_dispatch_stack
_function_modes = torch._C._len_torch_function_stack
_KEYS = (torch._C._TorchDispatchModeKey.PROXY, torch._C._TorchDispatchModeKey.FAKE)


def is_transformed() -> bool:
    """True under a torch.func transform: vmap, grad, jvp, functionalize."""
    return _transform() is not None


def is_forward_mode() -> bool:
    """True inside of a `torch.autograd.forward_ad.dual_level`: tensors may have tangents."""
    return bool(forward_ad._current_level >= 0)


def wants_operations() -> bool:
    """True if a transform, forward-mode AD, a tracer or a fake mode needs to see torch operations
    instead of kernels.
    """
    if _transform() is not None or forward_ad._current_level >= 0 or _is_tracing():
        return True
    if _dispatch_modes():
        return any(torch._C._get_dispatch_mode(key) is not None for key in _KEYS)
    # Pre-dispatch tracers, which run before autograd, also push a torch function mode.
    return bool(_function_modes()) and _is_traced_early()


def _is_traced_early() -> bool:
    from torch._ops import _get_dispatch_mode_pre_dispatch

    return _get_dispatch_mode_pre_dispatch(_KEYS[0]) is not None


@contextlib.contextmanager
def without_modes() -> Iterator[None]:
    """Disable all dispatch and function modes inside the block."""
    with _disable_current_modes(), torch._C.DisableTorchFunction():
        yield
