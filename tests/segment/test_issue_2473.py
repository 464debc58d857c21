"""The definition of NVIDIA/Fuser issue 2473: a modulated layer norm's backward, five results.

Sums over a batch's sequence, over all of them, and over features: nvFuser makes two kernels of it
with 470 MB between them; what must move is 353,132,544 bytes, and one kernel of rows can do it.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import thunder
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from tests.support.batch import Batch, executable
from tests.support.shares import each_value
from tests.zoo.issue_2473 import FULL, definition, exact, full_plan, inputs
from thunder_fuser.compile import generate_kernels
from thunder_fuser.compiled_fusion import CompiledFusion
from thunder_fuser.device import DeviceInfo
from thunder_fuser.device_table import A100, DEVICES, H200, H200_SLICE
from thunder_fuser.errors import FuserValueError
from thunder_fuser.frontends.definition import DataType
from thunder_fuser.frontends.thunder import executor, fusions
from thunder_fuser.ir.integer.counts import evaluated
from thunder_fuser.runtime.cuda.nvrtc import compile_cubin
from thunder_fuser.templates.choose import schedule_segment
from thunder_fuser.templates.estimate import estimate_segment, estimated
from thunder_fuser.templates.reduction.schedule import ReductionSchedule

BFloat16, Float, Null = DataType.BFloat16, DataType.Float, DataType.Null
THREE = replace(H200_SLICE, sm_count=3)
"""Multiprocessors."""


def test_one_kernel_moves_what_must_move() -> None:
    plan = full_plan()
    assert plan.kernels == 1
    assert plan.boundaries == ()
    assert plan.bytes == plan.bytes_ideal == 353_132_544
    (segment,) = [s for s in plan.segments if s.kernels]
    schedule = schedule_segment(segment, H200)
    assert isinstance(schedule, ReductionSchedule)
    # Seven portions a batch, rows of one batch each, so that their sums are: 132 blocks walk over
    # three of them at most, and end within 2 % of an even share.
    mapping = schedule.mapping
    assert (mapping.row_groups, mapping.portions, mapping.partials) == (56, 392, 132)
    assert plan.bytes + 2 * schedule.reductions.workspace_bytes <= 1.03 * plan.bytes_ideal
    told = estimated(plan, H200)
    assert told.workspace_bytes == 2 * schedule.reductions.workspace_bytes
    assert f"{told.workspace_bytes:,} B through workspaces" in told.listing(times=True)


@each_value(batch=[8, 56, 513, 2048], device=DEVICES)
def test_blocks_walk_over_batches(batch: int, device: DeviceInfo) -> None:
    """Batches that are more than blocks: nothing is read twice, and parts are few beside rows."""
    plan = definition(batch, *FULL[1:]).plan()
    assert plan.kernels == 1
    assert plan.bytes == plan.bytes_ideal
    (segment,) = [s for s in plan.segments if s.kernels]
    schedule = schedule_segment(segment, device)
    assert isinstance(schedule, ReductionSchedule)
    mapping = schedule.mapping
    assert mapping.walks_portions >= (batch > device.sm_count)
    parts = 2 * schedule.reductions.workspace_bytes / int(plan.bytes_ideal)
    if batch == 8:
        # All blocks work on rows of all batches, and each leaves its part of four sums once: with
        # as few blocks as write 3 % an H200 takes 2.3 times as long (time model), an A100 1.8.
        # Blocks of a cluster leave one together.
        assert mapping.partials == mapping.portions
        assert (
            schedule.reductions.workspace_bytes
            == 4 * 4 * FULL[2] * mapping.partials // mapping.cluster
        )
        assert parts <= (0.03 if device.clusters and device.sm_count < 148 else 0.11)
    else:
        assert parts <= 0.03
    busiest = mapping.rows_per_thread(schedule.rows) * mapping.rows_per_block
    assert schedule.rows / device.sm_count >= 0.7 * busiest


@pytest.mark.parametrize("device", [THREE, A100], ids=["THREE", "A100"])
def test_sums_over_all_batches_are_left_with_several_portions(device: DeviceInfo) -> None:
    """As many as one accumulator takes (128 rows of a thread), where a block has more: with each of
    them the workspace of an A100 was 3.6 % of the bytes.
    """
    sizes, each, together = ((13, 256, 1024), 9, 4) if device is THREE else (FULL, 4, 3)
    (segment,) = [s for s in definition(*sizes).plan().segments if s.kernels]
    schedule = schedule_segment(segment, device)
    assert isinstance(schedule, ReductionSchedule)
    mapping = schedule.mapping
    assert (mapping.portions_of_block, schedule.portions_together) == (each, together)
    assert together * mapping.rows_of_portion(schedule.rows) <= 128
    assert not schedule.is_summed_in_parts
    # All portions count: with those of the first time alone it would be faster than a copy.
    assert estimate_segment(segment, device).copy_fraction < 1
    parts = {total.at: total.parts for total in schedule.reductions.of_grid}
    spans = [
        range(k, mapping.portions, together * mapping.partials) for k in range(mapping.partials)
    ]
    assert parts == {"group": mapping.portions, "column": sum(map(len, spans))}


def test_the_definition_states_its_sizes() -> None:
    """All of them follow from the constants, whatever the inputs' declarations say."""
    plan = definition(*FULL).plan()
    assert plan.kernels == 1
    assert plan.sizes is None
    assert plan.bytes == plan.bytes_ideal == 353_132_544
    assert "sizes" not in str(plan)


def test_another_batch_is_refused() -> None:
    fd = definition(*FULL)
    with FakeTensorMode():
        given = inputs(8, *FULL[1:], "cpu")
    with pytest.raises(FuserValueError, match=r"broadcast_in_dim at .* 8 \(.* and 56 \(stated in"):
        fd.plan(given)
    with pytest.raises(FuserValueError, match=r"broadcast_in_dim at .* 8 \(.* and 56 \(stated in"):
        fd.execute(given)


def test_the_batch_may_be_open() -> None:
    plan = definition(None, *FULL[1:]).plan(sizes={"i0": FULL[0]})
    assert plan.kernels == 1
    assert str(plan.bytes) == "6,305,792*i0 + 8,192"
    assert evaluated(plan.bytes, {"i0": FULL[0]}) == plan.bytes == 353_132_544


@pytest.mark.nvrtc
def test_it_fits_into_registers() -> None:
    (generated,) = generate_kernels(full_plan(), H200).values()
    found = compile_cubin([generated.kernel], "sm_90").resources[generated.kernel.name]
    assert not found.spills


@each_value(
    sizes=[(7, 128, 1024), (37, 70, 264), (13, 256, 1024)], schedule=[None, H200_SLICE, THREE]
)
def test_numbers(
    device: torch.device, schedule: DeviceInfo | None, sizes: tuple[int, int, int]
) -> None:
    if schedule and device.type != "cpu":
        pytest.skip("a GPU has its own schedule")
    torch.manual_seed(0)
    given = inputs(*sizes, device)
    batch = Batch(device, schedule)
    run = executable(CompiledFusion(definition(*sizes).fusion), given, batch, device)
    assert run.plan.kernels == 1
    for ours, right in zip(run(given), exact([t.cpu() for t in given]), strict=True):
        error = (ours.cpu().double() - right).abs().max() / right.abs().max()
        assert error <= 2**-8


def test_expanded_gradients_through_thunder_cost_their_elements_once() -> None:
    """Scales and shifts of a batch are expanded over its rows, forward and backward."""

    def modulated(
        x: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor, w: torch.Tensor, b: torch.Tensor
    ) -> torch.Tensor:
        normal = torch.nn.functional.layer_norm(x, x.shape[-1:], w, b)
        return normal * (1 + scale[:, None]) + shift[:, None]

    batch, rows, columns = FULL
    shapes = FULL, (batch, columns), (batch, columns), (columns,), (columns,)
    jitted = thunder.jit(modulated, executors=[executor])
    with FakeTensorMode():
        given = [
            torch.empty(s, dtype=torch.bfloat16, device="cuda", requires_grad=True) for s in shapes
        ]
        jitted(*given)
    forward, backward = (report.plan for report in fusions(jitted))
    whole, small = 2 * batch * rows * columns, 2 * batch * columns
    statistics = 2 * 4 * batch * rows
    assert forward.kernels == backward.kernels == 1
    assert forward.bytes == 2 * whole + 2 * small + 2 * 2 * columns + statistics
    assert backward.bytes == 353_132_544
