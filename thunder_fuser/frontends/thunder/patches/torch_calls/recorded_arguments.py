"""Lists and dictionaries that calls are given, as they are when the call is made.

Thunder records the list itself: `x[index]` with `index[0] = 1` after it read the later place, and
`torch.cat(states)` with `states.append(y)` after it concatenated `y`, or raised if `y` depends on
it. Here a call records a copy; of a range or a deque, which a trace cannot hold, as a list.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from thunder.core.symbol import Symbol

from thunder_fuser.frontends.thunder.patches.patched import is_patched

_OTHER_SEQUENCES = (range, deque)
_CONTAINERS = (list, dict, tuple, *_OTHER_SEQUENCES)


def _of_copies(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return the call of a symbol on copies of its containers."""

    def call(symbol: Symbol, *args: Any, **kwargs: Any) -> Any:
        has_containers = any(type(x) in _CONTAINERS for x in (*args, *kwargs.values()))
        if has_containers and is_patched():
            args, kwargs = tuple(map(_copy, args)), {key: _copy(x) for key, x in kwargs.items()}
        return original(symbol, *args, **kwargs)

    return call


def _copy(value: Any) -> Any:
    """Return a copy of a container and of containers in it; any other value itself."""
    if type(value) is dict:
        return {key: _copy(x) for key, x in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(_copy, value))
    return [*map(_copy, value)] if type(value) in _OTHER_SEQUENCES else value


def register() -> None:
    """Patch how Thunder calls symbols to use `_of_copies`."""
    Symbol.__call__ = _of_copies(Symbol.__call__)
