"""What `copy.copy` and `copy.deepcopy` read of an object: `object.__reduce_ex__`, in Python.

In C it returned the attributes as values without a place, which a prologue cannot read again: a
copy of an object with a tensor raised an error. For functions compiled with this executor.
"""

from __future__ import annotations

import copyreg
from collections.abc import Callable
from types import FunctionType, SimpleNamespace
from typing import Any

from thunder.core import interpreter
from thunder.core.interpreter import unwrap

from thunder_fuser.frontends.thunder.patches.changes.attributes_set import slots_of
from thunder_fuser.frontends.thunder.patches.patched import ask_first, is_patched

_OTHERS = (list, tuple, dict, set, frozenset, type, BaseException)
_SAFE = 2
"""The first protocol by which an object is made by `__newobj__`, and has slots."""


def _reduced(held: Any, slots: tuple[str, ...]) -> Any:
    """Return how an object is made, and its state."""
    state = getattr(held, "__dict__", None)
    kept = {name: getattr(held, name) for name in slots if hasattr(held, name)}
    return copyreg.__newobj__, (type(held),), (state, kept) if kept else state, None, None  # type: ignore[attr-defined]


def _reduced_by_state(held: Any) -> Any:
    return copyreg.__newobj__, (type(held),), held.__getstate__(), None, None  # type: ignore[attr-defined]


def _reduced_by_method(held: Any) -> Any:
    return held.__reduce__()


def _reduced_namespace(held: Any) -> Any:
    return type(held), (), held.__dict__


def _reduce(original: Callable[..., Any], fn: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Return the replacement of a call on wrapped values, or None."""
    held, protocol = (*map(unwrap, args), None, None)[:2]
    ours = _reduction(held) if isinstance(protocol, int) and protocol >= _SAFE else None
    if ours is None or not is_patched():
        return original(fn, *args, **kwargs)
    return lambda held, _: interpreter._interpret_call(ours, held)


def _reduction(held: Any) -> Callable[..., Any] | None:
    """Return what reduces an object in Python, or None for one that C knows more of."""
    kind: Any = type(held)
    if isinstance(kind.__reduce__, FunctionType):
        return _reduced_by_method
    if kind.__reduce__ is SimpleNamespace.__reduce__:
        return _reduced_namespace
    has_arguments = hasattr(kind, "__getnewargs_ex__") or hasattr(kind, "__getnewargs__")
    if kind.__reduce__ is not object.__reduce__ or has_arguments or isinstance(held, _OTHERS):
        return None
    if isinstance(getattr(kind, "__getstate__", None), FunctionType):
        return _reduced_by_state
    names = tuple(slots_of(kind))
    return lambda held: _reduced(held, names)


def register() -> None:
    """Patch what Thunder's interpreter calls for `object.__reduce_ex__`."""
    ask_first(_reduce, of=(object.__reduce_ex__,))
