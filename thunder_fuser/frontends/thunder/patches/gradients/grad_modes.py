"""Grad modes inside of a compiled function: `torch.is_grad_enabled()`, `torch.inference_mode()`.

Thunder follows `torch.no_grad()`, but answered `torch.is_grad_enabled()` by the mode of the caller,
which such contexts ask for as they are entered: after a `no_grad` in a `no_grad`, gradients were
enabled. And it ignored `torch.inference_mode()`, whose results then required gradients; here it is
a `no_grad`. For functions compiled with this executor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from thunder.core import interpreter
from thunder.core.compile_data import get_compile_data

from thunder_fuser.frontends.thunder.patches.patched import ask_first

Function = Callable[..., Any]


def _is_enabled() -> bool:
    data = get_compile_data()
    assert data is not None
    return bool(data.is_grad_enabled)


def _enter(self: Any) -> None:
    self._inference_mode_context = torch.is_grad_enabled()
    torch._C._set_grad_enabled(not self.mode)


def _exit(self: Any, *_: Any) -> None:
    torch._C._set_grad_enabled(self._inference_mode_context)


_INTERPRETED: Mapping[Function, Function] = {
    torch.is_grad_enabled: interpreter.make_opaque(_is_enabled),
    torch.inference_mode.__enter__: _enter,
    torch.inference_mode.__exit__: _exit,
}


def _lookaside(original: Function, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Return the replacement of a call on wrapped values."""
    return partial(interpreter._interpret_call, _INTERPRETED[fn])


def register() -> None:
    """Patch how Thunder looks for replacements."""
    ask_first(_lookaside, of=_INTERPRETED)
