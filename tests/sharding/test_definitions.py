"""nvFuser's multi-device names on definitions: loop splits are placements; plans need no device."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from thunder_fuser import FusionDefinition, sharding
from thunder_fuser.errors import FuserError, FuserTypeError, FuserValueError
from thunder_fuser.nvfuser import ParallelType, multidevice
from thunder_fuser.nvfuser.multidevice import DeviceMesh, shard_tensor
from thunder_fuser.sharding import Replicate, Shard, simulate
from thunder_fuser.sharding.communicators import process_groups

D = 4
MESH = DeviceMesh(torch.arange(D))


def sharded_on(dim: int, width: int, size: int = D) -> dict[str, Shard]:
    return {"mesh_x": Shard(dim, width, size)}


@pytest.mark.parametrize(
    ("schedule", "placed"),
    [
        (lambda x: (x.outer_split(0, D), x.axis(0)), sharded_on(0, 6)),
        (lambda x: (x.split(0, D, inner_split=False), x.axis(0)), sharded_on(0, 6)),
        (lambda x: (x.inner_split(0, D), x.axis(1)), sharded_on(0, 1)),
        (lambda x: (x.outer_split(0, 3), x.outer_split(1, D), x.axis(1)), sharded_on(0, 2)),
        (lambda x: (x.inner_split(0, 2), x.inner_split(0, D), x.axis(1)), sharded_on(0, 2)),
        (lambda x: (x.axis(1),), sharded_on(1, 1)),
        (lambda x: (x.reorder({1: 0}), x.axis(0)), sharded_on(1, 1)),
        (lambda x: (x.reorder([1, 0]), x.outer_split(-1, D), x.axis(1)), sharded_on(0, 6)),
        (lambda x: (None,), {}),
    ],
)
def test_what_is_parallelised_is_a_digit(
    schedule: Callable[..., tuple[object, ...]], placed: dict[str, Shard]
) -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([24, D], True)
        assert not x.has_device_mesh()
        x.set_device_mesh(MESH)
        *_, axis = schedule(x)
        if axis is not None:
            axis.parallelize(ParallelType.mesh_x)  # type: ignore[attr-defined]
        fd.add_output(fd.ops.relu(x))
    assert x.has_device_mesh()
    assert fd.loops[x.val].placements([24, D]) == placed
    (given,) = fd.shardings().given[fd.shardings().fusion.tensor_inputs[0]]
    assert given == placed.get("mesh_x", Replicate())
    whole = torch.arange(24.0 * D).reshape(24, D)
    shards = [shard_tensor(whole, x, rank) for rank in range(D)]
    if "mesh_x" in placed:
        dim, width, _ = placed["mesh_x"].dim, placed["mesh_x"].width, D
        mine = torch.arange(whole.shape[dim]) // width % D == 1
        assert torch.equal(shards[1], whole[mine] if dim == 0 else whole[:, mine])
    else:
        assert torch.equal(shards[1], whole)


def mlp(shape: list[int]) -> FusionDefinition:
    with FusionDefinition() as fd:
        shapes = [shape, [32, 8], [8, 32]]
        x, up, down = (fd.define_tensor(shape=s, contiguity=True) for s in shapes)
        for t in (x, up, down):
            t.set_device_mesh(MESH)
        up.outer_split(0, D)
        up.axis(0).parallelize(ParallelType.mesh_x)
        down.outer_split(1, D)
        down.axis(1).parallelize(ParallelType.mesh_x)
        fd.add_output(x + fd.ops.linear(fd.ops.relu(fd.ops.linear(x, up)), down))
    return fd


@pytest.mark.parametrize("shape", [[4, 8], [-1, -1]], ids=["static", "open"])
def test_an_mlp_by_nvfusers_names(shape: list[int]) -> None:
    fd = mlp(shape)
    generator = torch.Generator().manual_seed(0)
    inputs = [
        torch.randint(-3, 4, s, generator=generator).float() for s in ([4, 8], [32, 8], [8, 32])
    ]
    plan = fd.mesh_plan(inputs)
    assert dict(plan.collectives) == {"all_reduce": 1}
    assert plan.sent == 2 * 4 * 8 * 4 * (D - 1) // D
    assert plan.held == 2 * 4 * 8 * 4 + 2 * 32 * 8 * 4 // D
    assert [t.sizes for t in plan.replicated] == [(4, 8), (4, 8)]
    assert "mesh_x: 1 all_reduce, 192 B over NVLink" in str(plan)
    assert plan.link_seconds > 0
    assert max(plan.link_seconds, plan.work_seconds) <= plan.seconds
    assert plan.seconds <= plan.link_seconds + plan.work_seconds + 1e-12
    assert plan.plan.calls == 3
    x, up, down = inputs
    (found,) = simulate(fd.shardings(inputs), inputs)
    assert torch.equal(found, x + torch.relu(x @ up.T) @ down.T)


def test_a_subclass_places_its_tensors_in_a_method() -> None:
    class Sharded(FusionDefinition):
        def definition(self) -> None:
            self.x = self.define_tensor([8, 4], True)
            self.add_output(self.ops.sum(self.x, [0]))

        def multidevice_schedule(self) -> None:
            self.x.set_device_mesh(MESH)
            self.x.outer_split(0, D)
            self.x.axis(0).parallelize(ParallelType.mesh_x)

    assert dict(Sharded().mesh_plan().collectives) == {"all_reduce": 1}


def test_a_schedule_places_tensors_too() -> None:
    """As definitions of a while ago are written."""

    class Sharded(FusionDefinition):
        def definition(self) -> None:
            self.x = self.define_tensor([2 * D, 3 * D], True)
            self.total = self.ops.sum(self.x, [0])
            self.add_output(self.total)

        def multidevice_schedule(self) -> None:
            for tensor in (self.x, self.total):
                self.sched._set_device_mesh(tensor, MESH)
                self.sched.split(tensor, 0, D, False)
                self.sched.parallelize(tensor, 0, ParallelType.mesh_x)
            self.sched.set_allocation_as_loop(self.total)

    fd = Sharded()
    assert dict(fd.mesh_plan().collectives) == {"reduce_scatter": 1}
    x = torch.arange(2.0 * D * 3 * D).reshape(2 * D, 3 * D)
    assert torch.equal(simulate(fd.shardings(), [x])[0], x.sum(0))
    with FusionDefinition() as without:
        y = without.define_tensor([4], True)
        with pytest.raises(FuserError, match="call set_device_mesh on it first"):
            without.sched.parallelize(y, 0, ParallelType.mesh_x)


def test_a_mesh_of_one_device_needs_no_process_group() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1], True)
        x.set_device_mesh(DeviceMesh(torch.arange(1)))
        x.outer_split(0, 1)
        x.axis(0).parallelize(ParallelType.mesh_x)
        fd.add_output(fd.ops.neg(x))
    given = torch.arange(6.0)
    assert torch.equal(fd.execute([given])[0], -given)
    (sharding,) = fd.fec.get_output_shardings()
    assert (sharding.mesh.size, sharding.axis_sharded_on(ParallelType.mesh_x)) == (1, 0)
    assert sharding.axis_sharded_on(ParallelType.mesh_y) == -1
    assert multidevice.Communicator.instance().size() == 1


def test_groups_go_with_the_programs_process_group() -> None:
    """A program may end it and begin another one."""
    mesh = sharding.DeviceMesh((2, 2), ("dp", "tp"))
    made = []
    for _ in range(2):
        dist.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
        groups = process_groups(mesh)
        assert process_groups(mesh) is groups
        made += [weakref.ref(groups), weakref.ref(dist.group.WORLD)]
        del groups
        dist.destroy_process_group()
    gc.collect()
    assert [one() for one in made] == [None] * 4


def test_bad_meshes() -> None:
    with pytest.raises(FuserValueError, match="in row-major order"):
        DeviceMesh(torch.tensor([1, 0]))
    with pytest.raises(FuserValueError, match="several axes"):
        DeviceMesh(torch.arange(4).reshape(2, 2)).shard_tensor(torch.ones(4), 0, 0)
    with pytest.raises(FuserValueError, match="6 is no multiple of 4"):
        MESH.shard_tensor(torch.ones(6), 0, 0)


@pytest.mark.parametrize(
    ("wrong", "error", "told"),
    [
        (lambda x: x.axis(2), FuserValueError, "no loop axis 2; it has 2"),
        (lambda x: x.outer_split(0, 0), FuserValueError, "0 is no factor"),
        (lambda x: x.axis(0).parallelize("mesh_x"), FuserTypeError, "threads and blocks are for"),
        (
            lambda x: x.axis(0).parallelize(ParallelType.mesh_y),
            FuserValueError,
            "mesh_y of a mesh of 1 axes",
        ),
        (
            lambda x: x.axis(0).parallelize(ParallelType.mesh_x),
            FuserValueError,
            "an axis of 10 is parallelised over mesh_x, which has 4 devices",
        ),
        (lambda x: x.outer_split(0, 4), FuserValueError, "axis of 10 elements, which 4 does not"),
    ],
)
def test_bad_splits(wrong: Callable[..., object], error: type[Exception], told: str) -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([10, D], True)
        x.set_device_mesh(MESH)
        fd.add_output(fd.ops.relu(x))
    with pytest.raises(error, match=told):
        _ = wrong(x), fd.shardings()


def test_bad_calls() -> None:
    fd = mlp([4, 8])
    with pytest.raises(FuserValueError, match="there is no process group"):
        fd.execute([torch.ones(4, 8), torch.ones(8, 8), torch.ones(8, 8)])
    with pytest.raises(FuserTypeError, match="input 0 is a plain tensor"):
        fd.execute_with_dtensors([torch.ones(4, 8), torch.ones(8, 8), torch.ones(8, 8)])
    with pytest.raises(FuserValueError, match="leaves sizes open, and placements depend on them"):
        mlp([-1, -1]).shardings()
    with FusionDefinition() as unplaced:
        y = unplaced.define_tensor([4], True)
        unplaced.add_output(unplaced.ops.relu(y))
    with pytest.raises(FuserValueError, match="no tensor of the definition has a mesh"):
        unplaced.mesh_plan()
    with pytest.raises(FuserValueError, match="has no mesh; call set_device_mesh"):
        shard_tensor(torch.ones(4), y, 0)
    with FusionDefinition() as two:
        a, b = two.define_tensor([4], True), two.define_tensor([4], True)
        a.set_device_mesh(MESH)
        b.set_device_mesh(DeviceMesh(torch.arange(2)))
        two.add_output(a + b)
    with pytest.raises(FuserValueError, match="on one mesh; here are mesh_x 2 and mesh_x 4"):
        two.shardings()
    with FusionDefinition() as open_sizes:
        a, b = open_sizes.define_tensor([-1], True), open_sizes.define_tensor([-1], True)
        a.set_device_mesh(DeviceMesh(torch.arange(1)))
        open_sizes.add_output(a + b)
    with pytest.raises(FuserError, match="T1 leaves sizes open and has no mesh"):
        open_sizes.execute([torch.ones(4), torch.ones(4)])
