"""The definition of a seed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from tests.fuzz.definitions.calls import CALLED, DRAWS, READS
from tests.fuzz.definitions.maker import Maker
from tests.fuzz.definitions.program import Output, Program, Ref
from tests.fuzz.definitions.steps import FOLDS, POINTWISE, SCANS, VIEWS, Write

_GROUPS: Sequence[Mapping[str, Write]] = (POINTWISE, VIEWS, FOLDS, SCANS, READS, DRAWS, CALLED)
# How often each is drawn from: mixed; views; folds; arithmetic; torch's calls.
_THEMES = (
    (8, 6, 4, 1, 2, 0.5, 0.5),
    (3, 10, 2, 0.3, 3, 0.3, 0),
    (4, 4, 8, 2, 1, 0.3, 0),
    (12, 3, 1, 0.3, 0.5, 1, 0),
    (4, 3, 2, 0.5, 1, 0.3, 4),
)


def random_definition(seed: int, refused: Counter[str] | None = None) -> Program:
    """The program of a seed; `refused` counts what the definition did not take."""
    m = Maker(seed)
    try:
        for _ in range(m.rng.randint(1, 3)):
            m.tensor(m.related(m.base), m.rng.choice(m.dtypes))
        theme = m.rng.choice(_THEMES)
        for _ in range(m.rng.randint(5, 18)):
            group = m.rng.choices(_GROUPS, theme)[0]
            group[m.rng.choice(list(group))](m)
    finally:
        m.close()
    if refused is not None:
        refused.update(m.refused)
    return m.finished(_outputs(m))


def _outputs(m: Maker) -> list[Output]:
    """Some of what nothing reads, and of the rest; in an order of its own, or as an update."""
    read = {place for step in m.steps for place in step.reads}
    inputs = {step.first for step in m.steps if step.op == "define_tensor"}
    made = [ref for ref in m.tensors if ref.place not in inputs] or m.tensors
    ends = [ref for ref in made if ref.place not in read] or made
    chosen = m.rng.sample(ends, min(len(ends), m.rng.randint(1, 5)))
    if m.chance(0.2):
        chosen.append(m.rng.choice(m.tensors))
    found = [Output(ref, _order(m, ref)) for ref in chosen]
    for target in m.updatable:
        fitting = [
            ref
            for ref in made
            if m.dtype(ref) is m.dtype(target) and m.dims(ref) == m.dims(target) and ref != target
        ]
        if fitting and target not in chosen and m.chance(0.4):
            found.append(Output(m.rng.choice(fitting), target))
            break
    return found


def _order(m: Maker, ref: Ref) -> tuple[int, ...] | None:
    if not m.rank(ref) or m.chance(0.9):
        return None
    return tuple(m.rng.sample(range(m.rank(ref)), m.rank(ref)))
