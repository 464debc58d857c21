"""Row kernels with totals: numbers against float64, bytes and launches, bits, and machine code."""

from __future__ import annotations

import functools
from dataclasses import replace

import pytest
import torch

from tests.support.batch import Batch, batch_for, executable
from tests.support.shares import each_value
from tests.tools import sass
from tests.zoo.reductions import REDUCTIONS, Reduction
from thunder_fuser.codegen.kernel import Kernel
from thunder_fuser.compile import generate_kernels
from thunder_fuser.compiled_fusion import CompiledFusion
from thunder_fuser.config import options
from thunder_fuser.device import DeviceInfo
from thunder_fuser.device_table import A100, B200, DATACENTER, H200
from thunder_fuser.frontends.definition import FusionDefinition
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.kernel_ir import Scratch
from thunder_fuser.runtime.cuda.nvrtc import Cubin, compile_cubin
from thunder_fuser.runtime.host.debug import check_orders
from thunder_fuser.runtime.host.target import HOST
from thunder_fuser.segment.planner import partition
from thunder_fuser.templates.choose import schedule_segment
from thunder_fuser.templates.reduction.schedule import ReductionSchedule

Float, BFloat16 = DataType.Float, DataType.BFloat16
SIZES = ((1, 64), (2, 33), (7, 1), (31, 127), (70, 1000), (300, 512), (40, 4096), (3, 8000))
ALL = pytest.mark.parametrize("reduction", REDUCTIONS, ids=lambda r: r.name)
SCHEDULES = pytest.mark.parametrize("schedule", ["own", "H200"])


@functools.cache
def full_kernel(name: str, device: DeviceInfo) -> Kernel:
    reduction = next(r for r in REDUCTIONS if r.name == name)
    plan = reduction.definition(*reduction.full, BFloat16).plan()
    (generated,) = generate_kernels(plan, device).values()
    return generated.kernel


# ---- numbers


@each_value(reduction=REDUCTIONS, dtype=[Float, BFloat16], schedule=["own", "H200"])
def test_one_kernel_is_no_worse_than_eager(
    device: torch.device, schedule: str, dtype: DataType, reduction: Reduction
) -> None:
    batch = batch_for(device, schedule)
    planned = []
    # Of four dtypes and schedules, each size has two.
    for rows, columns in SIZES[(dtype is Float) ^ (schedule == "own") :: 2]:
        inputs = reduction.inputs(rows, columns, dtype.torch)
        fusion = reduction.definition(rows, columns, dtype).fusion
        moved = [x.to(device) for x in inputs]
        run = executable(CompiledFusion(fusion), moved, batch, device)
        assert run.plan.kernels == 1
        planned.append((rows, columns, inputs, moved, run))
    for rows, columns, inputs, moved, run in planned:
        found = [t.cpu() for t in run(moved)]
        exact = reduction.eager(*(x.double() for x in inputs))
        eager = reduction.eager(*inputs)
        for ours, theirs, truth in zip(found, eager, exact, strict=True):
            error, theirs = ((t.double() - truth).abs().max() for t in (ours, theirs))
            floor = 2 * torch.finfo(dtype.torch).eps * truth.abs().max()
            # What cancels in a sum is as wrong as what is summed, in whichever order.
            terms = rows * columns if reduction.name == "full_sum" else rows
            floor += 4e-7 * terms**0.5
            assert error <= torch.maximum(theirs, floor), inputs[0].shape


@SCHEDULES
def test_totals_of_numbers_and_positions_beside_scalars(
    device: torch.device, schedule: str
) -> None:
    """Scalars are passed behind the pointers, those of the workspace too."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([3000, 70], True, Float)
        s, z = (
            fd.define_scalar(None, DataType.Double),
            fd.define_scalar(None, DataType.ComplexDouble),
        )
        scaled = fd.ops.mul(x, s)
        fd.add_output(fd.ops.sum(scaled, [0]))
        fd.add_output(fd.ops.argmax(fd.ops.mul(x, s), [0]))
        fd.add_output(fd.ops.argmin(x))
        fd.add_output(fd.ops.sum(fd.ops.mul(x, z), [0]))
    x = torch.randint(-5, 6, (3000, 70), generator=torch.Generator().manual_seed(0)).float()
    given = [x.to(device), 2.0, 1 - 3j]
    run = executable(CompiledFusion(fd.fusion), given, batch_for(device, schedule), device)
    scheduled = [schedule_segment(s, H200) for s in run.plan.segments if s.kernels]
    assert any(isinstance(s, ReductionSchedule) and s.reductions.of_grid for s in scheduled)
    found = [t.cpu() for t in run(given)]
    wanted = ((2 * x).sum(0), x.argmax(0), x.argmin(), x.sum(0) * (1 - 3j))
    for ours, exact in zip(found, wanted, strict=True):
        assert torch.equal(ours, exact.to(ours.dtype))


@SCHEDULES
@pytest.mark.parametrize(
    ("rows", "columns", "count"), [(4, 2, 3), (64, 512, 3000), (8, 4096, 40), (100, 33, 700)]
)
def test_totals_of_rows_that_data_choose(
    device: torch.device, schedule: str, rows: int, columns: int, count: int
) -> None:
    """Chosen by a tensor, and by the table that the tensor is looked up in; of columns, of rows and
    of all.
    """
    with FusionDefinition() as fd:
        x = fd.define_tensor([rows, columns], True, Float)
        table = fd.define_tensor([rows], True, DataType.Int)
        index = fd.define_tensor([count], True, DataType.Int)
        for chosen in (index, fd.ops.index_select(table, index, 0)):
            y = fd.ops.index_select(x, chosen, 0)
            for dims in ([0], [1], [0, 1]):
                fd.add_output(fd.ops.sum(y, dims))
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, columns, generator=generator)
    table, index = (torch.randint(0, rows, (n,), generator=generator) for n in (rows, count))
    given = [t.to(device) for t in (x, table, index)]
    run = executable(CompiledFusion(fd.fusion), given, batch_for(device, schedule), device)
    found = iter(run(given))
    for chosen in (index, table[index]):
        y = x.double()[chosen]
        for dims in ([0], [1], [0, 1]):
            error = (next(found).cpu() - y.sum(dims)).abs().max()
            assert error <= 1e-5 * y.abs().sum(dims).max()


# ---- plans


@ALL
def test_each_byte_moves_once_and_parts_are_few(reduction: Reduction) -> None:
    rows, columns = reduction.full
    plan = reduction.definition(rows, columns, BFloat16).plan()
    assert plan.kernels == 1
    assert plan.bytes == plan.bytes_ideal == reduction.traffic(rows, columns)
    (segment,) = plan.segments
    made = schedule_segment(segment, H200)
    assert isinstance(made, ReductionSchedule)
    limit = 0.04 if "norm" in reduction.name else 0.02 if "gelu" in reduction.name else 0.01
    assert made.reductions.workspace_bytes <= limit * plan.bytes_ideal
    assert (
        made.blocks <= H200.sm_count * max(made.mapping.blocks_per_sm, 1)
        or not made.reductions.of_grid
    )


def test_the_tiles_of_wide_rows_have_no_stages() -> None:
    """A block, or a cluster, has all columns of a row whose folds it needs; others are divided."""
    divided = REDUCTIONS[2].definition(8192, 1 << 20, BFloat16).plan()
    assert divided.kernels == 1
    for columns, device in ((1 << 15, replace(H200, clusters=())), (1 << 18, H200)):
        fusion = REDUCTIONS[0].definition(64, columns, BFloat16).fusion
        whole = partition(fusion, device=device)
        assert whole.kernels == 2
        assert "registers" in str(whole)


def test_a_lone_row_has_the_registers_of_all_stages_and_others_those_of_one() -> None:
    """Rows that leave room for another one share a block, and one is folded while the other waits;
    what a stage accumulates in is free in the next. Where some threads have no vector, these take
    more registers than two such rows leave.
    """
    norm = next(r for r in REDUCTIONS if r.name == "layer_norm_backward_anew")
    for columns, threads, rows in ((2048, 256, 4), (4096, 512, 2), (8192, 512, 1), (1000, 128, 4)):
        made = schedule_segment(norm.definition(8192, columns, BFloat16).plan().segments[0], H200)
        assert isinstance(made, ReductionSchedule)
        assert (made.stages, made.threads, made.rows_per_block) == (3, threads, rows)


@each_value(
    name=["layer_norm_backward", "layer_norm_backward_anew"], columns=[264, 1000, 2048, 8192]
)
def test_what_rows_and_columns_accumulate_is_not_spilled(name: str, columns: int) -> None:
    norm = next(r for r in REDUCTIONS if r.name == name)
    plan = norm.definition(8192, columns, BFloat16).plan()
    for device in DATACENTER:
        (generated,) = generate_kernels(plan, device).values()
        cubin = compile_cubin([generated.kernel], device.arch)
        found = cubin.resources[generated.kernel.name]
        assert found.spill_store_bytes + found.spill_load_bytes == 0, (device.arch, found)


# ---- bits


@SCHEDULES
def test_same_bits_on_every_run_and_any_number_of_threads(
    device: torch.device, schedule: str
) -> None:
    for reduction in REDUCTIONS:
        inputs = [x.to(device) for x in reduction.inputs(70, 1000, torch.float32)]
        fusion = reduction.definition(70, 1000, Float).fusion
        found = []
        for threads in (1, 2, 3):
            with options(host_threads=threads):
                batch = batch_for(device, schedule)
                run = executable(CompiledFusion(fusion), inputs, batch, device)
                found.append(run(inputs))
        found.append(run(inputs))
        for again in found[1:]:
            assert all(map(torch.equal, again, found[0])), reduction.name


def test_no_order_of_threads_and_blocks_matters() -> None:
    for name, rows, columns in (("layer_norm_backward", 9, 520), ("full_sum", 64, 4096)):
        reduction = next(r for r in REDUCTIONS if r.name == name)
        fusion = reduction.definition(rows, columns, Float).fusion
        (generated,) = generate_kernels(CompiledFusion(fusion).plan(), H200).values()
        assert generated.kernel.cooperative
        (launch,) = HOST.compile([generated.kernel])
        inputs = reduction.inputs(rows, columns, torch.float32)
        outputs = [torch.zeros(t.sizes) for t in fusion.outputs]  # type: ignore[union-attr]
        scratch = [
            torch.zeros(bound.bytes, dtype=torch.uint8)
            for bound in generated.arguments
            if isinstance(bound, Scratch)
        ]
        check_orders(launch, [*inputs, *outputs, *scratch])


# ---- a row that is read once


def test_rows_up_to_64k_elements_are_read_once() -> None:
    for columns in (4096, 32768, 65536):
        for name in ("softmax", "softmax_backward", "layer_norm"):
            made = norm_schedule(name, columns)
            assert not made.row_cache.reread, (name, columns)
    assert norm_schedule("softmax", 65536).row_cache.shared
    assert norm_schedule("softmax", 1 << 18, replace(H200, clusters=())).row_cache.reread


def norm_schedule(name: str, columns: int, device: DeviceInfo = H200) -> ReductionSchedule:
    from tests.zoo.norms import NORMS

    norm = next(n for n in NORMS if n.name == name)
    plan = norm.definition(256, columns, BFloat16).plan()
    (segment,) = plan.segments
    made = schedule_segment(segment, device)
    assert isinstance(made, ReductionSchedule)
    return made


def test_rows_in_shared_memory_have_the_same_numbers() -> None:
    cpu = torch.device("cpu")
    for name in ("softmax", "softmax_backward"):
        from tests.zoo.norms import NORMS

        norm = next(n for n in NORMS if n.name == name)
        inputs = norm.inputs(2, 55001, torch.bfloat16)
        fusion = norm.definition(2, 55001, BFloat16).fusion
        run = executable(CompiledFusion(fusion), inputs, Batch(cpu, H200), cpu)
        assert run.kernels[0].shared_bytes > 55001 * 2
        (found,) = run(inputs)
        (exact,) = norm.eager(*(x.double() for x in inputs))
        (eager,) = norm.eager(*inputs)
        floor = torch.finfo(torch.bfloat16).eps * exact.abs().max()
        error, theirs = ((t.double() - exact).abs().max() for t in (found, eager))
        assert error <= torch.maximum(theirs, floor)


# ---- NVRTC


@functools.cache
def full_cubin(device: DeviceInfo) -> Cubin:
    return compile_cubin([full_kernel(r.name, device) for r in REDUCTIONS], device.arch)


@pytest.mark.nvrtc
@pytest.mark.parametrize("device", [A100, H200, B200], ids=lambda d: d.arch)
def test_full_size_compiles_without_spills(device: DeviceInfo) -> None:
    for name, resources in full_cubin(device).resources.items():
        assert not resources.spills, f"{name}: {resources}"


@pytest.mark.nvrtc
@pytest.mark.skipif(bool(sass.SKIP_REASON), reason=sass.SKIP_REASON)
@ALL
def test_rows_move_in_16_byte_accesses(reduction: Reduction) -> None:
    """Statistics, parts and finished columns are single words; all that has the rows is not."""
    kernel = full_kernel(reduction.name, H200)
    code = sass.disassemble(full_cubin(H200).image)[kernel.name]
    assert code.integer_divisions == 0
    assert code.local_accesses == 0
    loaded = code.load_bits + code.copy_bits
    assert loaded[128] >= reduction.operands.count("x")
    assert not loaded[64]
    assert not loaded[16]
    wide = kernel.source.count("tf::store<8>(T")
    assert code.store_bits[128] >= wide


@pytest.mark.nvrtc
@pytest.mark.skipif(bool(sass.SKIP_REASON), reason=sass.SKIP_REASON)
@ALL
def test_finishing_a_total_loads_few_parts_at_a_time(reduction: Reduction) -> None:
    """Eight of what a thread has, or all where that is fewer. A barrier loads two words, and blocks
    of a cluster what each of them has of a column.
    """
    kernel = full_kernel(reduction.name, H200)
    code = sass.disassemble(full_cubin(H200).image)[kernel.name]
    totals = sum(map(kernel.source.count, ("tf::reduce_partials<tf::", "tf::partials<")))
    of_cluster = kernel.source.count("tf::map_shared_rank") * 2
    assert code.load_bits[32] <= 8 * totals + 2 + of_cluster + reduction.operands.count("s")


@pytest.mark.nvrtc
@pytest.mark.parametrize("reduction", REDUCTIONS[:3] + REDUCTIONS[4:6], ids=lambda r: r.name)
def test_enough_bytes_are_in_flight(reduction: Reduction) -> None:
    """What a multiprocessor's threads load of rows before the first use of any, at least 32 KB."""
    plan = reduction.definition(*reduction.full, BFloat16).plan()
    (segment,) = plan.segments
    made = schedule_segment(segment, H200)
    assert isinstance(made, ReductionSchedule)
    streamed = [a for a in made.accesses if not a.is_uniform and a.loads[0].tensor.sizes[0] > 1]
    each = (
        sum(a.loads[0].dtype.itemsize for a in streamed)
        * made.lanes.vector
        * made.unrolling.factors[-1]
    )
    resident = made.block_threads * made.mapping.blocks_per_sm
    assert each * resident >= 32 * 1024
    registers = full_cubin(H200).resources[full_kernel(reduction.name, H200).name].registers
    assert registers * resident <= H200.registers_per_sm


def test_definitions_say_what_is_shared() -> None:
    fd: FusionDefinition = REDUCTIONS[0].definition(8192, 4096, BFloat16)
    (segment,) = fd.plan().segments
    text = str(schedule_segment(segment, H200))
    assert "rows split over blocks: 1 grid reductions of 132 partials" in text


@pytest.mark.nvrtc
@pytest.mark.parametrize("name", ["rms_norm_backward", "layer_norm_backward"])
def test_long_columns_need_no_second_accumulators(name: str) -> None:
    """Many rows of a thread are added up in parts. Where accumulators of these beside those of the
    whole were spilled, blocks leave a part for each portion of the rows.
    """
    rows, columns = 65536, 4096
    reduction = next(r for r in REDUCTIONS if r.name == name)
    plan = reduction.definition(rows, columns, BFloat16).plan()
    for device in DATACENTER:
        (segment,) = plan.segments
        made = schedule_segment(segment, device)
        assert isinstance(made, ReductionSchedule)
        assert made.mapping.walks_portions
        assert not made.is_summed_in_parts
        assert 2 * made.reductions.workspace_bytes <= 0.03 * plan.bytes_ideal
        (generated,) = generate_kernels(plan, device).values()
        kernel = generated.kernel
        resources = compile_cubin([kernel], device.arch).resources[kernel.name]
        # With both sets: 240 to 340 bytes.
        assert resources.spill_store_bytes + resources.spill_load_bytes <= 32


@pytest.mark.nvrtc
@each_value(name=["rms_norm_backward", "layer_norm_backward"], columns=[264, 1000])
def test_vectors_that_some_threads_lack_are_kept_as_words(name: str, columns: int) -> None:
    """Each pass takes them apart under its own test: as elements they were 16-bit registers from
    one test to the next, two for each word, and 170 to 190 bytes of them were spilled.
    """
    reduction = next(r for r in REDUCTIONS if r.name == name)
    plan = reduction.definition(4096, columns, BFloat16).plan()
    for device in DATACENTER:
        (generated,) = generate_kernels(plan, device).values()
        kernel = generated.kernel
        weights = "kept in shared memory for all rows" not in kernel.source
        streams = reduction.operands.count("x")
        assert kernel.source.count("tf::unpack(w") == 2 * (streams + weights)
        resources = compile_cubin([kernel], device.arch).resources[kernel.name]
        # For a row's statistics not to be loaded ahead costs a B200 7 % (time model), and an A100's
        # kernel would have the one register.
        most = 8 if device == A100 else 0
        assert resources.spill_store_bytes + resources.spill_load_bytes <= most


@pytest.mark.parametrize("rows", [0, 4])
def test_totals_of_no_rows_have_a_kernel(rows: int) -> None:
    """A batch may be empty: its gradient of a bias is zeros."""
    with FusionDefinition() as fd:
        y, dy = (fd.define_tensor([rows, 4, 2], True, Float) for _ in range(2))
        own = fd.ops.sum(fd.ops.mul(y, dy), [2], keepdim=True)
        dx = fd.ops.mul(y, fd.ops.sub(dy, own))
        fd.add_output(fd.ops.sum(dx, [0, 1]))
    plan = fd.plan()
    for device in DATACENTER:
        assert len(generate_kernels(plan, device)) == plan.kernels == 1
