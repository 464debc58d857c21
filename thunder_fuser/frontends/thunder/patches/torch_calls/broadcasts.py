"""Broadcasts of 0-dim CPU tensors with other CPU tensors.

Thunder treats a 0-dim CPU tensor as a number, which a primitive broadcasts itself, so that the
gradient of the tensor is never summed: `x * x.mean()` had no backward on a CPU. Here it is
broadcast as a 0-dim tensor of a GPU is. In operations with tensors of a GPU it remains a number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from thunder import clang
from thunder.core.proxies import TensorProxy

from thunder_fuser.frontends.thunder.patches.patched import is_patched

_original: Callable[..., tuple[Any, ...]] = clang.maybe_broadcast


def _broadcast(*args: Any, treat_cpu_scalar_tensors_as_numbers: bool = True) -> tuple[Any, ...]:
    """Broadcast tensors to their common shape, and pass numbers on."""
    as_numbers = treat_cpu_scalar_tensors_as_numbers
    if is_patched():
        devices = {x.device.type for x in args if isinstance(x, TensorProxy)}
        as_numbers = as_numbers and devices != {"cpu"}
    return _original(*args, treat_cpu_scalar_tensors_as_numbers=as_numbers)


def register() -> None:
    """Patch Thunder's elementwise operations to use `_broadcast`."""
    clang.maybe_broadcast = _broadcast
