"""Source location of each call in the user's code, outside of torch's modules.

For every symbol of a trace Thunder records the innermost line outside of Thunder. For a layer that
is a line of torch/nn/modules, the same for all layers of a kind, and the frames around it are not
kept. Here it is the innermost line outside of Thunder and torch; for a Dynamo graph, whose code is
generated, the line that the graph's node came from.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import CodeType
from typing import Any

import torch
from thunder.core.codeutils import Positions
from thunder.core.compile_data import get_compile_data
from thunder.core.interpreter import InterpreterRuntimeCtx, unwrap
from torch.fx import GraphModule

from thunder_fuser.frontends.thunder.patches.patched import is_patched

_NOT_THE_USERS = ("torch", "thunder")

Location = tuple[str | None, Any]

_innermost: Callable[[InterpreterRuntimeCtx], Location] = (
    InterpreterRuntimeCtx.get_current_user_source_location
)


def _location(context: InterpreterRuntimeCtx) -> Location:
    """Return the file, and the positions in it, of the current call."""
    if is_patched():
        for frame in reversed(context.frame_stack):
            package = unwrap(frame.globals).get("__name__", "").partition(".")[0]
            if package not in _NOT_THE_USERS:
                return _of_graph(get_compile_data().fn, frame.code, frame.positions) or (
                    frame.code.co_filename,
                    frame.positions,
                )
    return _innermost(context)


_FRAME = re.compile(r'File "(.*?)", line (\d+), in ')
_TORCH = str(Path(torch.__file__).parent)


def _of_graph(fn: Any, code: CodeType, positions: Any) -> Location | None:
    """Map a line of a graph's generated code to the line of its node; None for other code, and for
    nodes without a line.
    """
    if not isinstance(fn, GraphModule) or code is not getattr(fn.forward, "__code__", None):
        return None
    nodes, numbers = list(fn.graph.nodes), getattr(fn, "_lineno_map", None) or {}
    number = numbers.get(positions.lineno - code.co_firstlineno)
    told = nodes[number].stack_trace if number is not None and number < len(nodes) else None
    found = [place for place in _FRAME.findall(told or "") if not place[0].startswith(_TORCH)]
    if not found:
        return None
    file, line = found[-1]
    return file, Positions(int(line), int(line), 0, 999)


def register() -> None:
    """Patch Thunder's interpreter to use `_location`."""
    InterpreterRuntimeCtx.get_current_user_source_location = _location
