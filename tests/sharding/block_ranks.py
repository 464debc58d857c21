"""The ranks of tests/sharding/test_blocks.py: `python -m tests.sharding.block_ranks 4 FILE`.

Halves of a block on real processes: tensor parallel over four, and over two beside two rows of the
batch. Ranks run the reference, which compiles nothing.
"""

from __future__ import annotations

from functools import partial

import torch
import torch.distributed as dist

from tests.sharding.blocks import HALVES, is_right, sharded
from tests.sharding.processes import become_ranks, device
from thunder_fuser.ir.reference import evaluate
from thunder_fuser.ir.tables.collectives import communicating
from thunder_fuser.sharding import DeviceMesh, Shardings
from thunder_fuser.sharding.communicators import process_groups
from thunder_fuser.sharding.localise import localise
from thunder_fuser.sharding.mesh import shard_of, whole_of


def on_processes(shardings: Shardings, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """Whole results, from what every rank makes of its shards."""
    mesh, rank, fusion = shardings.mesh, dist.get_rank(), shardings.fusion
    at = mesh.coordinates(rank)
    mine = [
        shard_of(x, shardings.given[t], at).to(device())
        for t, x in zip(fusion.tensor_inputs, inputs, strict=True)
    ]
    with communicating(process_groups(mesh)):
        found = evaluate(localise(shardings, rank), mine).outputs
    wholes = []
    for tensor, result in zip(fusion.outputs, found, strict=True):
        parts = [torch.empty_like(result) for _ in range(mesh.size)]
        dist.all_gather(parts, result.contiguous())
        wholes.append(whole_of(parts, tensor.sizes, shardings.given[tensor], mesh))
    return [whole.cpu() for whole in wholes]


def main(rank: int, size: int) -> None:
    for mesh in (DeviceMesh((size,), ("tp",)), DeviceMesh((2, size // 2), ("dp", "tp"))):
        for half in HALVES.values():
            for sequence in (False, True):
                batch = "dp" in mesh.names
                found, named = sharded(half, mesh, sequence=sequence, batch=batch)
                is_right(half, found, named, partial(on_processes, found))


if __name__ == "__main__":
    become_ranks(main)
