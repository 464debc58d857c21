"""Stages of a reduction kernel: reductions and stores of each pass over a row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator, Sequence

from thunder_fuser.ir.fusion import TensorView
from thunder_fuser.lower.rows.roles import accumulator_words
from thunder_fuser.lower.rows.row_program import PulledReduction, PulledRows
from thunder_fuser.lower.rows.row_space import GridSplit
from thunder_fuser.lower.scalar_graph import Folded, Value, reachable


def stages_of(made: Sequence[PulledReduction]) -> dict[TensorView, int]:
    """Return the stage of each reduction: one after the latest one that its elements read."""
    stages: dict[TensorView, int] = {}
    for fold, value, _ in made:
        stages[fold.output] = _first_pass(value, stages)
    return stages


def _first_pass(value: Value, stages: dict[TensorView, int]) -> int:
    """Return the first pass that has all operands of a value."""
    folded = (n.tensor for n in reachable([value]) if isinstance(n, Folded))
    return max((stages[tensor] + 1 for tensor in folded), default=0)


def words_of_stages(made: Sequence[PulledReduction]) -> Sequence[int]:
    """Return accumulator words of a lane for the reductions of each stage."""
    stages = stages_of(made)
    words: Counter[int] = Counter()
    for fold, _, _ in made:
        words[stages[fold.output]] += accumulator_words(fold)
    return [*words.values()]


def store_passes(
    pulled: PulledRows, grid_split: GridSplit, updated: Container[TensorView]
) -> Iterator[int]:
    """Yield the pass of each store at every point: one that reduces, if it has all operands. Stores
    to the memory of an input come after all passes that read it.
    """
    stages = stages_of(pulled.folds)
    last = 1 + max(stages.values(), default=0)
    for tensor, value, _ in pulled.element_stores:
        waits = grid_split == "columns" or tensor in updated or not stages
        yield last if waits else _first_pass(value, stages)
