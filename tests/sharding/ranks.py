"""The ranks of tests/sharding/test_processes.py: `python -m tests.sharding.ranks SIZE FILE`.

What they find wrong is an assertion that fails.
"""

from __future__ import annotations

from contextlib import nullcontext
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

import thunder_fuser
from tests.sharding.processes import PATIENCE, become_ranks
from thunder_fuser import FusionDefinition
from thunder_fuser.errors import FuserError, FuserTypeError, FuserValueError, TargetError
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
        assert torch.equal(
            table.all_to_all(every[rank], 0, size, tuple(range(size)), tuple(range(size))), parts
        )
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


def column_sums(mesh: multidevice.DeviceMesh) -> FusionDefinition:
    """Of a matrix of which each rank has rows."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], True)
        x.set_device_mesh(mesh)
        x.outer_split(0, mesh.size)
        x.axis(0).parallelize(ParallelType.mesh_x)
        fd.add_output(fd.ops.exp(x) * fd.ops.sum(x, [0]))
    return fd


def one_cannot(size: int) -> None:
    """A rank without a compiler runs the same collectives by torch's operations; where that is an
    error, it is one of all ranks.
    """
    fd, rank = column_sums(multidevice.DeviceMesh(torch.arange(size))), dist.get_rank()
    is_last = rank == size - 1

    def run(mine: torch.Tensor, *, strict: bool = False) -> torch.Tensor:
        chosen = thunder_fuser.options(cxx="/missing", strict=strict)
        with chosen if is_last else nullcontext():
            return fd.execute([mine])[0]

    for columns in (3, 5):
        x = numbers(2 * size, columns)
        mine = x.chunk(size)[rank]
        with pytest.warns(RuntimeWarning, match="missing") if is_last else nullcontext():
            found = run(mine)
        expected = mine.double().exp() * x.double().sum(0)
        torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
        # Nothing is tried again, nor warned of.
        assert torch.equal(run(mine), found)
    error = TargetError if is_last else FuserError
    with pytest.raises(error, match="missing was not found"):
        run(torch.ones(2, 7), strict=True)
    # After an error of all ranks, all try again.
    assert torch.equal(fd.execute([torch.zeros(2, 7)])[0], torch.zeros(2, 7))


def they_disagree(size: int) -> None:
    """Ranks whose tensors are no shards of one tensor: an error of all, which says both sizes."""
    fd, rank = column_sums(multidevice.DeviceMesh(torch.arange(size))), dist.get_rank()
    for rows, columns in ((1, 2 + rank), (1 + rank, 2)):
        with pytest.raises(FuserError, match=r"rank 0 for T0 \[2, 2\].*; rank 1 for T0 \[., .\]"):
            fd.execute([torch.ones(rows, columns)])
    wrong = torch.ones(1, 2, dtype=torch.float64 if rank else torch.float32)
    error, told = (FuserTypeError, "dtype Float") if rank else (FuserError, "rank 1.* dtype Float")
    with pytest.raises(error, match=told):
        fd.execute([wrong])
    mesh = init_device_mesh("cpu", (size,))
    part = DTensor.from_local(torch.ones(2 + rank, 4), mesh, [Shard(0)], run_check=False)
    with FusionDefinition() as relu:
        y = relu.define_tensor([-1, -1], True)
        relu.add_output(relu.ops.relu(y))
    with pytest.raises(FuserError, match=r"rank 0 for T0.*; rank 1 for T0"):
        relu.execute_with_dtensors([part])


def main(rank: int, size: int) -> None:
    communicator = multidevice.Communicator.instance()
    assert (communicator.rank(), communicator.size()) == (rank, size)
    checks = (collectives, local_shards, tensor_parallel, partial_and_strided, mistakes, one_cannot)
    for check in (*checks, they_disagree):
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
    named = pytest.raises(FuserError, match=r"all_gather of .* along mesh axis 0 failed")
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
            "all_to_all": lambda: table.all_to_all(
                x, 0, size, tuple(range(size)), tuple(range(size))
            ),
        }.items():
            told = rf"{name} of torch.float32 .* along mesh axis 0 failed"
            with pytest.raises(FuserError, match=told):
                wait()


if __name__ == "__main__":
    become_ranks(main)
