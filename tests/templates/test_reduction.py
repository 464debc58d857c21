"""The row template: plans of norms at full size, and what schedules decide about rows and lanes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from tests.support.building import op
from tests.support.generator import random_case
from tests.support.schedules import row_schedules
from tests.support.shares import GPUS, each_pair, each_value
from tests.zoo.norms import NORMS, Norm
from tests.zoo.reductions import REDUCTIONS, Reduction
from thunder_fuser.codegen.cuda import GeneratedKernel
from thunder_fuser.compile import generate_kernels
from thunder_fuser.compiled_fusion import CompiledFusion
from thunder_fuser.device import WARP_SIZE as WARP
from thunder_fuser.device import DeviceInfo
from thunder_fuser.device_table import A100, B200, H200
from thunder_fuser.errors import Refusal
from thunder_fuser.frontends.definition import FusionDefinition
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.domain import Layout
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import ReductionOp
from thunder_fuser.lower.body import KernelBody
from thunder_fuser.lower.register_budget import BLOCK_ACCUMULATORS
from thunder_fuser.lower.vectors.lanes import RunLanes
from thunder_fuser.runtime.cuda.nvrtc import compile_cubin
from thunder_fuser.runtime.host.target import HOST
from thunder_fuser.segment.plan import Segment, SegmentedFusion
from thunder_fuser.segment.planner import partition
from thunder_fuser.templates.estimate import estimate_segment, estimated
from thunder_fuser.templates.lower import lower
from thunder_fuser.templates.reduction.lower import fits_int32
from thunder_fuser.templates.reduction.mapping.accumulations import LONGEST_CHAIN
from thunder_fuser.templates.reduction.mapping.thread_mapping import MAX_THREADS
from thunder_fuser.templates.reduction.schedule import ReductionSchedule
from thunder_fuser.templates.reduction.template import schedule_reduction
from thunder_fuser.time_model.estimate import estimate_kernel

Float, BFloat16 = DataType.Float, DataType.BFloat16
CPU = HOST.device_info(torch.device("cpu"))


def schedule(segment: Segment, device: DeviceInfo) -> ReductionSchedule:
    found = schedule_reduction(segment.body, device)
    assert isinstance(found, ReductionSchedule), found
    return found


GRADIENTS = [r for r in REDUCTIONS if r.name.endswith("norm_backward") or r.name == "loss"]


def folded(sizes: Sequence[int], dims: Sequence[int], dtype: DataType = Float) -> SegmentedFusion:
    b = FusionBuilder()
    b.output(b.reduce("sum", b.tensor(sizes, dtype), dims))
    return partition(b.build())


# ---- plans


@pytest.mark.parametrize("norm", NORMS, ids=lambda n: n.name)
def test_norms_are_one_kernel_that_moves_each_byte_once(norm: Norm) -> None:
    rows, columns = (4096, 32768) if "softmax" in norm.name else (8192, 4096)
    plan = norm.definition(rows, columns, BFloat16).plan()
    elements = {"x": rows * columns * 2, "w": columns * 2, "s": rows * 4}
    assert plan.kernels == 1
    assert plan.bytes == plan.bytes_ideal
    assert plan.bytes == sum(elements[k] for k in norm.operands + norm.results)
    (found,) = row_schedules(plan)
    assert not found.row_cache.reread
    assert found.lane_axis == "columns"
    assert found.lanes.vector * 2 == 16
    threads = {"softmax": 512, "log_softmax": 512, "softmax_backward": 512}
    assert found.threads == threads.get(norm.name, 256)
    assert found.stages == (2 if norm.name in ("layer_norm", "softmax", "log_softmax") else 1)


def resident(found: ReductionSchedule, device: DeviceInfo) -> int:
    """Blocks that a multiprocessor holds."""
    return estimate_kernel(lower(found, {}), device).resident


@each_pair(norm=NORMS, dtype=[BFloat16, Float], device=GPUS)
def test_several_blocks_have_long_rows_by_turns(
    norm: Norm, dtype: DataType, device: DeviceInfo
) -> None:
    """One works while the other waits for memory, and neither reads anything again."""
    columns = 24576 // dtype.itemsize
    (found,) = row_schedules(norm.definition(4096, columns, dtype).plan(), device)
    assert found.threads <= MAX_THREADS // 2
    assert resident(found, device) >= 2
    assert not found.row_cache.reread
    # A multiprocessor that has one row, or none, has twice as many threads for it.
    few = norm.definition(device.sm_count, columns, dtype).plan()
    assert [s.threads for s in row_schedules(few, device)] == [2 * found.threads]


@each_value(
    program=[*NORMS, *GRADIENTS],
    columns=[1536, 2560, 3072, 5120, 6144, 10240],
    device=[A100, H200],
)
def test_rows_of_any_whole_number_of_warps_are_as_fast_as_powers_of_two(
    program: Norm | Reduction, columns: int, device: DeviceInfo
) -> None:
    """Hidden sizes of models are seldom powers of two: threads of a row are whole warps, so that
    few of them are idle.
    """

    def share(columns: int) -> float:
        plan = program.definition(8192, columns, BFloat16).plan()
        found = [estimate_segment(s, device) for s in plan.segments if s.kernels]
        return sum(e.copy_seconds for e in found) / sum(e.seconds for e in found)

    # Of gradients, a block of 4,096 columns has two rows that do not wait for each other, and of
    # more columns one: RMSNorm's takes 70.5 us with 5,120 on an H200, where a copy takes 64.
    below = 1 << columns.bit_length() - 1
    assert share(columns) > 0.75 * share(below)


def test_rows_that_two_blocks_have_no_room_for_are_a_clusters() -> None:
    # A row and its gradient: 128 KB, of which shared memory holds half for each of two blocks.
    gradient = next(n for n in NORMS if n.name == "softmax_backward")
    plan = gradient.definition(4096, 32768, BFloat16).plan()
    (found,) = row_schedules(plan)
    assert (found.threads, resident(found, H200), found.mapping.cluster) == (MAX_THREADS // 2, 2, 2)
    assert not found.row_cache.reread
    # Or that of one block, where blocks do not reach each other's.
    device = replace(H200, clusters=())
    (found,) = row_schedules(plan, device)
    assert (found.threads, resident(found, device)) == (MAX_THREADS, 1)
    assert not found.row_cache.reread


@each_pair(norm=NORMS, dtype=[BFloat16, Float], columns=[65536, 100_001, 128_256, 262_144])
def test_rows_that_no_block_has_room_for_stay_in_clusters(
    norm: Norm, dtype: DataType, columns: int
) -> None:
    """What one block would read again, those of a cluster keep, and tell each other the rest."""
    plan = norm.definition(1024, columns, dtype).plan()
    (segment,) = (s for s in plan.segments if s.kernels)
    alone = replace(H200, clusters=())
    (found,), (before,) = row_schedules(plan), row_schedules(plan, alone)
    if found.row_cache.reread:
        kept = norm.operands.count("x") * columns * dtype.itemsize
        assert kept > H200.largest_cluster * H200.shared_bytes_per_block
        return
    assert not found.row_cache.reread
    assert found.mapping.shares_rows == bool(before.row_cache.reread or before.threads > 512)
    clustered, again = (estimate_segment(segment, device) for device in (H200, alone))
    # The model prefers plain loops that read again from the L2 cache, by what clusters that begin
    # together wait for; an H200 took 101 us for a BatchNorm in such loops, and 94 in clusters.
    assert clustered.seconds < 1.4 * again.seconds


@each_pair(
    name=["layer_norm_backward", "rms_norm_backward"],
    dtype=[BFloat16, Float],
    columns=[12_288, 16_384, 18_432, 20_000, 32_768],
)
def test_gradients_of_wide_norms_are_one_kernel_of_clusters(
    name: str, dtype: DataType, columns: int
) -> None:
    """A block has a tile of the columns, whose totals its registers hold."""
    (program,) = (r for r in REDUCTIONS if r.name == name)
    fusion = program.definition(4096, columns, dtype).fusion
    alone = replace(H200, clusters=())
    plan, before = partition(fusion, device=H200), partition(fusion, device=alone)
    assert plan.kernels == 1
    assert plan.bytes == plan.bytes_ideal
    (found,) = row_schedules(plan)
    words = len([t for t in found.reductions.of_grid if t.is_of_columns])
    if words * columns > BLOCK_ACCUMULATORS:
        assert before.kernels == 2
        assert before.bytes > 1.3 * plan.bytes
        assert found.mapping.shares_rows
    tile = found.steps * found.threads * found.lanes.vector
    assert words * tile <= BLOCK_ACCUMULATORS
    assert not found.row_cache.reread
    one, two = (
        sum(s.estimate.seconds for s in estimated(p, d).segments if s.kernels)
        for p, d in ((plan, H200), (before, alone))
    )
    assert one < 1.01 * two


@pytest.mark.parametrize(
    ("rows", "cluster", "share"), [(8192, 2, 0.03), (2048, 8, 0.03), (64, 1, 2.0)]
)
def test_blocks_of_clusters_add_up_totals_where_parts_are_many(
    rows: int, cluster: int, share: float
) -> None:
    (program,) = (r for r in REDUCTIONS if r.name == "layer_norm_backward")
    plan = program.definition(rows, 4096, BFloat16).plan()
    (found,), (apart,) = row_schedules(plan), row_schedules(plan, replace(H200, clusters=()))
    assert found.mapping.cluster == cluster
    assert found.reductions.workspace_bytes * cluster <= apart.reductions.workspace_bytes
    assert 2 * found.reductions.workspace_bytes < share * int(plan.bytes)


def test_statistics_over_rows_and_over_columns_go_through_memory_and_say_why() -> None:
    b = FusionBuilder()
    x = b.tensor([64, 96], Float)
    rows, columns = (b.reduce("max", x, [k], keepdim=True) for k in (1, 0))
    b.output(op(b, "sub", op(b, "sub", x, rows), columns))
    plan = partition(b.build())
    # Those of rows come first, as there are fewer; those of columns are ready where the result is.
    assert [s.folds[0].dims for s in plan.segments] == [(1,), (0,)]
    (boundary,) = plan.boundaries
    assert boundary.tensor.sizes == (64,)
    assert boundary.bytes == 64 * 4
    assert str(boundary) in str(plan)
    assert plan.bytes == (3 * 64 * 96 + 2 * 64) * 4


def test_a_reduction_of_a_reduction_folds_another_space() -> None:
    b = FusionBuilder()
    rows = b.reduce("sum", b.tensor([64, 96], Float), [1])
    b.output(b.reduce("max", b.reshape(rows, [8, 8]), [1]))
    plan = partition(b.build())
    (boundary,) = plan.boundaries
    assert "[space]" in boundary.reason
    assert "reduces dimension" in boundary.reason
    assert (boundary.producer, boundary.consumers) == (0, (1,))


def test_several_reductions_of_one_input_share_its_kernel() -> None:
    b = FusionBuilder()
    x = b.tensor([32, 128], Float)
    for name in ("sum", "max", "min", "any"):
        b.output(b.reduce(name, x, [1]))
    for value in b.var_mean(x, [1]):
        b.output(value)
    plan = partition(b.build())
    assert plan.kernels == 1
    assert plan.bytes == plan.bytes_ideal
    (found,) = row_schedules(plan)
    assert found.stages == 2
    assert [f.stage for f in found.reductions.of_rows].count(1) == 1


def test_a_transposed_reader_is_a_pointwise_kernel_of_the_stored_reduction() -> None:
    b = FusionBuilder()
    x = b.tensor([16, 8, 64], Float)
    b.output(op(b, "exp", b.permute(b.reduce("sum", x, [2]), [1, 0])))
    b.output(b.reduce("sum", x, [2]))
    plan = CompiledFusion(b.build()).plan()
    assert [s.kind for s in plan.segments] == ["reduction", "pointwise"]
    (boundary,) = plan.boundaries
    assert boundary.bytes == 16 * 8 * 4
    assert plan.segments[1].bytes_read == boundary.bytes


def test_cuts_around_reductions() -> None:
    b = FusionBuilder()
    x = b.tensor([16, 64], Float)
    before = b.segment_set(op(b, "exp", x))
    total = b.segment_set(b.reduce("sum", before, [1], keepdim=True))
    b.output(op(b, "div", before, total))
    plan = partition(b.build())
    assert [s.kind for s in plan.segments] == ["pointwise", "reduction", "pointwise"]
    assert [t.sizes for t in plan.segments[1].outputs] in ([(16,)], [(16, 1)])
    assert all("segment_set" in boundary.reason for boundary in plan.boundaries)


def test_an_update_that_reads_a_row_is_not_written_while_it_is_read() -> None:
    b = FusionBuilder()
    x = b.tensor([16, 64], Float)
    b.output(op(b, "sub", x, b.reduce("max", x, [1], keepdim=True)), x)
    plan = partition(b.build())
    assert not plan.placement.updates
    assert plan.copies == 1


# ---- schedules


@pytest.mark.parametrize("device", [H200, A100, CPU], ids=lambda d: d.name)
@pytest.mark.parametrize("count", [25, pytest.param(75, marks=pytest.mark.campaign)])
def test_every_column_of_every_row_has_one_thread(device: DeviceInfo, count: int) -> None:
    seen = set()
    for seed in range(count):
        case = random_case(seed, reductions=True)
        plan = CompiledFusion(case.fusion).plan(case.inputs)
        for found in row_schedules(plan, device):
            lanes = found.lanes
            runs = lanes.vectors // lanes.each if isinstance(lanes, RunLanes) else 1
            extent = (found.columns if found.lane_axis == "columns" else found.rows) // runs
            vectors = lanes.vectors // runs
            assert vectors * lanes.vector >= max(extent, 1) > (vectors - 1) * lanes.vector
            assert bool(found.inside) == (vectors * lanes.vector != extent)
            assert found.block_threads <= MAX_THREADS
            mapping = found.mapping
            if found.lane_axis == "columns":
                # Rows of one warp share it; of more, warps are whole.
                assert found.threads % WARP == 0 or found.threads & (found.threads - 1) == 0
                workers = found.threads * mapping.column_tiles * mapping.blocks_per_row
                assert found.steps * workers >= lanes.vectors > (found.steps - 1) * workers
                assert (found.grid_split == "rows") >= (mapping.column_tiles > 1)
                assert (found.grid_split == "columns") == (mapping.blocks_per_row > 1)
            if found.grid_split == "rows":
                assert found.blocks == mapping.partials * mapping.column_tiles
            elif found.lane_axis == "columns":
                assert found.rows_per_block == 1 or found.threads <= WARP
                assert found.blocks // mapping.blocks_per_row * found.rows_per_block >= found.rows
            else:
                assert found.is_outer_shared == (found.threads > 1)
                assert found.steps * found.threads >= found.columns
                assert found.blocks * found.rows_per_block >= lanes.vectors
            if not device.threads_are_serial and found.threads > 1:
                assert found.block_threads % WARP == 0
            if found.reductions.of_grid and not device.threads_are_serial:
                together = mapping.blocks_per_sm * device.sm_count
                assert found.blocks <= together
                assert mapping.blocks_per_sm * found.block_threads <= device.threads_per_sm
            assert not (found.row_cache.registers and found.is_folded_in_parts)
            stages = {f.tensor: f.stage for f in found.reductions.of_rows}
            assert sorted(set(stages.values())) == list(range(found.stages if stages else 0))
            seen |= {
                found.lane_axis,
                bool(found.row_cache.registers),
                found.stages,
                found.lanes.vector,
            }
            seen |= {
                f"grid_split {found.grid_split}",
                "stacked" if found.is_outer_shared else "alone",
            }
    assert {"columns", "rows", True, False, 2, "grid_split rows", "grid_split none"} <= seen
    assert ("stacked" in seen) == (not device.threads_are_serial)


@pytest.mark.parametrize(
    ("sizes", "dims", "axis", "threads", "rows_per_block"),
    [
        ((8192, 4096), (1,), "columns", 256, 1),
        ((65536, 64), (1,), "columns", 16, 8),
        ((64, 1 << 22), (0,), "rows", 1, 128),
        ((4, 8, 1 << 22), (0, 1), "rows", 1, 128),
    ],
)
def test_lanes_lie_along_memory(
    sizes: tuple[int, ...], dims: tuple[int, ...], axis: str, threads: int, rows_per_block: int
) -> None:
    (found,) = row_schedules(folded(sizes, dims))
    assert (found.lane_axis, found.threads, found.rows_per_block) == (axis, threads, rows_per_block)
    if sizes[-1] > 1:
        (access,) = found.accesses
        assert access.is_vector
        assert access.instructions(found.lanes.vector) * 4 == found.lanes.vector


@pytest.mark.parametrize(
    ("sizes", "dims", "rows"),
    [
        ((65536, 4), (1,), 64),
        ((2, 64, 16, 2, 16, 2), (3, 5), 64),
        ((4096, 512), (1,), 8),
        ((65520, 4), (1,), 16),
        ((65537, 4), (1,), 8),
        ((256, 4), (1,), 16),
    ],
)
def test_a_core_has_more_of_short_rows_at_once(
    sizes: tuple[int, ...], dims: tuple[int, ...], rows: int
) -> None:
    """If they divide the rows, and leave a block for each of 16 cores."""
    (found,) = row_schedules(folded(sizes, dims), CPU)
    assert (found.threads, found.rows_per_block) == (1, rows)


def test_dimensions_are_ordered_as_they_lie_in_memory() -> None:
    """A reduction over the outer dimension of a transposed tensor is one over rows."""
    plan = folded((4096, 512), (0,))
    # Totals of columns on the one hand, a row for each thread on the other.
    moved = partition(plan.fusion, [Layout((1, 4096))])
    (plain,), (transposed,) = (row_schedules(p, CPU) for p in (plan, moved))
    assert (plain.lane_axis, plain.grid_split) == ("columns", "rows")
    assert (transposed.lane_axis, transposed.grid_split) == ("columns", "none")
    assert plain.accesses[0].is_vector
    assert transposed.accesses[0].is_vector


def test_long_rows_are_read_in_every_stage_and_folded_in_parts() -> None:
    plan = NORMS[2].definition(256, 1 << 20, Float).plan()
    (found,) = row_schedules(plan)
    assert found.row_cache.reread
    assert found.is_folded_in_parts == (found.steps > LONGEST_CHAIN)
    (host,) = row_schedules(plan, CPU)
    assert host.is_folded_in_parts
    assert "re-read in every pass" in str(found)
    assert f"{found.rows} rows x {found.columns} columns" in str(found)


def test_misaligned_rows_are_read_element_by_element() -> None:
    plan = folded((8, 1000), (1,), BFloat16)
    (aligned,) = row_schedules(plan)
    (shifted,) = row_schedules(partition(plan.fusion, [Layout((1000, 1), alignment=2)]))
    assert aligned.accesses[0].is_vector
    assert not shifted.accesses[0].is_vector


def test_what_one_kernel_cannot_compute_is_refused_with_a_reason() -> None:
    b = FusionBuilder()
    x = b.tensor([16, 16], Float)
    rows = b.reduce("sum", x, [1], keepdim=True)
    b.output(op(b, "sub", x, b.permute(rows, [1, 0])))
    fusion = b.build()
    (fold,) = (e for e in fusion.exprs if e.op == "sum")
    plan = partition(fusion)
    (output,) = fusion.outputs
    assert isinstance(fold, ReductionOp)
    stores = {output: Layout((16, 1))}
    body = KernelBody(
        fusion.definitions(), {x: plan.placement.layouts[x]}, [output], [fold], stores
    )
    found = schedule_reduction(body, H200)
    assert isinstance(found, Refusal)
    assert found.code == "stage"
    assert fold.output.name in str(found)
    other = FusionBuilder()
    y = other.tensor([16, 8, 4], Float)
    folds = [other.reduce("sum", y, [k]) for k in (0, 1, 2)]
    for value in folds:
        other.output(value)
    made = other.build()
    stores = {t: Layout((t.sizes[1], 1)) for t in folds}
    done = [e for e in made.exprs if isinstance(e, ReductionOp)]
    body = KernelBody(made.definitions(), {y: Layout((32, 4, 1))}, folds, done, stores)
    refused = schedule_reduction(body, H200)
    assert isinstance(refused, Refusal)
    assert refused.code == "space"


def test_schedules_depend_on_the_device_and_on_nothing_else() -> None:
    plan = folded((64, 4096), (1,))
    assert row_schedules(plan)[0].threads > row_schedules(plan, CPU)[0].threads == 1
    again = folded((64, 4096), (1,))
    assert str(row_schedules(plan)[0]) == str(row_schedules(again)[0])
    narrow = replace(H200, vector_bytes=8)
    assert row_schedules(plan, narrow)[0].lanes.vector == 2


def test_definitions_plan_without_tensors() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([128, 256], True, BFloat16)
        fd.add_output(fd.ops.sum(x, [0]))
    assert "1 kernel" in str(fd.plan())
    assert fd.plan().bytes == 128 * 256 * 2 + 256 * 2


def test_a_fold_that_could_read_a_total_and_does_not_is_no_total() -> None:
    """All that is folded comes from a pad: the sum in front of it is never asked for."""
    b = FusionBuilder()
    total = b.reduce("sum", b.tensor([1], Float), [0])
    padded = b.pad(b.broadcast(total, [True]), [-1, 3], 0.5)
    b.output(b.reduce("max", padded, [0]))
    plan = partition(b.build())
    assert [type(found) for found in row_schedules(plan)] == [ReductionSchedule] * len(
        plan.segments
    )


# ---- rows that no vector divides

OWNING = [r for r in REDUCTIONS if r.name in ("column_sum", "rms_norm_backward", "gelu_backward")]


@pytest.mark.parametrize("dtype", [BFloat16, Float], ids=str)
@pytest.mark.parametrize(("columns", "lanes"), [(1001, 1), (5003, 1), (2502, 2), (50257, 1)])
@pytest.mark.parametrize("program", OWNING, ids=lambda r: r.name)
def test_lanes_of_totals_are_neighbours_of_other_threads_lanes(
    program: Reduction, columns: int, lanes: int, dtype: DataType
) -> None:
    """Vectors of a thread whose lanes were loaded one by one touched each sector eight times. The
    64 bytes of a warp's loads begin within a sector, most of them.
    """
    plan = program.definition(8192, columns, dtype).plan()
    owning = [
        segment
        for segment in plan.segments
        if segment.kernels
        and any(t.is_of_columns for t in schedule(segment, H200).reductions.of_grid)
    ]
    assert owning
    for segment in owning:
        found = schedule(segment, H200)
        assert found.lanes.vector == lanes
        wide = [a for a in found.accesses if a.loads[0].tensor.numel == 8192 * columns]
        assert wide
        assert all(a.is_one_access(lanes) for a in wide)
        assert estimate_segment(segment, H200).sector_bytes < 1.55 * segment.bytes


@pytest.mark.parametrize(("columns", "dtype"), [(1001, BFloat16), (5003, Float), (2500, BFloat16)])
def test_the_next_row_is_under_way_whatever_divides_it(columns: int, dtype: DataType) -> None:
    (program,) = (r for r in REDUCTIONS if r.name == "layer_norm_backward")
    plan = program.definition(8192, columns, dtype).plan()
    (found,) = row_schedules(plan)
    rows = [a for a in found.accesses if a.loads[0].tensor.numel == 8192 * columns]
    assert {found.accesses[k] for k in found.pipeline.prefetched}.issuperset(rows)
    (segment,) = (s for s in plan.segments if s.kernels)
    assert estimate_segment(segment, H200).copy_fraction > 0.45


@pytest.mark.parametrize("rows", [1024, 128])
def test_threads_with_columns_of_their_own_have_many_rows_under_way(rows: int) -> None:
    (program,) = (r for r in REDUCTIONS if r.name == "column_sum")
    plan = program.definition(rows, 262144, Float).plan()
    (found,) = row_schedules(plan)
    assert found.lane_axis == "rows"
    in_flight = (
        found.unrolling.factors[0] * found.lanes.vector * Float.itemsize * found.lanes.vectors
    )
    assert in_flight / H200.sm_count > 0.7 * H200.bytes_in_flight_per_sm
    (segment,) = (s for s in plan.segments if s.kernels)
    assert estimate_segment(segment, H200).copy_fraction > 0.8


# ---- registers


@pytest.mark.parametrize("columns", [4096, 8192])
def test_a_weight_that_shared_memory_has_room_for_is_loaded_once_a_block(columns: int) -> None:
    """It leaves registers to the next row, and is neither read nor kept anew with each."""
    program = next(r for r in REDUCTIONS if r.name == "layer_norm_backward_anew")
    (found,) = row_schedules(program.definition(8192, columns, BFloat16).plan())[:1]
    weights = [found.accesses[k].loads[0].tensor.sizes for k in found.row_invariant_smem]
    assert weights == [(1, columns)]
    assert not found.row_cache.not_hoisted
    assert found.pipeline.prefetched
    for number in range(len(found.passes)):
        assert found.loads_in_pass(number).isdisjoint(found.row_invariant_smem)


@pytest.mark.nvrtc
@pytest.mark.parametrize("device", [A100, H200, B200], ids=lambda d: d.arch)
def test_a_weight_that_registers_have_no_room_for_is_read_with_each_row(device: DeviceInfo) -> None:
    """The gradients of a norm of 16,384 columns in fp64: NVVM takes the weight's loads out of the
    loop over the rows, and ptxas spilled 160 bytes of what they read.
    """
    program = next(r for r in REDUCTIONS if r.name == "layer_norm_backward")
    device = replace(device, clusters=())
    plan = partition(program.definition(1000, 16384, DataType.Double).fusion, device=device)
    (found,) = [
        s for s in row_schedules(plan, device) if s.reductions.of_rows and s.reductions.of_grid
    ]
    weights = [found.accesses[k].loads[0].tensor for k in found.row_cache.not_hoisted]
    assert [t.sizes for t in weights] == [(1, 16384)]
    kernels = [g.kernel for g in generate_kernels(plan, device).values()]
    assert sum("tf::opaque_zero()" in k.source for k in kernels) == 1
    made = compile_cubin(kernels, device.arch).resources.values()
    assert all(r.spill_store_bytes <= 8 for r in made)
    # One vector of each row has room.
    plan = program.definition(*program.full, BFloat16).plan()
    assert [s.row_cache.not_hoisted for s in row_schedules(plan, device)] == [()]


@pytest.mark.nvrtc
@pytest.mark.parametrize("device", [H200, B200], ids=lambda d: d.arch)
@pytest.mark.parametrize(
    ("rows", "columns", "dtype"),
    [
        (16384, 16384, DataType.Float),
        (8192, 32768, DataType.Float),
        (4096, 131072, DataType.BFloat16),
    ],
)
def test_half_as_many_threads_have_registers_for_portions_of_many_rows(
    rows: int, columns: int, dtype: DataType, device: DeviceInfo
) -> None:
    """A second set of totals was counted, which blocks that take rows by portions do not have:
    1,024 threads with 64 registers each had no next row under way, and spilled.
    """
    program = next(r for r in REDUCTIONS if r.name == "layer_norm_backward")
    plan = partition(program.definition(rows, columns, dtype).fusion, device=device)
    found = [
        s for s in row_schedules(plan, device) if s.reductions.of_rows and s.reductions.of_grid
    ]
    assert [s.block_threads for s in found] == [512]
    assert all(s.mapping.walks_portions and s.pipeline.prefetched for s in found)
    made = [
        compile_cubin([g.kernel], device.arch).resources[g.kernel.name]
        for g in generate_kernels(plan, device).values()
    ]
    assert all(r.spill_store_bytes == 0 for r in made)


@pytest.mark.nvrtc
@pytest.mark.parametrize(
    ("name", "dtype"),
    [("rms_norm_backward", DataType.Float), ("layer_norm_backward", DataType.BFloat16)],
)
def test_long_rows_have_as_many_steps_together_as_registers_hold(
    name: str, dtype: DataType
) -> None:
    """Three arrays of a vector, four steps together: 48 words beside what computes, and 64 each."""
    program = next(r for r in REDUCTIONS if r.name == name)
    plan = partition(program.definition(4096, 131072, dtype).fusion, device=A100)
    kernels = [g.kernel for g in generate_kernels(plan, A100).values()]
    assert any("TF_UNROLL_BY(2)" in k.source for k in kernels)
    for kernel in kernels:
        made = compile_cubin([kernel], A100.arch).resources[kernel.name]
        assert made.spill_store_bytes == 0


def test_a_sum_of_negative_zeros_is_zero() -> None:
    """As it is for torch, although short rows are folded from -0.0."""
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1], contiguity=[True, True])
        fd.add_output(fd.ops.sum(x, dims=[1]))
        fd.add_output(fd.ops.sum(x, dims=[0]))
    for columns in (8, 64, 4096):
        for sum in fd.execute([torch.full((4, columns), -0.0)]):
            assert not torch.signbit(sum).any()


# ---- dimensions of size 1, and sizes near 2^31


@pytest.mark.parametrize("device", [H200, CPU], ids=lambda d: d.name)
@pytest.mark.parametrize("count", [1 << 16, 1 << 20, 1 << 24])
def test_a_batch_of_one_is_reduced_like_none(count: int, device: DeviceInfo) -> None:
    """As rows of one column each it took 1.3 ms of an H200 where 21.6 us do, by the time model."""
    (alone,) = row_schedules(folded([count], [0]), device)
    assert alone.columns == count
    for sizes, dims in (
        ([1, count], [1]),
        ([count, 1], [0]),
        ([1, 256, count // 256], [1, 2]),
        ([1, 1, 16, count // 16], [2, 3]),
    ):
        (found,) = row_schedules(folded(sizes, dims), device)
        assert (found.rows, found.columns, found.mapping) == (1, count, alone.mapping), sizes


@pytest.mark.parametrize(
    ("count", "dtype", "fits"),
    [
        (2**31 - 1, DataType.Double, False),
        (2**31 - 2**22 - 1, DataType.Double, True),
        (2**31 - 2**22, DataType.Double, True),
        (2**31 - 2**22, Float, True),
        (2**31, Float, False),
    ],
)
def test_loops_near_the_largest_int32(count: int, dtype: DataType, fits: bool) -> None:
    """The end of the last block's share was beyond it, and the block added nothing."""
    plan = folded([count], [0], dtype)
    (found,) = row_schedules(plan)
    assert found.mapping.blocks_per_row > 1
    assert fits_int32(found) is fits
    assert all(k.kernel.source.count("long long begin") != fits for k in kernels_of(plan))


def kernels_of(plan: SegmentedFusion) -> list[GeneratedKernel]:
    return list(generate_kernels(plan, H200).values())
