"""Tensors in tuples and lists that are passed to a call which this executor replaces.

Thunder makes proxies of tensors in globals and closures when they are passed to a call that it
replaces itself, also inside a tuple or list, but not for calls that an executor replaces:
`torch.hstack(PAIR)` kept the tensors of the first call, and `x[(MASK,)] = 0` had no mask. A range
or a deque raised an error: `torch.tensor(range(3))`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from thunder.core import interpreter, jit_ext
from thunder.core.interpreter import WrappedValue, unwrap, wrap_binary_subscr, wrap_const
from thunder.core.utils import is_hashable

from thunder_fuser.frontends.thunder.patches.patched import ask_first, is_patched

_original: Callable[[WrappedValue], None] = interpreter.populate_item_wrappers


def _lookaside(original: Callable[..., Any], fn: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Return the replacement of a call on wrapped values, or None; the values become proxies."""
    if is_hashable(fn) and fn in jit_ext.get_jit_ctx()._executor_lookasides:
        jit_ext.recursively_proxy(*args, **kwargs)
    return original(fn, *args, **kwargs)


def _wrap_items(held: WrappedValue) -> None:
    """Wrap the elements of a wrapped container, each with the place where it is read."""
    values = unwrap(held)
    if type(values) is range and is_patched():
        held.item_wrappers = [wrap_const(value) for value in values]
    elif type(values) is deque and is_patched():
        held.item_wrappers = [wrap_binary_subscr(value, held, k) for k, value in enumerate(values)]
    else:
        _original(held)


def register() -> None:
    """Patch how Thunder looks for replacements, and what it passes to them."""
    ask_first(_lookaside)
    interpreter.populate_item_wrappers = _wrap_items
