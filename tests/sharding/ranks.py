"""The ranks of tests/sharding/test_processes.py: `python -m tests.sharding.ranks SIZE FILE`.

What they find wrong is an assertion that fails.
"""

from __future__ import annotations

from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

from tests.sharding.processes import PATIENCE, become_ranks
from thunder_fuser import FusionDefinition
from thunder_fuser.errors import FuserError, FuserTypeError, FuserValueError
from thunder_fuser.ir.tables import collectives as table
from thunder_fuser.ir.tables.collectives import communicating
from thunder_fuser.nvfuser import ParallelType, execute_with_dtensors, multidevice
from thunder_fuser.sharding.communicators import ProcessGroups, process_groups


def mlp() -> FusionDefinition:
    with FusionDefinition() as fd:
        x, up, down = (fd.define_tensor(shape=[-1, -1], contiguity=True) for _ in range(3))
        fd.add_output(x + fd.ops.linear(fd.ops.relu(fd.ops.linear(x, up)), down))
    return fd


def numbers(*sizes: int) -> torch.Tensor:
    """Small integers: sums of them are exact in any order."""
    return torch.randint(-3, 4, sizes, generator=torch.Generator().manual_seed(len(sizes))).float()


def local_shards(size: int) -> None:
    """A definition with a mesh takes and returns what the rank has."""
    mesh = multidevice.DeviceMesh(torch.arange(size))
    with FusionDefinition() as fd:
        x = fd.define_tensor([4, 8 * size], True)
        total = fd.ops.sum(x, [1])
        scaled = fd.ops.mul(x, 2.0)
        fd.add_output(total)
        fd.add_output(scaled)
        x.set_device_mesh(mesh)
        x.inner_split(1, size)
        x.axis(2).parallelize(ParallelType.mesh_x)
    whole = numbers(4, 8 * size)
    mine = multidevice.shard_tensor(whole, x)
    found = fd.execute([mine])
    assert torch.equal(found[0], whole.sum(1))
    assert torch.equal(found[1], 2 * mine)
    shardings = fd.fec.get_output_shardings()
    assert [s.axis_sharded_on(ParallelType.mesh_x) for s in shardings] == [-1, 1]


def tensor_parallel(size: int) -> None:
    """DTensors in, DTensors out, placed as torch's own operations place them."""
    mesh = init_device_mesh("cpu", (size,))
    x, up, down = numbers(4, 8), numbers(8 * size, 8), numbers(8, 8 * size)
    expected = x + torch.relu(x @ up.T) @ down.T
    fd = mlp()
    placed = [
        distribute_tensor(x, mesh, [Replicate()]),
        distribute_tensor(up, mesh, [Shard(0)]),
        distribute_tensor(down, mesh, [Shard(1)]),
    ]
    for _ in range(2):
        (found,) = execute_with_dtensors(fd, placed)
        assert isinstance(found, DTensor)
        assert found.placements == (Replicate(),)
        assert torch.equal(found.to_local(), expected)
    (rows,) = execute_with_dtensors(
        fd,
        [
            distribute_tensor(x, mesh, [Shard(0)]),
            distribute_tensor(up, mesh, [Replicate()]),
            distribute_tensor(down, mesh, [Replicate()]),
        ],
    )
    assert isinstance(rows, DTensor)
    assert rows.placements == (Shard(0),)
    assert torch.equal(rows.full_tensor(), expected)


def partial_and_strided(size: int) -> None:
    """A partial input is summed; a shard that no DTensor has is gathered."""
    mesh = init_device_mesh("cpu", (size,))
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1], contiguity=True)
        fd.add_output(fd.ops.relu(x))
    part = DTensor.from_local(numbers(4, 6), mesh, [Partial()])
    (found,) = fd.execute_with_dtensors([part])
    assert isinstance(found, DTensor)
    assert torch.equal(found.full_tensor(), torch.relu(size * numbers(4, 6)))
    with FusionDefinition() as merged:
        x = merged.define_tensor([4, 2 * size], True)
        merged.add_output(merged.ops.reshape(x, [8 * size]))
    whole = numbers(4, 2 * size)
    (flat,) = merged.execute_with_dtensors([distribute_tensor(whole, mesh, [Shard(1)])])
    assert isinstance(flat, DTensor)
    assert torch.equal(flat.full_tensor(), whole.flatten())


def collectives(size: int) -> None:
    """Each on its group, against what torch makes of the same."""
    groups, rank = process_groups(multidevice.DeviceMesh(torch.arange(size))), dist.get_rank()
    every = [numbers(size, 3) + k for k in range(size)]
    folds = {"sum": sum(every), "max": every[-1], "min": every[0]}
    with communicating(groups):
        assert torch.equal(table.all_gather(every[rank], 0, size), torch.stack(every))
        for op, expected in folds.items():
            number = table.REDUCTIONS.index(op)
            assert torch.equal(table.all_reduce(every[rank], 0, size, number), expected)
            part = table.reduce_scatter(every[rank], 0, size, number, rank)
            assert torch.equal(part, expected[rank])  # type: ignore[index]
        parts = torch.stack([x[rank] for x in every])
        assert torch.equal(table.all_to_all(every[rank], 0, size, rank), parts)
        with pytest.raises(FuserValueError, match=f"for {size + 1} devices, the communicator has"):
            table.all_gather(every[rank], 0, size + 1)


def mistakes(size: int) -> None:
    mesh = init_device_mesh("cpu", (size,))
    x, w = distribute_tensor(numbers(4, 8), mesh, [Replicate()]), numbers(8, 8)
    with pytest.raises(FuserTypeError, match="input 1 is a plain tensor"):
        mlp().execute_with_dtensors([x, w, w])
    uneven = distribute_tensor(numbers(size + 1, 8), mesh, [Shard(0)])
    even = distribute_tensor(w, mesh, [Replicate()])
    with pytest.raises(FuserValueError, match=f"{size + 1} is no multiple"):
        mlp().execute_with_dtensors([x, uneven, even])
    with pytest.raises(FuserValueError, match="takes 3 inputs, 3 of them tensors; got 2 and 2"):
        mlp().execute_with_dtensors([x, even])
    with FusionDefinition() as fd:
        y = fd.define_tensor([2 * size], True)
        y.set_device_mesh(multidevice.DeviceMesh(torch.arange(2 * size)))
        fd.add_output(fd.ops.relu(y))
    with pytest.raises(FuserValueError, match=f"has {2 * size} devices, the process group {size}"):
        fd.execute([torch.ones(2 * size)])


def main(rank: int, size: int) -> None:
    communicator = multidevice.Communicator.instance()
    assert (communicator.rank(), communicator.size()) == (rank, size)
    for check in (collectives, local_shards, tensor_parallel, partial_and_strided, mistakes):
        check(size)
        communicator.barrier()
    comes_late(rank, size)
    dies(rank, size)


def comes_late(rank: int, size: int) -> None:
    """Groups of a mesh wait as long as the program's own does, and say for what they waited."""
    world, store = dist.group.WORLD, dist.distributed_c10d._get_default_store()
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=2), world)
    groups = ProcessGroups(multidevice.DeviceMesh(torch.arange(size)))
    dist.distributed_c10d._set_pg_timeout(PATIENCE, world)
    if rank:
        store.wait(["rank 0 has waited"])
        return
    named = pytest.raises(FuserError, match="all_gather along mesh axis 0 failed")
    with communicating(groups), named:
        table.all_gather(torch.ones(2), 0, size)
    store.set("rank 0 has waited", "")


def dies(rank: int, size: int) -> None:
    """A rank ends: whoever waits for it ends with an error that names the collective."""
    groups = process_groups(multidevice.DeviceMesh(torch.arange(size)))
    dist.barrier()
    if rank:
        return
    x = torch.ones(size, 2)
    with communicating(groups):
        for name, wait in {
            "all_gather": lambda: table.all_gather(x, 0, size),
            "all_reduce": lambda: table.all_reduce(x, 0, size, 0),
            "reduce_scatter": lambda: table.reduce_scatter(x, 0, size, 0, rank),
            "all_to_all": lambda: table.all_to_all(x, 0, size, rank),
        }.items():
            with pytest.raises(FuserError, match=f"{name} along mesh axis 0 failed"):
                wait()


if __name__ == "__main__":
    become_ranks(main)
