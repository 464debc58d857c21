"""Bytes in memory, step by step, against what is alive by definition."""

from __future__ import annotations

import random

from thunder_fuser.segment.liveness import Liveness, Step


def made_up(seed: int) -> Liveness:
    """Steps that give storages and read some that are there."""
    rng = random.Random(seed)
    given = rng.randrange(4)
    there = list(range(given))
    steps = []
    for _ in range(rng.randrange(1, 9)):
        reads = frozenset(rng.sample(there, min(len(there), rng.randrange(3))))
        gives = frozenset(len(there) + k for k in range(rng.randrange(3)))
        there += gives
        steps.append(Step(reads, gives, rng.choice([0, 0, 30])))
    kept = frozenset(s for s in there if rng.random() < 0.3)
    sizes = [rng.randrange(20) for _ in there]
    return Liveness(tuple(steps), sizes, kept, frozenset(range(given)))


def test_what_is_alive() -> None:
    for seed in range(200):
        program = made_up(seed)
        steps, sizes = program.steps, program.sizes
        born = dict.fromkeys(program.given, -1)
        born |= {s: k for k, step in enumerate(steps) for s in step.gives}
        last = {s: k for k, step in enumerate(steps) for s in step.reads | step.gives}
        last |= dict.fromkeys(program.kept, len(steps))

        def held(
            k: int, born: dict[int, int] = born, last: dict[int, int] = last
        ) -> frozenset[int]:
            return frozenset(s for s in born if born[s] < k <= last.get(s, -1))

        levels = list(program.levels())
        for k, (level, step) in enumerate(zip(levels, steps, strict=True)):
            before = sum(sizes[s] for s in held(k))
            fresh = sum(sizes[s] for s in step.gives)
            assert level == (before, before + max(fresh, step.within)), seed
        everything = sum(sizes[s] for s in program.given)
        assert program.peak() == max(everything, *(level.during for level in levels)), seed


def test_a_part_of_a_program_goes_on_from_what_is_held() -> None:
    for seed in range(100):
        program = made_up(seed)
        levels = list(program.levels())
        for start in range(len(levels)):
            later = {s for step in program.steps[start + 2 :] for s in step.reads}
            part = program.steps[start : start + 2]
            found = program.levels_of(part, levels[start].before, later)
            assert list(found) == levels[start : start + 2], seed
