"""Rows that asynchronous copies (cp.async) bring to shared memory while the row before is computed:
where they are chosen, their numbers, and what becomes of a kernel that does not wait for them.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch

from tests.support.batch import Batch, executable
from tests.support.row_programs import PROGRAMS, assert_beside_float64, assert_on_a_gpu
from tests.support.shares import each_value
from tests.tools import sass
from tests.zoo import issue_2473
from thunder_fuser.codegen.cuda import generate
from thunder_fuser.compile import generate_kernels
from thunder_fuser.compiled_fusion import CompiledFusion
from thunder_fuser.device import DeviceInfo
from thunder_fuser.device_table import A100, B200, DEVICES, H200
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.reference import evaluate
from thunder_fuser.kernel_ir import AsyncCopies, AwaitCopies, CopyAsync
from thunder_fuser.occupancy import resident_blocks
from thunder_fuser.runtime.cuda.nvrtc import compile_cubin
from thunder_fuser.segment.planner import partition
from thunder_fuser.templates.choose import schedule_segment
from thunder_fuser.templates.estimate import estimate_segment
from thunder_fuser.templates.lower import lower
from thunder_fuser.templates.reduction.on_chip import pipelining
from thunder_fuser.templates.reduction.on_chip.shared_memory import (
    prefetch_smem_offset,
    shared_bytes,
)
from thunder_fuser.templates.reduction.schedule import ReductionSchedule, RowPipeline
from thunder_fuser.time_model.estimate import estimate_kernel

CPU = torch.device("cpu")
Float, BFloat16 = DataType.Float, DataType.BFloat16
THIRSTY = replace(
    H200, name="thirsty", sm_count=8, clusters=((2, 4), (4, 2)), bytes_in_flight_per_sm=1 << 30
)
"""Its memory never has enough to do."""
LONG = [
    ("layer_norm_backward", 8192, 8192, Float),
    ("rms_norm_backward", 4096, 16_384, BFloat16),
    ("layer_norm_backward", 2048, 65_536, Float),
]


def scheduled(
    name: str, rows: int, columns: int, dtype: DataType, device: DeviceInfo
) -> list[ReductionSchedule]:
    fusion = PROGRAMS[name].definition(rows, columns, dtype).fusion
    plan = partition(fusion, device=device)
    found = [schedule_segment(s, device) for s in plan.segments if s.kernels]
    return [s for s in found if isinstance(s, ReductionSchedule)]


@pytest.fixture
def by_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """No row stays in registers ahead."""
    monkeypatch.setattr(pipelining, "choose_ahead", lambda *_: ())


@pytest.mark.parametrize("device", [H200, B200], ids=lambda d: d.arch)
@pytest.mark.parametrize(("name", "rows", "columns", "dtype"), LONG, ids=str)
def test_rows_that_leave_registers_no_room_for_the_next(
    name: str, rows: int, columns: int, dtype: DataType, device: DeviceInfo
) -> None:
    (found,) = scheduled(name, rows, columns, dtype, device)
    wide = {k for k, a in enumerate(found.accesses) if a.loads[0].tensor.numel == rows * columns}
    assert set(found.pipeline.copied) == wide
    assert set(found.pipeline.prefetched) > wide
    # Each has places of its own, behind all else, and a multiprocessor room for them.
    offsets = [prefetch_smem_offset(found, k) for k in found.pipeline.copied]
    size = columns * dtype.itemsize // found.mapping.column_tiles
    assert [b - a for a, b in itertools.pairwise(offsets)] == [size]
    assert shared_bytes(found) == offsets[-1] + size
    assert resident_blocks(device, found.block_threads, 128, shared_bytes(found)) >= 1
    assert "next row by asynchronous copies" in str(found)
    plan = partition(PROGRAMS[name].definition(rows, columns, dtype).fusion, device=device)
    (segment,) = (s for s in plan.segments if s.kernels)
    bare = replace(found, pipeline=RowPipeline())
    ahead, waiting = (
        estimate_kernel(lower(s, segment.body.updates, segment.body.definitions), device)
        for s in (found, bare)
    )
    assert ahead.seconds < 0.9 * waiting.seconds
    assert estimate_segment(segment, device).copy_fraction > (0.65 if device is B200 else 0.8)


@pytest.mark.parametrize("device", DEVICES, ids=lambda d: d.name)
def test_devices_without_them_or_without_need(device: DeviceInfo) -> None:
    """cp.async came with sm_80; where memory has enough to do, a row is not copied."""
    assert device.copies_async == (device.arch != "sm_75")
    for name, rows, columns, dtype in LONG:
        for found in scheduled(name, rows, columns, dtype, device):
            assert not found.pipeline.copied or device.arch in ("sm_90", "sm_100")
            assert set(found.pipeline.copied) <= set(found.pipeline.prefetched)


def test_what_is_in_flight_decides() -> None:
    """The same row is copied where memory needs more loads under way, and not where it has them."""
    device = replace(A100, bytes_in_flight_per_sm=64 << 10)
    for each, is_copied in ((A100, False), (device, True)):
        (found,) = scheduled("layer_norm_backward", 8192, 8192, Float, each)
        assert bool(found.pipeline.copied) == is_copied


SIZES = [(200, 512), (70, 1000), (53, 2000), (150, 264), (41, 4099), (33, 5120), (37, 8192)]


@pytest.mark.usefixtures("by_copies")
@pytest.mark.parametrize(
    "dtype",
    [Float, BFloat16, pytest.param(DataType.Half, marks=pytest.mark.campaign)],
    ids=lambda d: d.name,
)
def test_numbers(dtype: DataType) -> None:
    """Of several rows a block, rows that threads have in unequal parts, rows that some blocks have
    none of, tiles of clusters, against float64.
    """
    batch, planned = Batch(CPU, THIRSTY), []
    copied = uneven = several = 0
    names = ("rms_norm_backward", "layer_norm_backward", "layer_norm_backward_anew")
    cases = list(itertools.product(names, SIZES))
    # Each in one of two dtypes, and some in a third.
    first, every = {Float: (0, 2), BFloat16: (1, 2), DataType.Half: (0, 3)}[dtype]
    for name, (rows, columns) in cases[first::every]:
        program = PROGRAMS[name]
        inputs = program.inputs(rows, columns, dtype.torch)
        fusion = program.definition(rows, columns, dtype).fusion
        run = executable(CompiledFusion(fusion), inputs, batch, CPU)
        for segment in run.plan.segments:
            made = schedule_segment(segment, THIRSTY) if segment.kernels else None
            if isinstance(made, ReductionSchedule) and made.pipeline.copied:
                copied += 1
                uneven += not made.has_whole_steps
                several += made.rows_per_block > 1
        planned.append((name, inputs, run))
    assert copied >= 5
    assert uneven
    assert several
    for name, inputs, run in planned:
        assert_beside_float64(name, run, inputs)


@pytest.mark.usefixtures("by_copies")
def long_rows(name: str, rows: int, columns: int, dtype: DataType, device: DeviceInfo) -> None:
    """One kernel whose threads have more vectors of a row than steps are counted for, and whose
    row comes to shared memory by asynchronous copies.
    """
    (found,) = scheduled(name, rows, columns, dtype, device)
    assert found.pipeline.copied_whole
    assert not found.has_steps


LONG_ROWS = [
    ("norm rms_norm", 98_304, BFloat16, H200),
    ("norm softmax", 50_304, Float, H200),
    ("norm softmax", 100_352, BFloat16, B200),
    ("norm rms_norm", 73_728, BFloat16, A100),
]


@pytest.mark.parametrize(("name", "columns", "dtype", "device"), LONG_ROWS)
def test_numbers_of_rows_of_many_vectors_a_thread(
    name: str, columns: int, dtype: DataType, device: DeviceInfo
) -> None:
    """The address of a copy was counted in steps, of which such a loop has none: no text that
    NVRTC takes.
    """
    long_rows(name, 64, columns, dtype, device)
    program = PROGRAMS[name]
    inputs = program.inputs(64, columns, dtype.torch)
    fusion = program.definition(64, columns, dtype).fusion
    run = executable(CompiledFusion(fusion), inputs, Batch(CPU, device), CPU)
    assert_beside_float64(name, run, inputs)


@pytest.mark.nvrtc
def test_rows_of_many_vectors_a_thread_compile() -> None:
    for name, columns, dtype, device in LONG_ROWS:
        fusion = PROGRAMS[name].definition(64, columns, dtype).fusion
        kernels = generate_kernels(partition(fusion, device=device), device).values()
        cubin = compile_cubin([k.kernel for k in kernels], device.arch)
        assert not any(found.spills for found in cubin.resources.values())


def test_rows_of_groups() -> None:
    """The modulated norm's backward (Fuser 2473): nothing is on its way from one group's rows to
    the next one's.
    """
    batch, planned = Batch(CPU, THIRSTY), []
    for sizes in ((3, 40, 512), (9, 33, 1000), (20, 7, 264)):
        given = issue_2473.inputs(*sizes, "cpu")
        fusion = issue_2473.definition(*sizes).fusion
        run = executable(CompiledFusion(fusion), given, batch, CPU)
        (segment,) = (s for s in run.plan.segments if s.kernels)
        made = schedule_segment(segment, THIRSTY)
        assert isinstance(made, ReductionSchedule)
        assert made.pipeline.copied
        assert made.mapping.row_groups == sizes[0]
        planned.append((made.mapping.walks_portions, given, run))
    assert any(walks for walks, _, _ in planned)
    for _, given, run in planned:
        expected = evaluate(run.plan.fusion, given, double=True).outputs
        for ours, truth in zip(run(given), expected, strict=True):
            error = (ours.double() - truth.double()).abs().max() / truth.double().abs().max()
            assert error <= 2 * torch.finfo(ours.dtype).eps


def test_the_same_bits_as_with_rows_in_registers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a row waits changes nothing that is computed of it."""
    for name, rows, columns in (("layer_norm_backward", 200, 512), ("rms_norm_backward", 33, 5120)):
        program = PROGRAMS[name]
        inputs = program.inputs(rows, columns, torch.bfloat16)
        fusion = program.definition(rows, columns, BFloat16).fusion
        device = replace(THIRSTY, clusters=())
        before = executable(CompiledFusion(fusion), inputs, Batch(CPU, device), CPU)(inputs)
        with monkeypatch.context() as patch:
            patch.setattr(pipelining, "choose_ahead", lambda *_: ())
            run = executable(CompiledFusion(fusion), inputs, Batch(CPU, device), CPU)
            (source,) = {k.kernel.source for k in generate_kernels(run.plan, device).values()}
            assert "copies.copy<" in source
            after = run(inputs)
        assert all(map(torch.equal, before, after))


@pytest.mark.nvrtc
@pytest.mark.skipif(bool(sass.SKIP_REASON), reason=sass.SKIP_REASON)
@each_value(device=[H200, B200], **{"name,rows,columns,dtype": LONG})
def test_machine_code(
    name: str, rows: int, columns: int, dtype: DataType, device: DeviceInfo
) -> None:
    """16 bytes with each instruction, past the nearest cache, in the loop and before it; no load
    of a whole row through registers; no spills.
    """
    fusion = PROGRAMS[name].definition(rows, columns, dtype).fusion
    plan = partition(fusion, device=device)
    (segment,) = (s for s in plan.segments if s.kernels)
    found = schedule_segment(segment, device)
    assert isinstance(found, ReductionSchedule)
    kernel = generate(lower(found, segment.body.updates)).kernel
    cubin = compile_cubin([kernel], device.arch)
    assert cubin.resources[kernel.name].spill_store_bytes == 0
    code = sass.disassemble(cubin.image)[kernel.name]
    copies = [opcode for opcode in code.opcodes if opcode.startswith("LDGSTS")]
    assert len(copies) == 2 * found.steps * len(found.pipeline.copied)
    assert all("128" in opcode and "BYPASS" in opcode for opcode in copies)


def test_what_the_kernel_says() -> None:
    """Waits before it reads, copies after it has read, and nothing on its way behind the last."""
    (made,) = scheduled("layer_norm_backward", 8192, 8192, Float, H200)
    fusion = PROGRAMS["layer_norm_backward"].definition(8192, 8192, Float).fusion
    plan = partition(fusion, device=H200)
    (segment,) = (s for s in plan.segments if s.kernels)
    kernel = lower(made, segment.body.updates)
    source = generate(kernel).kernel.source
    (declared,) = (s for s in kernel.body if isinstance(s, AsyncCopies))
    assert declared.most == made.steps * len(made.pipeline.copied)
    loop = source[source.index("for (int first") :]
    places = [loop.index(text) for text in ("copies.wait();", "tf::load<4>", "if (r != next)")]
    assert places == sorted(places)
    assert loop.index("copies.copy<4>") > places[-1]
    assert loop.count("copies.wait();") == 1
    assert {AwaitCopies, CopyAsync} <= {type(s) for s in _statements(kernel.body)}


@pytest.mark.nvrtc
@pytest.mark.skipif(bool(sass.SKIP_REASON), reason=sass.SKIP_REASON)
def test_a_first_row_is_under_way_before_threads_wait_for_a_weight() -> None:
    """The weight goes to shared memory for all rows, behind a barrier. Loads of the first row, its
    statistics among them, are issued before it, so that one latency of memory passes and not two.
    """
    (schedule,) = scheduled("layer_norm_backward", 8192, 4096, BFloat16, H200)
    plan = partition(PROGRAMS["layer_norm_backward"].definition(8192, 4096, BFloat16).fusion)
    (kernel,) = (g.kernel for g in generate_kernels(plan, H200).values())
    assert schedule.row_invariant_smem
    assert schedule.pipeline.copied
    code = sass.disassemble(compile_cubin([kernel], "sm_90").image)[kernel.name]
    operations = [sass.base(op) for op in code.opcodes]
    before = operations[: operations.index("BAR")]
    elements = len(schedule.pipeline.prefetched) - len(schedule.pipeline.copied)
    assert before.count("LDGSTS") == len(schedule.pipeline.copied) * schedule.steps
    assert before.count("LDG") == len(schedule.row_invariant_smem) * schedule.steps + elements
    # Nothing waits for the weight until all are issued.
    first_use = before.index("STS")
    assert not {"LDG", "LDGSTS"}.intersection(before[first_use:])


def _statements(body: tuple[object, ...]) -> list[object]:
    found = list(body)
    for s in body:
        for name in ("body", "otherwise"):
            found += _statements(getattr(s, name, ()))
    return found


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "rows", "columns", "dtype"), LONG, ids=str)
def test_numbers_on_a_gpu(name: str, rows: int, columns: int, dtype: DataType) -> None:
    assert_on_a_gpu(name, rows, columns, dtype)


@pytest.mark.parametrize("name", ["layer_norm_backward", "layer_norm_backward_anew"])
def test_weights_of_all_rows_are_read_from_shared_memory_once_a_row(name: str) -> None:
    """Into registers, for both passes over a row that is one vector of a thread."""
    program, batch = PROGRAMS[name], Batch(CPU, H200)
    inputs = program.inputs(2400, 1024, torch.bfloat16)
    fusion = program.definition(2400, 1024, BFloat16).fusion
    run = executable(CompiledFusion(fusion), inputs, batch, CPU)
    (segment,) = run.plan.segments
    made = schedule_segment(segment, H200)
    assert isinstance(made, ReductionSchedule)
    assert made.row_invariant_smem
    assert set(made.row_invariant_smem) < set(made.row_cache.registers)
    (kernel,) = run.kernels
    rows = kernel.source[kernel.source.index("for (int first") :]
    for k in made.row_invariant_smem:
        assert rows.count(f", x{k}[k]);") == 1
    assert_beside_float64(name, run, inputs)
