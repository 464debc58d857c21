"""What the generators of a traced function return.

Thunder's interpreter dropped it: `state = yield from steps(x)` was None, and so was the value of a
StopIteration. For functions compiled with this executor.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from typing import Any

from thunder.core import interpreter
from thunder.core.interpreter import INTERPRETER_SIGNALS, InterpreterFrame, unwrap, wrap_const

from thunder_fuser.frontends.thunder.patches.patched import is_patched


def _make(original: Callable[..., Any], frame: InterpreterFrame, *contexts: Any) -> Any:
    """Return the wrapped generator that runs a frame."""
    if not is_patched():
        return original(frame, *contexts)
    return wrap_const(_run(frame, *contexts))


def _run(frame: InterpreterFrame, compiling: Any, running: Any) -> Generator[Any, Any, Any]:
    sent = None
    while True:
        with interpreter.interpreter_ctx(compiling, running):
            result, status = interpreter._run_frame(frame, compiling, running, send_value=sent)
            if status is INTERPRETER_SIGNALS.EXCEPTION_RAISED:
                error, running.curexc = running.curexc, None
                raise error
        if status is INTERPRETER_SIGNALS.RETURN_VALUE:
            return unwrap(result)
        sent = yield unwrap(result)


def register() -> None:
    """Patch how Thunder's interpreter makes generators."""
    interpreter.make_generator = partial(_make, interpreter.make_generator)
