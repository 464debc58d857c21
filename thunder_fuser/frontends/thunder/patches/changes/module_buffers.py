"""Buffers that a compiled module assigns: `self.mean = 0.9 * self.mean + 0.1 * x.mean(0)`.

Thunder gives the buffers of the module that is compiled, not those of its submodules, names that
begin with a dot, and never reads them again: each call began with the first value. And Thunder's
results all require gradients if one does, also those of `torch.no_grad()`. A buffer without
gradients remains one: a step of training must not reach into the one before. Both are patched where
a buffer is set, for modules compiled with this executor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import thunder
import torch
from thunder.core.module import ThunderModule

from thunder_fuser.frontends.thunder.patches.patched import has_patches

_original: Callable[[ThunderModule, str, Any], None] = ThunderModule.set_buffer


def as_assigned(module: ThunderModule, name: str, value: Any) -> tuple[str, Any]:
    """Return the qualified name of a buffer that a program of the module assigns, without the dot
    that it may begin with, and the value to keep.
    """
    name = name.removeprefix(".")
    if isinstance(value, torch.Tensor):
        owner, _, last = name.rpartition(".")
        held = module.get_submodule(owner)._buffers.get(last)
        if held is None or not held.requires_grad:  # None: the first call that needs it makes it
            value = value.detach()
    return name, value


def _set_buffer(self: ThunderModule, name: str, value: Any) -> None:
    """Set the buffer of a name that begins with the module itself, "", or with a submodule."""
    if has_patches(thunder.compile_data(self)):
        name, value = as_assigned(self, name, value)
    _original(self, name, value)


def register() -> None:
    """Patch compiled modules to use `_set_buffer`."""
    ThunderModule.set_buffer = _set_buffer
