"""Values of context variables, such as a library keeps its modes in: `mode.get()`.

The value of the first call was a constant of the program. Here it is guarded: a call in a context
with another value is compiled again. For functions compiled with this executor.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from thunder.core.interpreter import WrappedValue

from thunder_fuser.frontends.thunder.patches.guards.expected_values import Expected, expected_of
from thunder_fuser.frontends.thunder.patches.guards.value_guards import add_guard, is_of_caller
from thunder_fuser.frontends.thunder.patches.patched import ask_first


class _OfVariable(Expected):
    """What is expected of the value of a context variable; None if it has no value."""

    def __init__(self, variable: ContextVar[Any]) -> None:
        found = _values(variable)
        super().__init__((expected_of(found[0]) or Expected(found[0])) if found else None)

    def holds(self, given: Any) -> bool:
        found = _values(given)
        return self.value.holds(found[0]) if found and self.value else not (found or self.value)

    def __repr__(self) -> str:
        return f"a context variable of {self.value!r}"


def _values(variable: ContextVar[Any]) -> list[Any]:
    """Return the value of a variable; an empty list if it has none."""
    try:
        return [variable.get()]
    except LookupError:
        return []


def _lookaside(original: Callable[..., Any], fn: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Guard the value of a variable of the caller that a call reads."""
    if args and isinstance(args[0], WrappedValue) and is_of_caller(args[0]):
        add_guard(args[0].provenance, _OfVariable(args[0].value))
    return original(fn, *args, **kwargs)


def register() -> None:
    """Patch how Thunder's interpreter reads context variables."""
    ask_first(_lookaside, of=(ContextVar.get,))
