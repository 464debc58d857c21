"""Random chains on random meshes: the ranks' fusions together give what the whole gives."""

from __future__ import annotations

import random
from collections import Counter

import torch

from tests.sharding.chains import EXACT, MESHES, annotations, chain, inputs
from tests.support.seeds import blocks
from thunder_fuser.ir.reference import evaluate
from thunder_fuser.sharding import propagate, simulate


@blocks(5000, 50, always=150)
def test_ranks_together_are_the_whole(first: int) -> None:
    kinds = Counter[str]()
    for seed in range(first, first + 50):
        rng = random.Random(seed)
        fusion, mesh = chain(rng), rng.choice(MESHES)
        shardings = propagate(fusion, mesh, annotations(fusion, mesh, rng))
        kinds.update(c.kind for c in shardings.communications)
        given = inputs(fusion, seed)
        expected = evaluate(fusion, given).outputs
        if any(truth.abs().max() > EXACT for truth in expected if truth.numel()):
            continue
        for found, truth in zip(simulate(shardings, given), expected, strict=True):
            assert torch.equal(found, truth), f"seed {seed}\n{shardings}\n{fusion}"
    assert {"all_gather", "all_reduce", "all_to_all", "slice"} <= set(kinds)
