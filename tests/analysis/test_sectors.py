"""Sectors against enumeration: the addresses of every element, divided by the size of a sector."""

from __future__ import annotations

import itertools
import random

import pytest

from thunder_fuser.analysis.progression import Progression, progression
from thunder_fuser.analysis.region import Box, Region
from thunder_fuser.analysis.sectors import sector_bytes


def enumerated(region: Region, strides: tuple[int, ...], itemsize: int, sector: int) -> int:
    places = {
        sum(i * s for i, s in zip(point, strides, strict=True)) * itemsize // sector
        for box in region.boxes
        for point in itertools.product(*box)
    }
    return len(places) * sector


def random_progression(choose: random.Random, size: int) -> Progression:
    start = choose.randrange(size)
    step = choose.randint(1, 5)
    return progression(start, [(step, choose.randint(1, (size - 1 - start) // step + 1))])


@pytest.mark.parametrize("itemsize", [1, 2, 4, 8, 16])
def test_boxes_of_dense_tensors_in_any_order_are_counted_exactly(itemsize: int) -> None:
    choose = random.Random(itemsize)
    for _ in range(300):
        sizes = [choose.randint(1, 9) for _ in range(choose.randint(1, 3))]
        order = choose.sample(range(len(sizes)), len(sizes))
        strides = [0] * len(sizes)
        step = choose.choice([1, 1, 3])
        for k in order:
            strides[k] = step
            step *= sizes[k]
        boxes: list[Box] = [
            tuple(random_progression(choose, size) for size in sizes)
            for _ in range(choose.randint(1, 3))
        ]
        region = Region(tuple(boxes))
        found = sector_bytes(region, strides, itemsize, 32)
        assert found == enumerated(region, tuple(strides), itemsize, 32)


def test_elements_that_share_memory_are_bounded() -> None:
    """Windows that overlap: rows of eight elements, three apart."""
    region = Region(((progression(0, [(1, 10)]), progression(0, [(1, 8)])),))
    found = sector_bytes(region, (3, 1), 4, 32)
    assert found >= enumerated(region, (3, 1), 4, 32) == 160
    assert found <= 160


def test_repeated_elements_are_one() -> None:
    region = Region(((progression(0, [(1, 100)]), progression(0, [(1, 8)])),))
    assert sector_bytes(region, (0, 1), 4, 32) == 32


def test_nothing_moves_nothing() -> None:
    assert sector_bytes(Region(()), (1,), 4, 32) == 0


def test_a_large_tensor_is_counted_without_looking_at_it() -> None:
    column = Region(((progression(0, [(1, 1 << 24)]), progression(5, [])),))
    assert sector_bytes(column, (1 << 12, 1), 2, 32) == 32 << 24
