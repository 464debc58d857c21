"""What a cubin does, read from its disassembly: access widths, loads that are under way together,
local memory, integer divisions. Tests use it to hold generated kernels to facts that no run on a
CPU shows.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from thunder_fuser.inspect.collect.sass import MISSING, disassembled, find_nvdisasm

SKIP_REASON = "" if find_nvdisasm() else MISSING


class _Load(NamedTuple):
    """What a load leaves where, in bytes."""

    registers: frozenset[int]
    bytes: int


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
    def copy_bits(self) -> Counter[int]:
        """Width in bits -> number of asynchronous copies from global to shared memory."""
        return Counter(width(op) for op in self.opcodes if base(op) == "LDGSTS")

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
        in_flight: dict[int, _Load] = {}
        is_new = False
        for place in range(len(self.opcodes)):
            size = sum(load.bytes for load in in_flight.values())
            used = self._follow(in_flight, place)
            if used and is_new:
                found.append(size)
                is_new = False
            is_new = is_new or place in in_flight
        return found

    def loop_around(self, name: str) -> range:
        """The longest loop with an instruction of that name, modifiers left out."""
        loops = (
            range(target, place + 1)
            for place in range(len(self.opcodes))
            if (target := self.target(place)) is not None and target <= place
        )
        return max((s for s in loops if any(base(self.opcodes[k]) == name for k in s)), key=len)

    def bytes_in_flight(self, places: range, name: str) -> int:
        """What a thread has asked global memory for in those places and not used, before the first
        instruction of that name.
        """
        in_flight: dict[int, _Load] = {}
        for place in places:
            if base(self.opcodes[place]) == name:
                break
            self._follow(in_flight, place)
        return sum(load.bytes for load in in_flight.values())

    def _follow(self, in_flight: dict[int, _Load], place: int) -> bool:
        """Take what an instruction uses from the loads under way, and add it if it is one; whether
        it uses any.
        """
        opcode, operands = self.opcodes[place], self.operands[place]
        mentioned = {int(number) for number in re.findall(r"\bR(\d+)", operands)}
        used = [k for k, load in in_flight.items() if load.registers & mentioned]
        if base(opcode) == "DEPBAR":  # what asynchronous copies wait for
            used += [k for k, load in in_flight.items() if not load.registers]
        for k in used:
            del in_flight[k]
        target = re.match(r"R(\d+)", operands)
        if target and base(opcode) in ("LDG", "LD"):
            words, first = max(width(opcode) // 32, 1), int(target[1])
            registers = frozenset(range(first, first + words))
            in_flight[place] = _Load(registers, width(opcode) // 8)
        if base(opcode) == "LDGSTS":
            in_flight[place] = _Load(frozenset(), width(opcode) // 8)
        return bool(used)

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
