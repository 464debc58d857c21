"""Frames of Thunder's interpreter without repeated work: instructions, tracebacks, the call site.

- Each call of an interpreted function disassembled its code again.
- Each exception that leaves an interpreted function got a Python frame for its traceback from a
  new thread. The interpreter waited for it in a loop that held the interpreter lock: five
  milliseconds, Python's switch interval.
- Each trace looked up the source lines of all frames of the process, to keep one of them.

Together they took a seventh of the time to trace a model, and most of it for a small function.
Results are the same, so the patches apply to all functions that Thunder compiles.
"""

from __future__ import annotations

import dis
import functools
import inspect
import sys
import threading
from types import CodeType, FrameType, ModuleType
from typing import Any

from thunder.core import interpreter
from thunder.core.interpreter import InterpreterFrame

_MOST = 4096
"""Number of functions whose instructions, and of lines whose frames, are kept."""

_disassembled: dict[int, tuple[CodeType, tuple[dis.Instruction, ...]]] = {}


def _instructions(code: CodeType) -> tuple[dis.Instruction, ...]:
    """Return the instructions of `code`.

    Code objects are told apart by identity: equal ones may have other line numbers.
    """
    found = _disassembled.get(id(code))
    if found is None or found[0] is not code:
        if len(_disassembled) >= _MOST:
            _disassembled.clear()
        found = _disassembled[id(code)] = code, tuple(dis.get_instructions(code))
    return found[1]


def _call_site() -> list[inspect.Traceback]:
    """Return the caller's frame and the two around it, without their source lines."""
    found: list[inspect.Traceback] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and len(found) < 3:
        found.append(inspect.getframeinfo(frame, context=0))
        frame = frame.f_back
    return found


def _python_frame(frame: InterpreterFrame) -> FrameType:
    """Return a finished Python frame at the current line of `frame`, for a traceback."""
    assert frame.positions is not None
    code, line = frame.code, frame.positions.lineno
    first = code.co_firstlineno
    line = first if line is None else line
    return _finished_frame(code.co_filename, first, code.co_name, frame.qualname, line)


@functools.lru_cache(_MOST)
def _finished_frame(file: str, first: int, name: str, qualname: str, line: int) -> FrameType:
    # The code raises at `line`, counted from `first`, so that the frame ends there.
    raising = compile("\n" * (line - first) + "raise ValueError", file, "exec")
    code = raising.replace(co_filename=file, co_firstlineno=first, co_name=name)
    if sys.version_info >= (3, 11):
        code = code.replace(co_qualname=qualname)
    found: list[FrameType] = []

    def run() -> None:
        try:
            exec(code, {})
        except ValueError as error:
            traceback = error.__traceback__
            while traceback is not None and traceback.tb_next is not None:
                traceback = traceback.tb_next
            assert traceback is not None
            found.append(traceback.tb_frame)

    # In a thread of its own, the frame has none of the interpreter's frames around it.
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return found[0]


def _like(module: ModuleType, **changed: Any) -> ModuleType:
    """Return a copy of `module` with some attributes replaced."""
    copy = ModuleType(module.__name__)
    copy.__dict__.update(module.__dict__, **changed)
    return copy


def register() -> None:
    """Patch what Thunder's interpreter calls, in the namespace of its module alone."""
    interpreter.dis = _like(dis, get_instructions=_instructions)
    interpreter.inspect = _like(inspect, stack=_call_site)
    InterpreterFrame.get_or_make_python_frame = _python_frame
