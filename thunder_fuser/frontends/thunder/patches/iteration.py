"""Iteration that Thunder's interpreter does not interpret: `map`, `filter`, and `f(*iterable)`.

`map(torch.sigmoid, xs)` called torch's function itself, with proxies that it does not accept.
`f(*(g(x) for x in xs))` raised, as an iterable was asked for its length; parametrizations
of torch (`torch.nn.utils.parametrizations`) make such calls. The choices are patched where
they are made, for functions compiled with this executor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from thunder.core import interpreter
from thunder.core.interpreter import INTERPRETER_SIGNALS, unwrap

from thunder_fuser.frontends.thunder.patches.patched import ask_first, is_patched

_HANDLERS: dict[str, Callable[..., Any]] = interpreter._default_opcode_handler_map
_original_call: Callable[..., Any] = _HANDLERS["CALL_FUNCTION_EX"]
_HAS_KEYWORDS = 1


def _call(inst: Any, /, stack: Any, **state: Any) -> Any:
    """Make a list of the arguments of `f(*iterable)`, then call as Thunder does."""
    place = -2 if inst.arg & _HAS_KEYWORDS else -1
    given = stack.getitem_wrapped(place)
    if isinstance(unwrap(given), list | tuple) or not is_patched():
        return _original_call(inst, stack=stack, **state)
    listed = interpreter._interpret_call(_listed, given)
    if listed is INTERPRETER_SIGNALS.EXCEPTION_RAISED:
        return listed
    keywords = stack.pop_wrapped() if place == -2 else None
    stack.pop_wrapped()
    for value in (listed, keywords):
        if value is not None:
            stack.append(value)
    return _original_call(inst, stack=stack, **state)


def _listed(values: Iterable[Any]) -> list[Any]:
    return [value for value in values]  # noqa: C416  (interpreted; `list` would not be)


def _mapped(function: Callable[..., Any], *values: Iterable[Any]) -> Iterator[Any]:
    return (function(*items) for items in zip(*values))  # noqa: B905  (as `map` does)


def _filtered(function: Callable[..., Any] | None, values: Iterable[Any]) -> Iterator[Any]:
    if function is None:
        return (value for value in values if value)
    return (value for value in values if function(value))


_INTERPRETED: Mapping[Callable[..., Any], Callable[..., Any]] = {map: _mapped, filter: _filtered}


def _lookaside(original: Callable[..., Any], fn: Any, *args: Any, **kwargs: Any) -> Any:
    """Return the replacement of a call on wrapped values, or None."""
    if (fn is map or fn is filter) and not kwargs and is_patched():
        return partial(interpreter._interpret_call, _INTERPRETED[fn])
    return original(fn, *args, **kwargs)


def register() -> None:
    """Patch Thunder's interpreter to interpret these calls."""
    _HANDLERS["CALL_FUNCTION_EX"] = _call
    ask_first(_lookaside)
