"""Tensors in tuples and lists that a call with a replacement of ours is given.

Thunder makes proxies of global tensors, and of those of closures, when a call of its own is given
them, also in a tuple or a list. It does not do so for calls that an executor replaces:
`torch.hstack(PAIR)` had the tensors of the first call for ever, and `x[(MASK,)] = 0` no mask.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from thunder.core import jit_ext
from thunder.core.utils import is_hashable

from thunder_fuser.frontends.thunder.patches.patched import ask_first, is_patched


def _lookaside(original: Callable[..., Any], fn: Any, *args: Any, **kwargs: Any) -> Any:
    """Return the replacement of a call on wrapped values, or None; the values become proxies."""
    if is_patched() and is_hashable(fn) and fn in jit_ext.get_jit_ctx()._executor_lookasides:
        jit_ext.recursively_proxy(*args, **kwargs)
    return original(fn, *args, **kwargs)


def register() -> None:
    """Patch how Thunder looks for replacements."""
    ask_first(_lookaside)
