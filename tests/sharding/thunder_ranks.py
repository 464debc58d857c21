"""The ranks of tests/sharding/test_thunder.py: `python -m tests.sharding.thunder_ranks FILE`.

Four processes of one that has imported everything. What they find wrong is an assertion that fails;
the first prints "done" at its end. Kernels are compiled for one check only: what a rank runs is a
fusion as any other.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import thunder
import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Placement,
    Replicate,
    Shard,
    distribute_module,
    distribute_tensor,
)
from torch.distributed.tensor.debug import CommDebugMode
from torch.nn import functional

import thunder_fuser
from thunder_fuser.errors import FuserTypeError, FuserValueError
from thunder_fuser.sharding.rank_program import RankProgram

SIZE = 4
Program = Callable[..., torch.Tensor]


def gated(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return functional.silu(x * w + 1.0) - x / 3


def normed(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5) * w


def weights(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x + w, -1).transpose(0, 1)


def split(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    heads = (x * w).reshape(8, 4, 4).permute(1, 0, 2)
    return torch.cat([heads.exp(), heads], -1).reshape(4, 64)


def block(x: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    return x + functional.linear(torch.relu(functional.linear(x, up)), down)


ELEMENTWISE = (gated, normed, weights, split)


def numbers(*sizes: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(len(sizes) + sum(sizes))
    return torch.randn(sizes, generator=generator, dtype=torch.float64)


def placed(x: torch.Tensor, mesh: DeviceMesh, placements: Sequence[Placement]) -> DTensor:
    """A leaf. A partial tensor is as many parts as there are devices along the axis."""
    found = x
    for axis, placement in enumerate(placements):
        if isinstance(placement, Partial):
            found = found / mesh.size(axis)
    whole = [Replicate() if isinstance(p, Partial) else p for p in placements]
    local = distribute_tensor(found, mesh, whole).to_local()
    return DTensor.from_local(local, mesh, placements).requires_grad_()


def compare(
    compiled: Any, program: Program, wholes: Sequence[torch.Tensor], leaves: Sequence[DTensor]
) -> DTensor:
    """Result and gradients of a compiled program are those of torch on whole tensors, and those of
    torch on DTensors, where torch has them.
    """
    expected = [x.clone().requires_grad_() for x in wholes]
    y = program(*expected)
    cotangent = numbers(*y.shape)
    y.backward(cotangent)
    found = compiled(*leaves)
    assert isinstance(found, DTensor)
    torch.testing.assert_close(found.full_tensor(), y.detach())
    mesh = leaves[0].device_mesh
    found.backward(distribute_tensor(cotangent, mesh, [Replicate()] * mesh.ndim))
    for mine, whole in zip(leaves, expected, strict=True):
        assert isinstance(mine.grad, DTensor)
        torch.testing.assert_close(mine.grad.full_tensor(), whole.grad)
    return found


def with_kernels() -> None:
    mesh = init_device_mesh("cpu", (SIZE,))
    x, w = numbers(8, 16), numbers(16)
    leaves = placed(x, mesh, [Shard(1)]), placed(w, mesh, [Shard(0)])
    compare(jit(gated), gated, (x, w), leaves)


def on_a_line() -> None:
    """One trace for all placements: each of them gets programs of its own."""
    mesh = init_device_mesh("cpu", (SIZE,))
    whole: Placement = Replicate()
    kinds = (whole, whole), (Shard(0), whole), (Shard(1), Shard(0)), (Shard(1), whole)
    x, w = numbers(8, 16), numbers(16)
    for program in ELEMENTWISE:
        compiled = jit(program)
        for kind, other in (*kinds, (Partial(), Shard(0))):
            leaves = placed(x, mesh, [kind]), placed(w, mesh, [other])
            compare(compiled, program, (x, w), leaves)
        assert thunder.cache_misses(compiled) == 1


def on_a_grid() -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    x, w = numbers(8, 16), numbers(16)
    grids: tuple[tuple[Placement, ...], ...] = (
        (Shard(0), Shard(1)),
        (Shard(1), Shard(1)),
        (Partial(), Shard(0)),
    )
    for program in (normed, split):
        compiled = jit(program)
        for grid in grids:
            leaves = placed(x, mesh, grid), placed(w, mesh, [Replicate(), Shard(0)])
            compare(compiled, program, (x, w), leaves)
    # Data parallel rows, tensor parallel columns: products are torch's, on DTensors.
    compiled = jit(block)
    wholes = numbers(8, 16), numbers(32, 16), numbers(16, 32)
    grids = (Shard(0), Replicate()), (Replicate(), Shard(0)), (Replicate(), Shard(1))
    leaves = tuple(placed(t, mesh, g) for t, g in zip(wholes, grids, strict=True))
    found = compare(compiled, block, wholes, leaves)
    assert found.placements == (Shard(0), Replicate())


def as_torch_places() -> None:
    """Where nothing is to be communicated, results and gradients are where torch has them."""
    mesh = init_device_mesh("cpu", (SIZE,))
    compiled = jit(gated)
    for kind in (Shard(0), Shard(1), Replicate()):
        x, w = (placed(numbers(8, 16) + k, mesh, [kind]) for k in range(2))
        torchs = [t.detach().clone().requires_grad_() for t in (x, w)]
        mine, theirs = compiled(x, w), gated(*torchs)
        assert isinstance(theirs, DTensor)
        assert mine.placements == theirs.placements
        torch.testing.assert_close(mine.to_local(), theirs.to_local())
        ones = torch.ones_like(theirs.detach())
        mine.backward(ones)
        theirs.backward(ones)
        for a, b in zip((x, w), torchs, strict=True):
            assert isinstance(a.grad, DTensor)
            assert isinstance(b.grad, DTensor)
            assert a.grad.placements == b.grad.placements
            torch.testing.assert_close(a.grad.to_local(), b.grad.to_local())


def attended(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return functional.scaled_dot_product_attention(q * 2, k, v, is_causal=True).exp()


def with_attention() -> None:
    """Batches and heads stay where they are; what is cut otherwise is made whole."""
    wholes = [numbers(2, 4, 6, 8) + k for k in range(3)]
    compiled, alone = jit(attended), jit(attended)
    line, grid = init_device_mesh("cpu", (SIZE,)), init_device_mesh("cpu", (2, 2))
    heads, positions, channels = Shard(1), Shard(2), Shard(3)
    cases: tuple[tuple[DeviceMesh, list[Sequence[Placement]]], ...] = (
        (line, [[heads]] * 3),
        (line, [[Replicate()], [heads], [Partial()]]),
        (line, [[Replicate()], [Replicate()], [channels]]),
        (grid, [[Shard(0), heads]] * 3),
        (grid, [[Shard(0), positions], [Shard(0), Replicate()], [Replicate(), heads]]),
    )
    for mesh, kinds in cases:
        leaves = [placed(t, mesh, k) for t, k in zip(wholes, kinds, strict=True)]
        compare(compiled, attended, wholes, leaves)
        found = alone(*(t.detach() for t in leaves))
        torch.testing.assert_close(found.full_tensor(), attended(*wholes))
    leaves = [placed(t, line, [heads]) for t in wholes]
    cotangent = placed(numbers(2, 4, 6, 8), line, [heads]).detach()
    with CommDebugMode() as sent:
        y = compiled(*leaves)
        y.backward(cotangent)
    assert sent.get_total_counts() == 0
    assert y.placements == (heads,)
    masked = functional.scaled_dot_product_attention
    for mask in (numbers(6, 6) > 0, numbers(2, 1, 6, 6) > 0, numbers(2, 4, 6, 6)):
        mask = mask | torch.eye(6, dtype=torch.bool) if mask.dtype is torch.bool else mask
        given = [t.clone().requires_grad_() for t in wholes]
        mine = [placed(t, grid, [Shard(0), heads]) for t in wholes]
        expected = masked(*given, attn_mask=mask)
        on_mesh = distribute_tensor(mask, grid, [Replicate()] * 2)
        for form in (mask, on_mesh):
            found = jit(lambda q, k, v, m: masked(q, k, v, attn_mask=m))(*mine, form)
            torch.testing.assert_close(found.full_tensor(), expected.detach())
        expected.sum().backward()
        found.sum().backward()
        for a, b in zip(mine, given, strict=True):
            assert isinstance(a.grad, DTensor)
            torch.testing.assert_close(a.grad.full_tensor(), b.grad)
    with pytest.raises(FuserTypeError, match=r"expected dropout_p 0, got 0\.5"):
        jit(lambda q: masked(q, q, q, dropout_p=0.5))(leaves[0])
    with pytest.raises(FuserTypeError, match="got a plain tensor"):
        jit(lambda q, k: masked(q, k, k))(leaves[0], wholes[1].requires_grad_())


def dropped() -> None:
    """All ranks drop the same, in the backward as well, whatever their generators are at."""
    mesh = init_device_mesh("cpu", (2, 2))
    torch.manual_seed(dist.get_rank())
    compiled = jit(lambda x: functional.dropout(x, 0.5) * 1.0)
    whole = numbers(8, 16)
    for grid in ((Shard(0), Shard(1)), (Replicate(), Replicate())):
        x = placed(whole, mesh, grid)
        y = compiled(x)
        y.backward(torch.ones_like(y))
        assert isinstance(x.grad, DTensor)
        (kept, factors) = y.full_tensor(), x.grad.full_tensor()
        torch.testing.assert_close(kept, whole * factors)
        every = [torch.empty_like(kept) for _ in range(SIZE)]
        dist.all_gather(every, kept.detach())
        assert all(torch.equal(one, kept) for one in every)
        assert set(factors.unique().tolist()) == {0.0, 2.0}


def kept_and_updated() -> None:
    """A trace of plain tensors is good for DTensors; an update writes what this rank has; and a
    module's parameters are DTensors as well.
    """
    mesh = init_device_mesh("cpu", (SIZE,))
    whole = numbers(8, 16)
    x = placed(whole, mesh, [Shard(0)]).detach()
    compiled = jit(lambda x: x.add_(1.0).exp())
    for start in (whole.clone(), x):
        y = compiled(start)
        end, result = (t.full_tensor() if isinstance(t, DTensor) else t for t in (start, y))
        assert type(y) is type(start)
        torch.testing.assert_close(end, whole + 1)
        torch.testing.assert_close(result, (whole + 1).exp())
    layer = torch.nn.LayerNorm(16, dtype=torch.float64)
    rows = placed(whole, mesh, [Shard(0)])
    found = jit(distribute_module(layer, mesh))(rows)
    assert found.placements == (Shard(0),)
    found.sum().backward()
    assert isinstance(layer.weight.grad, DTensor)
    expected = functional.layer_norm(whole, (16,)).sum(0)
    torch.testing.assert_close(layer.weight.grad.full_tensor(), expected)


def mistakes() -> None:
    line, grid = init_device_mesh("cpu", (SIZE,)), init_device_mesh("cpu", (2, 2))
    x, w = numbers(8, 16), numbers(16)
    compiled = jit(gated)
    on_line = placed(x, line, [Shard(0)])
    with pytest.raises(FuserTypeError, match=r"input \d is a plain tensor \[16\], and mul joins"):
        compiled(on_line, w.requires_grad_())
    with pytest.raises(FuserValueError, match="the DTensors are on different meshes"):
        compiled(on_line, placed(w, grid, [Replicate(), Replicate()]))
    uneven = distribute_tensor(numbers(SIZE + 1, 16), line, [Shard(0)])
    with pytest.raises(FuserValueError, match=f"{SIZE + 1} is no multiple of {SIZE}"):
        jit(gated)(uneven, placed(w, line, [Replicate()]).detach())
    # What has nothing to do with the mesh stays plain; numbers may be anywhere.
    both = jit(lambda x, y, k: (x * 2 * k, y * 2))
    plain, two = numbers(3), torch.tensor(2.0, dtype=torch.float64)
    scaled, doubled = both(on_line.detach(), plain, two)
    torch.testing.assert_close(scaled.full_tensor(), 4 * x)
    assert type(doubled) is torch.Tensor
    assert torch.equal(doubled, 2 * plain)


def after_the_end(compiled: Any, x: DTensor) -> None:
    with pytest.raises(FuserValueError, match=r"the process group of DeviceMesh.* is gone"):
        compiled(x)


def jit(program: Program) -> Any:
    return thunder.jit(program, executors=[thunder_fuser.executor])


def main(rank: int, file: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=SIZE)
    torch.set_num_threads(1)
    with_kernels()
    RankProgram.prepare = lambda program, inputs: None  # type: ignore[method-assign]
    checks = as_torch_places, on_a_line, on_a_grid, with_attention, dropped, kept_and_updated
    for check in (*checks, mistakes):
        check()
        dist.barrier()
    compiled = jit(torch.exp)
    x = placed(numbers(8, 16), init_device_mesh("cpu", (SIZE,)), [Shard(0)]).detach()
    compiled(x)
    dist.barrier()
    dist.destroy_process_group()
    after_the_end(compiled, x)
    if rank == 0:
        print("done")


if __name__ == "__main__":
    multiprocessing.start_processes(main, (sys.argv[1],), SIZE, start_method="fork")
