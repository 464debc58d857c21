"""How Thunder is patched: for functions compiled with this executor, and no others."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from thunder.core import jit_ext
from thunder.core.compile_data import get_compile_data


def is_patched() -> bool:
    """True while Thunder compiles a function with an executor that has `patches_thunder`."""
    return has_patches(get_compile_data())


def has_patches(data: Any) -> bool:
    """True if the compile data, or None, is that of a function compiled with such an executor."""
    executors = data.executors_list if data is not None else ()
    return any(getattr(executor, "patches_thunder", False) for executor in executors)


def ask_first(lookaside: Callable[..., Any]) -> None:
    """Let `lookaside(original, fn, *args, **kwargs)` choose what replaces a call of `fn` on wrapped
    values: a function of wrapped values, or None. `original` is the choice without it.
    """
    jit_ext.general_jit_lookaside = partial(lookaside, jit_ext.general_jit_lookaside)
