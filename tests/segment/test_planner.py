"""Partition: what goes through memory, in which order, what is a view, and what the plan says."""

from __future__ import annotations

import pytest
import torch

from tests.support.building import op
from tests.support.cuts import with_cuts
from tests.support.generator import random_case
from tests.support.seeds import blocks
from thunder_fuser.compiled_fusion import CompiledFusion
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.domain import Layout
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import ReductionOp, TensorView
from thunder_fuser.segment.legality import MAX_OUTPUTS
from thunder_fuser.segment.plan import SegmentedFusion
from thunder_fuser.segment.planner import partition

Float, BFloat16 = DataType.Float, DataType.BFloat16


def plan_of(b: FusionBuilder) -> SegmentedFusion:
    return partition(b.build())


def kinds(plan: SegmentedFusion) -> list[str]:
    return [s.kind for s in plan.segments]


# ---- cuts


def test_without_cuts_everything_is_one_kernel(b: FusionBuilder) -> None:
    """Regions that share nothing ride in one launch."""
    for size in (64, 100, 7):
        x = b.tensor([size], Float)
        b.output(op(b, "exp", x))
        b.output(op(b, "neg", op(b, "sin", x)))
    plan = plan_of(b)
    assert (plan.kernels, len(plan.segments), plan.boundaries) == (1, 1, ())
    assert plan.bytes == plan.bytes_ideal == (64 + 100 + 7) * 4 * 3


def test_a_chain_of_cuts_is_a_chain_of_kernels(b: FusionBuilder) -> None:
    y = b.tensor([100], Float)
    for _ in range(3):
        y = b.segment_set(op(b, "exp", y))
    b.output(op(b, "neg", y))
    plan = plan_of(b)
    assert plan.kernels == 4
    assert [(v.producer, v.consumers) for v in plan.boundaries] == [(0, (1,)), (1, (2,)), (2, (3,))]
    assert plan.bytes == 8 * 400
    assert plan.bytes_ideal == 2 * 400
    # A boundary and the next one at a time.
    assert plan.peak_bytes == 800


def test_kernels_at_the_same_depth_are_one(b: FusionBuilder) -> None:
    x, y = b.tensor([100], Float), b.tensor([50], Float)
    for t in (x, y):
        b.output(op(b, "neg", b.segment_set(op(b, "exp", t))))
    plan = plan_of(b)
    assert plan.kernels == 2
    assert [len(s.outputs) for s in plan.segments] == [2, 2]


def test_what_needs_no_cut_runs_with_the_first_kernel(b: FusionBuilder) -> None:
    x = b.tensor([100], Float)
    late = op(b, "neg", b.segment_set(op(b, "exp", x)))
    early = op(b, "sin", x)
    b.output(late)
    b.output(early)
    plan = plan_of(b)
    assert [len(s.outputs) for s in plan.segments] == [2, 1]
    assert plan.segments[1].outputs == (late,)


def test_a_boundary_may_be_returned_as_well(b: FusionBuilder) -> None:
    x = b.tensor([100], Float)
    middle = op(b, "exp", x)
    b.output(middle)
    b.output(op(b, "neg", b.segment_set(middle)))
    plan = plan_of(b)
    (boundary,) = plan.boundaries
    assert boundary.tensor == middle
    assert "segment_set" in boundary.reason
    assert plan.bytes == 4 * 400
    assert plan.peak_bytes == 800


def test_cuts_of_inputs_and_of_cuts_move_nothing(b: FusionBuilder) -> None:
    x = b.tensor([100], Float)
    b.output(op(b, "exp", b.segment_set(b.segment_set(x))))
    plan = plan_of(b)
    assert (plan.kernels, plan.boundaries, plan.bytes) == (1, (), 800)


def test_a_cut_of_a_view_reads_the_memory_of_its_base(b: FusionBuilder) -> None:
    x = b.tensor([10, 10], Float)
    cut = b.segment_set(b.permute(b.slice(x, [0, 2], [10, 6]), [1, 0]))
    b.output(op(b, "exp", cut))
    plan = plan_of(b)
    assert kinds(plan) == ["alias", "pointwise"]
    assert plan.boundaries == ()
    assert plan.kernels == 1
    assert plan.bytes == 2 * 160


def test_a_view_behind_a_cut_and_its_base_are_one_memory(b: FusionBuilder) -> None:
    x = b.tensor([100], Float)
    whole = b.segment_set(op(b, "exp", x))
    first = b.segment_set(b.slice(whole, [0], [50]))
    b.output(op(b, "add", first, b.slice(whole, [25], [75])))
    plan = plan_of(b)
    assert kinds(plan) == ["pointwise", "alias", "pointwise"]
    assert plan.segments[2].bytes_read == 75 * 4
    assert [v.consumers for v in plan.boundaries] == [(2,)]


def test_constants_and_what_depends_on_them_cross_cuts_for_free(b: FusionBuilder) -> None:
    x = b.tensor([100], Float)
    ramp = op(b, "mul", b.iota(100, 0.0, 1.0, Float), 0.5)
    b.output(op(b, "add", b.segment_set(op(b, "add", x, ramp)), ramp))
    plan = plan_of(b)
    assert plan.bytes == 4 * 400
    assert [[t.name for t in s.inputs] for s in plan.segments] == [
        [x.name],
        [plan.boundaries[0].tensor.name],
    ]


# ---- views


def test_results_that_are_views_launch_nothing(b: FusionBuilder) -> None:
    x = b.tensor([4, 6], Float)
    b.output(b.permute(x, [1, 0]))
    b.output(b.reshape(x, [24]))
    b.output(x)
    plan = plan_of(b)
    assert (plan.kernels, plan.bytes, plan.peak_bytes) == (0, 0, 0)
    assert kinds(plan) == ["alias", "alias"]
    assert [s.alias_of for s in plan.segments] == [x, x]
    assert [v.strides for s in plan.segments for v in s.views] == [(1, 6), (1,)]


def test_results_that_are_views_of_results_share_their_memory(b: FusionBuilder) -> None:
    x = b.tensor([4, 6], Float)
    y = op(b, "exp", x)
    half = b.slice(y, [0, 0], [2, 6])
    b.output(half)
    b.output(y)
    b.output(b.permute(half, [1, 0]))
    plan = plan_of(b)
    assert plan.kernels == 1
    # The slice comes before its base in the outputs: by itself it would be a kernel's output.
    assert plan.bytes == plan.bytes_ideal
    assert plan.placement.layouts[y].strides == (6, 1)


def test_padded_and_reshaped_results_lend_their_logical_dimensions(b: FusionBuilder) -> None:
    x = b.tensor([4, 6], Float)
    padded = b.pad(x, [1, 1])
    flat = b.reshape(b.permute(x, [1, 0]), [24])
    for whole, part in ((padded, b.slice(padded, [1, 1], [3, 5])), (flat, b.slice(flat, [3], [9]))):
        b.output(whole)
        b.output(part)
    plan = plan_of(b)
    views = {s.alias_of: s.views[0] for s in plan.segments if s.kind == "alias"}
    assert (views[padded].strides, views[padded].offset) == ((8, 1), 9)
    assert (views[flat].strides, views[flat].offset) == ((1,), 3)


@pytest.mark.parametrize(("offset", "alignment"), [(0, 64), (1, 4), (2, 8), (4, 16), (16, 64)])
def test_views_are_aligned_as_their_offset_allows(
    b: FusionBuilder, offset: int, alignment: int
) -> None:
    x = b.tensor([40], Float)
    view = b.slice(x, [offset], [40])
    b.output(view)
    assert plan_of(b).placement.layouts[view].alignment == alignment


def test_views_of_memory_off_alignment_are_no_better_aligned(b: FusionBuilder) -> None:
    x = b.tensor([40], Float)
    view = b.slice(x, [4], [40])
    b.output(view)
    plan = partition(b.build(), [Layout((1,), 8)])
    assert plan.placement.layouts[view].alignment == 8


def test_a_result_returned_twice_is_one_tensor(b: FusionBuilder) -> None:
    y = op(b, "exp", b.tensor([100], Float))
    b.output(y)
    b.output(y)
    plan = plan_of(b)
    assert (plan.segments[0].outputs, plan.bytes, plan.peak_bytes) == ((y,), 800, 400)


# ---- sizes


def test_empty_results_launch_nothing(b: FusionBuilder) -> None:
    x = b.tensor([0, 5], Float)
    b.output(op(b, "exp", x))
    b.output(b.reshape(x, [5, 0]))
    plan = plan_of(b)
    assert (plan.kernels, plan.bytes, plan.peak_bytes) == (0, 0, 0)


def test_an_empty_input_of_a_result_that_is_not_empty(b: FusionBuilder) -> None:
    x, y = b.tensor([0, 5], Float), b.tensor([3, 5], Float)
    b.output(op(b, "exp", b.cat([x, y])))
    plan = plan_of(b)
    assert (plan.kernels, plan.bytes) == (1, 2 * 60)


def test_numbers_are_tensors_of_one_element(b: FusionBuilder) -> None:
    b.output(op(b, "exp", b.tensor([], Float)))
    plan = plan_of(b)
    assert (plan.kernels, plan.bytes) == (1, 8)


def test_numbers_on_the_cpu_cost_no_bytes(b: FusionBuilder) -> None:
    b.output(op(b, "mul", b.tensor([100], Float), b.tensor([], Float, is_cpu=True)))
    assert plan_of(b).bytes == 800


def test_repeated_elements_are_read_once(b: FusionBuilder) -> None:
    x = b.tensor([8, 100], Float, expanded=[True, False])
    b.output(op(b, "exp", x))
    assert plan_of(b).bytes == 400 + 3200


def test_outputs_beyond_what_a_kernel_takes_go_into_another(b: FusionBuilder) -> None:
    x = b.tensor([100], Float)
    for k in range(MAX_OUTPUTS + 5):
        b.output(op(b, "add", x, float(k)))
    plan = plan_of(b)
    assert [len(s.outputs) for s in plan.segments] == [MAX_OUTPUTS, 5]
    assert plan.kernels == 2


# ---- what holds for every plan


@blocks(400, 100, always=100)
def test_plans_are_consistent(first: int) -> None:
    for seed in range(first, first + 100):
        case = random_case(seed)
        fusion = with_cuts(case.fusion, seed) if seed % 2 else case.fusion
        plan = CompiledFusion(fusion).plan(case.inputs)
        fusion = plan.fusion
        made: dict[TensorView, int] = {}
        for k, segment in enumerate(plan.segments):
            assert segment.index == k
            for tensor in segment.inputs:
                owner = plan.placement.behind_cuts(tensor)
                assert owner in fusion.inputs or made[owner] < k, f"seed {seed}: {segment}"
            for tensor in segment.outputs:
                assert tensor not in made
                made[tensor] = k
            if segment.kind == "alias":
                assert segment.bytes == segment.kernels == 0
        for tensor in fusion.results:
            owner = plan.placement.behind_cuts(tensor)
            assert owner in made or owner in fusion.inputs, f"seed {seed}: {tensor}"
        for boundary in plan.boundaries:
            assert made[boundary.tensor] == boundary.producer < min(boundary.consumers)
        assert set(plan.placement.updates) <= {u.value for u in fusion.updates}
        cut = any(e.op == "segment_set" for e in fusion.exprs)
        if not (cut or plan.copies):
            assert plan.bytes == plan.bytes_ideal, f"seed {seed}"
            assert plan.kernels <= 1
        assert plan.bytes >= plan.bytes_ideal, f"seed {seed}"


def test_plans_print_what_they_do_and_why(b: FusionBuilder) -> None:
    x = b.tensor([100], Float)
    y = op(b, "exp", x)
    b.output(op(b, "neg", b.segment_set(y)))
    b.output(b.slice(x, [0], [50]))
    assert str(plan_of(b)).splitlines() == [
        "plan: 2 kernels, 1,600 B moved (ideal 800 B), peak 800 B",
        "  segment 0 (alias): (T0) -> (T4): views, no kernel",
        "  segment 1 (pointwise): (T0) -> (T1): 1 kernel, 400 B read, 400 B written: exp",
        "  segment 2 (pointwise): (T1) -> (T3): 1 kernel, 400 B read, 400 B written: neg",
        "  boundary T1 (400 B): segment 1 -> 2: [cut] the definition cuts here (segment_set)",
    ]


def test_reductions_that_meet_in_one_value_are_one_kernel() -> None:
    """They read different tensors, and have nothing in common before that."""
    b = FusionBuilder()
    x, y = (b.tensor([64, 96], DataType.Float) for _ in range(2))
    totals = [b.reduce("sum", t, [1], keepdim=True) for t in (x, y)]
    b.output(op(b, "mul", op(b, "mul", x, totals[0]), op(b, "mul", y, totals[1])))
    plan = partition(b.build())
    assert (plan.kernels, plan.bytes) == (1, 3 * 64 * 96 * 4)


def test_reductions_that_share_nothing_share_a_launch(b: FusionBuilder) -> None:
    """If they have the same rows, and nothing waits for these: that would want registers."""
    for columns in (96, 96, 32):
        x = b.tensor([64, columns], Float)
        b.output(b.reduce("sum", x, [1]))
        b.output(op(b, "exp", x))
    assert plan_of(b).kernels == 2
    for _ in range(2):
        x = b.tensor([128, 96], Float)
        b.output(op(b, "div", x, b.reduce("max", x, [1], keepdim=True)))
    assert plan_of(b).kernels == 4


def test_results_join_the_kernel_that_folds_what_they_read() -> None:
    """A residual sum is a result before it is normalised, and is written by the norm's kernel."""
    b = FusionBuilder()
    x, y = (b.tensor([64, 96], DataType.Float) for _ in range(2))
    h = op(b, "add", x, y)
    b.output(h)
    b.output(op(b, "div", h, b.reduce("sum", h, [1], keepdim=True)))
    plan = partition(b.build())
    assert (plan.kernels, plan.bytes) == (1, 4 * 64 * 96 * 4)


def test_totals_of_values_of_rows_join_their_rows() -> None:
    """The mean over the rows that count: a mask of the rows is counted beside the rows' losses."""
    b = FusionBuilder()
    x, mask = b.tensor([64, 96], DataType.Float), b.tensor([64], DataType.Float)
    losses = op(b, "mul", b.reduce("sum", x, [1]), mask)
    b.output(losses)
    b.output(op(b, "div", b.reduce("sum", losses, [0]), b.reduce("sum", mask, [0])))
    plan = partition(b.build())
    assert (plan.kernels, plan.bytes) == (1, plan.bytes_ideal)


def test_long_rows_side_by_side_in_memory_are_shared_by_blocks() -> None:
    """Statistics over all but the innermost dimension: no thread walks down a column alone."""
    for innermost, kernels in ((True, 2), (False, 1)):
        b = FusionBuilder()
        x = b.tensor([1 << 16, 64] if innermost else [64, 1 << 16], DataType.Float)
        folded = 0 if innermost else 1
        total = b.reduce("sum", x, [folded], keepdim=True)
        b.output(op(b, "div", x, total))
        plan = partition(b.build())
        assert plan.kernels == kernels
        assert ("[parallel]" in str(plan)) == innermost


# ---- results that are views of what is computed


def test_views_of_a_normalised_tensor_are_one_kernel_and_share_its_memory(
    b: FusionBuilder,
) -> None:
    """As torch's own views do; only two of them have the rows that the sums need."""
    x = b.tensor([4, 128, 256], Float)
    y = op(b, "div", x, b.reduce("sum", x, [2], keepdim=True))
    for view in (b.reshape(y, [512, 256]), b.permute(y, [2, 0, 1]), b.reshape(y, [4, 128, 16, 16])):
        b.output(view)
    plan = plan_of(b)
    assert kinds(plan) == ["reduction", "alias", "alias", "alias"]
    assert plan.bytes == plan.bytes_ideal == 2 * 4 * 128 * 256 * 4
    strides = [s.views[0].strides for s in plan.segments[1:]]
    assert strides == [(256, 1), (1, 128 * 256, 256), (128 * 256, 256, 16, 1)]


@pytest.mark.parametrize("pads", [False, True])
def test_a_copy_is_not_repeated_in_memory(b: FusionBuilder, pads: bool) -> None:
    x = b.tensor([64, 1], Float)
    copy = b.pad(x, [0, 0, 2, 2], b.scalar(0.0)) if pads else b.set(x)
    b.output(b.expand(copy, [copy.sizes[0], 96]))
    plan = plan_of(b)
    assert kinds(plan) == ["pointwise", "alias"]
    assert plan.bytes == plan.bytes_ideal == (64 + copy.sizes[0]) * 4


def test_a_row_kernel_writes_what_a_result_shows_with_more_dimensions(b: FusionBuilder) -> None:
    x = b.tensor([64, 96], BFloat16)
    b.output(b.reduce("sum", x, [1]))
    b.output(b.reshape(op(b, "exp", x), [64, 1, 96]))
    plan = plan_of(b)
    assert (plan.kernels, plan.bytes) == (1, plan.bytes_ideal)


def test_a_value_and_a_view_of_it_behind_cuts_are_one_tensor(b: FusionBuilder) -> None:
    y = op(b, "exp", b.tensor([64, 96], Float))
    b.output(b.segment_set(b.reshape(y, [1, 64 * 96])))
    b.output(b.segment_set(y))
    plan = plan_of(b)
    assert (plan.kernels, plan.bytes) == (1, 2 * 64 * 96 * 4)


def test_results_that_are_views_of_one_constant_share_its_memory(b: FusionBuilder) -> None:
    full = b.full([64, 96], 0.5, Float)
    b.output(full)
    b.output(b.reshape(full, [64 * 96]))
    plan = CompiledFusion(b.build()).plan()
    assert kinds(plan) == ["pointwise", "alias"]
    assert plan.bytes == 64 * 96 * 4


def test_repeated_results_take_the_memory_of_one(b: FusionBuilder) -> None:
    x = b.tensor([64], Float)
    b.output(b.expand(b.broadcast(op(b, "exp", x), [False, True]), [64, 96]))
    plan = plan_of(b)
    assert kinds(plan) == ["pointwise", "alias"]
    assert plan.bytes == plan.bytes_ideal == 2 * 64 * 4
    assert plan.segments[1].views[0].strides == (1, 0)


def test_a_view_of_what_others_read_anyway_is_not_written_again(b: FusionBuilder) -> None:
    x = b.tensor([64, 96], Float)
    rows = b.reduce("sum", x, [1])
    b.output(b.broadcast(rows, [False, True]))
    b.output(b.reduce("max", b.reshape(rows, [8, 8]), [1]))
    plan = plan_of(b)
    assert kinds(plan) == ["reduction", "alias", "reduction"]
    assert plan.segments[0].outputs == (plan.segments[1].alias_of,)
    assert plan.bytes == (64 * 96 + 64 + 64 + 8) * 4


# ---- reductions whose readers are other kernels


def normalised(b: FusionBuilder, *, more: bool) -> None:
    """By columns that blocks share: statistics in one kernel, results in another."""
    x = b.tensor([50_000, 64], BFloat16)
    h = b.cast_tensor(x, Float)
    var, mean = b.var_mean(h, [0], correction=0, keepdim=True)
    y = op(b, "mul", op(b, "sub", h, mean), op(b, "rsqrt", op(b, "add", var, b.scalar(1e-5))))
    if more:
        y = op(b, "add", y, op(b, "mul", op(b, "exp", mean), op(b, "mul", op(b, "sin", var), h)))
    b.output(b.cast_tensor(y, BFloat16))


def test_what_goes_through_memory_is_computed_from_reductions_once(b: FusionBuilder) -> None:
    normalised(b, more=False)
    plan = plan_of(b)
    assert kinds(plan) == ["reduction", "pointwise"]
    definitions = plan.fusion.definitions()
    assert {definitions[v.tensor].op for v in plan.boundaries} == {"div", "rsqrt"}
    assert all("[parallel]" in boundary.reason for boundary in plan.boundaries)
    assert "rsqrt" not in plan.segments[1].operations


def test_four_values_of_two_reductions_are_not_computed_at_each_point(b: FusionBuilder) -> None:
    """256 bytes each, where a sine and an exponential of two of them are computed 64 times, and not
    three million times.
    """
    normalised(b, more=True)
    plan = plan_of(b)
    definitions = plan.fusion.definitions()
    found = [definitions[v.tensor].op for v in plan.boundaries]
    assert sorted(found) == ["div", "exp", "rsqrt", "sin"]
    assert not {"sin", "exp", "rsqrt"}.intersection(plan.segments[1].operations)


def test_a_product_of_two_reductions_is_computed_at_each_point(b: FusionBuilder) -> None:
    """An instruction, where reading a third vector of L1 takes as long as four."""
    x = b.tensor([50_000, 64], BFloat16)
    h = b.cast_tensor(x, Float)
    first, second = (b.broadcast(b.reduce(name, h, [0]), [True, False]) for name in ("sum", "max"))
    y = op(b, "add", op(b, "mul", h, first), op(b, "sub", h, second))
    b.output(b.cast_tensor(op(b, "add", y, op(b, "mul", first, second)), BFloat16))
    plan = plan_of(b)
    definitions = plan.fusion.definitions()
    assert all(isinstance(definitions[v.tensor], ReductionOp) for v in plan.boundaries)
    assert len(plan.boundaries) == 2


def test_a_cut_of_an_empty_input_that_is_broadcast(b: FusionBuilder) -> None:
    x = b.broadcast(b.tensor([0], Float), [False, True])
    b.output(op(b, "exp", b.segment_set(x)))
    assert CompiledFusion(b.build()).plan().kernels == 0


def test_what_only_empty_results_are_made_of_is_not_computed() -> None:
    """Neither read by the kernel that would fold it beside another, nor kept until then."""
    b = FusionBuilder()
    first = b.segment_set(op(b, "exp", b.tensor([17], Float)))
    second = b.segment_set(op(b, "neg", first))
    total = b.broadcast(b.reduce("sum", second, [0]), [True])
    b.output(op(b, "abs", b.slice(total, [0], [0])))
    b.output(b.reduce("max", first, [0]))
    plan = partition(b.build())
    assert [len(s.outputs) for s in plan.segments] == [2, 1]
    assert [e.op for e in plan.segments[1].fusion.exprs] == ["max"]


def test_what_folds_nothing_is_made_of_is_planned(b: FusionBuilder) -> None:
    """A sum of no elements has a value, and the kernel of it reads what they would be made of."""
    total = b.reduce("sum", b.tensor([17], Float), [0])
    none = b.expand(b.broadcast(total, [True]), [0])
    b.output(op(b, "add", b.reduce("sum", none, [0]), 1.0))
    compiled = CompiledFusion(b.build())
    assert compiled([torch.rand(17)])[0].item() == 1.0


@pytest.mark.parametrize("shown", [False, True])
def test_a_fold_that_is_a_result_without_elements_is_not_planned(
    b: FusionBuilder, shown: bool
) -> None:
    """Nor is the fold that it is made of, while one that folds the other dimension is there."""
    folded = b.reduce("prod", b.tensor([0, 13, 3], Float), [2])
    empty = b.reduce("sum", folded, [1])
    b.output(b.broadcast(empty, [False, True]) if shown else empty)
    b.output(b.reduce("sum", folded, [0]))
    found = CompiledFusion(b.build())([torch.rand(0, 13, 3)])
    assert [tuple(t.shape) for t in found] == [(0, 1) if shown else (0,), (13,)]
    assert not found[1].any()
