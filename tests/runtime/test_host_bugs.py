"""Planted bugs: every one must be reported, with the tensor, the block and the thread."""

from __future__ import annotations

import re

import pytest
import torch

from tests.runtime.host_kernels import load
from thunder_fuser.codegen.kernel import Kernel
from thunder_fuser.config import options
from thunder_fuser.errors import FuserTypeError, KernelError
from thunder_fuser.runtime.host.debug import Argument, check_orders, debug_launch
from thunder_fuser.runtime.host.target import HOST


def noise(count: int = 256) -> torch.Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(0))


def nothing(count: int = 256) -> torch.Tensor:
    return torch.full((count,), torch.nan)


def line(kernel: Kernel, text: str, occurrence: int = 0) -> str:
    """Where the kernel's source has `text`, as errors name it."""
    lines = kernel.source.splitlines()
    found = [number for number, content in enumerate(lines, 1) if text in content]
    return f"{kernel.name}.cu:{found[occurrence]}"


# --- Races ------------------------------------------------------------------------------------


def test_missing_barrier_between_write_and_read() -> None:
    kernel = load("missing_barrier", grid=(4, 1, 1))
    with pytest.raises(KernelError, match=r"missing_barrier: race: 'out'\[\d+\] is .* a barrier"):
        check_orders(kernel, [noise(1024), nothing(1024)])


def test_slots_reused_without_a_barrier() -> None:
    with pytest.raises(KernelError, match="reused_slots: race: 'out'"):
        check_orders(load("reused_slots"), [noise(), nothing()])


def test_blocks_that_write_the_same_elements() -> None:
    kernel = load("same_element", grid=(3, 1, 1), collectives=False)
    with pytest.raises(KernelError, match="same_element: race: 'out'"):
        check_orders(kernel, [noise(768), torch.zeros(256)])


def test_uninitialised_shared_memory() -> None:
    kernel = load("uninitialised_shared")
    x, out = noise(), nothing()
    debug_launch(kernel, [x, out])
    assert torch.equal(out[:200], x[:200])
    assert out[200:].isnan().all()
    with pytest.raises(KernelError, match=r"uninitialised shared memory is read: 'out'\[200\]"):
        check_orders(kernel, [x, out])


def test_correct_kernels_are_clean() -> None:
    x, out = noise(), nothing()
    check_orders(load("two_sums"), [x, out], seeds=8)
    assert out.isnan().all()  # checking changes no tensor
    debug_launch(load("two_sums"), [x, out])
    assert torch.allclose(out.double(), 7 * x.double().sum(), rtol=1e-5)


# --- Divergence and deadlock ------------------------------------------------------------------


def test_early_exit_before_a_barrier() -> None:
    kernel = load("early_exit")
    message = (
        "deadlock in block (0,0,0); threads 0..249 wait in __syncthreads at "
        f"{line(kernel, '__syncthreads')}; threads 250..255 have exited"
    )
    with pytest.raises(KernelError, match=re.escape(message)):
        debug_launch(kernel, [noise(), nothing(), 250])


def test_divergent_barriers() -> None:
    kernel = load("divergent_barriers")
    first, second = (line(kernel, "__syncthreads", n) for n in (0, 1))
    message = (
        f"divergent barriers: block (0,0,0) thread (100,0,0) reached the one at {second} "
        f"while 100 threads wait in the one at {first}"
    )
    with pytest.raises(KernelError, match=re.escape(message)):
        debug_launch(kernel, [noise(), nothing(), 100])


@pytest.mark.parametrize("debug", [True, False], ids=["faithful", "fast"])
def test_divergent_reductions_name_the_lines_of_the_kernel(debug: bool) -> None:
    kernel = load("divergent_reductions")
    first, second = (line(kernel, "block_reduce", n) for n in (0, 1))
    message = f"divergent barriers: .* reached the one at {second} while .* at {first}"
    x, out = noise(), nothing()

    def launch() -> None:
        if debug:
            debug_launch(kernel, [x, out, 128])
        else:
            HOST.compile([kernel])[0](x.data_ptr(), out.data_ptr(), 128)

    with pytest.raises(KernelError, match=message):
        launch()


def test_divergent_shuffles() -> None:
    kernel = load("divergent_shuffle")
    even, odd = line(kernel, "v -="), line(kernel, "v +=")
    message = (
        rf"divergent warp collectives: block \(0,0,0\) thread \(31,0,0\) \(lane 31\) is at {odd} "
        rf"with mask 0xffffffff, lane 0 at {even}"
    )
    with pytest.raises(KernelError, match=message):
        debug_launch(kernel, [noise(), nothing()])


def test_shuffle_that_some_lanes_do_not_reach() -> None:
    kernel = load("partial_shuffle")
    message = (
        "deadlock in block (0,0,0); threads 0..15 wait in a warp collective at "
        f"{line(kernel, '__shfl')}; threads 16..255 have exited"
    )
    with pytest.raises(KernelError, match=re.escape(message)):
        debug_launch(kernel, [noise(), nothing(), 16])


def test_lane_outside_the_mask_of_its_shuffle() -> None:
    kernel = load("wrong_mask")
    message = f"lane outside the mask of its own warp collective at {line(kernel, '__shfl')} in "
    message += "block (0,0,0) thread (16,0,0)"
    with pytest.raises(KernelError, match=re.escape(message)):
        debug_launch(kernel, [noise(), nothing()])


def test_barrier_in_a_kernel_without_collectives() -> None:
    kernel = load("undeclared_barrier", collectives=False)
    x, out = noise(), nothing()
    message = rf"declared to have no collectives at {line(kernel, '__syncthreads')} in block \(0,0"
    with pytest.raises(KernelError, match=message):
        HOST.compile([kernel])[0](x.data_ptr(), out.data_ptr())


def test_block_that_does_not_come_to_the_grid_barrier() -> None:
    kernel = load("missing_grid_party", grid=(3, 1, 1), block=(32, 1, 1), cooperative=True)
    for threads in (1, 2):
        with pytest.raises(
            KernelError, match=r"wait in the grid barrier at missing_grid_party\.cu:3"
        ):
            debug_launch(kernel, [nothing(96)], threads=threads)


@pytest.mark.parametrize("cooperative", [False, True])
def test_block_that_does_not_come_to_its_clusters_barrier(cooperative: bool) -> None:
    kernel = load(
        "missing_cluster_party",
        grid=(4, 1, 1),
        block=(32, 1, 1),
        cluster=2,
        cooperative=cooperative,
    )
    for threads in (1, 2):
        with pytest.raises(
            KernelError, match=r"wait in the cluster barrier at missing_cluster_party\.cu:4"
        ):
            debug_launch(kernel, [nothing(128)], threads=threads)


def test_blocks_of_a_cluster_that_wait_at_two_places() -> None:
    kernel = load("divergent_cluster_barriers", grid=(2, 1, 1), block=(32, 1, 1), cluster=2)
    with pytest.raises(KernelError, match="divergent barriers"):
        debug_launch(kernel, [nothing(64)])


def test_a_read_from_another_block_of_a_cluster_that_does_not_wait() -> None:
    kernel = load("cluster_early_read", grid=(2, 1, 1), cluster=2)
    with pytest.raises(KernelError, match="cluster_early_read: race: 'out'"):
        check_orders(kernel, [torch.arange(512.0), nothing(512)])


def test_an_asynchronous_copy_that_is_waited_for() -> None:
    x, out = noise(512), nothing(512)
    debug_launch(load("async_copy"), [x, out])
    assert torch.equal(out, x)


def test_a_read_of_what_an_asynchronous_copy_has_not_brought() -> None:
    """Neither what comes, nor what was there before, is anywhere until the thread waits."""
    out = torch.zeros(512)
    debug_launch(load("async_early_read"), [noise(512), out])
    assert out.isnan().all()


def test_an_asynchronous_copy_that_nobody_waits_for() -> None:
    kernel = load("async_never_waits")
    place = line(kernel, "copies.copy", 1)
    with pytest.raises(KernelError, match=f"nothing waits for the asynchronous copy at {place}"):
        debug_launch(kernel, [noise(256), nothing(256)])


def test_grid_barrier_in_an_ordinary_launch() -> None:
    kernel = load("missing_grid_party", grid=(3, 1, 1), block=(32, 1, 1))
    with pytest.raises(KernelError, match="grid barrier in a launch that is not cooperative"):
        debug_launch(kernel, [nothing(96)])


# --- Memory -----------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("collectives", [False, True], ids=["plain", "fibers"])
def test_write_past_the_end(collectives: bool, threads: int) -> None:
    kernel = load("missing_predicate", grid=(4, 1, 1), collectives=collectives)
    x, out = noise(1000), nothing(1000)
    message = (
        "missing_predicate: out-of-bounds write of 'out' at byte offset 4000 "
        "(it has 4000 bytes) in block (3,0,0) thread (232,0,0)"
    )
    with pytest.raises(KernelError, match=re.escape(message)):
        debug_launch(kernel, [x, out, 1000], threads=threads)
    assert out.isnan().all()
    # The fault has left nothing behind: a launch that fits works, and is checked.
    fits = load("missing_predicate", grid=(4, 1, 1), block=(250, 1, 1), collectives=collectives)
    debug_launch(fits, [x, out, 1000], threads=threads)
    assert torch.equal(out, 2 * x)


@pytest.mark.parametrize("collectives", [False, True], ids=["plain", "fibers"])
def test_read_before_the_start(collectives: bool) -> None:
    kernel = load("stray_read", collectives=collectives)
    x, out = noise(1024), nothing()
    message = re.escape(
        "of 'x' at byte offset -3972 (it has 4096 bytes) in block (0,0,0) thread (7,0,0)"
    )
    with pytest.raises(KernelError, match="out-of-bounds (read|access) " + message):
        debug_launch(kernel, [x, out, 1000])


def test_write_past_shared_memory() -> None:
    kernel = load("shared_overflow")
    debug_launch(kernel, [noise(), nothing(), 0])
    message = r"out-of-bounds \w+ of 'shared memory' at byte offset 1424 .* thread \(100,0,0\)"
    with pytest.raises(KernelError, match=message):
        debug_launch(kernel, [noise(), nothing(), 256])


def test_write_to_a_constant_tensor() -> None:
    message = r"write to the constant 'x' at byte offset 20 .* thread \(5,0,0\)"
    with pytest.raises(KernelError, match=message):
        debug_launch(load("constant_write"), [noise(), nothing()])


def test_write_between_the_rows_of_a_strided_tensor() -> None:
    kernel = load("gap_write", block=(8, 1, 1), collectives=False)
    out = nothing(8 * 10).view(8, 10)[:, :6]
    with pytest.raises(KernelError, match="out-of-bounds write of 'out' at byte offset 144 "):
        debug_launch(kernel, [noise(8), out, 6, 10])
    debug_launch(kernel, [noise(8), nothing(8 * 10).view(8, 10)[:, :7], 6, 10])


@pytest.mark.parametrize("collectives", [False, True], ids=["plain", "fibers"])
def test_misaligned_vector(collectives: bool) -> None:
    kernel = load("misaligned_load", block=(32, 1, 1), collectives=collectives)
    x, out = noise(512).bfloat16(), torch.empty(256, dtype=torch.bfloat16)
    message = (
        f"misaligned vector load at {line(kernel, 'tf::load')} in block (0,0,0) thread (3,0,0)"
    )
    with pytest.raises(KernelError, match=re.escape(message)):
        debug_launch(kernel, [x, out])
    with options(host_debug=True):  # in ordinary launches of what is compiled under it, too
        (launch,) = HOST.compile([kernel])
    with pytest.raises(KernelError, match=re.escape(message)):
        launch(x.data_ptr(), out.data_ptr())


def test_tensors_that_share_memory_share_it_in_the_copy() -> None:
    kernel = load("stray_read", collectives=False)
    both = noise(512)
    expected = both[:256].clone()
    debug_launch(kernel, [both[:256], both[256:], 0])
    assert torch.equal(both[256:], expected)
    x = noise()
    debug_launch(kernel, [x, x, 0])
    assert torch.equal(x, noise())


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([noise(), nothing()], "takes 3 arguments, got 2"),
        ([noise(), nothing(), noise()], "'back' of type 'int': expected a number, got Tensor"),
        ([noise(), 3, 0], r"'out' of type 'float\*': expected a tensor, got int"),
    ],
)
def test_wrong_arguments(args: list[Argument], message: str) -> None:
    with pytest.raises(FuserTypeError, match=message):
        debug_launch(load("stray_read"), args)
