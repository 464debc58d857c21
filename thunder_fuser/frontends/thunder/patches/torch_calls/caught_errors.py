"""Errors of calls that the program catches: `try: x @ w` and a fallback.

Thunder leaves the scope of a call open that raises, so that what the program calls next was
recorded in it, or raised. Nothing is left of such a call. For functions compiled with this
executor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from thunder.core.symbol import Symbol
from thunder.core.trace import get_tracectx

from thunder_fuser.frontends.thunder.opaque_calls import unrecorded_if_it_raises
from thunder_fuser.frontends.thunder.patches.patched import is_patched


def _without_rest(original: Callable[..., Any]) -> Callable[..., Any]:
    def call(symbol: Symbol, *args: Any, **kwargs: Any) -> Any:
        if get_tracectx() is None or not is_patched():
            return original(symbol, *args, **kwargs)
        with unrecorded_if_it_raises():
            return original(symbol, *args, **kwargs)

    return call


def register() -> None:
    """Patch how Thunder calls symbols."""
    Symbol.__call__ = _without_rest(Symbol.__call__)
