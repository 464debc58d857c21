"""Images of boxes under transforms, compared with the points that the transforms pull."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import pytest

from thunder_fuser.analysis.progression import are_apart, progression
from thunder_fuser.analysis.region import Region, everything, pulled, pushed, without
from thunder_fuser.ir.domain import (
    Expand,
    Merge,
    NewBroadcast,
    Reorder,
    Resize,
    Split,
    Squeeze,
    Transform,
    iteration,
    replay,
    static,
)

SPREAD = [NewBroadcast(1), Resize(1, 0, 2), Merge(0)]
"""Two elements between neighbours."""


@pytest.mark.parametrize(
    ("sizes", "steps"),
    [
        ([3, 4], []),
        ([3, 4], [Resize(0, 2, 5), Resize(1, 0, 1)]),
        ([3, 4], [*SPREAD, Resize(0, 1, -2), Reorder((1, 0))]),
        ([3], [NewBroadcast(1), Expand(1, 5), Resize(0, 1, 0)]),
        ([1, 3], [Squeeze(0), Resize(0, 4, 4)]),
        ([6], [Split(0, 2, 3), Resize(0, 1, 1)]),
        ([2, 3], [Resize(0, 1, 0), Resize(1, 1, 2), Merge(0)]),
    ],
    ids=str,
)
def test_the_image_of_a_tensor_is_what_reads_it(
    sizes: Sequence[int], steps: Sequence[Transform]
) -> None:
    root = [iteration(n) for n in sizes]
    box = pushed(root, steps)
    assert box is not None
    points = set(itertools.product(*box))
    shape = [static(d.size) for d in replay(root, steps)]
    for point in itertools.product(*map(range, shape)):
        alone = Region((tuple(progression(i, ()) for i in point),))
        assert bool(pulled(alone, root, steps)) == (point in points)
    assert pulled(Region((box,)), root, steps) == everything(root)


@pytest.mark.parametrize(
    "steps", [[Resize(0, -1, 0)], [Resize(0, 2, 0), Resize(0, 0, -1)], [Split(0, 2, 4)]], ids=str
)
def test_no_image_without_some_elements_or_of_uneven_ones(steps: Sequence[Transform]) -> None:
    assert pushed([iteration(7)], steps) is None


@pytest.mark.parametrize("start", range(12))
@pytest.mark.parametrize("steps", [(), ((1, 3),), ((3, 4),), ((4, 3),), ((8, 2), (1, 2))], ids=str)
def test_sets_that_are_apart_share_no_element(
    start: int, steps: tuple[tuple[int, int], ...]
) -> None:
    ours = progression(start, steps)
    for other, of in itertools.product(range(12), [(), ((1, 3),), ((3, 4),), ((8, 2), (1, 2))]):
        theirs = progression(other, of)
        if are_apart(ours, theirs):
            assert set(ours).isdisjoint(theirs)
        if ours.is_interval and theirs.is_interval:
            assert are_apart(ours, theirs) == set(ours).isdisjoint(theirs)


@pytest.mark.parametrize("seed", range(60))
def test_boxes_without_others(seed: int) -> None:
    """The parts that are left are apart, and are all points of the one that the other lacks."""
    rng = random.Random(seed)
    rank = rng.randint(1, 3)
    box, hole = (
        tuple(
            progression(rng.randrange(5), [(rng.choice((1, 1, 1, 2, 3)), rng.randint(1, 4))])
            for _ in range(rank)
        )
        for _ in range(2)
    )
    parts = without(box, hole)
    if parts is None:
        assert any(not p.is_interval for p in hole)
        return
    points = [point for part in parts for point in itertools.product(*part)]
    assert len(set(points)) == len(points)
    assert set(points) == {*itertools.product(*box)} - {*itertools.product(*hole)}
