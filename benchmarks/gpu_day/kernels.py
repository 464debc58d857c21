"""Kernels of a plan on a device: inputs that fit, times, occupancy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from benchmarks.gpu_day import micro
from benchmarks.gpu_day.rows import Values
from benchmarks.timing import CudaClock, interleaved
from thunder_fuser.codegen.kernel import Kernel
from thunder_fuser.compile import generate_kernels
from thunder_fuser.device import DeviceInfo
from thunder_fuser.ir.domain import static
from thunder_fuser.ir.fusion import Scalar, TensorView, Val
from thunder_fuser.runtime.cuda.nvrtc import Resources, compile_cubin, nearest_arch
from thunder_fuser.runtime.cuda.target import CUDA
from thunder_fuser.runtime.target import planned_for
from thunder_fuser.segment.plan import SegmentedFusion

REGISTER_UNIT = 256
"""Registers that a warp gets at once, of every architecture since sm_70."""


def inputs_for(plan: SegmentedFusion, device: torch.device) -> list[Any]:
    """Random tensors with the plan's layouts. Integers are 0: an index that always exists."""
    return [_input(plan, value, device) for value in plan.fusion.inputs]


def _input(plan: SegmentedFusion, value: Val, device: torch.device) -> Any:
    if isinstance(value, Scalar):
        return 0.5 if value.dtype.is_floating else 1
    assert isinstance(value, TensorView)
    sizes = [static(dim.size) for dim in value.domain.root]
    strides = plan.placement.layouts[value].strides
    place = torch.device("cpu") if value.is_cpu else device
    tensor = torch.empty_strided(sizes, strides, dtype=value.dtype.torch, device=place)
    if not value.dtype.is_floating:
        return tensor.zero_()
    # What is written is the memory: an expanded dimension has one element in it. Positive numbers,
    # because statistics such as a reciprocal deviation are.
    stored = [1 if step == 0 else size for size, step in zip(sizes, strides, strict=True)]
    tensor.as_strided(stored, strides).uniform_(0.5, 1.5)
    return tensor


def resources(plan: SegmentedFusion) -> list[Values]:
    """A row a kernel: registers, spills, shared memory, blocks that are resident together."""
    info = planned_for(torch.device("cuda"))
    kernels = [found.kernel for found in generate_kernels(plan, info).values()]
    if not kernels:
        return []
    cubin = compile_cubin(kernels, nearest_arch(info.arch))
    return [_resources(k, cubin.resources[k.name], info) for k in kernels]


def _resources(kernel: Kernel, found: Resources, info: DeviceInfo) -> Values:
    threads = kernel.block[0] * kernel.block[1] * kernel.block[2]
    shared = kernel.shared_bytes + found.shared_bytes
    blocks = resident_blocks(threads, found.registers, shared, info)
    return {
        "name": kernel.name,
        "grid": kernel.grid[0],
        "threads": threads,
        "registers": found.registers,
        "spilled bytes": found.spill_store_bytes + found.spill_load_bytes,
        "shared bytes": shared,
        "blocks an SM": blocks,
        "occupancy": blocks * threads / info.threads_per_sm,
    }


def resident_blocks(threads: int, registers: int, shared: int, info: DeviceInfo) -> int:
    """Blocks of a kernel that fit on a multiprocessor at once (CUDA's occupancy calculator)."""
    warps = -(-threads // 32)
    a_warp = -(-registers * 32 // REGISTER_UNIT) * REGISTER_UNIT
    limits = [info.threads_per_sm // (32 * warps), info.registers_per_sm // max(1, a_warp * warps)]
    if shared:
        limits.append(info.shared_bytes_per_sm // (shared + 1024))
    return min(limits)


def seconds_of(call: Callable[[], Any], seconds: float) -> float:
    """The median between events, with a cold L2."""
    return interleaved({"call": call}, CudaClock(), seconds)["call"].seconds


def replay_seconds(call: Callable[[], Any], seconds: float) -> float:
    """The same of a CUDA graph's replay: kernels without any dispatch."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return seconds_of(graph.replay, seconds)


def copies(plans: Sequence[SegmentedFusion], device: torch.device) -> Callable[[], None]:
    """For each kernel of the plans a copy that moves as many bytes: as fast as memory and launches
    allow.
    """
    found = copy_kernels(plans)
    largest = max((k.grid[0] for k in found), default=0)
    source = torch.zeros(largest * micro.COPIED_BY_BLOCK, dtype=torch.uint8, device=device)
    target = torch.zeros_like(source)
    launches = [launch for kernel in found for launch in CUDA.compile([kernel])]

    def run() -> None:
        for launch in launches:
            launch(source.data_ptr(), target.data_ptr())

    return run


def copy_kernels(plans: Sequence[SegmentedFusion]) -> list[Kernel]:
    """One of the microbenchmarks' for each kernel. cudaMemcpy takes half as long again for some
    sizes (102,760,960 B on an H200).
    """
    kernel = next(micro.copies())
    moved = [int(s.bytes) for plan in plans for s in plan.segments if s.kernels]
    each = 2 * micro.COPIED_BY_BLOCK
    return [replace(kernel, grid=(-(-size // each), 1, 1)) for size in moved]


def bytes_of(plans: Sequence[SegmentedFusion]) -> Values:
    return {
        "kernels": sum(plan.kernels for plan in plans),
        "bytes": int(sum(plan.bytes for plan in plans)),
        "ideal bytes": int(sum(plan.bytes_ideal for plan in plans)),
        "expected seconds": sum(plan.seconds for plan in plans),
    }
