"""Stages of a reduction kernel: which pass over a row folds what, and which stores what."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator, Sequence

from thunder_fuser.ir.fusion import TensorView
from thunder_fuser.lower.row_program import PulledReduction, PulledRows, accumulator_words
from thunder_fuser.lower.row_space import GridSplit
from thunder_fuser.lower.scalar_graph import Folded, Value, reachable


def stages_of(made: Sequence[PulledReduction]) -> dict[TensorView, int]:
    """A fold comes one stage after the latest fold that its elements are computed from."""
    stages: dict[TensorView, int] = {}
    for fold, value, _ in made:
        stages[fold.output] = _first_pass(value, stages)
    return stages


def _first_pass(value: Value, stages: dict[TensorView, int]) -> int:
    """The pass that has all that a value is computed from."""
    folded = (n.tensor for n in reachable([value]) if isinstance(n, Folded))
    return max((stages[tensor] + 1 for tensor in folded), default=0)


def words_of_stages(made: Sequence[PulledReduction]) -> Sequence[int]:
    """Accumulators of a lane that the folds of each stage have."""
    stages = stages_of(made)
    words: Counter[int] = Counter()
    for fold, _, _ in made:
        words[stages[fold.output]] += accumulator_words(fold)
    return [*words.values()]


def store_passes(
    pulled: PulledRows, grid_split: GridSplit, updated: Container[TensorView]
) -> Iterator[int]:
    """The pass that does each store at every point: one that folds, if it has all that is stored.
    What takes the place of an input waits for all passes that read that.
    """
    stages = stages_of(pulled.folds)
    last = 1 + max(stages.values(), default=0)
    for tensor, value, _ in pulled.wide:
        waits = grid_split == "columns" or tensor in updated or not stages
        yield last if waits else _first_pass(value, stages)
