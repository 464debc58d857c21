"""How anchors are related: which wait for which, and which share something.

Sets of anchors that are to be kernels must be orderable; those that share nothing are decided
apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from thunder_fuser.ir.fusion import TensorView
from thunder_fuser.segment.anchors import Anchors, Program, members, union

NEIGHBOURS = 8
"""Anchors that are near the next one for the same reason: what is far apart in a program rarely
goes together.
"""


class Relations:
    """needs  for each anchor, those that must be done before what it is computed from is there
    near   for each anchor, those that it needs, that meet with it, or that read what it reads
    """

    def __init__(self, program: Program) -> None:
        self.needs = [a.reach.needs for a in program.anchors]
        self.near: list[Anchors] = [0] * len(self.needs)
        readers: dict[tuple[TensorView, object], list[int]] = {}
        for k, anchor in enumerate(program.anchors):
            met: list[int] = []
            for other in members(self.needs[k]):
                self._link(k, other)
                self._join(met, other)
            points = anchor.tensor.sizes if anchor.fold is None else anchor.fold.input.sizes
            # One element, such as a learning rate, brings nothing larger together.
            for source in anchor.reach.sources:
                is_one = source.numel <= 1 < anchor.tensor.numel
                if is_one and source not in program.definitions:
                    continue
                for kind in (None, points):
                    self._join(readers.setdefault((source, kind), []), k)

    def _link(self, a: int, b: int) -> None:
        self.near[a] |= 1 << b
        self.near[b] |= 1 << a

    def _join(self, known: list[int], anchor: int) -> None:
        """Link an anchor with the last of those that are known, and make it known."""
        for other in known[-NEIGHBOURS:]:
            self._link(anchor, other)
        known.append(anchor)

    def around(self, anchors: Anchors) -> Anchors:
        """What is near a set and outside it."""
        return union(self.near[k] for k in members(anchors)) & ~anchors

    def waits(self, anchors: Anchors) -> Anchors:
        """What must be done before a set."""
        return union(self.needs[k] for k in members(anchors)) & ~anchors

    def components(self, anchors: Anchors) -> Iterator[Anchors]:
        """The parts of a set between which nothing is near."""
        while anchors:
            part = 0
            grown = anchors & -anchors
            while grown:
                part |= grown
                grown = self.around(part) & anchors
            anchors &= ~part
            yield part

    def in_order(self, parts: Sequence[Anchors]) -> list[Anchors] | None:
        """The same sets so that each comes after all that it needs, or None if they wait in a
        circle. Of those that are ready at once, the one with the first anchor comes first.
        """
        everything = union(parts)
        wanted = {p: self.waits(p) & everything for p in parts}
        left = sorted(parts, key=lambda part: part & -part)
        found: list[Anchors] = []
        there = 0
        while left:
            ready = [part for part in left if not wanted[part] & ~there]
            if not ready:
                return None
            found += ready
            there |= union(ready)
            left = [part for part in left if not part & there]
        return found
