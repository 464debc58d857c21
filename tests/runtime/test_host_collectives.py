"""Barriers, shuffles and reductions on the host compute what a GPU's would."""

from __future__ import annotations

import shlex

import pytest
import torch

from tests.runtime.host_kernels import load
from thunder_fuser.codegen.kernel import Kernel
from thunder_fuser.config import options
from thunder_fuser.errors import KernelError
from thunder_fuser.runtime.host.compiler import find_compiler
from thunder_fuser.runtime.host.debug import check_orders, debug_launch
from thunder_fuser.runtime.host.target import HOST

WARP = 32


def run(kernel: Kernel, *args: torch.Tensor | int) -> None:
    """An ordinary launch, with the fast collectives."""
    (launch,) = HOST.compile([kernel])
    launch(*(arg.data_ptr() if isinstance(arg, torch.Tensor) else arg for arg in args))


def noise(count: int) -> torch.Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(0))


def shuffle(x: list[int], kind: str, amount: int | None, width: int = WARP) -> list[int]:
    """CUDA's definition of __shfl_*_sync; for the plain kind `amount` None means lane + 3."""
    result = []
    for t in range(len(x)):
        warp, lane = t - t % WARP, t % WARP
        start = lane - lane % width
        if kind == "idx":
            source = start + (t + 3 if amount is None else amount) % width
        else:
            assert amount is not None
            source = {"xor": lane ^ amount, "up": lane - amount, "down": lane + amount}[kind]
            if source >= start + width or (kind == "up" and source < start):
                source = lane
        result.append(x[warp + source])
    return result


@pytest.mark.parametrize("order", ["forward", "reverse", "random"])
def test_shuffles_and_votes(order: str) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 1000, (64,), dtype=torch.int32, generator=generator)
    out = torch.zeros(13, 64, dtype=torch.int32)
    debug_launch(load("shuffles", block=(64, 1, 1)), [x, out, 64], order=order)  # type: ignore[arg-type]
    v = x.tolist()
    votes = [sum((v[w + i] % 3 == 0) << i for i in range(WARP)) for w in (0, WARP)]
    signed = [n - (1 << 32) if n >> 31 else n for n in votes]
    expected = [
        shuffle(v, "idx", 5),
        shuffle(v, "idx", None, 8),
        shuffle(v, "xor", 9),
        shuffle(v, "xor", 6, 4),
        shuffle(v, "up", 3),
        shuffle(v, "up", 3, 16),
        shuffle(v, "down", 4),
        shuffle(v, "down", 4, 16),
        [signed[t // WARP] for t in range(64)],
        [int(v[0] in v[t - t % WARP : t - t % WARP + WARP]) for t in range(64)],
        [1] * 64,
        [v[t ^ 1] if t % WARP < 16 else v[t ^ 2] for t in range(64)],
        shuffle(v, "xor", 1),
    ]
    for row, (got, wanted) in enumerate(zip(out.tolist(), expected, strict=True)):
        assert got == wanted, f"row {row}"


def test_a_short_last_warp_shuffles_among_the_lanes_that_exist() -> None:
    x = torch.arange(40, dtype=torch.int32)
    out = torch.zeros(13, 40, dtype=torch.int32)
    run(load("shuffles", block=(40, 1, 1)), x, out, 40)
    assert out[4].tolist() == shuffle(x.tolist(), "up", 3)
    assert out[10].tolist() == [1] * 40


@pytest.mark.parametrize(
    "block",
    [
        (32, 1, 1),
        (32, 3, 1),
        (16, 16, 1),
        (640, 1, 1),
        (800, 1, 1),
        (256, 4, 1),
    ],
)
def test_fast_and_faithful_reductions_have_the_same_bits(block: tuple[int, int, int]) -> None:
    count = block[0] * block[1]
    x = noise(count)
    fast, faithful = torch.zeros(2, count), torch.zeros(2, count)
    kernel = load("block_sizes", block=block)
    run(kernel, x, fast, count)
    debug_launch(kernel, [x, faithful, count])
    assert torch.equal(fast, faithful)
    # One rounding error per addition, of which the sum of magnitudes bounds the size.
    error = (fast[0].double() - x.double().sum()).abs().max()
    assert error <= 10 * torch.finfo(torch.float32).eps * x.double().abs().sum()
    assert torch.equal(fast[1], x.view(-1, 8).amax(1).repeat_interleave(8))
    check_orders(kernel, [x, faithful, count])


@pytest.mark.parametrize("clusters", [1, 3, 50])
@pytest.mark.parametrize("cooperative", [False, True])
def test_blocks_of_a_cluster_reduce_together(clusters: int, cooperative: bool) -> None:
    kernel = load("cluster_sums", grid=(2 * clusters, 1, 1), cluster=2, cooperative=cooperative)
    x, out = noise(512 * clusters), torch.zeros(512 * clusters)
    run(kernel, x, out)
    each = torch.arange(256.0).double().sum() * 2
    sums = x.double().view(clusters, 512).sum(1) + each
    for _ in range(2):
        sums = sums * 512 + each
    found = out.view(clusters, 512).double()
    torch.testing.assert_close(found, sums[:, None].expand(-1, 512), rtol=1e-6, atol=0.0)
    for row in out.view(clusters, 512):
        assert (row == row[0]).all()
    check_orders(kernel, [x, out], seeds=8)


def test_warps_reduce_values_of_other_sizes_at_the_same_time() -> None:
    x = noise(256)
    kernel = load("mixed_sums")
    fast, faithful = ((torch.zeros(256), torch.zeros(256, dtype=torch.float64)) for _ in range(2))
    run(kernel, x, *fast)
    debug_launch(kernel, [x, *faithful])
    assert all(torch.equal(a, b) for a, b in zip(fast, faithful, strict=True))
    warp = torch.arange(256) // WARP
    groups = {n: x.double().view(-1, n) for n in (2, 4, 8, WARP)}
    single = groups[WARP].sum(1).repeat_interleave(WARP)
    single += warp * groups[4].amin(1).repeat_interleave(4)
    wide = groups[8].amax(1).repeat_interleave(8) + x.double().sum()
    wide += warp * groups[2].sum(1).repeat_interleave(2)
    assert torch.allclose(fast[0].double(), single, atol=1e-5)
    assert torch.allclose(fast[1], wide, atol=1e-12)


@pytest.mark.parametrize("threads", [1, 2])
def test_operators_that_do_not_commute_give_every_thread_the_same_bits(threads: int) -> None:
    rows = 9
    x = noise(rows * 256) + 3
    fast, faithful = torch.zeros(rows, 2, 256), torch.zeros(rows, 2, 256)
    kernel = load("welford", grid=(4, 1, 1))
    with options(host_threads=threads):
        run(kernel, x, fast, rows)
    debug_launch(kernel, [x, faithful, rows], threads=threads)
    assert torch.equal(fast, faithful)
    assert torch.equal(fast, fast[:, :, :1].expand_as(fast))
    truth = x.view(rows, 256).double()
    assert torch.allclose(fast[:, 0, 0].double(), truth.mean(1), rtol=1e-6)
    assert torch.allclose(fast[:, 1, 0].double(), truth.var(1, correction=0), rtol=1e-5)


@pytest.mark.parametrize("count", [64, 96, 256, 800, 1024])
def test_reductions_side_by_side_have_the_bits_of_each_alone(count: int) -> None:
    x, found = noise(count) + 3, torch.zeros(7, count)
    kernel = load("side_by_side", block=(count, 1, 1))
    debug_launch(kernel, [x, found, count])
    alone, together = found[:3], found[3:6]
    assert torch.equal(alone, together)
    assert torch.equal(found[0], found[6])
    assert torch.equal(found, found[:, :1].expand_as(found))
    for sum, exact in zip(alone, (x.double().sum(), x.double().square().sum()), strict=False):
        assert torch.allclose(sum[0].double(), exact, rtol=1e-6)
    check_orders(kernel, [x, found, count], seeds=4)


@pytest.mark.parametrize(("threads", "blocks"), [(128, 2), (512, 8)])
def test_pairs_of_sums_over_a_cluster_have_the_bits_of_each_alone(
    threads: int, blocks: int
) -> None:
    x, found = noise(threads * blocks), torch.zeros(4, threads * blocks)
    shape = {"grid": (blocks, 1, 1), "block": (threads, 1, 1), "cluster": blocks}
    kernel = load("cluster_pairs", **shape, shared_bytes=2048)
    debug_launch(kernel, [x, found, blocks])
    assert torch.equal(found[:2], found[2:])
    assert torch.equal(found, found[:, :1].expand_as(found))
    assert torch.allclose(found[0, 0].double(), x.double().sum(), atol=1e-4)
    assert torch.allclose(found[1, 0].double(), x.double().square().sum(), rtol=1e-6)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("blocks", [1, 2, 37])
def test_grid_barrier(blocks: int, threads: int) -> None:
    n = 20000
    x = noise(n).abs()
    kernel = load("grid_sum", grid=(blocks, 1, 1), block=(128, 1, 1), cooperative=True)
    for _ in range(3):
        partial, out = torch.zeros(blocks), torch.zeros(n)
        debug_launch(kernel, [x, partial, out, n], threads=threads)
        assert torch.allclose(out.double(), x.double() / x.double().sum(), rtol=1e-5)


@pytest.mark.parametrize("order", ["forward", "reverse", "random"])
@pytest.mark.parametrize("threads", [1, 2])
def test_the_last_block_sees_what_all_others_wrote(order: str, threads: int) -> None:
    rows, blocks = 1000, 20
    x = noise(rows * 64).view(rows, 64)
    partial, out = torch.zeros(blocks, 64), torch.zeros(64)
    ticket = torch.zeros(1, dtype=torch.int32)
    kernel = load("last_block_sum", grid=(blocks, 1, 1), block=(64, 1, 1))
    for _ in range(2):  # the ticket is ready for the next launch
        debug_launch(kernel, [x, partial, ticket, out, rows], order=order, threads=threads)  # type: ignore[arg-type]
        assert torch.allclose(out.double(), x.double().sum(0), atol=1e-3)
        assert ticket.item() == 0


def test_atomics_from_several_threads() -> None:
    x = torch.arange(64 * 128, dtype=torch.int32)
    counts, ring = torch.zeros(8, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    total, precise = torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.float64)
    single = torch.zeros(1)
    kernel = load("atomics", grid=(64, 1, 1), block=(128, 1, 1), collectives=False)
    debug_launch(kernel, [x, counts, total, single, precise, ring], threads=2)
    assert counts.tolist() == [1024] * 8
    assert total.item() == int(x.sum()) << 32
    assert precise.item() == 0.5 * int(x.sum())
    assert single.item() == pytest.approx(int(x.sum()), rel=1e-3)
    assert ring.item() == len(x) % 7


def test_an_odd_block_leaves_the_next_launch_alone() -> None:
    """Fibers are kept between launches, whatever the sizes of the blocks."""
    for count in (1024, 32, 640, 96, 256):
        x, out = noise(count), torch.zeros(2, count)
        run(load("block_sizes", block=(count, 1, 1)), x, out, count)
        assert torch.allclose(out[0].double(), x.double().sum(), atol=1e-4)


def test_the_portable_context_switch() -> None:
    """What processors without a switch of their own use."""
    kernel, x, out = load("block_sizes"), noise(256), torch.zeros(2, 256)
    run(kernel, x, out, 256)
    portable = torch.zeros(2, 256)
    with options(cxx=f"{shlex.join(find_compiler().command)} -DTF_UCONTEXT"):
        run(kernel, x, portable, 256)
        with pytest.raises(KernelError, match="deadlock"):
            debug_launch(load("early_exit"), [x, x.clone(), 250])
        run(kernel, x, portable, 256)
    assert torch.equal(out, portable)


def test_launches_under_host_debug_start_with_nan_in_shared_memory() -> None:
    x, out = noise(256), torch.zeros(256)
    with options(host_debug=True):
        run(load("uninitialised_shared"), x, out)
    assert torch.equal(out[:200], x[:200])
    assert out[200:].isnan().all()
