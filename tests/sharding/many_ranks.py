"""The ranks of tests/sharding/test_many_ranks.py: `python -m tests.sharding.many_ranks SIZE FILE
BACKEND`. Programs as users write them on eight processes, against one process in float64.

Functions are traced once, before the processes are forked: a trace of plain tensors is one of
DTensors. Kernels are not compiled: what a rank runs is a fusion as any other.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import thunder
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh as TorchMesh
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor
from torch.nn import functional
from torch.nn.utils import clip_grad_norm_

import thunder_fuser
from tests.sharding.processes import become_ranks
from tests.sharding.test_bytes_sent import changed, numbers, shardings_of
from thunder_fuser import FusionDefinition
from thunder_fuser.errors import FuserError
from thunder_fuser.ir.reference import evaluate
from thunder_fuser.ir.tables.collectives import communicating
from thunder_fuser.nvfuser import ParallelType, multidevice
from thunder_fuser.sharding import DeviceMesh
from thunder_fuser.sharding.communicators import ProcessGroups, process_groups
from thunder_fuser.sharding.localise import localise
from thunder_fuser.sharding.mesh import shard_of
from thunder_fuser.sharding.rank_program import RankProgram

WIDTH, HIDDEN, POSITIONS, BATCH, EXPERTS = 32, 64, 8, 2, 8
CHANGES = 40
WHOLE = Replicate()
Parameters = Sequence[tuple[tuple[int, ...], Placement]]
"""Sizes of weights, and their placements along the tensor axis."""


def normed(x: Tensor, w: Tensor) -> Tensor:
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) * w


def gated(x: Tensor, norm: Tensor, up: Tensor, gate: Tensor, down: Tensor) -> Tensor:
    y = normed(x, norm)
    return x + functional.linear(
        functional.silu(functional.linear(y, gate)) * functional.linear(y, up), down
    )


def experts(x: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """Tokens by group, expert and place, which go to their experts and back."""
    mine = x.permute(1, 0, 2, 3).reshape(EXPERTS, -1, WIDTH)
    found = torch.bmm(functional.silu(torch.bmm(mine, up)), down)
    return x + found.reshape(EXPERTS, x.shape[0], -1, WIDTH).permute(1, 0, 2, 3)


def clipped(*gradients: Tensor) -> tuple[Tensor, ...]:
    norm = torch.sqrt(sum((g * g).sum() for g in gradients))  # type: ignore[arg-type]
    scale = torch.clamp(0.1 / (norm + 1e-6), max=1.0)
    return (*(g * scale for g in gradients), norm)


def random_numbers(*sizes: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(sizes, generator=generator, dtype=torch.float64)


GATED: Parameters = (
    ((WIDTH,), WHOLE),
    ((HIDDEN, WIDTH), Shard(0)),
    ((HIDDEN, WIDTH), Shard(0)),
    ((WIDTH, HIDDEN), Shard(1)),
)
TOKENS = (EXPERTS, EXPERTS, 2, WIDTH)
EXPERT_WEIGHTS = (EXPERTS, WIDTH, HIDDEN), (EXPERTS, HIDDEN, WIDTH)


def traced(function: Callable[..., Any], *wholes: Tensor) -> Any:
    """Compile a function, forward and backward, but do not run it."""
    compiled = thunder.jit(function, executors=[thunder_fuser.executor])
    thunder.compile_data(compiled).get_computation_and_inputs(*wholes)
    return compiled


def weights_of(parameters: Parameters) -> list[Tensor]:
    return [0.3 * random_numbers(*s, seed=k) for k, (s, _) in enumerate(parameters)]


def leaves_of(wholes: Sequence[Tensor]) -> list[Tensor]:
    return [x.clone().requires_grad_() for x in wholes]


ROWS = random_numbers(BATCH, POSITIONS, WIDTH, seed=20)
GRADIENTS = [random_numbers(*s, seed=k) for k, s in enumerate([(16, 8), (8, 16), (16,)])]
"""What is clipped by a compiled function."""


class Compiled:
    """The functions of this file, traced."""

    def __init__(self) -> None:
        self.gated = traced(gated, *leaves_of([ROWS, *weights_of(GATED)]))
        dispatched = [random_numbers(*TOKENS), *(random_numbers(*s) for s in EXPERT_WEIGHTS)]
        self.experts = traced(experts, *leaves_of(dispatched))
        self.clipped = traced(clipped, *GRADIENTS)


def placed(x: Tensor, mesh: TorchMesh, placements: Sequence[Placement]) -> DTensor:
    return distribute_tensor(x, mesh, placements)


def leaf(x: Tensor, mesh: TorchMesh, placements: Sequence[Placement]) -> DTensor:
    return placed(x, mesh, placements).detach().requires_grad_()


def whole(x: Any) -> Tensor:
    assert isinstance(x, DTensor)
    return x.detach().full_tensor()


def compare(
    compiled: Any,
    function: Callable[..., Tensor],
    wholes: Sequence[Tensor],
    mesh: TorchMesh,
    placements: Sequence[Sequence[Placement]],
) -> None:
    """Results and gradients of whole tensors and of DTensors."""
    expected = leaves_of(wholes)
    mine = [leaf(x, mesh, p) for x, p in zip(wholes, placements, strict=True)]
    y, found = function(*expected), compiled(*mine)
    torch.testing.assert_close(whole(found), y.detach())
    y.backward(torch.ones_like(y))
    found.backward(placed(torch.ones_like(y), mesh, [WHOLE] * mesh.ndim))
    for a, b in zip(mine, expected, strict=True):
        torch.testing.assert_close(whole(a.grad), b.grad)


def learns(
    compiled: Any, function: Callable[..., Tensor], parameters: Parameters, size: int, steps: int
) -> None:
    """Values sharded by batch and position, parameters along both axes; clipped gradients, and
    steps of an optimizer.
    """
    mesh = init_device_mesh("cpu", (2, size // 2))
    expected = leaves_of(weights_of(parameters))
    mine = [leaf(w, mesh, [Shard(0), p]) for w, (_, p) in zip(expected, parameters, strict=True)]
    optimizers = [torch.optim.AdamW(weights, lr=1e-2) for weights in (expected, mine)]
    for step in range(steps):
        x = random_numbers(*ROWS.shape, seed=40 + step)
        y, found = function(x, *expected), compiled(placed(x, mesh, [Shard(0), Shard(1)]), *mine)
        torch.testing.assert_close(whole(found), y.detach(), rtol=1e-6, atol=1e-8)
        for result, weights in ((y, expected), (found, mine)):
            for w in weights:
                w.grad = None
            result.square().mean().backward()
            clip_grad_norm_(weights, 0.1)
        for a, b in zip(mine, expected, strict=True):
            torch.testing.assert_close(whole(a.grad), b.grad, rtol=1e-6, atol=1e-9)
        for optimizer in optimizers:
            optimizer.step()
    for a, b in zip(mine, expected, strict=True):
        torch.testing.assert_close(whole(a), b.detach(), rtol=1e-6, atol=1e-8)


def clips(compiled: Compiled, size: int) -> None:
    mesh = init_device_mesh("cpu", (2, size // 2))
    kinds = [Shard(0), Shard(0)], [WHOLE, Shard(1)], [WHOLE, WHOLE]
    found = compiled.clipped(*(placed(g, mesh, p) for g, p in zip(GRADIENTS, kinds, strict=True)))
    for a, b in zip(found, clipped(*GRADIENTS), strict=True):
        torch.testing.assert_close(whole(a), b)


def dispatches(compiled: Compiled, size: int) -> None:
    """Tokens of all ranks go to the ranks of their experts, and back."""
    wholes = [random_numbers(*s, seed=k) for k, s in enumerate((TOKENS, *EXPERT_WEIGHTS))]
    mesh = init_device_mesh("cpu", (size,))
    compare(compiled.experts, experts, wholes, mesh, [[Shard(0)]] * 3)


class Counting(ProcessGroups):
    """Communicator that counts the bytes that it sends in all-to-alls and all-gathers."""

    def __init__(self, groups: ProcessGroups) -> None:
        self._groups = groups._groups
        self.sent = 0

    def all_gather(self, x: Tensor, axis: int) -> Any:
        self.sent += x.nbytes * (self.devices(axis) - 1)
        return super().all_gather(x, axis)

    def all_to_all(self, x: Tensor, axis: int, to: Sequence[int], of: Sequence[int]) -> Any:
        mine = dist.get_rank(self._groups[axis])
        self.sent += sum(part.nbytes for k, part in zip(to, x, strict=True) if k != mine)
        return super().all_to_all(x, axis, to, of)


def placements_change(size: int) -> None:
    """Random changes from shards to shards send what is told, the rank that sends most."""
    rank = dist.get_rank()
    rng = random.Random(0)
    for shape, sizes in (((size,), (64, 8)), ((2, size // 2), (32, 8))):
        mesh = DeviceMesh(shape)
        possible = [s for s in shardings_of(sizes, mesh) if "Partial" not in str(s)]
        for _ in range(CHANGES // 2):
            source, target = rng.sample(possible, 2)
            made = changed(sizes, mesh, source, target)
            counting, given = Counting(process_groups(mesh)), numbers(sizes)
            at = mesh.coordinates(rank)
            with communicating(counting):
                (found,) = evaluate(localise(made, rank), [shard_of(given, source, at)]).outputs
            assert torch.equal(found, shard_of(given, target, at)), str(made)
            most = torch.tensor(counting.sent)
            dist.all_reduce(most, dist.ReduceOp.MAX)
            assert int(most) == made.bytes, str(made)


MOVED = (
    torch.bool,
    torch.int16,
    torch.uint16,
    torch.float8_e4m3fn,
    torch.bfloat16,
    torch.complex64,
)


def dtypes_are_moved(size: int) -> None:
    """Also those that gloo has not."""
    groups, rank = process_groups(DeviceMesh((size,))), dist.get_rank()
    every = tuple(range(size))
    for dtype in MOVED:
        x = torch.arange(size * size * 2).reshape(size, size, 2).to(dtype)
        rows = groups.all_gather(x[rank], 0).wait()
        columns = groups.all_to_all(x[rank], 0, every, every).wait()
        assert torch.equal(rows.view(torch.uint8), x.view(torch.uint8))
        assert torch.equal(columns.view(torch.uint8), x[:, rank].contiguous().view(torch.uint8))
    with pytest.raises(FuserError, match=r"all_reduce of torch.int16 \[2\] along mesh axis 0"):
        groups.all_reduce(torch.ones(2, dtype=torch.int16), 0, "sum").wait()


def they_run_different_programs(size: int) -> None:
    """Other numbers, operations and placements, with the same collectives: all ranks raise."""
    rank, mesh = dist.get_rank(), multidevice.DeviceMesh(torch.arange(size))
    is_last = rank == size - 1

    def scaled(factor: float, operation: str, dim: int) -> FusionDefinition:
        with FusionDefinition() as fd:
            x = fd.define_tensor([size, size], True)
            x.set_device_mesh(mesh)
            x.outer_split(dim, size)
            x.axis(dim).parallelize(ParallelType.mesh_x)
            fd.add_output(getattr(fd.ops, operation)(fd.ops.mul(x, factor)))
        return fd

    for other in ((3.0, "exp", 0), (2.0, "sin", 0), (2.0, "exp", 1)):
        fd = scaled(*(other if is_last else (2.0, "exp", 0)))
        mine = torch.ones((size, 1) if is_last and other[2] else (1, size))
        with pytest.raises(
            FuserError, match=r"operations mul, exp .*; rank 7 for .*operations mul"
        ):
            fd.execute([mine])
    # Many inputs: what they are called for is longer than what ranks tell each other.
    with FusionDefinition() as fd:
        inputs = [fd.define_tensor([1000 * size], True) for _ in range(60)]
        for x in inputs:
            x.set_device_mesh(mesh)
        total = inputs[0]
        for x in inputs[1:]:
            total = fd.ops.add(total, x)
        fd.add_output(fd.ops.mul(total, 3.0 if is_last else 2.0))
    with pytest.raises(FuserError, match="the ranks would run different programs"):
        fd.execute([torch.ones(1000 * size)] * 60)


class Checks:
    """What each rank runs; the functions are traced before there are ranks."""

    def __init__(self) -> None:
        self.compiled = Compiled()

    def __call__(self, rank: int, size: int) -> None:
        RankProgram.prepare = lambda program, inputs: None  # type: ignore[method-assign]
        for check in (dtypes_are_moved, placements_change, they_run_different_programs):
            check(size)
        clips(self.compiled, size)
        dispatches(self.compiled, size)
        learns(self.compiled.gated, gated, GATED, size, steps=2)


if __name__ == "__main__":
    become_ranks(Checks())
