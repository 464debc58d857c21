"""Instructions that move or copy values on the stack: `SWAP`, `COPY`, and those before Python 3.11.

Thunder's interpreter takes a value out of its wrapper and wraps it anew. A dictionary's wrapper,
which knows where its contents come from, is lost where nothing else holds it, and the contents were
those of the first call for ever: comprehensions of Python 3.12 and later, which swap what they
build. Here wrappers are moved. For functions compiled with this executor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

from thunder.core import interpreter

from thunder_fuser.frontends.thunder.patches.patched import is_patched

Handler = Callable[..., Any]
Move = Callable[[list[Any], int], None]

_HANDLERS: dict[str, Handler] = interpreter._default_opcode_handler_map


def _swap(wrapped: list[Any], place: int) -> None:
    wrapped[-1], wrapped[-place] = wrapped[-place], wrapped[-1]


def _copy(wrapped: list[Any], place: int) -> None:
    wrapped.append(wrapped[-place])


def _copy_pair(wrapped: list[Any], _: int) -> None:
    wrapped += wrapped[-2:]


def _rotate(wrapped: list[Any], count: int) -> None:
    """Put the value on top below the `count` - 1 values under it."""
    wrapped.insert(len(wrapped) - count, wrapped.pop())


_MOVES: Mapping[str, tuple[Move, int | None]] = MappingProxyType(
    {
        "SWAP": (_swap, None),
        "COPY": (_copy, None),
        "DUP_TOP": (_copy, 1),
        "DUP_TOP_TWO": (_copy_pair, 2),
        "ROT_TWO": (_rotate, 2),
        "ROT_THREE": (_rotate, 3),
        "ROT_FOUR": (_rotate, 4),
        "ROT_N": (_rotate, None),
    }
)
"""Moves by instruction, with their argument; None: the instruction has it."""


def _handle(
    original: Handler, move: Move, count: int | None, inst: Any, /, stack: Any, **state: Any
) -> Any:
    if not is_patched():
        return original(inst, stack=stack, **state)
    move(stack._stack, inst.arg if count is None else count)
    return None


def register() -> None:
    """Patch the instructions that this version of Python has."""
    for name, (move, count) in _MOVES.items():
        if name in _HANDLERS:
            _HANDLERS[name] = partial(_handle, _HANDLERS[name], move, count)
