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
from thunder_fuser.compile import generate_kernels
from thunder_fuser.compiled_fusion import CompiledFusion
from thunder_fuser.device import DeviceInfo
from thunder_fuser.device_table import A100, DEVICES, H200, H200_SLICE
from thunder_fuser.errors import FuserValueError
from thunder_fuser.frontends.definition import DataType, FusionDefinition
from thunder_fuser.frontends.thunder import executor, fusions
from thunder_fuser.ir.integer.counts import evaluated
from thunder_fuser.runtime.cuda.nvrtc import compile_cubin
from thunder_fuser.segment.plan import SegmentedFusion
from thunder_fuser.templates.choose import schedule_segment
from thunder_fuser.templates.estimate import estimate_segment, estimated
from thunder_fuser.templates.reduction.schedule import ReductionSchedule

BFloat16, Float, Null = DataType.BFloat16, DataType.Float, DataType.Null
FULL = (56, 1024, 1024)
THREE = replace(H200_SLICE, sm_count=3)
"""Multiprocessors."""


def definition(batch: int | None, s: int, h: int) -> FusionDefinition:
    """Sizes are constants of the trace that it was made from, as in the issue's script; the first
    may be left open.
    """
    with FusionDefinition() as fd:
        ops = fd.ops

        def tensor(shape: list[int], contiguity: list[bool | None], dtype: DataType = BFloat16):  # type: ignore[no-untyped-def]
            return fd.define_tensor(shape=shape, contiguity=contiguity, dtype=dtype)

        weight = tensor([-1, -1, -1], [None, None, True])
        bias = tensor([-1, -1, -1], [None, None, True])
        scale = tensor([-1, 1, -1], [True, None, True])
        g = tensor([-1, -1, -1], [True, True, True])
        mean = tensor([-1, -1], [True, True], Float)
        rstd = tensor([-1, -1, 1], [True, True, None], Float)
        x = tensor([-1, -1, -1], [True, True, True])
        b = x.size(0) if batch is None else batch

        def wide(t, dims):  # type: ignore[no-untyped-def]
            return ops.broadcast_in_dim(t, shape=[b, s, h], broadcast_dims=dims)

        def column(t):  # type: ignore[no-untyped-def]
            return ops.broadcast_in_dim(t, shape=[b, s, 1], broadcast_dims=[0, 1])

        def summed_again(t):  # type: ignore[no-untyped-def]
            kept = ops.broadcast_in_dim(ops.cast(t, BFloat16), [b, 1, h], [0, 2])
            return ops.cast(ops.sum(ops.cast(kept, Float), dims=[1], dtype=Null), BFloat16)

        x32, g32, w32 = (ops.cast(t, Float) for t in (x, g, weight))
        centred = ops.sub(x32, wide(column(mean), [0, 1, 2]))
        normal = ops.mul(centred, wide(rstd, [0, 1, 2]))
        affine = ops.add(ops.mul(normal, w32), ops.cast(bias, Float))
        factor = ops.cast(ops.add(1.0, ops.cast(scale, Float)), BFloat16)
        modulated = ops.mul(ops.cast(wide(factor, [0, 1, 2]), Float), g32)
        fd.add_output(summed_again(ops.sum(g32, dims=[1])))
        fd.add_output(summed_again(ops.sum(ops.mul(affine, g32), dims=[1])))
        fd.add_output(ops.cast(ops.sum(modulated, dims=[0, 1]), BFloat16))
        fd.add_output(ops.cast(ops.sum(ops.mul(normal, modulated), dims=[0, 1]), BFloat16))
        weighted = ops.mul(w32, modulated)
        through = ops.mul(wide(rstd, [0, 1, 2]), weighted)
        of_rstd = column(ops.sum(ops.mul(centred, weighted), dims=[2]))
        of_mean = column(ops.sum(ops.neg(through), dims=[2]))
        of_variance = ops.mul(ops.mul(-0.5, of_rstd), ops.pow(rstd, 3.0))
        mean_part = ops.mul(1 / h, wide(column(ops.sum(of_mean, dims=[2])), [0, 1, 2]))
        spread = wide(column(ops.sum(of_variance, dims=[2])), [0, 1, 2])
        variance_part = ops.mul(ops.mul(ops.mul(2.0, spread), centred), ops.reciprocal(float(h)))
        total = ops.add(through, ops.add(mean_part, variance_part))
        fd.add_output(ops.cast(total, BFloat16))
    return fd


def inputs(b: int, s: int, h: int, device: torch.device | str) -> list[torch.Tensor]:
    def random(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return torch.randn(shape, dtype=dtype, device=device)

    return [
        *(random(h).expand(b, s, h) for _ in range(2)),
        random(b, 1, h),
        random(b, s, h),
        random(b, s, dtype=torch.float32),
        random(b, s, 1, dtype=torch.float32),
        random(b, s, h),
    ]


def exact(given: list[torch.Tensor]) -> list[torch.Tensor]:
    """In float64, with 16 bits where the definition rounds to them."""
    weight, bias, scale, g, mean, rstd, x = (t.double() for t in given)
    h = x.shape[-1]

    def rounded(t: torch.Tensor) -> torch.Tensor:
        return t.bfloat16().double()

    centred = x - mean[..., None]
    normal = centred * rstd
    modulated = rounded(1 + scale) * g
    weighted = weight * modulated
    of_rstd = (centred * weighted).sum(2, keepdim=True)
    of_mean = -(rstd * weighted).sum(2, keepdim=True)
    return [
        g.sum(1),
        ((normal * weight + bias) * g).sum(1),
        modulated.sum((0, 1)),
        (normal * modulated).sum((0, 1)),
        rstd * weighted + of_mean / h + 2 * (-0.5 * of_rstd * rstd**3) * centred / h,
    ]


def full_plan() -> SegmentedFusion:
    with FakeTensorMode():
        given = inputs(*FULL, "cuda")
    return definition(*FULL).plan(given)


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
    assert plan.bytes + 2 * schedule.workspace_bytes <= 1.03 * plan.bytes_ideal
    told = estimated(plan, H200)
    assert told.workspace_bytes == 2 * schedule.workspace_bytes
    assert f"{told.workspace_bytes:,} B through workspaces" in told.listing(times=True)


@pytest.mark.parametrize("device", DEVICES, ids=lambda d: d.name)
@pytest.mark.parametrize("batch", [8, 56, 513, 2048])
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
    parts = 2 * schedule.workspace_bytes / int(plan.bytes_ideal)
    if batch == 8:
        # All blocks work on rows of all batches, and each leaves its part of four sums once: with
        # as few blocks as write 3 % an H200 takes 2.3 times as long (time model), an A100 1.8.
        # Blocks of a cluster leave one together.
        assert mapping.partials == mapping.portions
        assert schedule.workspace_bytes == 4 * 4 * FULL[2] * mapping.partials // mapping.cluster
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
    parts = {total.at: total.parts for total in schedule.grid_reductions}
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


@pytest.mark.parametrize("sizes", [(7, 128, 1024), (37, 70, 264), (13, 256, 1024)], ids=str)
@pytest.mark.parametrize("schedule", [None, H200_SLICE, THREE], ids=["own", "H200_SLICE", "THREE"])
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
