"""Meshes, placements and communicators: what they hold, and what they refuse."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from tests.sharding.chains import MESHES, annotations
from thunder_fuser.errors import FuserError, FuserValueError
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import Fusion, TensorView
from thunder_fuser.ir.reference import evaluate
from thunder_fuser.sharding import DeviceMesh, Partial, Replicate, Shard, outer, propagate, simulate
from thunder_fuser.sharding.changes import next_change
from thunder_fuser.sharding.communicators import ProcessGroups, peers
from thunder_fuser.sharding.localise import localise
from thunder_fuser.sharding.mesh import local_sizes, shard_of, whole_of

HALF, COLUMNS = Shard(0, 4, 2), Shard(1, 4, 2)
"""Of 8 rows and 8 columns."""


def fusion_of(*sizes: int) -> Fusion:
    b = FusionBuilder()
    x = b.tensor(list(sizes), DataType.Double)
    b.output(b.reduce("sum", x, [0]))
    return b.build()


@pytest.mark.parametrize("seed", range(40))
def test_shards_are_elements_by_their_digits(seed: int) -> None:
    """Against the index of every element, for any placements on two axes."""
    rng = random.Random(seed)
    mesh = rng.choice(MESHES)
    sizes = [rng.choice([4, 8, 16]) for _ in range(rng.randint(1, 3))]
    fusion = fusion_of(*sizes)
    placed = annotations(fusion, mesh, rng, partial=0.0).get(fusion.tensor_inputs[0], {})
    sharding = tuple(placed.get(name, Replicate()) for name in mesh.names)
    whole = torch.arange(float(torch.Size(sizes).numel())).reshape(sizes)
    index = torch.meshgrid(*(torch.arange(n) for n in sizes), indexing="ij")
    shards = []
    for _, at in mesh.ranks():
        mine = torch.ones(sizes, dtype=torch.bool)
        for placement, mine_at in zip(sharding, at, strict=True):
            if isinstance(placement, Shard):
                digit = index[placement.dim] // placement.width % placement.size
                mine &= digit == mine_at
        shards.append(shard_of(whole, sharding, at))
        assert shards[-1].shape == local_sizes(sizes, sharding)
        assert torch.equal(shards[-1].flatten(), whole[mine])
    assert torch.equal(whole_of(shards, sizes, sharding, mesh).to(whole.dtype), whole)


def test_ranks_are_row_major() -> None:
    mesh = DeviceMesh((2, 3), ("a", "b"))
    assert [mesh.coordinates(rank) for rank in range(6)] == [at for _, at in mesh.ranks()]
    assert peers(mesh, 4, 0) == [1, 4]
    assert peers(mesh, 4, 1) == [3, 4, 5]


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: DeviceMesh((2, 0)), r"sizes \[2, 0\]; each must be at least 1"),
        (lambda: DeviceMesh((2, 2), ("x", "x")), "2 axes and the names x, x"),
        (lambda: outer(0, 10, 4), "10 is no multiple of 8; pad it, or shard another dimension"),
    ],
)
def test_bad_meshes_and_shards(make: Any, told: str) -> None:
    with pytest.raises(FuserValueError, match=told):
        make()


@pytest.mark.parametrize(
    ("placed", "told"),
    [
        ({"y": Replicate()}, "the mesh has no axis 'y'; it has x"),
        ({"x": Shard(0, 1, 2)}, "a shard over 2 devices along mesh axis x, which has 4"),
        ({"x": Shard(0, 3, 4)}, "dimension 0 of 16 elements is sharded over 4 devices"),
        (
            {"x": Partial("sum"), "z": Partial("max")},
            r"several kinds \(sum along mesh axis 0, max along mesh axis 1\)",
        ),
    ],
)
def test_bad_annotations(placed: Any, told: str) -> None:
    fusion = fusion_of(16, 4)
    with pytest.raises(FuserValueError, match=told):
        propagate(fusion, DeviceMesh((4, 2), ("x", "z")), {fusion.tensor_inputs[0]: placed})


def test_digits_of_two_axes_must_not_overlap() -> None:
    fusion = fusion_of(16, 4)
    mesh = DeviceMesh((4, 2), ("x", "y"))
    placed = {"x": Shard(0, 2, 4), "y": Shard(0, 4, 2)}
    with pytest.raises(FuserValueError, match="two mesh axes shard dimension 0 with digits that"):
        propagate(fusion, mesh, {fusion.tensor_inputs[0]: placed})


def test_a_partial_input_is_summed_where_it_is_read() -> None:
    b = FusionBuilder()
    x = b.tensor([4], DataType.Double)
    b.output(b.pointwise("exp", x))  # type: ignore[arg-type]
    fusion = b.build()
    found = propagate(fusion, DeviceMesh((2,), ("x",)), {fusion.tensor_inputs[0]: {"x": Partial()}})
    assert [c.kind for c in found.communications] == ["all_reduce"]
    given = torch.arange(4.0).double()
    assert torch.allclose(simulate(found, [given])[0], given.exp())


@pytest.mark.parametrize("seed", range(120))
def test_any_placement_becomes_any_other(seed: int) -> None:
    """Parts that are summed, or whose largest or product is taken, shards and replicas."""
    rng = random.Random(seed)
    mesh, b = rng.choice(MESHES), FusionBuilder()
    x = b.tensor([rng.choice([4, 8, 12]) for _ in range(rng.randint(1, 2))], DataType.Double)
    y = b.pointwise("neg", b.pointwise("neg", x))
    assert isinstance(y, TensorView)
    b.output(y)
    fusion = b.build()
    asked: Any = {}
    while not {x, y} <= asked.keys():
        asked |= annotations(fusion, mesh, rng, partial=0.4)
    given = torch.randint(-9, 9, x.sizes, generator=torch.Generator().manual_seed(seed)).double()
    found = propagate(fusion, mesh, {t: asked[t] for t in (x, y)})
    assert torch.equal(simulate(found, [given])[0], given)


def test_a_shard_becomes_partial_without_a_collective() -> None:
    """Each device has the identity in the place of what others have."""
    fusion = fusion_of(4, 8)
    (x,), (total,) = fusion.tensor_inputs, fusion.outputs
    placed = {x: {"x": outer(1, 8, 4)}, total: {"x": Partial("max")}}
    found = propagate(fusion, DeviceMesh((4,), ("x",)), placed)
    assert found.bytes == 0
    local = evaluate(localise(found, 1), [torch.ones(4, 2).double()]).outputs[0]
    least = -torch.inf
    assert local.tolist() == [least, least, 4, 4, least, least, least, least]


@pytest.mark.parametrize(
    ("now", "target", "changes"),
    [
        # What is sliced before it is gathered is half as much.
        ((HALF, Replicate()), (Replicate(), COLUMNS), [(1, COLUMNS), (0, Replicate())]),
        ((Partial(), Partial()), (HALF, COLUMNS), [(0, HALF), (1, COLUMNS)]),
        # Both want what the other one has.
        ((HALF, COLUMNS), (COLUMNS, HALF), [(0, Replicate()), (1, HALF), (0, COLUMNS)]),
        # A shard that becomes partial leaves its digit to others.
        ((HALF, Replicate()), (Partial(), HALF), [(0, Partial()), (1, HALF)]),
        ((Partial("max"), HALF), (HALF, Partial()), [(0, Replicate()), (1, Partial()), (0, HALF)]),
    ],
)
def test_axes_change_one_after_the_other(now: Any, target: Any, changes: Any) -> None:
    found = []
    while now != target:
        found.append(next_change((8, 8), now, target))
        axis, placement = found[-1]
        now = (*now[:axis], placement, *now[axis + 1 :])
    assert found == changes


def test_a_rank_that_fails_ends_the_others() -> None:
    fusion = fusion_of(8, 4)
    found = propagate(
        fusion, DeviceMesh((2,), ("x",)), {fusion.tensor_inputs[0]: {"x": outer(0, 8, 2)}}
    )
    met: list[int] = []

    def run(local: Fusion, given: Any) -> list[torch.Tensor]:
        met.append(0)
        if len(met) == 1:
            raise FuserError("this rank dies")
        return evaluate(local, given).outputs

    with pytest.raises(FuserError, match=r"this rank dies|another rank did not come"):
        simulate(found, [torch.ones(8, 4).double()], run)


def test_without_a_communicator_or_a_process_group() -> None:
    from thunder_fuser.ir.tables.collectives import all_gather

    with pytest.raises(FuserValueError, match="all_gather along mesh axis 0: no process group"):
        all_gather(torch.ones(2), 0, 2)
    with pytest.raises(FuserValueError, match=r"call torch\.distributed\.init_process_group first"):
        ProcessGroups(DeviceMesh((2,)))


def test_a_partial_result_that_is_read_is_reduced_before() -> None:
    b = FusionBuilder()
    x = b.tensor([4, 6], DataType.Double)
    total = b.reduce("sum", x, [0])
    b.output(total)
    b.output(b.slice(total, [0], [4]))
    fusion = b.build()
    shardings = propagate(fusion, DeviceMesh((2,), ("x",)), {x: {"x": Shard(0, 2, 2)}})
    given = torch.arange(24).double().reshape(4, 6)
    found = simulate(shardings, [given])
    assert torch.equal(found[0], given.sum(0))
    assert torch.equal(found[1], given.sum(0)[:4])
    assert [c.kind for c in shardings.communications] == ["all_reduce"]


def test_what_is_written_into_an_input_is_placed_as_it() -> None:
    b = FusionBuilder()
    x, y = b.tensor([8], DataType.Double), b.tensor([8], DataType.Double)
    total = b.pointwise("add", x, y)
    assert isinstance(total, TensorView)
    b.output(total, x)
    fusion, mesh = b.build(), DeviceMesh((2,), ("x",))
    shardings = propagate(fusion, mesh, {x: {"x": Shard(0, 1, 2)}, y: {"x": Shard(0, 4, 2)}})
    assert shardings.given[total] == shardings.given[x] == (Shard(0, 1, 2),)
    with pytest.raises(FuserValueError, match="written into"):
        propagate(fusion, mesh, {x: {"x": Shard(0, 1, 2)}, total: {"x": Shard(0, 4, 2)}})
