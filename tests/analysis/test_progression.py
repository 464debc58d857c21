"""Progressions against plain lists of integers."""

from __future__ import annotations

import random

from thunder_fuser.analysis.progression import (
    Progression,
    Step,
    clip,
    divide,
    interval,
    join,
    progression,
    unite,
)


def drawn(source: random.Random) -> Progression:
    steps: list[Step] = []
    span = 0
    for _ in range(source.randint(0, 3)):
        stride, count = span + source.choice((1, 1, 1, 2, 3, 4)), source.randint(1, 5)
        if span and source.random() < 0.4:
            stride = (span // 4 + 1) * 4
        steps.insert(0, (stride, count))
        span += stride * (count - 1)
    return progression(source.randint(0, 12), steps)


def check_form(p: Progression) -> None:
    """Increasing, nested and canonical."""
    numbers = list(p)
    assert numbers == sorted(set(numbers))
    assert (len(numbers), numbers[0], numbers[-1]) == (p.size, p.start, p.last)
    assert progression(p.start, p.steps) == p
    assert p.is_interval == (numbers == list(range(p.start, p.last + 1)))


def test_clip_keeps_what_is_inside() -> None:
    source = random.Random(1)
    for _ in range(4000):
        p, begin = drawn(source), source.randint(-3, 60)
        end = begin + source.randint(0, 50)
        pieces = clip(p, begin, end)
        assert sorted(x for q in pieces for x in q) == [x for x in p if begin <= x < end]
        for piece in pieces:
            check_form(piece)


def test_divide_is_divmod_and_join_is_its_inverse() -> None:
    source = random.Random(2)
    for _ in range(4000):
        p, m = drawn(source), source.randint(1, 24)
        pairs = list(divide(p, m))
        assert sorted((x, y) for q, r in pairs for x in q for y in r) == [divmod(x, m) for x in p]
        assert sorted(x for q, r in pairs for x in join(q, r, m)) == list(p)
        for pair in pairs:
            for piece in (*pair, join(*pair, m)):
                check_form(piece)


def test_unite_is_the_union_or_refuses() -> None:
    source = random.Random(3)
    united = 0
    for _ in range(8000):
        p = drawn(source)
        near = progression(p.start + source.randint(0, 8), p.steps)
        q = near if source.random() < 0.7 else drawn(source)
        together = unite(p, q)
        if together is not None:
            united += 1
            check_form(together)
            assert set(together) == {*p, *q}
    assert united > 1000


def test_equal_sets_are_equal_values() -> None:
    rows = progression(0, [(16, 4), (4, 4), (1, 4)])
    assert rows == interval(0, 64)
    assert progression(3, [(8, 1), (2, 5), (1, 2)]) == interval(3, 13)


def test_few_pieces_where_strides_divide() -> None:
    """A window of an image, read as a flat index and divided again, however large it is."""
    window = join(interval(10, 900), interval(100, 900), 1024)
    assert window == progression(10 * 1024 + 100, [(1024, 890), (1, 800)])
    assert list(divide(window, 1024)) == [(interval(10, 900), interval(100, 900))]
    assert len(list(divide(window, 1024 * 64))) == 3
    assert len(list(divide(window, 8))) == 3
