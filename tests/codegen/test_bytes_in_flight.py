"""Loads under way, read from machine code for an H200: what hides the time that memory takes.

A multiprocessor needs 48 KB on their way (bandwidth times latency over 132 of them).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable

import pytest

from tests.codegen.kernels import kernels_of
from tests.support.plans import planned
from tests.support.shares import each_value
from tests.tools import sass
from tests.zoo import losses
from tests.zoo.issue_2473 import full_plan
from tests.zoo.norms import NORMS
from tests.zoo.reductions import REDUCTIONS
from tests.zoo.workloads import BY_NAME
from thunder_fuser.codegen.kernel import Kernel
from thunder_fuser.compile import generate_kernels
from thunder_fuser.device import DeviceInfo
from thunder_fuser.device_table import DATACENTER, H200
from thunder_fuser.frontends.definition import DataType, FusionDefinition
from thunder_fuser.runtime.cuda.nvrtc import Cubin, compile_cubin

pytestmark = [
    pytest.mark.nvrtc,
    pytest.mark.skipif(bool(sass.SKIP_REASON), reason=sass.SKIP_REASON),
]
BFloat16 = DataType.BFloat16
_NORMS = {norm.name: norm for norm in NORMS}
_REDUCTIONS = {reduction.name: reduction for reduction in REDUCTIONS}

TABLE: dict[str, Callable[[], FusionDefinition]] = {
    **{
        name: functools.partial(_NORMS[name].definition, 8192, 4096, BFloat16)
        for name in ("rms_norm", "layer_norm")
    },
    **{
        name: functools.partial(_NORMS[name].definition, 4096, 32768, BFloat16)
        for name in ("softmax", "log_softmax", "softmax_backward")
    },
    "cross_entropy": lambda: losses.cross_entropy(4096, 128256, BFloat16, mean=True),
    "cross_entropy_backward": lambda: losses.cross_entropy_backward(4096, 128256, BFloat16),
    **{
        name: functools.partial(reduction.definition, *reduction.full, BFloat16)
        for name, reduction in _REDUCTIONS.items()
    },
}
_BATCH_NORMS = {
    "batch_norm": lambda: planned("BatchNorm [64, 256, 56, 56]").forward.plans,
    "batch_norm_backward": lambda: planned("BatchNorm [64, 256, 56, 56]").backward.plans,  # type: ignore[union-attr]
}


@functools.cache
def kernels() -> dict[str, Kernel]:
    found = {}
    for name, define in TABLE.items():
        (generated,) = generate_kernels(define().plan(), H200).values()
        found[name] = generated.kernel
    return found


@functools.cache
def program() -> tuple[Cubin, dict[str, sass.Sass]]:
    cubin = compile_cubin(list(kernels().values()), H200.arch)
    return cubin, sass.disassemble(cubin.image)


def resident_threads(kernel: Kernel, registers: int) -> int:
    """Threads of a kernel that a multiprocessor has room for, in whole blocks."""
    (threads, _, _) = kernel.block
    of_warp = -(-registers * 32 // 256) * 256
    blocks = min(
        H200.threads_per_sm // threads,
        H200.registers_per_sm // (of_warp * -(-threads // 32)),
        H200.shared_bytes_per_sm // (kernel.shared_bytes + 1024),
    )
    return blocks * threads


PEAKS = {
    "rms_norm": 48,
    "layer_norm": 48,
    "softmax": 64,
    "log_softmax": 64,
    "softmax_backward": 64,
    "cross_entropy": 50,
    "cross_entropy_backward": 112,
    "rms_norm_backward": 52,
    "layer_norm_backward": 48,
    "gelu_backward": 48,
    "residual_rms_norm": 96,
    "column_sum": 48,
    "full_sum": 48,
    "loss": 64,
}
"""The most that a multiprocessor's threads wait for together, in KB."""


def awaited(name: str) -> list[int]:
    """KB that the threads of a multiprocessor wait for together, each time that they wait."""
    kernel, (cubin, code) = kernels()[name], program()
    threads = resident_threads(kernel, cubin.resources[kernel.name].registers)
    return [size * threads // 1024 for size in code[kernel.name].bytes_awaited]


@pytest.mark.parametrize("name", PEAKS)
def test_enough_is_under_way_when_threads_wait(name: str) -> None:
    assert max(awaited(name)) >= PEAKS[name]
    assert PEAKS[name] * 1024 >= H200.bytes_in_flight_per_sm


WEIGHTS = {"rms_norm": 18, "layer_norm": 32}
"""The same of a vector of weights, which the nearest cache has: ptxas loads them where they are
used.
"""


@pytest.mark.parametrize(
    "name", ["rms_norm", "layer_norm", "softmax", "log_softmax", "softmax_backward"]
)
def test_who_holds_a_row_waits_for_much_of_it_each_time(name: str) -> None:
    least = WEIGHTS.get(name, 0) or H200.bytes_in_flight_per_sm / 1024
    assert min(awaited(name)) >= least


@each_value(name=["rms_norm_backward", "layer_norm_backward_anew"], device=DATACENTER)
def test_the_next_row_is_on_its_way_before_one_is_folded(name: str, device: DeviceInfo) -> None:
    """ptxas moves loads that only the next iteration waits for behind all that this one does."""
    (generated,) = generate_kernels(TABLE[name]().plan(), device).values()
    kernel = generated.kernel
    cubin = compile_cubin([kernel], device.arch)
    code = sass.disassemble(cubin.image)[kernel.name]
    loaded = code.bytes_in_flight(code.loop_around("SHFL"), "SHFL")
    assert loaded * kernel.block[0] >= 32 * 1024


def test_enough_rows_are_on_their_way_while_some_are_worked_on() -> None:
    """Besides what is asked for before the first row: whoever waits next has this much of it."""
    before, during, *_ = awaited("gelu_backward")
    assert before * 1024 >= H200.bytes_in_flight_per_sm
    assert during >= 32


def test_a_statistic_of_the_next_row_is_on_its_way_with_its_vectors() -> None:
    """Else each row waits for memory once more."""
    assert re.search(r"n\d+ = T\d+\[next\];", kernels()["rms_norm_backward"].source)


@pytest.mark.parametrize("name", ["batch_norm", "batch_norm_backward"])
def test_rows_of_clusters_are_on_their_way_at_once(name: str) -> None:
    """By asynchronous copies: of loads through registers one is under way where each has a test."""
    (plan,) = _BATCH_NORMS[name]()
    (generated,) = generate_kernels(plan, H200).values()
    cubin = compile_cubin([generated.kernel], H200.arch)
    code = sass.disassemble(cubin.image)[generated.kernel.name]
    assert code.count("LDGSTS") >= 8
    assert 128 not in code.load_bits
    threads = resident_threads(generated.kernel, cubin.resources[generated.kernel.name].registers)
    assert max(code.bytes_awaited) * threads >= 2 * H200.bytes_in_flight_per_sm


def test_the_row_after_the_next_is_prefetched_where_little_is_under_way() -> None:
    """16 warps with a row of 1,024 columns each: memory would wait for them."""
    found = {}
    for name, plan in (("2473", full_plan()), ("rms_norm", TABLE["rms_norm_backward"]().plan())):
        (generated,) = generate_kernels(plan, H200).values()
        cubin = compile_cubin([generated.kernel], H200.arch)
        opcodes = sass.disassemble(cubin.image)[generated.kernel.name].opcodes
        found[name] = sum(opcode.startswith("CCTL") and "PF2" in opcode for opcode in opcodes)
    assert found["2473"] >= 2
    assert found["rms_norm"] == 0


def test_a_modulation_is_loaded_once_for_the_rows_of_a_portion() -> None:
    """T2 has a vector for each batch, and a portion has rows of one: only they are loaded ahead."""
    (generated,) = generate_kernels(full_plan(), H200).values()
    source = generated.kernel.source
    first, *rows = source.split("for (int first")
    assert "// T2, kept in registers for the rows of the portion" in first
    assert first.count("tf::load<8>(T2 +") == 1
    # Of the next portion a prefetch to L2.
    assert first.count("(T2 +") == 2
    assert not any("(T2 +" in text for text in rows)


def test_parts_with_few_loads_share_a_launch_with_one_that_has_many() -> None:
    """Gradients of queries, and of keys, which are sums over four heads: the registers of these are
    what all threads have. Memory brings a vector and its rotated half once, and cosines and sines
    are near.
    """
    (kernel,) = kernels_of(BY_NAME["rope_llama_backward"], BY_NAME["rope_llama_backward"].full)
    found = compile_cubin([kernel], H200.arch).resources[kernel.name]
    assert not found.spills
    queries, keys, _ = kernel.source.split("// pointwise")[1:]
    assert "[2][8]" in queries
    assert "[2][8]" not in keys
    assert 2 * 16 * resident_threads(kernel, found.registers) >= 40 << 10
