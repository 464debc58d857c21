"""Liveness: bytes that are allocated before and during each step of a sequence.

A step is a segment of a plan, a fusion or a torch call in a trace, or a region that may become a
fusion. Storages are numbers here; the caller knows which tensors lie in them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from thunder_fuser.ir.integer.counts import most


class Step(NamedTuple):
    """A step of execution.

    reads   storages, by number
    gives   storages that are allocated from here on
    within  bytes that it holds temporarily, those of `gives` included
    """

    reads: frozenset[int]
    gives: frozenset[int]
    within: int = 0


class Level(NamedTuple):
    """Bytes that are held before a step, and during it."""

    before: int
    during: int


@dataclass(frozen=True, slots=True)
class Liveness:
    """The storages of a program.

    sizes  bytes of each storage
    kept   storages that no step frees: they are in memory until the end, or are not counted at all
    given  storages that are in memory from the start, while they are read or kept
    """

    steps: tuple[Step, ...]
    sizes: Sequence[int]
    kept: frozenset[int] = frozenset()
    given: frozenset[int] = frozenset()

    def levels(self) -> Iterator[Level]:
        """Yield the level of each step."""
        touched = self.kept.union(*(step.reads for step in self.steps))
        return self.levels_of(self.steps, self._bytes(self.given & touched))

    def levels_of(
        self, steps: Sequence[Step], level: int, outlive: Iterable[int] = ()
    ) -> Iterator[Level]:
        """Yield the levels of a subsequence of steps.

        level    bytes before the first step
        outlive  storages that later steps read
        """
        last = {s: k for k, step in enumerate(steps) for s in (*step.reads, *step.gives)}
        stay = {*self.kept, *outlive}
        for k, step in enumerate(steps):
            fresh = self._bytes(step.gives)
            yield Level(level, level + max(fresh, step.within))
            over = {s for s in step.reads | step.gives if last[s] == k} - stay
            level += fresh - self._bytes(over)

    def peak(self) -> int:
        """Return the most bytes that are held at once."""
        start = self._bytes(self.given)
        return most((start, *(level.during for level in self.levels())))

    def _bytes(self, storages: Iterable[int]) -> int:
        return sum(self.sizes[s] for s in storages)
