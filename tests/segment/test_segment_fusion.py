"""A segment is a fusion: complete, canonically numbered, evaluated and run alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch

from tests.support.building import op
from tests.support.cuts import with_cuts
from tests.support.generator import random_case
from tests.support.generator_cats import cat_case
from tests.support.plans import DEFINITIONS, planned
from tests.support.seeds import blocks
from tests.zoo.plan_programs import PROGRAMS
from tests.zoo.workloads import WORKLOADS, Workload
from thunder_fuser.compile import generate_kernels
from thunder_fuser.compiled_fusion import CompiledFusion
from thunder_fuser.device_table import H200
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import Fusion, Scalar, TensorView
from thunder_fuser.ir.reference import Evaluator
from thunder_fuser.ir.verify import verify
from thunder_fuser.segment.plan import Segment, SegmentedFusion
from thunder_fuser.segment.planner import partition

Float = DataType.Float
CPU = torch.device("cpu")


def evaluated(fusion: Fusion, inputs: Sequence[Any]) -> Evaluator:
    """Every value in float64."""
    run = Evaluator(True, CPU)
    run.bind(fusion.inputs, inputs)
    for expr in fusion.exprs:
        run.run(expr)
    return run


def assert_alone_as_in_the_plan(plan: SegmentedFusion, inputs: Sequence[Any]) -> None:
    """Each segment, given what it loads in float64, leaves what the whole fusion computes."""
    whole = evaluated(plan.fusion, inputs)
    for segment in plan.segments:
        alone = Evaluator(True, CPU)
        for value in segment.fusion.inputs:
            alone.values[value] = whole[segment.values[value.id]]
        for expr in segment.fusion.exprs:
            alone.run(expr)
        for own, output in zip(segment.fusion.outputs, segment.outputs, strict=True):
            assert segment.values[own.id] == output
            torch.testing.assert_close(
                alone[own], whole[output], rtol=1e-12, atol=1e-12, equal_nan=True
            )


def assert_is_canonical(plan: SegmentedFusion) -> None:
    """Numbers are consecutive, inputs first; what is loaded and stored has layouts."""
    for segment in plan.segments:
        fusion = verify(segment.fusion, "folded")
        read = [v for e in fusion.exprs for v in e.inputs]
        values = dict.fromkeys((*fusion.inputs, *read, *(e.output for e in fusion.exprs)))
        assert sorted(v.id for v in values) == list(range(len(segment.values)))
        assert [v.id for v in fusion.inputs] == list(range(len(fusion.inputs)))
        for value in values:
            old = segment.values[value.id]
            assert (type(old), old.dtype) == (type(value), value.dtype)
            if isinstance(value, TensorView) and isinstance(old, TensorView):
                assert value.sizes == old.sizes
        assert len(segment.layouts) == len(fusion.tensor_inputs) + len(fusion.outputs)
        assert {u.value for u in fusion.updates} <= set(fusion.outputs)


# ---- complete and canonical


@pytest.mark.parametrize("program", PROGRAMS, ids=str)
def test_segments_of_programs_are_fusions(program: Any) -> None:
    for plan in planned(program.name).plans:
        assert_is_canonical(plan)


@pytest.mark.parametrize("definition", DEFINITIONS, ids=lambda d: d.name)
def test_segments_of_definitions_are_fusions(definition: Any) -> None:
    assert_is_canonical(definition.plan())


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda w: w.name)
def test_segments_of_workloads_compute_alone_what_the_plan_computes(workload: Workload) -> None:
    fusion = workload.fusion(workload.small)
    plan = CompiledFusion(fusion).plan()
    assert_is_canonical(plan)
    inputs = [given.make(CPU) for given in workload.inputs(workload.small)]
    assert_alone_as_in_the_plan(plan, inputs)


@pytest.mark.parametrize("kind", ["pointwise", "reductions", "gathers", "draws"])
@blocks(60, 20, always=20)
def test_segments_of_random_fusions_compute_alone_what_the_plan_computes(
    kind: str, first: int
) -> None:
    several = 0
    for seed in range(first, first + 20):
        options = {kind: True} if kind != "pointwise" else {}
        case = random_case(seed, max_numel=2_000, **options)  # type: ignore[arg-type]
        fusion = with_cuts(case.fusion, seed) if seed % 2 else case.fusion
        plan = partition(fusion)
        assert_is_canonical(plan)
        assert_alone_as_in_the_plan(plan, case.inputs)
        several += len(plan.segments) > 1
    assert several > 3


# ---- equal segments are equal values


def layers(count: int, scales: Sequence[float]) -> SegmentedFusion:
    """The same block over and over, on other weights."""
    b = FusionBuilder()
    x = b.tensor([64, 256], Float)
    for _, scale in zip(range(count), scales, strict=True):
        weight = b.tensor([256], Float)
        mean = b.reduce("sum", x, [1], keepdim=True)
        x = b.segment_set(op(b, "mul", op(b, "sub", x, mean), op(b, "mul", weight, scale)))
    b.output(x)
    return partition(b.build())


def test_equal_segments_are_equal_values_and_share_a_kernel() -> None:
    plan = layers(4, [0.5] * 4)
    kernels = [s for s in plan.segments if s.kernels]
    assert len(kernels) == 4
    assert len({s.kernel_key for s in kernels}) == len({s.fusion for s in kernels}) == 1
    assert len({g.kernel.name for g in generate_kernels(plan, H200).values()}) == 1


@pytest.mark.parametrize("other", [0.25, -0.5])
def test_segments_with_other_numbers_are_other_values(other: float) -> None:
    plan = layers(2, [0.5, other])
    first, second = (s for s in plan.segments if s.kernels)
    assert first.fusion != second.fusion


@pytest.mark.parametrize(
    ("number", "other", "dtype"), [(0.0, -0.0, Float), (1, True, Float), (1, 1.0, Float)]
)
def test_numbers_that_a_program_can_tell_apart_are_not_equal(
    number: float, other: float, dtype: DataType
) -> None:
    assert Scalar(0, dtype, number) != Scalar(0, dtype, other)
    nan = float("nan")
    assert Scalar(0, dtype, nan) == Scalar(0, dtype, float("nan"))


def test_the_same_segment_of_two_fusions_is_one_value_and_has_one_kernel_text() -> None:
    b = FusionBuilder()
    other, x = b.tensor([8, 4], Float), b.tensor([32, 32], Float)
    b.output(b.reduce("sum", other, [0]))
    b.output(op(b, "exp", x))
    alone = FusionBuilder()
    alone.output(op(alone, "exp", alone.tensor([32, 32], Float)))
    both, one = partition(b.build()), partition(alone.build())
    (first,) = (s for s in both.segments if s.kind == "pointwise")
    (second,) = one.segments
    assert first.kernel_key == second.kernel_key
    (kernel,) = (g.kernel for g in generate_kernels(one, H200).values())
    assert kernel == generate_kernels(both, H200)[first.index].kernel


# ---- alone


def reproduced() -> Iterator[tuple[str, SegmentedFusion]]:
    yield "layers", layers(2, [0.5, 0.25])
    b = FusionBuilder()
    table, index = b.tensor([16, 32], Float), b.tensor([4], DataType.Int)
    rows = b.gather("index_select", table, 0, index)
    b.output(op(b, "mul", rows, b.reduce("max", rows, [1], keepdim=True)))
    yield "gather", partition(b.build())
    b = FusionBuilder()
    x = b.permute(b.tensor([8, 16, 4], DataType.BFloat16), [2, 0, 1])
    b.output(b.segment_set(op(b, "mul", x, 2.0)))
    b.output(op(b, "neg", x))
    yield "permuted", partition(b.build())


@pytest.mark.parametrize(
    ("name", "plan"), [*reproduced()], ids=lambda v: v if type(v) is str else ""
)
def test_a_segment_runs_alone_from_its_script(name: str, plan: SegmentedFusion) -> None:
    ran: list[Segment] = []
    for segment in plan.segments:
        if segment.kernels:
            # `validate` at the end of the script compares with torch.
            exec(compile(segment.repro(), name, "exec"), {})
            ran.append(segment)
    assert ran


@blocks(60, 20, always=20)
def test_what_is_collected_from_slices_reads_its_pieces(first: int) -> None:
    collected = 0
    for seed in range(first, first + 20):
        case = cat_case(seed)
        plan = CompiledFusion(case.fusion).plan(case.inputs)
        verify(plan.fusion, "folded")
        assert_is_canonical(plan)
        if all(isinstance(x, torch.Tensor) for x in case.inputs):
            assert_alone_as_in_the_plan(plan, case.inputs)
        for segment in plan.segments:
            if segment.kind == "concat":
                read = {segment.values[v.id] for v in segment.fusion.tensor_inputs}
                assert read <= set(segment.inputs)
                collected += 1
    assert collected > 8
