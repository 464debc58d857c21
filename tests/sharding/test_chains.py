"""Random chains on random meshes: the ranks' fusions together give what the whole gives."""

from __future__ import annotations

import random
from collections import Counter

import torch

from tests.sharding.chains import EXACT, MESHES, annotations, chain, inputs
from tests.support.seeds import blocks
from thunder_fuser.compiled_fusion import CompiledFusion
from thunder_fuser.ir.fusion import Fusion, TensorView
from thunder_fuser.ir.reference import evaluate
from thunder_fuser.ir.tables.collectives import OF_A_RANK
from thunder_fuser.segment.communication_overlap import collective_of
from thunder_fuser.sharding import propagate, simulate
from thunder_fuser.sharding.localise import localise
from thunder_fuser.sharding.rank_program import RankProgram


@blocks(5000, 50, always=50)
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


@blocks(2000, 20, always=20)
def test_all_ranks_plan_the_same_collectives(first: int) -> None:
    """What a rank need not compute, and what is equal on it alone, leaves no other one waiting."""
    for seed in range(first, first + 20):
        rng = random.Random(seed)
        fusion, mesh = chain(rng), rng.choice(MESHES)
        shardings = propagate(fusion, mesh, annotations(fusion, mesh, rng))
        fusions = [localise(shardings, rank) for rank in range(mesh.size)]
        every = [sent(found) for found in fusions]
        assert all(found == every[0] for found in every), f"seed {seed}\n{shardings}\n{fusion}"
        told = {RankProgram(found, "rank").digest for found in fusions}
        assert len(told) == 1, f"seed {seed}\n{shardings}\n{fusion}"


def sent(fusion: Fusion) -> list[str]:
    """The collectives of a rank's plan, in order: what all of its axis agree on."""
    found = []
    for segment in CompiledFusion(fusion).plan().segments:
        call = collective_of(segment)
        if call is not None:
            agreed = {name: k for name, k in call.attributes if name not in OF_A_RANK}
            (operand,) = call.inputs
            assert isinstance(operand, TensorView)
            found.append(f"{call.op} of {operand.dtype.name} {list(operand.sizes)}, {agreed}")
    return found
