"""Simulation of a mesh in one process: every rank runs its own fusion in a thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from thunder_fuser.ir.fusion import Fusion, TensorView
from thunder_fuser.ir.reference import evaluate
from thunder_fuser.ir.tables.collectives import communicating
from thunder_fuser.sharding.communicators import Meeting, SimulatedRank
from thunder_fuser.sharding.localise import localise
from thunder_fuser.sharding.mesh import shard_of, whole_of
from thunder_fuser.sharding.shardings import Shardings

Run = Callable[[Fusion, Sequence[Any]], list[torch.Tensor]]


def _reference(fusion: Fusion, inputs: Sequence[Any]) -> list[torch.Tensor]:
    return evaluate(fusion, inputs).outputs


def simulate(
    shardings: Shardings, inputs: Sequence[Any], run: Run = _reference
) -> list[torch.Tensor]:
    """Return the whole outputs of a sharded fusion on whole inputs: each rank gets its shards and
    runs its fusion by `run` (the reference, or compiled kernels); their outputs are assembled.

    Raises what a rank raises; the others are aborted.
    """
    mesh, fusion = shardings.mesh, shardings.fusion
    meeting = Meeting(mesh)

    def of_rank(rank: int) -> list[torch.Tensor]:
        at = mesh.coordinates(rank)
        given = [
            shard_of(x, shardings.given[v], at) if isinstance(v, TensorView) else x
            for v, x in zip(fusion.inputs, inputs, strict=True)
        ]
        try:
            with communicating(SimulatedRank(meeting, rank)):
                return run(localise(shardings, rank), given)
        except BaseException:
            meeting.leave()
            raise

    with ThreadPoolExecutor(mesh.size) as pool:
        results = list(pool.map(of_rank, range(mesh.size)))
    return [
        whole_of([found[k] for found in results], t.sizes, shardings.given[t], mesh)
        for k, t in enumerate(fusion.outputs)
    ]
