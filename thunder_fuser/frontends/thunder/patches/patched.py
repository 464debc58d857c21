"""How Thunder is patched: for functions compiled with this executor, and no others."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from thunder.core import jit_ext
from thunder.core.compile_data import get_compile_data


class UnknownNumbersError(NotImplementedError):
    """Raised where a trace would need the numbers in a tensor: for a size, or a branch."""


def is_patched() -> bool:
    """True while Thunder compiles a function with an executor that has `patches_thunder`."""
    return has_patches(get_compile_data())


def has_patches(data: Any) -> bool:
    """True if the compile data, or None, is that of a function compiled with such an executor."""
    if data is None:
        return False
    # Asked at each step of a trace, in a fourth of the time of `any` with a generator.
    for executor in data.executors_list:  # noqa: SIM110
        if getattr(executor, "patches_thunder", False):
            return True
    return False


class _Choice:
    """Chooses what replaces a call: Thunder, or `first` while it `is_patched`."""

    def __init__(self, thunders: Callable[..., Any]) -> None:
        self.thunders = self.first = thunders

    def __call__(self, fn: Any, *args: Any, **kwargs: Any) -> Any:
        choose = self.first if is_patched() else self.thunders
        return choose(fn, *args, **kwargs)


_CHOICE = _Choice(jit_ext.general_jit_lookaside)


def ask_first(lookaside: Callable[..., Any]) -> None:
    """Let `lookaside(original, fn, *args, **kwargs)` choose what replaces a call of `fn` on wrapped
    values, while Thunder `is_patched`: a function of wrapped values, or None. `original` is the
    choice without it.
    """
    _CHOICE.first = partial(lookaside, _CHOICE.first)
    jit_ext.general_jit_lookaside = _CHOICE
