"""Folding of repeated steps: twelve equal layers are shown as one layer, "12 times".

The tandem repeat that saves most steps is folded first, then recursively the steps before and after
it. Repeats inside a layer are not folded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from thunder_fuser.inspect.data.program import Step

_LONGEST = 400
"""Longest period, in steps, of a repeat."""
_LEAST = 4
"""Fewest steps that a fold must save."""


@dataclass(frozen=True, slots=True)
class Fold:
    """`count` consecutive repetitions of equal steps.

    steps    steps of the first repetition
    repeats  for each of `steps`, the equal steps of all repetitions, itself first
    """

    count: int
    steps: tuple[Step, ...]
    repeats: tuple[tuple[Step, ...], ...]


class _Repeat(NamedTuple):
    first: int
    period: int
    times: int

    @property
    def left_out(self) -> int:
        return self.period * (self.times - 1)


def folded(steps: Sequence[Step]) -> list[Fold]:
    """Group `steps` in order into folds; steps that do not repeat form folds of count 1."""
    if not steps:
        return []
    found = _best([step.key for step in steps])
    if found.left_out < _LEAST:
        return [Fold(1, tuple(steps), tuple((step,) for step in steps))]
    first, period, count = found
    stretches = [steps[first + n * period : first + (n + 1) * period] for n in range(count)]
    fold = Fold(count, tuple(stretches[0]), tuple(zip(*stretches, strict=True)))
    return [*folded(steps[:first]), fold, *folded(steps[first + period * count :])]


def _best(keys: Sequence[str]) -> _Repeat:
    """Find the repeat that saves most steps; ties go to the shortest period, then to the first."""
    best = _Repeat(0, 1, 1)
    for period in range(1, min(len(keys) // 2, _LONGEST) + 1):
        equal = 0  # positions from here on whose step equals the one a period later
        for k in range(len(keys) - period - 1, -1, -1):
            equal = equal + 1 if keys[k] == keys[k + period] else 0
            found = _Repeat(k, period, equal // period + 1)
            if found.left_out > best.left_out or (
                found.left_out == best.left_out and found.period == best.period
            ):
                best = found
    return best
