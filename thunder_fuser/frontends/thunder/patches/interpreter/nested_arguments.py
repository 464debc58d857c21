"""Tensors in tuples and lists that are passed to a call which this executor replaces.

Thunder makes proxies of tensors in globals and closures when they are passed to a call that it
replaces itself, also inside a tuple or list, but not for calls that an executor replaces:
`torch.hstack(PAIR)` kept the tensors of the first call, and `x[(MASK,)] = 0` had no mask.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from thunder.core import jit_ext
from thunder.core.utils import is_hashable

from thunder_fuser.frontends.thunder.patches.patched import ask_first


def _lookaside(original: Callable[..., Any], fn: Any, *args: Any, **kwargs: Any) -> Any:
    """Return the replacement of a call on wrapped values, or None; the values become proxies."""
    if is_hashable(fn) and fn in jit_ext.get_jit_ctx()._executor_lookasides:
        jit_ext.recursively_proxy(*args, **kwargs)
    return original(fn, *args, **kwargs)


def register() -> None:
    """Patch how Thunder looks for replacements."""
    ask_first(_lookaside)
