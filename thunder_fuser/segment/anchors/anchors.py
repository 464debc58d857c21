"""Anchors, the values that are assigned to kernels: folds (reductions and scans), and tensors that
have to be in memory. Everything else is computed in each kernel that needs it.

Dependencies between anchors are queried often while kernels are chosen, so sets of anchors are
integers, one bit per anchor.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache, reduce
from operator import or_

from thunder_fuser.ir.fusion import FoldOp, TensorView

Anchors = int
"""Bit set of anchors: bit k is the k-th anchor in program order."""


@lru_cache(maxsize=1024)
def members(anchors: Anchors) -> tuple[int, ...]:
    """Return the numbers of a set's anchors, in program order. A set is asked several times in a
    row.
    """
    found: list[int] = []
    while anchors:
        lowest = anchors & -anchors
        found.append(lowest.bit_length() - 1)
        anchors ^= lowest
    return tuple(found)


def union(sets: Iterable[Anchors]) -> Anchors:
    """Return the union of sets of anchors."""
    return reduce(or_, sets, 0)


@dataclass(frozen=True, slots=True)
class Dependencies:
    """Leaves of the computation of a value.

    folds    reductions and scans that it reads
    behind   anchors that must be in memory before a kernel that computes it starts, because of cuts
             or torch calls in between
    sources  tensors in memory that it reads: inputs, and results of cuts and of torch's calls
    earlier  operands of calls that run before one whose result it reads, since both run in program
             order, and readers of what it overwrites: they must be in memory, too
    """

    folds: Anchors = 0
    behind: Anchors = 0
    sources: frozenset[TensorView] = frozenset()
    earlier: Anchors = 0

    @property
    def awaited(self) -> Anchors:
        """Anchors that must be in memory before a kernel that computes the value starts."""
        return self.behind | self.earlier

    @property
    def needs(self) -> Anchors:
        """Anchors that must be computed before the value can be."""
        return self.folds | self.awaited

    def with_(self, other: Dependencies) -> Dependencies:
        return Dependencies(
            self.folds | other.folds,
            self.behind | other.behind,
            self.sources | other.sources,
            self.earlier | other.earlier,
        )


@dataclass(frozen=True, slots=True)
class Anchor:
    """A tensor that some kernel computes.

    fold       the reduction or scan that defines it, if one does
    reach      leaves of its computation
    is_stored  it must be in memory for the caller, a cut or a call
    """

    tensor: TensorView
    fold: FoldOp | None
    reach: Dependencies
    is_stored: bool
