"""Shares of parameters: a plain run has every value, or every pair of values."""

from __future__ import annotations

import itertools

import pytest

from tests.support.shares import covering, each_value


@pytest.mark.parametrize("together", [1, 2])
@pytest.mark.parametrize("sizes", [(3, 3), (2, 3, 6, 2), (4, 4, 4), (1, 5), (7,)])
def test_all_that_is_asked_for_is_there(sizes: tuple[int, ...], together: int) -> None:
    chosen = covering(sizes, together)
    together = min(together, len(sizes))
    for places in itertools.combinations(range(len(sizes)), together):
        seen = {tuple(at[k] for k in places) for at in chosen}
        assert seen == set(itertools.product(*(range(sizes[k]) for k in places)))


def test_few_are_chosen() -> None:
    assert len(covering((3, 3, 3), 2)) == 9
    assert sorted(covering((3, 3), 1)) == [(0, 0), (1, 1), (2, 2)]


def test_campaigns_have_the_whole_product() -> None:
    mark = each_value(name=["a", "b"], count=[1, 2])
    params = mark.args[1]
    assert [p.id for p in params] == ["a-1", "a-2", "b-1", "b-2"]
    assert [bool(p.marks) for p in params] == [False, True, True, False]
