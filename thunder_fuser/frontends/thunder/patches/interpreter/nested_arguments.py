"""Tensors in tuples and lists that are passed to a call which this executor replaces.

Thunder makes proxies of tensors in globals and closures when they are passed to a call that it
replaces itself, also inside a tuple or list, but not for calls that an executor replaces:
`torch.hstack(PAIR)` kept the tensors of the first call, and `x[(MASK,)] = 0` had no mask. A range
or a deque raised an error: `torch.tensor(range(3))`, and so did a dictionary: Thunder looked for
tensors among its keys.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch
from thunder.core import interpreter, jit_ext
from thunder.core.interpreter import WrappedValue, unwrap, wrap_binary_subscr, wrap_const
from thunder.core.utils import is_hashable

from thunder_fuser.frontends.thunder.patches.patched import ask_first, is_patched

_original: Callable[[WrappedValue], None] = interpreter.populate_item_wrappers
_of_thunder: Callable[..., None] = jit_ext.recursively_proxy


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


def _make_proxies(*args: WrappedValue, **kwargs: WrappedValue) -> None:
    """Make proxies of the tensors in wrapped arguments."""
    if not is_patched():
        return _of_thunder(*args, **kwargs)
    for value in (*args, *kwargs.values()):
        _make_proxy(value)
    return None


def _make_proxy(value: WrappedValue) -> bool:
    """Make proxies of the tensors in a value; return true if it is one, or has some."""
    held = value.value
    if isinstance(held, Sequence | dict) and not isinstance(held, str):
        value.track_items()
        items = value.item_wrappers
        found = [_make_proxy(x) for x in (items.values() if isinstance(held, dict) else items)]
        needs = any(found)
    else:
        needs = isinstance(held, torch.Tensor)
    if needs:
        jit_ext.get_jit_ctx().proxify(value)
    return value.original_value is not value.nothing


def register() -> None:
    """Patch how Thunder looks for replacements, and what it passes to them."""
    ask_first(_lookaside)
    jit_ext.recursively_proxy = _make_proxies
    interpreter.populate_item_wrappers = _wrap_items
