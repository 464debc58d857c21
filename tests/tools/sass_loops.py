"""Which instructions of a kernel run once, and which in a loop, by the pipe that takes them.

A region is a loop's own instructions (not those of loops inside it), or what is in none. Slow paths
are left out: subroutines, what calls them, and what is behind the last EXIT.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass

from tests.tools.sass import Sass, base, width
from thunder_fuser.time_model.pipes import Pipe

_FMA = "FFMA FMUL FADD HFMA2 HADD2 HMUL2 IMAD FFMA2 FADD2 FMUL2 HFMA2.MMA"
_ALU = (
    "LOP3 SHF IADD3 LEA ISETP FSETP FMNMX SEL FSEL PRMT F2FP MOV PLOP3 VIADD VIADDMNMX IABS P2R R2P"
    " SGXT BMSK FSET VOTE FCHK IMNMX VIMNMX IADD FMNMX3 LOP SHL SHR CS2R LEA.HI ISCADD ICMP"
)
_XU = "MUFU F2F F2I I2F FRND POPC FLO I2FP"
_LSU = "LDG LDGSTS STG LD ST LDS STS LDL STL SHFL ATOMG ATOM RED LDC LDSM MATCH"
_FP64 = "DFMA DADD DMUL DSETP DMNMX"
_PIPES = {
    name: pipe
    for pipe, names in (
        (Pipe.FMA, _FMA),
        (Pipe.ALU, _ALU),
        (Pipe.XU, _XU),
        (Pipe.LSU, _LSU),
        (Pipe.FP64, _FP64),
    )
    for name in names.split()
}
_GLOBAL = ("LDG", "LDGSTS", "STG", "LD", "ST")
VECTOR = 16
"""Bytes of the widest access."""
_SLOW_PATH = 24
"""Instructions that a branch around a call skips at most."""

INNER = 8
"""How much oftener a loop is done than what is around it, at least."""


Span = tuple[int, int]
"""The first and the last instruction of a loop."""


def pipe_of(opcode: str) -> Pipe:
    """Branches, barriers and the uniform datapath take issue slots and no pipe of these."""
    return _PIPES.get(base(opcode), Pipe.OTHER)


@dataclass(frozen=True, slots=True)
class Region:
    """Some instructions, in `depth` loops: how many of each pipe, and bytes of global memory that a
    thread accesses in vectors.
    """

    depth: int
    pipes: Counter[Pipe]
    bytes: int

    @property
    def instructions(self) -> int:
        return sum(self.pipes.values())


def regions(code: Sass) -> list[Region]:
    """What is in no loop, then the loops from the first to the last."""
    end = _end(code)
    places = range(end)
    jumps = [(k, t) for k in places for t in (code.target(k),) if t is not None and t < end]
    loops = sorted({(t, k) for k, t in jumps if t < k})
    cold = set(_cold(code, jumps))
    found = [_region(code, (0, end - 1), loops, 0, cold)]
    for loop in loops:
        inside = [other for other in loops if other != loop and _is_in(other, loop)]
        depth = sum(_is_in(loop, other) for other in loops)
        found.append(_region(code, loop, inside, depth, cold))
    return found


def _is_in(inner: Span, outer: Span) -> bool:
    return outer[0] <= inner[0] and inner[1] <= outer[1]


def _region(code: Sass, span: Span, inside: Sequence[Span], depth: int, cold: Set[int]) -> Region:
    left_out = {k for first, last in inside for k in range(first, last + 1)} | cold
    own = [code.opcodes[k] for k in range(span[0], span[1] + 1) if k not in left_out]
    moved = sum(VECTOR for op in own if base(op) in _GLOBAL and width(op) == 8 * VECTOR)
    return Region(depth, Counter(map(pipe_of, own)), moved)


def hot(code: Sass, depth: int) -> Region:
    """The loop in at most so many that accesses most of global memory, an inner one before those
    around it; or what is in none.
    """
    first, *found = regions(code)
    found = [region for region in found if region.depth <= depth]
    return max(found, key=_weight, default=first)


def _weight(region: Region) -> tuple[int, int]:
    return region.bytes * INNER**region.depth, region.instructions


def _end(code: Sass) -> int:
    """Where what is only called, or jumped to seldom, begins."""
    exits = [k for k, op in enumerate(code.opcodes) if op == "EXIT" and not code.predicates[k]]
    before = [k for k in exits if k < code.subroutines]
    return (before or exits)[-1] + 1 if exits else len(code.opcodes)


def _cold(code: Sass, jumps: list[tuple[int, int]]) -> Iterator[int]:
    for source, target in jumps:
        skipped = range(source + 1, target)
        is_short = code.predicates[source] and len(skipped) <= _SLOW_PATH
        if is_short and any(base(code.opcodes[k]) == "CALL" for k in skipped):
            yield from skipped
