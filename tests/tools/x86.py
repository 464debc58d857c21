"""What host kernels do to their stack, read from x86 assembly: loads that wait for narrower stores.

A core hands a load what a store has left behind, before it reaches the cache, only if that store
wrote all of it.  A register array that is written in halves and read whole costs each thread a
dozen cycles, on every core, and for no reason: halves can be read as halves.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_BYTES = {"byte": 1, "word": 2, "dword": 4, "qword": 8, "xmmword": 16, "ymmword": 32, "zmmword": 64}
_VECTOR = 16
# g++ writes YMMWORD PTR 32[rsp+rax], clang ymmword ptr [rsp + rax + 32].
_ADDRESS = re.compile(r"(?:(\w+) ptr )?(-?\d+)?\[([^\]]+)\]", re.IGNORECASE)
_TERM = re.compile(r"([+-]?)\s*([\w*]+)")
_LABEL = re.compile(r"([\w$]+):")
_STACK = ("rsp", "rbp")
_ONLY_READ = ("cmp", "test", "vcomi", "vucomi", "vptest", "push", "call", "jmp", "vptestm")


@dataclass(frozen=True, slots=True)
class Stall:
    """A vector load from the stack that meets a narrower store: their lines, in a function."""

    function: str
    store: str
    load: str


@dataclass(frozen=True, slots=True)
class _Access:
    """An access to bytes [offset, offset + width) behind a register that points to the stack;
    `moves`: an index is added, and the first round of its loop has these bytes.
    """

    base: str
    offset: int
    width: int
    moves: bool


def stalls(assembly: str) -> list[Stall]:
    """All of them, in a compiler's output for `-S -masm=intel`.

    Lines are followed in their order, which is that of one round of each loop.
    """
    found: list[Stall] = []
    for name, lines in _functions(assembly):
        stores: dict[tuple[str, int], tuple[int, str]] = {}
        pointers: dict[str, tuple[str, int]] = {}
        for line in lines:
            operation, _, operands = line.partition("\t")
            target = operands.partition(", ")[0]
            access = _access(operands, pointers)
            if operation == "lea":
                pointers.pop(target, None)
                if access is not None and not access.moves:
                    pointers[target] = (access.base, access.offset)
                continue
            if access is None:
                pointers.pop(target, None)
                continue
            places = [(access.base, n) for n in range(access.offset, access.offset + access.width)]
            if not _ADDRESS.search(target) or operation.startswith(_ONLY_READ):
                met = [stores[place] for place in places if place in stores]
                narrow = [text for width, text in met if width < access.width]
                if narrow and access.width >= _VECTOR:
                    found.append(Stall(name, narrow[0], line))
                pointers.pop(target, None)
                continue
            if access.moves:
                # How far it goes is not known.
                for place in [p for p in stores if p[0] == access.base and p[1] >= access.offset]:
                    del stores[place]
            stores.update(dict.fromkeys(places, (access.width, line)))
    return found


def _functions(assembly: str) -> Iterator[tuple[str, list[str]]]:
    name, lines = "", list[str]()
    for line in assembly.splitlines():
        label = _LABEL.match(line)
        if label:
            yield name, lines
            name, lines = label[1], []
        elif line.startswith("\t") and not line.startswith("\t."):
            lines.append(line.partition("#")[0].strip())
    yield name, lines


def _access(operands: str, pointers: dict[str, tuple[str, int]]) -> _Access | None:
    """Of the stack, in an instruction's operands; None where they have none."""
    memory = _ADDRESS.search(operands)
    if memory is None:
        return None
    width, offset = _BYTES.get((memory[1] or "").lower(), 0), int(memory[2] or 0)
    (_, base), *terms = _TERM.findall(memory[3])
    offset += sum(int(f"{sign}{term}") for sign, term in terms if term.isdecimal())
    moves = not all(term.isdecimal() for _, term in terms)
    if base in pointers:
        base, start = pointers[base]
        return _Access(base, start + offset, width, moves)
    return _Access(base, offset, width, moves) if base in _STACK else None
