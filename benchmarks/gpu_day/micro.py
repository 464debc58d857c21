"""Microbenchmarks: what the time model assumes of a device, as numbers.

Kernels are values of the compiler and go through its own launch path, so that each is a smoke test
of it as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from benchmarks.gpu_day.rows import Row, Settings, Values
from benchmarks.timing import CudaClock, interleaved
from thunder_fuser.codegen.kernel import Kernel, Param
from thunder_fuser.runtime.cuda.nvrtc import compile_cubin
from thunder_fuser.runtime.cuda.target import CUDA

HEADERS = ("prelude.cuh",)
CHAINS, TURNS, THREADS = 16, 256, 1024
"""Independent chains of a thread, turns of the loop, threads of a block: a full multiprocessor."""
COPIED = 2 << 30
COPIED_BY_BLOCK = 256 * 16
"""Bytes that a block of the first of `copies` copies."""
FLUSHED = 256 << 20
"""Written to have nothing else in L2."""
DRY_ARCH = "sm_90"


def rows(settings: Settings) -> Iterator[Row]:
    """Instruction pipes, copies, latencies, barriers, launches."""
    for name, statement, count in PIPES:
        measure = partial(_pipe_rate, pipe_kernel(name, statement), count)
        yield _row(f"pipe {name}", pipe_kernel(name, statement), measure, settings)
    for kernel in copies():
        yield _row(kernel.name.replace("_", " "), kernel, partial(_copy_rate, kernel), settings)
    yield _row("barrier of the grid", BARRIER, _barrier_time, settings)
    for place, flushed in (("DRAM", FLUSHED), ("L2", 0)):
        yield _row(f"latency {place}", CHASE, partial(_latency, flushed), settings)
    yield _row("empty blocks", EMPTY, _empty_blocks, settings)
    if not settings.dry:
        yield Row("copy by torch", _torch_copy)


def _row(name: str, kernel: Kernel, measure: Callable[[], Values], settings: Settings) -> Row:
    if settings.dry:
        return Row(name, partial(compiled, kernel), needs="")
    return Row(name, measure)


def compiled(kernel: Kernel) -> Values:
    """What the compiler says of a kernel; no device."""
    resources = compile_cubin([kernel], DRY_ARCH).resources[kernel.name]
    return {"registers": resources.registers, "spills": resources.spills}


# ---- kernels


def pipe_kernel(name: str, statement: str) -> Kernel:
    """Throughput of a statement on `a[i]`: many independent chains on a full multiprocessor."""
    source = f"""extern "C" __global__ void __launch_bounds__({THREADS}) pipe_{name}(
    const float* x, unsigned* y, long long* clocks) {{
  float a[{CHAINS}];
  for (int i = 0; i < {CHAINS}; ++i) a[i] = x[threadIdx.x] + i;
  __syncthreads();
  const long long begin = clock64();
#pragma unroll 1
  for (int n = 0; n < {TURNS}; ++n) {{
#pragma unroll
    for (int i = 0; i < {CHAINS}; ++i) {{
      {statement}
    }}
  }}
  __syncthreads();
  const long long end = clock64();
  float total = 0;
  for (int i = 0; i < {CHAINS}; ++i) total += a[i];
  y[blockIdx.x * {THREADS} + threadIdx.x] = __float_as_uint(total);
  if (threadIdx.x == 0) clocks[blockIdx.x] = end - begin;
}}
"""
    params = Param("x", "const float*"), Param("y", "unsigned*"), Param("clocks", "long long*")
    return Kernel(f"pipe_{name}", source, HEADERS, params, (1, 1, 1), (THREADS, 1, 1))


def _ptx(instruction: str) -> str:
    return f'asm volatile("{instruction}" : "+f"(a[i]));'


_NARROW = (
    'unsigned short h; asm volatile("cvt.rn.bf16.f32 %0, %1;" : "=h"(h) : "f"(a[i])); '
    "a[i] = __uint_as_float(static_cast<unsigned>(h) << 16);"
)
_NARROW_PAIR = (
    'unsigned h; asm volatile("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(h) : "f"(a[i]), "f"(0.0f)); '
    "a[i] = __uint_as_float(h);"
)
_SHIFT = (
    "unsigned u = __float_as_uint(a[i]); "
    'asm volatile("shl.b32 %0, %0, 1;" : "+r"(u)); a[i] = __uint_as_float(u);'
)
PIPES = (
    ("fma", _ptx("fma.rn.f32 %0, %0, %0, %0;"), 1),
    ("shift", _SHIFT, 1),
    ("round_bf16", _NARROW, 1),
    ("round_bf16_packed", _NARROW_PAIR, 1),
    ("ex2", _ptx("ex2.approx.ftz.f32 %0, %0;"), 1),
    ("reciprocal", _ptx("rcp.approx.ftz.f32 %0, %0;"), 1),
    ("round_bf16_and_ex2", f"{_NARROW} {_ptx('ex2.approx.ftz.f32 %0, %0;')}", 2),
)
"""Names, statements, and the instructions of interest in each."""


def copies(block: int = 256) -> Iterator[Kernel]:
    """A copy of COPIED bytes by 16-byte accesses: cache hints and loads in flight a thread."""
    hints = {
        "plain": ("ld.global.nc.v4.u32", "st.global.v4.u32"),
        "streaming": ("ld.global.nc.L1::no_allocate.v4.u32", "st.global.cs.v4.u32"),
        "l2_256": ("ld.global.nc.L1::no_allocate.L2::256B.v4.u32", "st.global.v4.u32"),
    }
    for hint, (load, store) in hints.items():
        for unroll in (1, 2, 4):
            name = f"copy_{hint}_{unroll}"
            loads, stores = (_vectors(op, unroll, block) for op in (load, store))
            source = f"""extern "C" __global__ void __launch_bounds__({block}) {name}(
    const uint4* x, uint4* y) {{
  const long long i = static_cast<long long>(blockIdx.x) * {unroll * block} + threadIdx.x;
  uint4 v[{unroll}];
{loads}{stores}}}
"""
            params = Param("x", "const uint4*"), Param("y", "uint4*")
            grid = (COPIED // 16 // block // unroll, 1, 1)
            yield Kernel(name, source, HEADERS, params, grid, (block, 1, 1))


def _vectors(instruction: str, count: int, block: int) -> str:
    lines = []
    for k in range(count):
        parts = [f"v[{k}].{p}" for p in "xyzw"]
        if instruction.startswith("ld"):
            outputs = ", ".join(f'"=r"({part})' for part in parts)
            text = f'"{instruction} {{%0,%1,%2,%3}}, [%4];" : {outputs} : "l"(x + i + {k * block})'
        else:
            inputs = ", ".join(f'"r"({part})' for part in parts)
            at = f'"l"(y + i + {k * block})'
            text = f'"{instruction} [%0], {{%1,%2,%3,%4}};" :: {at}, {inputs} : "memory"'
        lines.append(f"  asm volatile({text});\n")
    return "".join(lines)


BARRIER = Kernel(
    "barrier",
    f"""extern "C" __global__ void __launch_bounds__({THREADS}, 1) barrier(long long* clocks) {{
  const long long begin = clock64();
  for (int n = 0; n < {TURNS}; ++n) tf::grid_barrier(gridDim.x);
  if (threadIdx.x == 0) clocks[blockIdx.x] = clock64() - begin;
}}
""",
    HEADERS,
    (Param("clocks", "long long*"),),
    (1, 1, 1),
    (THREADS, 1, 1),
    cooperative=True,
)

CHASE = Kernel(
    "chase",
    """extern "C" __global__ void chase(const long long* x, long long* clocks) {
  long long at = 0;
  const long long begin = clock64();
  for (int n = 0; n < 2000; ++n)
    asm volatile("ld.global.cg.s64 %0, [%1];" : "=l"(at) : "l"(x + at));
  clocks[0] = clock64() - begin;
  clocks[1] = at;
}
""",
    HEADERS,
    (Param("x", "const long long*"), Param("clocks", "long long*")),
    (1, 1, 1),
    (1, 1, 1),
)
EMPTY = Kernel(
    "empty_blocks",
    """extern "C" __global__ void __launch_bounds__(256) empty_blocks(unsigned* y) {
  if (y == nullptr) y[0] = blockIdx.x;
}
""",
    HEADERS,
    (Param("y", "unsigned*"),),
    (1 << 20, 1, 1),
    (256, 1, 1),
)


# ---- measurements


def _seconds(call: Callable[[], Any], seconds: float = 0.3) -> float:
    return interleaved({"call": call}, CudaClock(), seconds)["call"].seconds


def _multiprocessors() -> int:
    return int(torch.cuda.get_device_properties(0).multi_processor_count)


def _pipe_rate(kernel: Kernel, count: int) -> Values:
    blocks = _multiprocessors()
    (launch,) = CUDA.compile([replace(kernel, grid=(blocks, 1, 1))])
    x = torch.rand(THREADS, device="cuda")
    y = torch.zeros(blocks * THREADS, dtype=torch.int32, device="cuda")
    clocks = torch.zeros(blocks, dtype=torch.int64, device="cuda")
    for _ in range(3):
        launch(x.data_ptr(), y.data_ptr(), clocks.data_ptr())
    issued = TURNS * CHAINS * count * THREADS
    return {"thread instructions a clock and SM": issued / float(clocks.double().median())}


def _copy_rate(kernel: Kernel) -> Values:
    source, target = _copied()
    (launch,) = CUDA.compile([kernel])
    seconds = _seconds(lambda: launch(source.data_ptr(), target.data_ptr()))
    assert torch.equal(source, target), "the copy is wrong"
    return {"bytes a second": 2 * COPIED / seconds}


def _torch_copy() -> Values:
    source, target = _copied()
    return {"bytes a second": 2 * COPIED / _seconds(lambda: target.copy_(source))}


def _copied() -> tuple[torch.Tensor, torch.Tensor]:
    source = torch.empty(COPIED, dtype=torch.uint8, device="cuda").random_()
    return source, torch.zeros_like(source)


def _barrier_time() -> Values:
    blocks = _multiprocessors()
    (launch,) = CUDA.compile([replace(BARRIER, grid=(blocks, 1, 1))])
    clocks = torch.zeros(blocks, dtype=torch.int64, device="cuda")
    return {"seconds a barrier": _seconds(lambda: launch(clocks.data_ptr())) / TURNS}


def _latency(flushed: int) -> Values:
    size = 32 << 20
    step = (8192 + 128) // 8  # another page and another slice of L2 each time
    table = torch.zeros(size // 8, dtype=torch.int64, device="cuda")
    at = torch.arange(0, table.numel() - step, step, device="cuda")
    table[at] = at + step
    table[at[-1]] = 0
    clocks = torch.zeros(2, dtype=torch.int64, device="cuda")
    (launch,) = CUDA.compile([CHASE])
    for _ in range(2):
        torch.zeros(flushed, dtype=torch.uint8, device="cuda")
        launch(table.data_ptr(), clocks.data_ptr())
    return {"clocks": int(clocks[0]) / 2000}


def _empty_blocks() -> Values:
    y = torch.zeros(1, dtype=torch.int32, device="cuda")
    (launch,) = CUDA.compile([EMPTY])
    seconds = _seconds(lambda: launch(y.data_ptr()))
    return {"seconds a block": seconds / EMPTY.grid[0]}
