"""Folding: stretches of steps that repeat, so that twelve equal layers are shown as one, twelve
times.

The tandem repeat that leaves out most steps is folded first, then what is left before and after
it. What repeats inside a layer stays as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from thunder_fuser.inspect.program import Step

_LONGEST = 400
"""Steps of one layer, beyond which no repeat is looked for."""
_LEAST = 4
"""Steps that a fold leaves out, below which it hides more than it helps."""


@dataclass(frozen=True, slots=True)
class Fold:
    """`count` stretches of equal steps, one after the other; `steps` are those of the first.

    repeats  for each of `steps` its equals in all stretches, itself first
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
    """The same steps in order, neighbouring equal stretches as one."""
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
    """The repeat that leaves out most; of several the one with the shortest period, then the
    first.
    """
    best = _Repeat(0, 1, 1)
    for period in range(1, min(len(keys) // 2, _LONGEST) + 1):
        equal = 0  # how many positions from here on have their equal a period later
        for k in range(len(keys) - period - 1, -1, -1):
            equal = equal + 1 if keys[k] == keys[k + period] else 0
            found = _Repeat(k, period, equal // period + 1)
            if found.left_out > best.left_out or (
                found.left_out == best.left_out and found.period == best.period
            ):
                best = found
    return best
