"""Joining: fewer regions, in an order that computes the same and holds no more than it may."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from thunder_fuser.segment.liveness import Liveness, Step
from thunder_fuser.segment.regions.joining import Joining, Unit

LARGE, SMALL = 1 << 20, 1 << 10


def program(reads: Sequence[Sequence[int]], sizes: Sequence[int], kept: Sequence[int]) -> Liveness:
    """Each step makes the storage of its own number."""
    steps = tuple(Step(frozenset(read), frozenset({k})) for k, read in enumerate(reads))
    return Liveness(steps, sizes, frozenset(kept))


def joined(
    memory: Liveness,
    is_region: Sequence[bool],
    limit: int | None = None,
    stretches: Sequence[int] | None = None,
) -> list[Unit]:
    """`limit`: bytes; without one, those of the program as it is."""
    count = len(memory.steps)
    units = [Unit((k,), step, step.reads, step.gives) for k, step in enumerate(memory.steps)]
    limits = [memory.peak() if limit is None else limit] * count
    places = ["here" if region else None for region in is_region]
    return Joining(units, memory, limits, places, stretches or [0] * count).joined()


def test_regions_around_a_product_are_one() -> None:
    """Two gradients and a product of the first: what the second needs is there already."""
    memory = program([[], [0], []], [SMALL, LARGE, SMALL], [1, 2])
    found = joined(memory, [True, False, True], limit=LARGE + 2 * SMALL)
    assert [u.parts for u in found] == [(0, 2), (1,)]


def test_no_more_memory_is_held() -> None:
    """Activations that products reduce: in front of all products they are alive at once."""
    count = 6
    reads = [r for k in range(count) for r in ([], [2 * k])]
    memory = program(reads, [LARGE, SMALL] * count, range(1, 2 * count, 2))
    is_region = [True, False] * count
    assert len(joined(memory, is_region)) == 2 * count
    together = joined(memory, is_region, limit=count * (LARGE + SMALL))
    assert together[0].parts == tuple(range(0, 2 * count, 2))


def test_what_depends_on_the_product_between_stays_apart() -> None:
    memory = program([[], [0], [1]], [SMALL] * 3, [2])
    assert len(joined(memory, [True, False, True], limit=1 << 30)) == 3


def test_nothing_crosses_a_fence() -> None:
    memory = program([[], [], []], [SMALL] * 3, [0, 1, 2])
    regions = [True, False, True]
    assert len(joined(memory, regions, stretches=[0, 0, 0])) == 2
    assert len(joined(memory, regions, stretches=[0, 1, 2])) == 3


@pytest.mark.parametrize("seed", range(60))
def test_random_programs(seed: int) -> None:
    dice = random.Random(seed)
    count = dice.randrange(2, 24)
    reads = [dice.sample(range(k), dice.randint(0, min(k, 3))) for k in range(count)]
    sizes = [dice.choice((0, SMALL, LARGE)) for _ in range(count)]
    memory = program(reads, sizes, [k for k in range(count) if dice.random() < 0.2])
    is_region = [dice.random() < 0.6 for _ in range(count)]
    slack = dice.choice((0, LARGE))
    limit = memory.peak() + slack
    found = joined(memory, is_region, limit)
    order = [part for unit in found for part in unit.parts]
    assert sorted(order) == list(range(count))
    position = {part: k for k, part in enumerate(order)}
    for k, read in enumerate(reads):
        assert all(position[r] < position[k] for r in read)
    for unit in found:
        assert len(unit.parts) == 1 or all(is_region[part] for part in unit.parts)
        given = {s for part in unit.parts for s in memory.steps[part].gives}
        inside = given - unit.step.gives
        readers = {k for k, read in enumerate(reads) if inside.intersection(read)}
        assert readers <= set(unit.parts)
        assert not inside & memory.kept
    again = Liveness(tuple(u.step for u in found), sizes, memory.kept)
    assert again.peak() <= limit
