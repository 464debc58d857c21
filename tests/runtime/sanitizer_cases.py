"""Kernels run under a sanitizer: `python -m tests.runtime.sanitizer_cases thread`.

A process of its own, because the sanitizers must be loaded before Python. Prints the name of each
case before it runs, so that reports can be told apart.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from tests.runtime.host_kernels import load
from tests.zoo.norms import NORMS
from tests.zoo.reductions import REDUCTIONS
from thunder_fuser.codegen.kernel import Kernel
from thunder_fuser.compile import generate_kernels
from thunder_fuser.device import DeviceInfo
from thunder_fuser.device_table import H200
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import Fusion, TensorView
from thunder_fuser.kernel_ir import Scratch
from thunder_fuser.runtime.host.abi import Flag
from thunder_fuser.runtime.host.build import Sanitizer, build
from thunder_fuser.runtime.host.target import HOST, PreparedCall
from thunder_fuser.segment.planner import partition

Case = tuple[Kernel, list[torch.Tensor | int]]
CROWDED = replace(
    H200,
    sm_count=4,
    clusters=((2, 2), (4, 1)),
    shared_bytes_per_block=4 << 10,
    shared_bytes_per_sm=5 << 10,
    registers_per_sm=8 << 10,
    l2_bytes=1 << 10,
)
"""Of which several multiprocessors are needed for a row that is not large."""
HASTY = replace(H200, sm_count=4, clusters=((2, 2), (4, 1)), load_seconds=0.0)
"""For which all traffic takes longer than barriers."""


def numbers(count: int) -> torch.Tensor:
    return torch.arange(count, dtype=torch.float32)


def counter() -> torch.Tensor:
    return torch.zeros(1, dtype=torch.int32)


def small(name: str, blocks: int = 1, threads: int = 64, cluster: int = 1) -> Kernel:
    """All blocks alive at once: only then can a sanitizer see that they race."""
    geometry = {"grid": (blocks, 1, 1), "block": (threads, 1, 1), "cluster": cluster}
    return load(name, **geometry, cooperative=True)


def generated(fusion: Fusion, info: DeviceInfo) -> Case:
    """The one kernel of a plan, scheduled for a device; its blocks all alive at once if they can
    be. Every argument is new memory.
    """
    plan = partition(fusion, device=info if info.kind == "cuda" else H200)
    (found,) = generate_kernels(plan, info).values()
    kernel = replace(found.kernel, cooperative=found.kernel.collectives)
    args: list[torch.Tensor | int] = []
    for bound in found.arguments:
        if isinstance(bound, Scratch):
            args.append(torch.zeros(bound.bytes, dtype=torch.uint8))
        else:
            assert isinstance(bound, TensorView)
            args.append(numbers(math.prod(bound.sizes)).reshape(bound.sizes))
    return kernel, args


def permuted(info: DeviceInfo, sizes: Sequence[int], order: Sequence[int]) -> Case:
    b = FusionBuilder()
    turned = b.permute(b.tensor(sizes, DataType.Float), order)
    memory = list(range(len(sizes)))[::-1]
    b.output(b.stride_order(b.apply("neg", (turned,), DataType.Float), memory))
    return generated(b.build(), info)


def rows() -> dict[str, Case]:
    """Row kernels: stages, totals of columns behind a grid barrier, one total of everything, and
    rows side by side of which warps leave each other what they have folded.
    """
    known = {each.name: each for each in (*NORMS, *REDUCTIONS)}
    wanted = {
        "stages": ("softmax", 3, 300),
        "totals": ("layer_norm_backward", 9, 260),
        "total": ("full_sum", 16, 1024),
    }
    found = {
        case: generated(known[name].definition(rows, columns, DataType.Float).fusion, H200)
        for case, (name, rows, columns) in wanted.items()
    }
    return found | {"stacked": stacked(), "copied_rows": copied_rows(), **clusters()}


def clusters() -> dict[str, Case]:
    """Blocks that fold rows together, with and without totals, and that add up their totals."""
    known = {each.name: each for each in (*NORMS, *REDUCTIONS)}
    wanted = {
        "cluster_rows": ("softmax", 3, 2000, CROWDED),
        "cluster_tiles": ("rms_norm_backward", 5, 2000, CROWDED),
        "cluster_totals": ("layer_norm_backward", 61, 512, HASTY),
    }
    found = {}
    for case, (name, rows, columns, device) in wanted.items():
        found[case] = generated(
            known[name].definition(rows, columns, DataType.Float).fusion, device
        )
        assert found[case][0].cluster > 1
    return found


def copied_rows() -> Case:
    """Rows that asynchronous copies bring, while those before are folded: so few that torch fills
    them in one thread, at whose others the sanitizer would look.
    """
    program = next(r for r in REDUCTIONS if r.name == "layer_norm_backward")
    device = replace(H200, sm_count=2, clusters=())
    case = generated(program.definition(3, 8192, DataType.Float).fusion, device)
    assert "copies.copy<4>" in case[0].source
    return case


def stacked() -> Case:
    b = FusionBuilder()
    x = b.tensor([200, 24], DataType.Float)
    for fold in ("sum", "max"):
        x = b.apply("sub", (x, b.reduce(fold, x, [0], keepdim=True)), DataType.Float)
    b.output(x)
    case = generated(b.build(), H200)
    assert "outer_block_reduce" in case[0].source
    return case


def turned() -> Case:
    """Tiles that the dimensions do not fill."""
    return permuted(H200, (40, 44), (1, 0))


def draws() -> dict[str, Case]:
    """As a GPU draws, and as this machine does."""
    here = HOST.device_info(torch.device("cpu"))
    return {"drawn": drawn("normal", H200), "drawn_here": drawn("uniform", here)}


def drawn(op: str, info: DeviceInfo) -> Case:
    """Random numbers read from inside a call of the generator on, and in another order."""
    b = FusionBuilder()
    x = b.tensor([12, 36], DataType.Float)
    state = (-1, 2**63 - 1)
    numbers = [b.random(op, [13, 40], (-1.0, 1.0), state, d) for d in (x.dtype, DataType.Double)]
    windows = [b.slice(n, [1, 2], [13, 38]) for n in numbers]
    turned = b.reshape(b.permute(windows[0], [1, 0]), [12, 36])
    total = b.apply("add", (x, turned), DataType.Float)
    for window in windows:
        total = b.apply("add", (total, window), DataType.Float)
    b.output(total)
    return generated(b.build(), info)


def thread_cases() -> dict[str, Case]:
    x, y = numbers(1024), numbers(1024)
    return {
        "missing_barrier": (small("missing_barrier", threads=256), [x, y]),
        "reused_slots": (small("reused_slots", threads=256), [x, y]),
        "two_sums": (small("two_sums", threads=256), [x, y]),
        "missing_syncwarp": (small("missing_syncwarp"), [x, y]),
        "same_element": (small("same_element", blocks=2, threads=32), [x, y]),
        "missing_fence": (small("missing_fence", blocks=3, threads=32), [x, y, counter(), y]),
        "last_block_sum": (small("last_block_sum", blocks=3), [x, y, counter(), numbers(64), 12]),
        "grid_sum": (small("grid_sum", blocks=3, threads=128), [x, numbers(3), y, 1024]),
        "cluster_sums": (small("cluster_sums", 4, 256, 2), [x, y]),
        "cluster_early_read": (small("cluster_early_read", 4, 256, 2), [x, y]),
        "turned": turned(),
        **rows(),
        **draws(),
    }


def address_cases() -> dict[str, Case]:
    return {
        "missing_predicate": (
            load("missing_predicate", grid=(4, 1, 1), collectives=False),
            [numbers(1000), numbers(1000), 1000],
        ),
        "two_sums": (load("two_sums"), [numbers(256), numbers(256)]),
        "shared_overflow": (load("shared_overflow"), [numbers(256), numbers(256), 156]),
        "turned": turned(),
        **rows(),
        **draws(),
    }


def undefined_cases() -> dict[str, Case]:
    kernel = replace(load("index_overflow"), block=(32, 1, 1), collectives=False)
    return {
        "small_index": (kernel, [numbers(32), numbers(32), 1 << 20]),
        "index_overflow": (kernel, [numbers(32), numbers(32), 1 << 28]),
        "turned": turned(),
        **rows(),
        **draws(),
        "asked_for_early": permuted(
            HOST.device_info(torch.device("cpu")), (512, 64, 32), (1, 0, 2)
        ),
    }


CASES: dict[Sanitizer, Callable[[], dict[str, Case]]] = {
    "thread": thread_cases,
    "address": address_cases,
    "undefined": undefined_cases,
}


def run(sanitizer: Sanitizer, cases: dict[str, Case]) -> None:
    kernels = {kernel.name: kernel for kernel, _ in cases.values()}
    # What threads do is as written: more optimization takes longer, and finds nothing more.
    program = build(list(kernels.values()), sanitizer, checks=True, optimization="-O1")
    for name, (kernel, args) in cases.items():
        print(f"== {name}", file=sys.stderr, flush=True)
        address = program.kernel_address(kernel)
        prepared = PreparedCall(address, kernel, threads=1, flags=Flag.FAITHFUL)
        prepared.arguments.fill(
            [arg.data_ptr() if isinstance(arg, torch.Tensor) else arg for arg in args]
        )
        if program.runtime.tf_launch(prepared.address):
            print(f"failed: {prepared.message}", file=sys.stderr, flush=True)
    print("== end", file=sys.stderr, flush=True)


if __name__ == "__main__":
    (chosen,) = (sanitizer for sanitizer in CASES if sanitizer == sys.argv[1])
    run(chosen, CASES[chosen]())
