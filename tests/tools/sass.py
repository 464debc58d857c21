"""What a cubin does, read from its disassembly: access widths, loads that are under way together,
local memory, integer divisions. Tests use it to hold generated kernels to facts that no run on a
CPU shows.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from thunder_fuser.inspect.sass import MISSING, disassembled, find_nvdisasm

SKIP_REASON = "" if find_nvdisasm() else MISSING


@dataclass(frozen=True, slots=True)
class Sass:
    """The machine code of one kernel: its instructions' names with their modifiers, in order, and
    what stands behind each name.

    predicates   what an instruction is done under; ""
    labels       name -> the instruction that it is before
    subroutines  the first instruction that is only called
    """

    opcodes: tuple[str, ...]
    operands: tuple[str, ...]
    predicates: tuple[str, ...]
    labels: Mapping[str, int]
    subroutines: int

    def target(self, place: int) -> int | None:
        """Where the branch at a place goes; None for what is none."""
        found = re.search(r"`\((\.L_x_\d+)\)", self.operands[place])
        is_branch = base(self.opcodes[place]) == "BRA" and found
        return self.labels.get(found[1]) if is_branch and found else None

    def count(self, *bases: str) -> int:
        """Instructions whose name, without modifiers, is one of `bases`."""
        return sum(base(opcode) in bases for opcode in self.opcodes)

    @property
    def load_bits(self) -> Counter[int]:
        """Width in bits -> number of loads from global memory."""
        return Counter(width(op) for op in self.opcodes if base(op) in ("LDG", "LD"))

    @property
    def store_bits(self) -> Counter[int]:
        """Width in bits -> number of stores to global memory."""
        return Counter(width(op) for op in self.opcodes if base(op) in ("STG", "ST"))

    @property
    def bytes_awaited(self) -> list[int]:
        """What a thread has asked global memory for and not used, each time that it comes to use
        some of it and has asked for more since the time before.
        """
        found: list[int] = []
        under_way: dict[int, tuple[set[int], int]] = {}
        is_new = False
        for place, (opcode, operands) in enumerate(zip(self.opcodes, self.operands, strict=True)):
            mentioned = {int(number) for number in re.findall(r"\bR(\d+)", operands)}
            used = [load for load, (held, _) in under_way.items() if held & mentioned]
            if used and is_new:
                found.append(sum(size for _, size in under_way.values()))
                is_new = False
            for load in used:
                del under_way[load]
            target = re.match(r"R(\d+)", operands)
            if target and base(opcode) in ("LDG", "LD"):
                words, first = max(width(opcode) // 32, 1), int(target[1])
                under_way[place] = (set(range(first, first + words)), width(opcode) // 8)
                is_new = True
        return found

    @property
    def local_accesses(self) -> int:
        """Accesses to local memory: spilled registers, or arrays that are indexed at run time."""
        return self.count("LDL", "STL")

    @property
    def integer_divisions(self) -> int:
        """Divisions and remainders of integers by something that is no constant.

        There is no such instruction.  The sequence for 32 bits, and the subroutine for 64, start
        from a reciprocal in floating point, and only they convert an integer rounding it up (.RP).
        """
        return sum(op.startswith("I2F") and ".RP" in op for op in self.opcodes)


def disassemble(image: bytes) -> dict[str, Sass]:
    """The kernels of a cubin by name; a kernel includes the subroutines that it calls."""
    return {name: _parse(code) for name, code in disassembled(image).items()}


# A label; or an address in a comment, perhaps a predicate, then the instruction and its operands.
_LINE = re.compile(
    r"^(?:([.$]\S+):|\s*/\*[0-9a-f]{4,}\*/\s+(?:(@!?\w+)\s+)?([A-Z][\w.]*)\s*([^;]*);)",
    re.MULTILINE,
)


def _parse(code: str) -> Sass:
    found: list[tuple[str, str, str]] = []
    labels: dict[str, int] = {}
    for label, predicate, name, operands in _LINE.findall(code):
        if label:
            labels[label] = len(found)
        elif name != "NOP":
            found.append((name, operands, predicate))
    called = [place for name, place in labels.items() if name.startswith("$")]
    return Sass(
        tuple(name for name, _, _ in found),
        tuple(operands for _, operands, _ in found),
        tuple(predicate for _, _, predicate in found),
        labels,
        min(called, default=len(found)),
    )


def base(opcode: str) -> str:
    """An instruction's name without modifiers."""
    return opcode.partition(".")[0]


def width(opcode: str) -> int:
    """Bits that one thread moves.  Without a modifier that names them they are 32."""
    named = re.search(r"\.[US]?(8|16|64|128|256)(?=\.|$)", opcode)
    return int(named[1]) if named else 32
