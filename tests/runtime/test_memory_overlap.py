"""Overlap of strided tensors against enumeration of every byte."""

from __future__ import annotations

import itertools
import random

import pytest
import torch

from thunder_fuser.runtime.binding import memory_overlap
from thunder_fuser.runtime.binding.memory_overlap import overlaps_itself, pairs_near, share_memory

BASE = torch.zeros(2048, dtype=torch.uint8)
STRIDES = (0, 1, 2, 3, 5, 8, 16, 24)


def addresses(t: torch.Tensor) -> list[int]:
    """The address of every element, once for each index."""
    return [
        t.data_ptr() + t.itemsize * sum(i * s for i, s in zip(point, t.stride(), strict=True))
        for point in itertools.product(*map(range, t.shape))
    ]


def occupied(t: torch.Tensor) -> set[int]:
    return {a + k for a in addresses(t) for k in range(t.itemsize)}


def strided(rng: random.Random) -> torch.Tensor:
    memory = BASE.view(rng.choice((torch.uint8, torch.float16, torch.float32)))
    rank = rng.randint(0, 3)
    sizes = [rng.randint(0 if rng.random() < 0.1 else 1, 4) for _ in range(rank)]
    strides = [rng.choice(STRIDES) for _ in range(rank)]
    return memory.as_strided(sizes, strides, rng.randint(0, 60))


def test_sharing_is_decided_exactly() -> None:
    rng = random.Random(1)
    outcomes = []
    for _ in range(2000):
        a, b = strided(rng), strided(rng)
        expected = bool(occupied(a) & occupied(b))
        assert share_memory(a, b) is expected, (a.shape, a.stride(), b.shape, b.stride())
        outcomes.append(expected)
    assert 200 < sum(outcomes) < 1800


def test_no_pair_that_shares_memory_is_far_apart() -> None:
    rng = random.Random(3)
    for _ in range(200):
        tensors = [strided(rng) for _ in range(8)]
        near = {frozenset(pair) for pair in pairs_near(tensors)}
        for j, k in itertools.combinations(range(8), 2):
            if share_memory(tensors[j], tensors[k]):
                assert frozenset((j, k)) in near


def test_tensors_with_memory_of_their_own_are_no_pairs() -> None:
    """An optimizer's step has hundreds of them, and checks them at every call."""
    assert not list(pairs_near([torch.zeros(100) for _ in range(300)]))
    whole = torch.zeros(400)
    assert not list(pairs_near(whole.split(1)))
    assert list(pairs_near([whole[:300], whole[299:]])) == [(0, 1)]


def test_overlap_with_itself_is_never_missed() -> None:
    rng = random.Random(2)
    overlapping = 0
    for _ in range(2000):
        t = strided(rng)
        found = addresses(t)
        if len(set(found)) < len(found):
            overlapping += 1
            assert overlaps_itself(t.shape, t.stride())
    assert overlapping > 100


@pytest.mark.parametrize(
    "view",
    [
        BASE.view(8, 16, 16),
        BASE.view(8, 16, 16).permute(2, 0, 1)[:, ::2, 3:],
        BASE.view(2048, 1).expand(2048, 1),
        BASE[:0].view(0, 4).expand(0, 4),
        BASE[5].view(()),
    ],
    ids=["dense", "permuted slice", "size 1", "empty", "0-dim"],
)
def test_views_of_dense_tensors_do_not_overlap_themselves(view: torch.Tensor) -> None:
    assert not overlaps_itself(view.shape, view.stride())


def test_interleaved_halves_share_nothing() -> None:
    x = torch.zeros(64, 96, 32)
    left, right = x[..., :16], x[..., 16:]
    assert not share_memory(left, right)
    assert share_memory(left, x[..., 15:])
    assert not share_memory(x[:, ::2], x[:, 1::2])
    assert share_memory(x[:, ::2], x[:, ::3])


def test_an_undecided_search_counts_as_sharing(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.zeros(64, 96)
    assert not share_memory(x[:, ::2], x[:, 1::2])
    monkeypatch.setattr(memory_overlap, "_MAX_STEPS", 0)
    assert share_memory(x[:, ::2], x[:, 1::2])
