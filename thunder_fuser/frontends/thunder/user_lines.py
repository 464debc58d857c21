"""The user's line of each call, behind those of torch's modules.

Thunder notes for every symbol of a trace the innermost line that is not its own: for a layer, one
in torch/nn/modules, the same for all layers of a kind. It does not keep the frames around it, so
the choice has to be made where it is made: of functions that a fuser of ours compiles, the note is
the innermost line that is neither Thunder's nor torch's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from thunder.core.compile_data import get_compile_data
from thunder.core.interpreter import InterpreterRuntimeCtx, unwrap

_NOT_THE_USERS = ("torch", "thunder")

Location = tuple[str | None, Any]

_innermost: Callable[[InterpreterRuntimeCtx], Location] = (
    InterpreterRuntimeCtx.get_current_user_source_location
)


def _location(context: InterpreterRuntimeCtx) -> Location:
    """A file, and the positions in it."""
    data = get_compile_data()
    if data is not None and any(getattr(e, "notes_user_lines", False) for e in data.executors_list):
        for frame in reversed(context.frame_stack):
            package = unwrap(frame.globals).get("__name__", "").partition(".")[0]
            if package not in _NOT_THE_USERS:
                return frame.code.co_filename, frame.positions
    return _innermost(context)


def register() -> None:
    """Have Thunder's interpreter ask here."""
    InterpreterRuntimeCtx.get_current_user_source_location = _location
