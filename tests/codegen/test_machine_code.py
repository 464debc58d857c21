"""Generated kernels through NVRTC: they compile for every GPU, spill nothing, divide nothing.

Schedules are those of a GPU of each architecture; no GPU is needed.
"""

from __future__ import annotations

import functools
import itertools
import re

import pytest

from tests.codegen.kernels import kernel_of, kernels_of
from tests.support.generator import random_case
from tests.support.row_programs import PROGRAMS
from tests.support.shares import GPUS, each_architecture
from tests.tools import sass
from tests.zoo.norms import NORMS
from tests.zoo.reductions import REDUCTIONS
from tests.zoo.workloads import BY_NAME, WORKLOADS
from thunder_fuser.codegen.kernel import Kernel
from thunder_fuser.compile import generate_kernels
from thunder_fuser.compiled_fusion import CompiledFusion
from thunder_fuser.device import DeviceInfo
from thunder_fuser.device_table import A100, B200, H200, T4
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.runtime.cuda.nvrtc import Cubin, compile_cubin
from thunder_fuser.segment.planner import partition

pytestmark = pytest.mark.nvrtc
DEVICES = pytest.mark.parametrize("device", [A100, H200, B200], ids=lambda d: d.arch)
needs_disassembler = pytest.mark.skipif(bool(sass.SKIP_REASON), reason=sass.SKIP_REASON)
RANDOM = range(5000, 5040)


@functools.cache
def workload_kernels(device: DeviceInfo) -> dict[str, list[Kernel]]:
    return {w.name: kernels_of(w, w.full, device) for w in WORKLOADS}


@functools.cache
def workload_cubin(device: DeviceInfo) -> Cubin:
    # Workloads that are the same program have the same kernels.
    kernels = {k.name: k for found in workload_kernels(device).values() for k in found}
    return compile_cubin(list(kernels.values()), device.arch)


@functools.cache
def workload_sass() -> dict[str, list[sass.Sass]]:
    code = sass.disassemble(workload_cubin(H200).image)
    assert all(workload_kernels(H200).values())
    return {
        name: [code[k.name] for k in kernels] for name, kernels in workload_kernels(H200).items()
    }


def assert_no_spills(cubin: Cubin) -> None:
    for name, resources in cubin.resources.items():
        assert not resources.spills, f"{name}: {resources}"


@each_architecture()
def test_workloads_compile_without_spills(device: DeviceInfo) -> None:
    cubin = workload_cubin(device)
    assert_no_spills(cubin)
    for name, kernels in workload_kernels(device).items():
        for kernel in kernels:
            resources = cubin.resources[kernel.name]
            # The slow path of sin and cos, for large arguments, has an array.
            assert resources.stack_bytes == 0 or name == "sin_cos", f"{name}: {resources}"
            # Two blocks of a multiprocessor's threads at least: what unrolling counts on.
            assert resources.registers <= 128, f"{name}: {resources}"


PARTLY_PERSISTENT = [
    ("norm softmax_backward", 4096, 65536, DataType.BFloat16, A100),
    ("norm layer_norm_backward", 1000, 65536, DataType.BFloat16, A100),
    ("norm rms_norm_backward", 3, 65536, DataType.BFloat16, A100),
    ("norm rms_norm_backward", 4096, 32768, DataType.Float, A100),
    ("residual_rms_norm", 4096, 65536, DataType.BFloat16, A100),
    ("norm softmax_backward", 4096, 65536, DataType.BFloat16, T4),
    ("norm softmax", 1000, 32768, DataType.BFloat16, T4),
    ("norm layer_norm_backward", 3, 32768, DataType.Float, T4),
]


@pytest.mark.parametrize(
    ("name", "rows", "columns", "dtype", "device"),
    PARTLY_PERSISTENT,
    ids=lambda v: v.arch if isinstance(v, DeviceInfo) else str(v),
)
def test_rows_of_eight_vectors_a_thread_spill_nothing(
    name: str, rows: int, columns: int, dtype: DataType, device: DeviceInfo
) -> None:
    """Half of a thread's registers do not hold one of its rows beside loads of another, which
    compilers have in flight for all vectors, and values of both, which they keep between passes.
    """
    plan = partition(PROGRAMS[name].definition(rows, columns, dtype).fusion, device=device)
    kernels = [g.kernel for g in generate_kernels(plan, device).values()]
    assert kernels
    assert_no_spills(compile_cubin(kernels, device.arch))


LONG_ROWS = [
    ("gelu_backward", 1000, 16384, DataType.BFloat16, 0),
    ("gelu_backward", 1024, 5003, DataType.Float, 0),
    ("rms_norm_backward", 65536, 8192, DataType.Float, 0),
    ("rms_norm_backward", 65536, 16384, DataType.BFloat16, 0),
    ("rms_norm_backward", 65536, 16384, DataType.Float, 16),
    ("layer_norm_backward", 65536, 16384, DataType.Float, 16),
]


@each_architecture("sm_80")
def test_steps_that_are_taken_together_leave_room_for_totals(device: DeviceInfo) -> None:
    """Threads with several vectors of a row: neither loads of all of them at once nor second totals
    for each, where these are more than registers hold. Bytes are those that may spill.
    """
    programs = {program.name: program for program in REDUCTIONS}
    most: dict[str, int] = {}
    kernels: list[Kernel] = []
    for name, rows, columns, dtype, bytes_ in LONG_ROWS:
        plan = programs[name].definition(rows, columns, dtype).plan()
        for found in generate_kernels(plan, device).values():
            most[found.kernel.name] = bytes_
            kernels.append(found.kernel)
    for name, resources in compile_cubin(kernels, device.arch).resources.items():
        assert resources.spill_store_bytes + resources.spill_load_bytes <= most[name], name


@each_architecture("sm_100")
def test_rows_of_two_blocks_fit_into_their_registers(device: DeviceInfo) -> None:
    """Launch bounds leave each thread 64: what it has of a row, and what it computes with."""
    kernels: dict[str, Kernel] = {}
    for norm, columns in itertools.product(NORMS, (20480, 24576, 32768, 40960)):
        plan = norm.definition(4096, columns, DataType.BFloat16).plan()
        found = (made.kernel for made in generate_kernels(plan, device).values())
        kernels |= {k.name: k for k in found if "__launch_bounds__(512, 2)" in k.source}
    assert len(kernels) >= 12
    assert_no_spills(compile_cubin(list(kernels.values()), device.arch))


@pytest.mark.parametrize(
    ("device", "first", "every"),
    [
        *(pytest.param(d, k, 6, id=d.arch) for k, d in enumerate(GPUS)),
        *(pytest.param(d, 0, 1, id=f"{d.arch}, all", marks=pytest.mark.campaign) for d in GPUS),
    ],
)
def test_random_fusions_compile_without_spills(device: DeviceInfo, first: int, every: int) -> None:
    """NVRTC takes a second for each: in a plain run every device has seeds of its own."""
    kernels: dict[str, Kernel] = {}
    seeds = RANDOM[first::every]
    for seed in seeds:
        case = random_case(seed)
        plan = CompiledFusion(case.fusion).plan(case.inputs)
        for found in generate_kernels(plan, device).values():
            kernels[found.kernel.name] = found.kernel
    assert len(kernels) > len(seeds) // 2
    assert_no_spills(compile_cubin(list(kernels.values()), device.arch))


@DEVICES
def test_indices_beyond_int_compile(device: DeviceInfo) -> None:
    b = FusionBuilder()
    x = b.tensor([3, 2**16, 2**16], DataType.Float)
    y = b.permute(b.reshape(x, [2**16, 3, 2**16]), [2, 1, 0])
    b.output(b.pointwise("neg", y))  # type: ignore[arg-type]
    b.output(b.pointwise("exp", b.pad(x, [8, 8])))  # type: ignore[arg-type]
    kernel = kernel_of(b, device=device)
    assert "long long u" in kernel.source
    assert_no_spills(compile_cubin([kernel], device.arch))


@needs_disassembler
@pytest.mark.parametrize("name", BY_NAME)
def test_no_kernel_of_a_workload_divides_integers(name: str) -> None:
    for code in workload_sass()[name]:
        assert code.integer_divisions == 0
        # CUDA's sinf and cosf index an array at run time, of an argument beyond 105,615.
        assert code.local_accesses == 0 or name == "sin_cos"


@needs_disassembler
@pytest.mark.parametrize("name", ["swiglu", "rope_llama_backward", "heads_first", "cat_relu"])
def test_halves_of_words_are_not_registers_of_their_own(name: str) -> None:
    for code in workload_sass()[name]:
        assert code.count("PRMT") == 0


@needs_disassembler
@pytest.mark.parametrize("name", BY_NAME)
def test_bf16_is_not_rounded_one_at_a_time(name: str) -> None:
    """F2F shares a slow pipe with exponentials; F2FP rounds two a cycle and lane."""
    for code in workload_sass()[name]:
        assert not [opcode for opcode in code.opcodes if opcode.startswith("F2F.BF16")]


@needs_disassembler
def test_a_rounded_bf16_stays_in_its_register() -> None:
    """One F2FP for what is rounded and used again; a pair of results takes one together."""
    b = FusionBuilder()
    x, y = (b.tensor([1 << 20], DataType.BFloat16) for _ in range(2))
    small = b.cast(b.pointwise("add", x, y), DataType.BFloat16)
    b.output(b.cast_tensor(b.pointwise("mul", small, y), DataType.BFloat16))  # type: ignore[arg-type]
    kernel = kernel_of(b, device=H200)
    code = sass.disassemble(compile_cubin([kernel], H200.arch).image)[kernel.name]
    vectors = sum(code.store_bits.values())
    assert code.count("F2FP") == vectors * (8 + 4)
    assert code.count("F2F") == 0


@needs_disassembler
def test_bytes_of_words_are_not_registers_of_their_own() -> None:
    b = FusionBuilder()
    mask, x = b.tensor([4096, 4096], DataType.Bool), b.tensor([4096, 4096], DataType.BFloat16)
    b.output(b.pointwise("where", mask, x, 0.0))  # type: ignore[arg-type]
    kernel = kernel_of(b, device=H200)
    code = sass.disassemble(compile_cubin([kernel], H200.arch).image)[kernel.name]
    assert code.load_bits == {128: 3}
    assert code.count("PRMT", "I2F") == 0


@needs_disassembler
@pytest.mark.parametrize("name", BY_NAME)
def test_every_access_of_a_workload_is_128_bits_wide(name: str) -> None:
    for code in workload_sass()[name]:
        assert set(code.store_bits) == {128}
        # Large arguments of sin and cos look pi up in a table, a word at a time.
        words = {32} if name == "sin_cos" else set()
        assert set(code.load_bits) - words == {128}


@needs_disassembler
@pytest.mark.parametrize(
    ("name", "loads", "stores"),
    [
        ("swiglu", 2, 1),
        ("swiglu_backward", 3, 2),
        ("residual", 4, 2),
        ("rope_2577", 7, 3),
        ("rope_llama", 8, 4),
        ("cat_relu", 2, 2),
    ],
)
def test_a_vector_is_loaded_and_stored_once(name: str, loads: int, stores: int) -> None:
    """Llama's rotary embedding: both halves of q, k, cos and sin, for both halves of q and k. The
    pieces of a cat: each by blocks of its own.
    """
    (code,), (kernel,) = workload_sass()[name], workload_kernels(H200)[name]
    unroll = next((n for n in (2, 4) if f"[{n}][8]" in kernel.source), 1)
    assert code.load_bits[128] == loads * unroll
    assert code.store_bits[128] == stores * unroll


@needs_disassembler
def test_divisions_by_constants_are_multiplications() -> None:
    b = FusionBuilder()
    x = b.tensor([30, 7, 11], DataType.Float)
    b.output(b.reshape(b.permute(b.pad(x, [1, 2]), [2, 0, 1]), [70, 42]))
    kernel = kernel_of(b)
    (code,) = sass.disassemble(compile_cubin([kernel], "sm_90").image).values()
    assert re.search(r"/ \d*[3579]u", kernel.source)
    assert code.integer_divisions == 0
