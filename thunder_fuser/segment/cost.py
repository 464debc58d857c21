"""What kernels cost: their launches and the bytes that they move.

Twice: for one set of anchors whatever the others are, to choose which are worth a closer look, and
for kernels whose boundaries are decided, to the byte.
"""

from __future__ import annotations

from collections.abc import Sequence

from thunder_fuser.analysis.footprint import footprint
from thunder_fuser.ir.fusion import TensorView
from thunder_fuser.segment.anchors import Anchors, Program, members, union
from thunder_fuser.segment.boundaries import Group, grouped
from thunder_fuser.segment.legality import Legality
from thunder_fuser.segment.prices import LAUNCH, PER_BYTE


class Cost:
    def __init__(self, program: Program, legality: Legality) -> None:
        self.program = program
        self.legality = legality
        self._known: dict[Anchors, int] = {}
        self._exact: dict[object, int] = {}
        self._readers = self._overwriting()

    def of(self, anchors: Anchors) -> int:
        """A kernel of these anchors, if it reads whole sources, and reductions of others. Two
        kernels never cost less than one that does the work of both.
        """
        if anchors not in self._known:
            program = self.program
            reaches = [program.anchors[k].reach for k in members(anchors)]
            read: set[TensorView] = set().union(*(reach.sources for reach in reaches))
            foreign = union(reach.folds for reach in reaches) & ~anchors
            read.update(program.anchors[k].tensor for k in members(foreign))
            moved = sum(map(program.bytes_of, read))
            moved += sum(map(program.bytes_of, self.legality.outputs(anchors)))
            self._known[anchors] = LAUNCH + PER_BYTE * moved + self.of_copies(anchors)
        return self._known[anchors]

    def of_all(self, parts: Sequence[Anchors]) -> int:
        """Kernels in an order in which they can run, given what goes through memory between
        them.
        """
        return sum(map(self._of_group, grouped(self.program, self.legality, parts)))

    def of_copies(self, anchors: Anchors) -> int:
        """Updates that a kernel cannot write in place: a map kernel can, if it does all that reads
        what is overwritten.
        """
        is_row = self.program.has_fold(anchors)
        copied = [
            self.program.anchors[k].tensor
            for k, readers in self._readers.items()
            if anchors >> k & 1 and (is_row or readers & ~anchors)
        ]
        return sum(LAUNCH + 2 * PER_BYTE * int(t.bytes) for t in copied)

    def _of_group(self, group: Group) -> int:
        key = group.anchors, tuple(group.outputs), frozenset(group.reads)
        if key not in self._exact:
            loaded = self.program.stops | group.reads.keys()
            read = footprint(self.program.fusion, group.outputs, loaded)
            moved = sum(int(f.elements) * t.dtype.itemsize for t, f in read.items() if not t.is_cpu)
            moved += sum(int(t.bytes) for t in group.outputs)
            self._exact[key] = LAUNCH + PER_BYTE * moved + self.of_copies(group.anchors)
        return self._exact[key]

    def _overwriting(self) -> dict[int, Anchors]:
        """Anchors that overwrite an input, and all that read it."""
        program = self.program
        return {
            program.number[update.value]: union(
                1 << k
                for k, anchor in enumerate(program.anchors)
                if update.target in anchor.reach.sources
            )
            for update in program.fusion.updates
            if update.value in program.number
        }
