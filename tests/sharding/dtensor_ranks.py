"""The ranks of tests/sharding/test_beside_dtensor.py: random programs by our plans and by torch's
DTensors, from the same placements to replicated results.

Its last line says who sent how much: for how many programs we send less than torch, as much, and
more, how many it cannot run, and the bytes that a device sends for all others, ours and torch's.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tests.sharding.processes import become_ranks
from thunder_fuser.frontends.definition import DataType, FusionDefinition
from thunder_fuser.ir.fusion import TensorView
from thunder_fuser.ir.reference import evaluate
from thunder_fuser.ir.tables.collectives import communicating
from thunder_fuser.sharding import DeviceMesh, Shardings, outer, propagate
from thunder_fuser.sharding.communicators import process_groups
from thunder_fuser.sharding.dtensors import placements_of
from thunder_fuser.sharding.localise import localise
from thunder_fuser.sharding.mesh import Placement, shard_of

PROGRAMS = 60
SIZES = (4, 8, 12)


@dataclass
class Program:
    """A chain of steps, as what a definition and torch make of a tensor, and further operands.

    shape    of what there is so far
    shapes   of all inputs, the first of which the chain begins with
    """

    shape: tuple[int, ...]
    shapes: list[tuple[int, ...]]
    words: list[str] = field(default_factory=list)
    ours: list[Callable[[Any, Any, list[Any]], Any]] = field(default_factory=list)
    theirs: list[Callable[[Any, list[Any]], Any]] = field(default_factory=list)

    def step(
        self,
        word: str,
        shape: tuple[int, ...],
        ours: Callable[[Any, Any, list[Any]], Any],
        theirs: Callable[[Any, list[Any]], Any],
    ) -> None:
        self.words.append(word)
        self.ours.append(ours)
        self.theirs.append(theirs)
        self.shape = shape

    def operand(self, shape: tuple[int, ...]) -> int:
        """The number of a further input."""
        self.shapes.append(shape)
        return len(self.shapes) - 1


def pointwise(p: Program, r: random.Random) -> None:
    if r.random() < 0.5:
        p.step("relu", p.shape, lambda ops, x, _: ops.relu(x), lambda x, _: torch.relu(x))
        return
    k = p.operand(p.shape)
    p.step("add", p.shape, lambda ops, x, more: ops.add(x, more[k]), lambda x, more: x + more[k])


def total(p: Program, r: random.Random) -> None:
    dim = r.randrange(len(p.shape))
    p.step(
        f"sum {dim}",
        tuple(1 if k == dim else n for k, n in enumerate(p.shape)),
        lambda ops, x, _: ops.sum(x, dims=[dim], keepdim=True),
        lambda x, _: x.sum(dim, keepdim=True),
    )


def product(p: Program, r: random.Random) -> None:
    if len(p.shape) != 2:
        return
    size = r.choice(SIZES)
    k = p.operand((p.shape[1], size))
    p.step(
        f"matmul {size}",
        (p.shape[0], size),
        lambda ops, x, more: ops.matmul(x, more[k]),
        lambda x, more: x @ more[k],
    )


def permuted(p: Program, r: random.Random) -> None:
    order = r.sample(range(len(p.shape)), len(p.shape))
    p.step(
        f"permute {order}",
        tuple(p.shape[k] for k in order),
        lambda ops, x, _: ops.permute(x, order),
        lambda x, _: x.permute(order),
    )


def reshaped(p: Program, r: random.Random) -> None:
    if len(p.shape) == 2 and r.random() < 0.6:
        dim = r.randrange(2)
        parts = [(a, p.shape[dim] // a) for a in (2, 4) if p.shape[dim] % a == 0]
        if not parts:
            return
        shape = (*p.shape[:dim], *r.choice(parts), *p.shape[dim + 1 :])
    else:
        dim = r.randrange(len(p.shape) - 1)
        shape = (*p.shape[:dim], p.shape[dim] * p.shape[dim + 1], *p.shape[dim + 2 :])
        if len(shape) == 1:
            shape = (shape[0], 1)
    p.step(
        f"reshape {list(shape)}",
        shape,
        lambda ops, x, _: ops.reshape(x, list(shape)),
        lambda x, _: x.reshape(shape),
    )


STEPS = (pointwise, total, product, permuted, reshaped)


def program(seed: int) -> tuple[Program, list[int | None]]:
    """A program, and the dimension that each input is sharded along."""
    r = random.Random(seed)
    shape = (r.choice(SIZES), r.choice(SIZES))
    made = Program(shape, [shape])
    for _ in range(r.randint(2, 5)):
        r.choice(STEPS)(made, r)
    size = dist.get_world_size()
    sharded = [
        r.choice([None, *(k for k, n in enumerate(s) if n % size == 0)]) for s in made.shapes
    ]
    return made, sharded


class Sent(TorchDispatchMode):
    """Counts the bytes that this device sends in torch's functional collectives."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(t, DTensor) for t in types):
            # DTensor takes it into operations on local tensors, which come back here.
            return NotImplemented
        name, d = func._schema.name, dist.get_world_size()
        if "c10d_functional" in name or "dtensor" in name:
            held = args[0].numel() * args[0].element_size() if args else 0
            for kind, share in (
                ("all_gather_into_tensor", d - 1),
                ("all_reduce", 2 * (d - 1) / d),
                ("reduce_scatter_tensor", (d - 1) / d),
                ("all_to_all", (d - 1) / d),
            ):
                self.bytes += round(held * share) if name.split("::")[1].startswith(kind) else 0
        return func(*args, **(kwargs or {}))


def planned(made: Program, sharded: list[int | None], size: int) -> Shardings:
    """Our plan: the result replicated."""
    with FusionDefinition() as fd:
        inputs = [
            fd.define_tensor(shape=list(s), contiguity=True, dtype=DataType.Double)
            for s in made.shapes
        ]
        x = inputs[0]
        for step in made.ours:
            x = step(fd.ops, x, inputs)
        fd.add_output(x)
    asked: dict[TensorView, dict[str, Placement]] = {x.val: {}}
    for tensor, shape, dim in zip(inputs, made.shapes, sharded, strict=True):
        asked[tensor.val] = {} if dim is None else {"x": outer(dim, shape[dim], size)}
    return propagate(fd.compiled.fusion, DeviceMesh((size,), ("x",)), asked)


def main(rank: int, size: int) -> None:
    mesh = init_device_mesh("cpu", (size,))
    counts = {"less": 0, "equal": 0, "more": 0, "failed": 0}
    ours = theirs = 0
    for seed in range(PROGRAMS):
        made, sharded = program(seed)
        generator = torch.Generator().manual_seed(seed)
        wholes = [torch.randn(s, generator=generator, dtype=torch.float64) for s in made.shapes]
        truth = wholes[0]
        for step in made.theirs:
            truth = step(truth, wholes)
        shardings = planned(made, sharded, size)
        fusion = shardings.fusion
        mine = [
            shard_of(x, shardings.given[t], (rank,))
            for t, x in zip(fusion.tensor_inputs, wholes, strict=True)
        ]
        with communicating(process_groups(shardings.mesh)):
            (found,) = evaluate(localise(shardings, rank), mine).outputs
        torch.testing.assert_close(found, truth, msg=f"program {seed}: {made.words}")
        placed = [
            distribute_tensor(x, mesh, placements_of(shardings.given[t], x.shape))
            for t, x in zip(fusion.tensor_inputs, wholes, strict=True)
        ]
        sent = torch_sends(made, placed, truth)
        if sent is None:
            counts["failed"] += 1
            continue
        order = (shardings.bytes > sent) - (shardings.bytes < sent)
        counts[("equal", "more", "less")[order]] += 1
        ours, theirs = ours + shardings.bytes, theirs + sent
        if rank == 0 and shardings.bytes != sent:
            print(seed, made.shapes, sharded, made.words, shardings.bytes, sent)
    if rank == 0:
        print(*counts.values(), ours, theirs)


def torch_sends(made: Program, placed: list[DTensor], truth: torch.Tensor) -> int | None:
    """The bytes that torch sends for a program; None where it refuses it, or gives other numbers
    than on one device, which it does for some reshapes.
    """
    with Sent() as counted:
        x: Any = placed[0]
        try:
            for step in made.theirs:
                x = step(x, placed)
        except (RuntimeError, NotImplementedError):
            return None
        whole = x.redistribute(placements=[Replicate()]).to_local()
    if not torch.allclose(whole, truth):
        if dist.get_rank() == 0:
            print("torch is wrong:", made.shapes, made.words, [x.placements for x in placed])
        return None
    return counted.bytes


if __name__ == "__main__":
    become_ranks(main)
