"""Row kernels with totals of groups of rows, which blocks walk over where groups are more."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch

from tests.support.batch import Batch, executable
from tests.support.generator import random_case
from tests.support.seeds import blocks
from tests.tools import sass
from tests.zoo.groups import grouped, grouped_eager
from tests.zoo.issue_2473 import full_plan
from tests.zoo.reductions import REDUCTIONS
from thunder_fuser.compile import generate_kernels
from thunder_fuser.compiled_fusion import CompiledFusion
from thunder_fuser.device import DeviceInfo
from thunder_fuser.device_table import A100, H200, H200_SLICE, T4
from thunder_fuser.frontends.definition import DataType
from thunder_fuser.ir.fusion import TensorView
from thunder_fuser.kernel_ir import Scratch
from thunder_fuser.lower.scalar_graph import Compute
from thunder_fuser.occupancy import resident_blocks
from thunder_fuser.runtime.cuda.nvrtc import compile_cubin
from thunder_fuser.runtime.host.debug import check_orders
from thunder_fuser.runtime.host.target import HOST
from thunder_fuser.templates.choose import schedule_segment
from thunder_fuser.templates.reduction.schedule import ReductionSchedule

CPU = torch.device("cpu")
THREE = replace(H200_SLICE, sm_count=3)
WITHOUT_COPIES = replace(T4, sm_count=3)
"""No asynchronous copies: the next row waits in registers."""
ALWAYS = 24
# Groups that blocks have some of, rows that no block has as many of, several blocks a group, rows
# that are summed in parts, rows of more than a warp, and of one vector.
SIZES = (
    (2, 70, 64),
    (5, 33, 264),
    (16, 7, 8),
    (17, 1, 40),
    (37, 300, 16),
    (8, 1000, 32),
    (9, 5, 9),
)


def inputs(sizes: tuple[int, int, int], dtype: torch.dtype) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(sum(sizes))
    return [torch.randint(-3, 4, sizes, generator=generator).to(dtype) for _ in range(2)]


@pytest.mark.parametrize(
    ("info", "dtype"),
    [(None, DataType.Float), (THREE, DataType.BFloat16), (WITHOUT_COPIES, DataType.Half)],
    ids=["own", "3 multiprocessors", "3 of a T4"],
)
def test_integers_are_exact(info: DeviceInfo | None, dtype: DataType) -> None:
    """Sums of small integers round nowhere, in whichever order."""
    batch, planned, copied = Batch(CPU, info), [], list[bool]()
    for sizes in SIZES:
        given = inputs(sizes, dtype.torch)
        fusion = grouped(*sizes, dtype).fusion
        planned.append((given, executable(CompiledFusion(fusion), given, batch, CPU)))
        (segment,) = planned[-1][1].plan.segments
        made = schedule_segment(segment, info) if info else None
        # What is on its way from one portion to the next.
        if isinstance(made, ReductionSchedule) and made.has_portions_ahead:
            copied.append(bool(made.pipeline.copied))
    assert info is None or any(copied) == info.copies_async
    assert info is None or len(copied) > 2
    for given, run in planned:
        exact = grouped_eager(*(t.double() for t in given))
        for ours, right in zip(run(given), exact, strict=True):
            assert torch.equal(ours, right.to(ours.dtype)), given[0].shape


@pytest.mark.parametrize("info", [None, THREE], ids=["own", "3 multiprocessors"])
@blocks(240, 24, always=ALWAYS)
def test_random_groups_equal_float64(info: DeviceInfo | None, first: int) -> None:
    batch, planned, walks, modulated = Batch(CPU, info), [], 0, 0
    for seed in range(1000 + first, 1000 + first + 24):
        # Many columns that are whole vectors.
        made = random_case(seed, max_numel=4000, steps=4, groups=True, sizes=(2, 3, 8, 16, 24))
        given = made.fresh_inputs(CPU)
        run = executable(CompiledFusion(made.fusion), given, batch, CPU)
        planned.append((made, given, run))
        for segment in run.plan.segments:
            if segment.kernels:
                schedule = schedule_segment(segment, THREE)
                if isinstance(schedule, ReductionSchedule):
                    walks += schedule.mapping.walks_portions
                    modulated += bool(schedule.portion.loads)
    for made, given, run in planned:
        made.check(run(given), made.updated(given))
    assert walks > 1
    assert modulated or first >= ALWAYS


def test_portions_of_long_columns() -> None:
    """One group, whose rows are too many for one accumulator of a thread."""
    norm = next(r for r in REDUCTIONS if r.name == "layer_norm_backward")
    info, rows, columns = replace(H200_SLICE, sm_count=1), 1501, 264
    given = norm.inputs(rows, columns, torch.float32)
    fusion = norm.definition(rows, columns, DataType.Float).fusion
    run = executable(CompiledFusion(fusion), given, Batch(CPU, info), CPU)
    (segment,) = run.plan.segments
    schedule = schedule_segment(segment, info)
    assert isinstance(schedule, ReductionSchedule)
    assert (schedule.mapping.partials, schedule.mapping.portions) == (1, 2)
    exact = norm.eager(*(t.double() for t in given))
    eager = norm.eager(*given)
    for ours, theirs, right in zip(run(given), eager, exact, strict=True):
        error, other = ((t.double() - right).abs().max() for t in (ours, theirs))
        floor = 2 * torch.finfo(torch.float32).eps * right.abs().max() + 4e-7 * rows**0.5
        assert error <= torch.maximum(other, floor)


@pytest.mark.nvrtc
def test_they_fit_as_machine_code() -> None:
    """Registers of what NVRTC makes, on multiprocessors of all sizes."""
    shapes = ((56, 1024, 1024), (265, 64, 1024), (2048, 32, 768))
    plans = [grouped(*sizes, DataType.BFloat16).plan() for sizes in shapes]
    for info in (T4, A100, H200):
        kernels = [k.kernel for plan in plans for k in generate_kernels(plan, info).values()]
        for kernel in kernels:
            assert kernel.cooperative
            used = compile_cubin(kernels, info.arch).resources[kernel.name]
            # Two indices in local memory, which are read behind the rows of a portion; a T4, whose
            # threads have 64 registers, reads them with each row.
            most = {T4: 88, A100: 80}.get(info, 0)
            assert used.spill_store_bytes + used.spill_load_bytes <= most
            fit = resident_blocks(info, kernel.block[0], used.registers, kernel.shared_bytes)
            assert fit * info.sm_count >= kernel.grid[0]


@pytest.mark.nvrtc
@pytest.mark.skipif(bool(sass.SKIP_REASON), reason=sass.SKIP_REASON)
def test_rows_of_a_block_do_not_wait_for_each_other() -> None:
    """Each reduces its threads at a barrier of its own, whose number is in a register; the block's
    are around the loop over rows.
    """
    plan = grouped(56, 1024, 1024, DataType.BFloat16).plan()
    (generated,) = generate_kernels(plan, H200).values()
    cubin = compile_cubin([generated.kernel], H200.arch)
    code = sass.disassemble(cubin.image)[generated.kernel.name]
    loops = [range(t, k + 1) for k in range(len(code.opcodes)) if (t := code.target(k) or k) < k]
    rows = [loop for loop in loops if any(code.opcodes[k].startswith("STG") for k in loop)]
    inner = min(rows, key=len)
    barriers = [code.operands[k] for k in inner if code.opcodes[k].startswith("BAR.SYNC")]
    assert barriers
    assert all(operand.startswith("R") for operand in barriers), barriers


def test_no_order_of_threads_and_blocks_matters() -> None:
    sizes = (5, 33, 264)
    fusion = grouped(*sizes, DataType.Float).fusion
    plan = CompiledFusion(fusion).plan()
    (segment,) = plan.segments
    schedule = schedule_segment(segment, THREE)
    assert isinstance(schedule, ReductionSchedule)
    assert schedule.mapping.walks_portions
    assert schedule.threads > 32
    (generated,) = generate_kernels(plan, THREE).values()
    (launch,) = HOST.compile([generated.kernel])
    memory = dict(zip(plan.fusion.inputs, inputs(sizes, torch.float32), strict=True))
    given: list[Any] = []
    for bound in generated.arguments:
        if isinstance(bound, Scratch):
            given.append(torch.zeros(bound.bytes, dtype=torch.uint8))
        else:
            assert isinstance(bound, TensorView)
            given.append(memory[bound] if bound in memory else torch.zeros(bound.sizes))
    check_orders(launch, given)


@pytest.mark.gpu
@pytest.mark.parametrize("sizes", [(132, 64, 1024), (300, 64, 1024), (2048, 32, 256)], ids=str)
def test_more_groups_than_a_gpu_holds_blocks(sizes: tuple[int, int, int]) -> None:
    given = [t.cuda() for t in inputs(sizes, torch.bfloat16)]
    compiled = CompiledFusion(grouped(*sizes, DataType.BFloat16).fusion)
    exact = grouped_eager(*(t.double() for t in given))
    for ours, right in zip(compiled(given), exact, strict=True):
        assert torch.equal(ours, right.to(ours.dtype))


def test_values_of_a_portion_are_computed_before_its_rows() -> None:
    """1 + scale of a modulation, which strict precision rounds: once for 1,024 rows."""
    plan = full_plan()
    (segment,) = plan.segments
    schedule = schedule_segment(segment, H200)
    assert isinstance(schedule, ReductionSchedule)
    (kept,) = schedule.portion.values
    assert isinstance(kept, Compute)
    (kernel,) = generate_kernels(plan, H200).values()
    before, rows = kernel.kernel.source.split("for (int first")
    value = f"h{kept.order}[k][v]"
    assert f"{value} = t{kept.order};" in before
    assert before.count("1.0f +") == 1
    # Of the rows each pass reads it.
    assert "1.0f +" not in rows
    assert rows.count(f"= {value};") == 2


def test_the_next_portion_is_on_its_way_while_totals_meet() -> None:
    """Its first row was asked for only when this portion had left what it adds up, three times a
    block: memory then had nothing to do.
    """
    plan = full_plan()
    (segment,) = plan.segments
    schedule = schedule_segment(segment, H200)
    assert isinstance(schedule, ReductionSchedule)
    assert schedule.has_portions_ahead
    (kernel,) = generate_kernels(plan, H200).values()
    before, portions = kernel.kernel.source.split("for (int portion")
    common, rows = portions.split("for (int first")
    rows, meeting = rows.split("// partial results of the portion")
    copies = [text.count("copies.copy<8>(") for text in (before, common, rows, meeting)]
    assert copies == [2, 0, 2, 0]
    assert "(following < 0) ? r : following" in rows
    # A portion that no row is left for has none to wait for.
    mapping = replace(schedule.mapping, portions=56 * 257, rows_per_block=4)
    assert not replace(schedule, mapping=mapping).has_portions_ahead


def test_groups_of_threads_meet_for_all_totals_at_once() -> None:
    """Two barriers of a block for the totals of a portion, and two for the others."""
    (kernel,) = generate_kernels(full_plan(), H200).values()
    source = kernel.kernel.source
    totals = source[source.index("// partial results of the portion") :]
    totals = totals[: totals.index("tf::grid_barrier")]
    assert totals.count("__syncthreads()") == 4
    places = [f"float* const meeting{n} = (float*)(smem + " for n in range(4)]
    offsets = [int(totals.split(place)[1].split(")")[0]) for place in places]
    # Four groups of threads bring 1,024 columns each.
    assert [b - a for a, b in pairwise(offsets)] == [4 * 1024 * 4] * 3


def test_tiles_of_all_totals_are_shared_out_among_blocks() -> None:
    """32 tiles of weights' gradients, and behind them 112 of 512 points of the modulation's."""
    (kernel,) = generate_kernels(full_plan(), H200).values()
    epilogues = kernel.kernel.source.split("tf::grid_barrier")[1].split("// epilogue of")[1:]
    assert len(epilogues) == 2
    assert "if (blockIdx.x < 32u)" in epilogues[0]
    assert f"(blockIdx.x + {132 - 32}) % 132u" in epilogues[1]
    assert "if (first < 112)" in epilogues[1]
