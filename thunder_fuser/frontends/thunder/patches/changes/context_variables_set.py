"""Context variables that a traced function sets: `token = mode.set("fast")`, `mode.reset(token)`.

They were set while a function was traced, for good, and by no later call; a tensor was refused.
Here a variable has its value while the trace is made, is given back the one before, and is set by
each call to the value that the program leaves it with. For functions compiled with this executor.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextvars import ContextVar, Token
from functools import partial
from typing import Any

import thunder
from thunder.core import interpreter, jit_ext
from thunder.core.interpreter import ProvenanceRecord, PseudoInst, WrappedValue, unwrap, wrap
from thunder.core.prims import OpTags
from thunder.core.trace import TraceCtx, tracectx
from thunder.executors.pythonex import ex

from thunder_fuser.frontends.thunder.patches.changes.attributes_set import (
    Constant,
    built,
    of_trace,
)
from thunder_fuser.frontends.thunder.patches.guards.expected_values import Same
from thunder_fuser.frontends.thunder.patches.guards.value_guards import add_guard, is_of_caller
from thunder_fuser.frontends.thunder.patches.patched import ask_first, is_patched

set_variable = ex.register_operator(
    "set_context_variable",
    meta=lambda variable, value, /: None,
    fn=lambda variable, value, /: variable.value.set(of_trace(value)),
    tags=[OpTags.DONT_DCE],
)


class _Variable:
    """A context variable that a trace sets.

    first    token of the first time, which has the value before
    value    what it is set to, wrapped; None for the value before
    before   that of each token, with the token, by its identity
    """

    def __init__(self, variable: ContextVar[Any]) -> None:
        self.variable = variable
        self.first: Token[Any] | None = None
        self.value: WrappedValue | None = None
        self.before: dict[int, tuple[Token[Any], WrappedValue | None]] = {}

    def set(self, value: WrappedValue) -> Token[Any]:
        token = self.variable.set(unwrap(value))
        self.first = self.first or token
        self.before[id(token)] = token, self.value
        self.value = value
        return token

    def reset(self, token: Token[Any]) -> None:
        self.variable.reset(token)
        self.value = self.before[id(token)][1]

    def restore(self) -> None:
        """Give the variable the value before."""
        if self.value is None or self.first is None:
            return
        self.value = None
        if self.first.old_value is not Token.MISSING:
            self.variable.set(self.first.old_value)
        else:
            # Its first token may have been used: then it has had no value again, and a later one.
            tokens = [token for token, before in self.before.values() if before is None]
            self.variable.reset(tokens[-1])


class _Tracing(threading.local):
    """Variables that the traces of this thread have set."""

    variables: dict[ContextVar[Any], _Variable] | None = None


_tracing = _Tracing()


def is_set(variable: ContextVar[Any]) -> bool:
    """True if the trace of this thread has set a variable, and not reset it."""
    known = (_tracing.variables or {}).get(variable)
    return known is not None and known.value is not None


def _lookaside(original: Callable[..., Any], fn: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Return the replacement of a call on wrapped values, or None."""
    if _tracing.variables is None or not args or not isinstance(args[0], WrappedValue):
        return original(fn, *args, **kwargs)
    known = _tracing.variables.get(unwrap(args[0]))
    if fn is ContextVar.set:
        return _set
    if fn is ContextVar.reset and known and id(unwrap(args[1])) in known.before:
        return _reset
    if fn is ContextVar.get and known and (value := known.value) is not None:
        return lambda *_: value
    return original(fn, *args, **kwargs)


def _set(variable: WrappedValue, value: WrappedValue) -> Any:
    """`variable.set(value)`; return a token, wrapped."""
    assert _tracing.variables is not None
    held: ContextVar[Any] = unwrap(variable)
    if is_of_caller(variable):  # The epilogue holds it.
        add_guard(variable.provenance, Same(held))
    token = _tracing.variables.setdefault(held, _Variable(held)).set(value)
    return wrap(token, provenance=ProvenanceRecord(PseudoInst.NEW, inputs=[]))


def _reset(variable: WrappedValue, token: WrappedValue) -> Any:
    """`variable.reset(token)`; return None, wrapped, or the interpreter's signal."""
    assert _tracing.variables is not None
    try:
        _tracing.variables[unwrap(variable)].reset(unwrap(token))
    except (RuntimeError, ValueError) as error:
        return interpreter.do_raise(error)
    return interpreter.wrap_const(None)


def _write_changes(original: Callable[..., None], ctx: Any, epilogue: TraceCtx) -> None:
    """Write the last values to the epilogue, before guards are made of what is read."""
    original(ctx, epilogue)
    for known in (_tracing.variables or {}).values():
        if known.value is not None:
            with tracectx(epilogue):
                value = built(known.variable.name, known.value)
                set_variable(Constant(known.variable), value)
    _restore()


def _restore() -> None:
    for known in (_tracing.variables or {}).values():
        known.restore()


def _traced(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return the traces of a function, and leave context variables as they were."""
    if not is_patched():
        return original(*args, **kwargs)
    outer, _tracing.variables = _tracing.variables, {}
    try:
        return original(*args, **kwargs)
    finally:
        _restore()
        _tracing.variables = outer


def register() -> None:
    """Patch how Thunder's interpreter sets and reads context variables, and its tracer."""
    ask_first(_lookaside, of=(ContextVar.set, ContextVar.reset, ContextVar.get))
    process = jit_ext.process_recorded_modifications
    jit_ext.process_recorded_modifications = partial(_write_changes, process)
    thunder.thunder_general_jit = partial(_traced, thunder.thunder_general_jit)
