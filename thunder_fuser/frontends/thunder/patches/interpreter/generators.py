"""Generators: what they return to `yield from`, and what is sent and thrown to them.

Thunder's interpreter dropped the value that a generator returns, so that `y = yield from layers(x)`
was None, recorded a comparison of a tensor that `generator.send` gives, and did not run what a
generator does about an exception, as those of `contextlib.contextmanager` do. The generators below
are Thunder's, but for these; for functions compiled with this executor.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Generator
from contextlib import nullcontext
from typing import Any

from thunder.core import interpreter
from thunder.core.interpreter import (
    INTERPRETER_SIGNALS,
    InterpreterCompileCtx,
    InterpreterError,
    InterpreterFrame,
    InterpreterRuntimeCtx,
    ProvenanceRecord,
    PseudoInst,
    get_interpreterruntimectx,
    interpreter_ctx,
    unwrap,
    wrap,
    wrap_const,
)

from thunder_fuser.frontends.thunder.patches.patched import is_patched

_original: Callable[..., Any] = interpreter.make_generator


def _make_generator(
    frame: InterpreterFrame, compiling: InterpreterCompileCtx, running: InterpreterRuntimeCtx
) -> Any:
    """Return the wrapped generator of an interpreted frame."""
    if not is_patched():
        return _original(frame, compiling, running)
    return wrap_const(_generator(frame, compiling, running))


def _generator(
    frame: InterpreterFrame, compiling: InterpreterCompileCtx, running: InterpreterRuntimeCtx
) -> Generator[Any, Any, Any]:
    contexts, sent = (compiling, running), None
    is_sent = True
    while True:
        with nullcontext() if _is_traced_by(running) else interpreter_ctx(compiling, running):
            # Wrapped, it is compared with nothing.
            given = {"send_value": _wrapped(sent)} if is_sent else {}
            found, status = _run(frame, *contexts, **given)
        if status is INTERPRETER_SIGNALS.RETURN_VALUE:
            return unwrap(found)
        try:
            sent = yield unwrap(found)
        except BaseException as error:
            if not _is_traced_by(running):
                raise
            contexts, is_sent = (_raising(compiling, error), running), False
        else:
            contexts, is_sent = (compiling, running), True


def _is_traced_by(running: InterpreterRuntimeCtx) -> bool:
    """True within the trace that made a generator.

    A generator that was left in a cycle is closed when the collector finds it: in a later trace,
    whose program must not run what this one does at its end, or within any call that allocates.
    There, no context variable may be set: up to Python 3.11 the collector also runs inside of
    `ContextVar.set` and `reset`, which then lose count of what is set, and every later lookup in
    the thread at that count fails.
    """
    try:
        return get_interpreterruntimectx() is running
    except LookupError:
        return False


def _wrapped(sent: Any) -> Any:
    return wrap(sent, provenance=ProvenanceRecord(PseudoInst.SEND, inputs=[]))


def _raising(compiling: InterpreterCompileCtx, error: BaseException) -> InterpreterCompileCtx:
    """Return a context in which the next instruction raises an error."""
    found = copy.copy(compiling)

    def interpret(*args: Any, **state: Any) -> Any:
        found.interpret = compiling.interpret
        return interpreter.do_raise(error)

    found.interpret = interpret
    return found


def _run(frame: Any, *contexts: Any, **sent: Any) -> tuple[Any, Any]:
    """Run a frame up to its next `yield`; raise what it raises."""
    *_, running = contexts
    # A generator is closed where an exception leaves the frame that holds it.
    outer = running.curexc
    try:
        found, status = interpreter._run_frame(frame, *contexts, **sent)
    except Exception as error:
        raise InterpreterError(f"Encountered exception {type(error).__name__}: {error}") from error
    if status is INTERPRETER_SIGNALS.EXCEPTION_RAISED:
        raised, running.curexc = running.curexc, outer
        if isinstance(raised, StopIteration):
            return raised.value, INTERPRETER_SIGNALS.RETURN_VALUE
        raise raised
    running.curexc = outer
    return found, status


def register() -> None:
    """Patch how Thunder's interpreter makes generators."""
    interpreter.make_generator = _make_generator
