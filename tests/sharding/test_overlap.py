"""Collectives run during kernels and calls: started early, waited for late, in one order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.sharding.checks import fusion_of, is_right, kinds, tensor
from thunder_fuser import FusionDefinition
from thunder_fuser.compiled_fusion import CompiledFusion
from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.ir.tables.collectives import communicating
from thunder_fuser.sharding import DeviceMesh, outer, propagate, simulate
from thunder_fuser.sharding.localise import localise
from thunder_fuser.sharding.mesh import Partial
from thunder_fuser.sharding.shardings import Shardings

MESH = DeviceMesh((2,), ("tp",))
SHAPES = [8, 64], [256, 64], [64, 256], [256, 64], [64, 256]


def two_branches() -> tuple[FusionDefinition, Shardings]:
    """Two MLPs of one input: while the first one's parts are summed, the second one can run."""
    with FusionDefinition() as fd:
        x, *weights = (fd.define_tensor(shape=shape, contiguity=True) for shape in SHAPES)
        up, down, other_up, other_down = weights
        first = fd.ops.linear(fd.ops.relu(fd.ops.linear(x, up)), down)
        second = fd.ops.linear(fd.ops.sin(fd.ops.linear(x, other_up)), other_down)
        fd.add_output(fd.ops.exp(first) + fd.ops.cos(second))
    placed = {w.val: {"tp": outer(k % 2, 256, 2)} for k, w in enumerate(weights)}
    return fd, propagate(fd.fusion, MESH, placed)


def test_a_plan_has_work_between_a_collective_and_who_waits_for_it() -> None:
    _, shardings = two_branches()
    plan = CompiledFusion(localise(shardings, 0)).plan()
    first, second = (s for s in plan.segments if s.awaited_by is not None)
    between = plan.segments[first.index + 1 : first.awaited_by]
    assert [s.operations for s in between] == [("linear",), ("all_reduce",)]
    assert first.awaited_by == second.awaited_by == len(plan.segments) - 1
    assert f"in flight until segment {first.awaited_by}" in str(first)
    # The operand of the first one is read until then.
    ends = {b.tensor: b.last for b in plan.buffers}
    assert ends[first.inputs[0]] == first.awaited_by


@dataclass
class _Late:
    log: list[str]
    found: Callable[[], Tensor]

    def wait(self) -> Tensor:
        self.log.append("wait")
        return self.found()


class Pair:
    """The first of two ranks, of which the other has the same; nothing arrives before somebody
    waits for it.
    """

    def __init__(self) -> None:
        self.log: list[str] = []

    def devices(self, axis: int) -> int:
        return 2

    def _sent(self, name: str, found: Callable[[], Tensor]) -> _Late:
        self.log.append(name)
        return _Late(self.log, found)

    def all_gather(self, x: Tensor, axis: int) -> _Late:
        return self._sent("all_gather", lambda: torch.stack([x, x]))

    def all_reduce(self, x: Tensor, axis: int, op: str) -> _Late:
        return self._sent("all_reduce", lambda: x + x)

    def reduce_scatter(self, x: Tensor, axis: int, op: str, at: int) -> _Late:
        return self._sent("reduce_scatter", lambda: x[at] + x[at])

    def all_to_all(self, x: Tensor, axis: int, to: Sequence[int], of: Sequence[int]) -> _Late:
        return self._sent("all_to_all", lambda: torch.stack([x[0], x[0]]))


def run(fusion: Fusion, inputs: Sequence[Any]) -> tuple[list[Tensor], list[str]]:
    pair = Pair()
    with communicating(pair):
        return CompiledFusion(fusion)(inputs), pair.log


def test_collectives_start_before_anybody_waits() -> None:
    fd, shardings = two_branches()
    inputs = [torch.randn(s, dtype=torch.float32) for s in SHAPES]
    local = localise(shardings, 0)
    parts = [torch.randn(t.sizes) / 4 for t in local.tensor_inputs]
    x, up, down, other_up, other_down = parts
    (found,), log = run(local, parts)
    assert log == ["all_reduce", "all_reduce", "wait", "wait"]
    first = 2 * torch.relu(x.double() @ up.double().mT) @ down.double().mT
    second = 2 * torch.sin(x.double() @ other_up.double().mT) @ other_down.double().mT
    torch.testing.assert_close(found.double(), first.exp() + second.cos(), rtol=1e-4, atol=1e-4)
    # And by all ranks of a mesh.
    inputs = [x / 8 for x in inputs]
    (whole,) = fd.execute(inputs)
    (simulated,) = simulate(shardings, inputs, lambda fusion, given: CompiledFusion(fusion)(given))
    torch.testing.assert_close(simulated, whole, rtol=1e-4, atol=1e-4)


def partial_sum(op: Callable[[FusionDefinition, Any], Any]) -> Fusion:
    """What becomes of a partial sum, on the first rank of two."""
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[8, 4], contiguity=True)
        op(fd, x)
    return localise(propagate(fd.fusion, MESH, {x.val: {"tp": Partial("sum")}}), 0)


def test_views_of_what_is_under_way_wait_for_nothing() -> None:
    def returned(fd: FusionDefinition, x: Any) -> None:
        fd.add_output(fd.ops.permute(x, [1, 0]))
        fd.add_output(fd.ops.exp(fd.ops.iota(6)))

    x = torch.randn(8, 4)
    (turned, _), log = run(partial_sum(returned), [x])
    assert log == ["all_reduce", "wait"]
    torch.testing.assert_close(turned, 2 * x.mT, rtol=0, atol=0)


def test_what_a_collective_reads_is_updated_when_it_has_arrived() -> None:
    """The sum of the old elements is asked for; new ones are written into their memory."""

    def updated(fd: FusionDefinition, x: Any) -> None:
        fd.add_output(fd.ops.exp(x))
        fd.add_output(fd.ops.neg(x), x)

    fusion = partial_sum(updated)
    plan = CompiledFusion(fusion).plan()
    (sent,) = (s for s in plan.segments if s.awaited_by is not None)
    assert sent.inputs == (fusion.inputs[0],)
    x = torch.randn(8, 4)
    before = x.clone()
    found, log = run(fusion, [x])
    assert log == ["all_reduce", "wait"]
    torch.testing.assert_close(found[0], (2 * before).exp(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(x, -before, rtol=0, atol=0)


@pytest.mark.parametrize("rank", range(2))
def test_all_ranks_start_collectives_in_one_order(rank: int) -> None:
    """Ranks add whole tensors to partial ones on one device alone: their kernels differ."""
    _, shardings = two_branches()
    orders = []
    for at in (0, rank):
        plan = CompiledFusion(localise(shardings, at)).plan()
        orders.append([str(s.fusion) for s in plan.segments if s.awaited_by is not None])
    assert orders[0] == orders[1]


def test_what_one_rank_alone_reads_is_sent_by_all() -> None:
    """The first rank adds a bias that all have gathered; the others have no use for it."""
    fusion, names = fusion_of(biased)
    x, w, bias, gathered = (names[n] for n in ("x", "w", "bias", "gathered"))
    split = {"tp": outer(1, 8, 2)}
    asked = {x: split, w: split, bias: {"tp": outer(0, 6, 2)}, gathered: {}}
    shardings = propagate(fusion, MESH, asked)
    assert kinds(shardings) == ["all_gather", "all_reduce"]
    for rank in range(2):
        plan = CompiledFusion(localise(shardings, rank)).plan()
        found = [s.operations[0] for s in plan.segments if s.awaited_by is not None]
        assert found == ["all_gather", "all_reduce"]
    assert is_right(shardings)


def biased(fd: FusionDefinition) -> dict[str, Any]:
    x, w, bias = tensor(fd, 8, 8), tensor(fd, 6, 8), tensor(fd, 6)
    gathered = fd.ops.sin(bias)
    fd.add_output(fd.ops.linear(x, w, gathered))
    return {"x": x, "w": w, "bias": bias, "gathered": gathered}


def test_what_no_result_needs_is_not_sent() -> None:
    def unused(fd: FusionDefinition) -> dict[str, Any]:
        names = biased(fd)
        names["unused"] = fd.ops.matmul(names["x"], names["x"])
        return names

    fusion, names = fusion_of(unused)
    placed = {names["x"]: {"tp": outer(0, 8, 2)}, names["unused"]: {"tp": outer(1, 8, 2)}}
    shardings = propagate(fusion, MESH, placed)
    assert not shardings.bytes
    assert "matmul" not in str(shardings.fusion)


@pytest.mark.parametrize("dim", range(2))
def test_nobody_sends_an_empty_tensor(dim: int) -> None:
    """A dimension without elements is split, and summed (0 is the result) or kept."""

    def empty(fd: FusionDefinition) -> dict[str, Any]:
        x = tensor(fd, 0, 4)
        names = {"x": x, "total": fd.ops.sum(x, [dim]), "kept": fd.ops.sin(x)}
        fd.add_output(names["total"])
        fd.add_output(names["kept"])
        return names

    fusion, names = fusion_of(empty)
    placed = {names["x"]: {"tp": outer(0, 2, 2)}, names["total"]: {}, names["kept"]: {}}
    shardings = propagate(fusion, MESH, placed)
    assert not CompiledFusion(localise(shardings, 0)).plan().calls
    assert is_right(shardings)
