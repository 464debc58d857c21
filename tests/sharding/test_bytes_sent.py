"""Bytes told are bytes sent: what ranks give their communicators, for changes of placement."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from importlib import import_module
from itertools import product

import pytest
import torch
from torch import Tensor

from tests.sharding.chains import MESHES, annotations, chain, inputs
from tests.support.seeds import blocks
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import TensorView
from thunder_fuser.ir.tables.collectives import Arrived
from thunder_fuser.sharding import DeviceMesh, Partial, Replicate, Shard, Shardings, propagate
from thunder_fuser.sharding.communicators import Meeting, SimulatedRank
from thunder_fuser.sharding.exchange import exchange
from thunder_fuser.sharding.mesh import Placement, Sharding, fits, reductions_of, shard_of
from thunder_fuser.sharding.plan import mesh_plan
from thunder_fuser.sharding.simulate import simulate


class Counting(SimulatedRank):
    """A simulated rank that counts the bytes that it sends, as rings and pairs of devices do."""

    every: list[Counting]

    def __init__(self, meeting: Meeting, rank: int) -> None:
        super().__init__(meeting, rank)
        self.sent = 0
        Counting.every.append(self)

    def all_gather(self, x: Tensor, axis: int) -> Arrived:
        self.sent += x.nbytes * (self.devices(axis) - 1)
        return super().all_gather(x, axis)

    def all_reduce(self, x: Tensor, axis: int, op: str) -> Arrived:
        self.sent += 2 * x.nbytes * (self.devices(axis) - 1) // self.devices(axis)
        return super().all_reduce(x, axis, op)

    def reduce_scatter(self, x: Tensor, axis: int, op: str, at: int) -> Arrived:
        self.sent += sum(part.nbytes for k, part in enumerate(x) if k != at)
        return super().reduce_scatter(x, axis, op, at)

    def all_to_all(self, x: Tensor, axis: int, to: Sequence[int], of: Sequence[int]) -> Arrived:
        mine = self.meeting.mesh.coordinates(self.rank)[axis]
        self.sent += sum(part.nbytes for k, part in zip(to, x, strict=True) if k != mine)
        return super().all_to_all(x, axis, to, of)


@pytest.fixture(autouse=True)
def counted(monkeypatch: pytest.MonkeyPatch) -> None:
    # The package has a function of the module's name.
    module = import_module("thunder_fuser.sharding.simulate")
    monkeypatch.setattr(module, "SimulatedRank", Counting)


def run(shardings: Shardings, given: Sequence[Tensor]) -> list[Tensor]:
    """Whole outputs; the device that sends most sends what the shardings tell."""
    Counting.every = []
    found = simulate(shardings, given)
    assert max(rank.sent for rank in Counting.every) == shardings.bytes, str(shardings)
    return found


def placements(sizes: Sequence[int], size: int) -> list[Placement]:
    """All placements along an axis."""
    shards = [
        Shard(dim, width, size)
        for dim, extent in enumerate(sizes)
        for width in range(1, extent // size + 1)
        if extent % (width * size) == 0
    ]
    return [Replicate(), Partial("sum"), Partial("max"), *shards]


def shardings_of(sizes: Sequence[int], mesh: DeviceMesh) -> list[Sharding]:
    every = product(*(placements(sizes, size) for size in mesh.shape))
    return [s for s in every if fits(sizes, s) and len(reductions_of(s)) < 2]


def changed(
    sizes: Sequence[int], mesh: DeviceMesh, source: Sharding, target: Sharding
) -> Shardings:
    """A copy of a tensor from one sharding to another."""
    b = FusionBuilder()
    x = b.tensor(list(sizes), DataType.Double)
    y = b.pointwise("neg", x)
    z = b.pointwise("neg", y)
    assert isinstance(y, TensorView)
    assert isinstance(z, TensorView)
    b.output(z)
    placed = {x: source, y: source, z: target}
    named = {t: dict(zip(mesh.names, s, strict=True)) for t, s in placed.items()}
    return propagate(b.build(), mesh, named)


LINES = ((4,), (8, 4)), ((8,), (64,)), ((6,), (36, 6)), ((1,), (4,))
GRIDS = ((2, 2), (8, 4)), ((2, 4), (16, 8)), ((3, 2), (12, 6)), ((4, 2), (32,))


@pytest.mark.parametrize(("shape", "sizes"), LINES, ids=lambda x: "x".join(map(str, x)))
def test_all_pairs_of_placements_on_a_line(shape: tuple[int], sizes: tuple[int, ...]) -> None:
    mesh, kinds = DeviceMesh(shape), Counter[str]()
    whole = numbers(sizes)
    for source, target in product(shardings_of(sizes, mesh), repeat=2):
        made = changed(sizes, mesh, source, target)
        assert torch.equal(run(made, [whole])[0], whole), str(made)
        for c in made.communications:
            kinds[c.kind] += 1
            if c.kind == "all_to_all":
                assert c.bytes == least(sizes, mesh, source, target), str(made)
    assert kinds["all_to_all"]


def least(sizes: Sequence[int], mesh: DeviceMesh, source: Sharding, target: Sharding) -> int:
    """Bytes of the elements of a device that another one shall have, and it not: the most of any
    device.
    """
    index = torch.arange(torch.Size(sizes).numel()).reshape(tuple(sizes))
    sent = []
    for _, at in mesh.ranks():
        had, wanted = (set(shard_of(index, s, at).flatten().tolist()) for s in (source, target))
        sent.append(8 * len(had - wanted))
    return max(sent)


@blocks(4000, 100, always=100)
def test_pairs_of_placements_on_a_grid(first: int) -> None:
    every = [(DeviceMesh(shape), sizes) for shape, sizes in GRIDS]
    possible = [shardings_of(sizes, mesh) for mesh, sizes in every]
    for seed in range(first, first + 100):
        rng = random.Random(seed)
        mesh, sizes = every[seed % len(every)]
        source, target = (rng.choice(possible[seed % len(every)]) for _ in range(2))
        made = changed(sizes, mesh, source, target)
        whole = numbers(sizes)
        assert torch.equal(run(made, [whole])[0], whole), f"seed {seed}: {made}"


@blocks(2000, 25, always=25)
def test_programs_send_what_is_told_and_planned(first: int) -> None:
    for seed in range(first, first + 25):
        rng = random.Random(seed)
        fusion, mesh = chain(rng), rng.choice(MESHES)
        shardings = propagate(fusion, mesh, annotations(fusion, mesh, rng))
        run(shardings, inputs(fusion, seed))
        assert mesh_plan(shardings).sent == shardings.bytes, f"seed {seed}\n{shardings}"


def numbers(sizes: Sequence[int]) -> Tensor:
    """All different, and none 0."""
    return torch.arange(1.0, 1 + torch.Size(sizes).numel(), dtype=torch.float64).reshape(
        tuple(sizes)
    )


def test_overlapping_shards_are_exchanged_between_some_devices() -> None:
    """Chunks of 8 elements become cyclic: device 0 sends half of what it has, device 1 all."""
    found = exchange(Shard(0, 2, 4), Shard(0, 1, 4))
    assert found is not None
    assert [found.attributes(at)["to"] for at in range(4)] == [(0, 1), (2, 3), (0, 1), (2, 3)]
    assert [found.attributes(at)["of"] for at in range(4)] == [(0, 2), (0, 2), (1, 3), (1, 3)]


def test_shards_that_do_not_nest_are_gathered() -> None:
    mesh = DeviceMesh((4,))
    made = changed((24,), mesh, (Shard(0, 6, 4),), (Shard(0, 2, 4),))
    assert [(c.kind, c.bytes) for c in made.communications] == [("all_gather", 144), ("slice", 0)]
    assert dict(mesh_plan(made).collectives) == {"all_gather": 1}
