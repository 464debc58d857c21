"""Limits of kernels: programs beyond all of them, and random programs under very low ones."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.support.batch import Batch, executable
from tests.support.building import op
from tests.support.generator import Case, random_case
from tests.support.generator_cats import cat_case
from tests.support.seeds import blocks
from thunder_fuser.compiled_fusion import CompiledFusion
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import TensorView
from thunder_fuser.segment import legality
from thunder_fuser.segment.anchors import cat_slices, evaluation_points, limits
from thunder_fuser.segment.plan import SegmentedFusion
from thunder_fuser.segment.planner import partition

CPU = torch.device("cpu")
Float = DataType.Float


@pytest.fixture
def low(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits that nearly every random program is beyond."""
    monkeypatch.setattr(limits, "MAX_OPERATIONS", 5)
    monkeypatch.setattr(limits, "MAX_SOURCES", 2)
    monkeypatch.setattr(limits, "MAX_POINTS", 1)
    monkeypatch.setattr(limits, "MANY_PIECES", 2)
    monkeypatch.setattr(evaluation_points, "MAX_POINTS", 1)
    monkeypatch.setattr(legality, "MAX_POINTERS", 6)
    for module in (limits, cat_slices):
        monkeypatch.setattr(module, "FEW_PIECES", 1)


def cases(first: int) -> Iterator[Case]:
    for seed in range(first, first + 10):
        yield random_case(seed, reductions=seed % 2 == 0, gathers=seed % 5 == 0)
        yield cat_case(seed)


@blocks(40, 10, always=10)
def test_random_programs_under_low_limits_equal_float64(low: None, first: int) -> None:
    batch = Batch(CPU)
    planned = []
    cut = joined = 0
    for case in cases(first):
        inputs = case.fresh_inputs()
        compiled = executable(CompiledFusion(case.fusion), inputs, batch, CPU)
        cut += any("[size]" in b.reason for b in compiled.plan.boundaries)
        joined += bool(compiled.plan.placement.slices)
        planned.append((case, inputs, compiled))
    for case, inputs, compiled in planned:
        case.check(compiled(inputs), case.updated(inputs))
    assert cut > 4
    assert joined > 4


def written(b: FusionBuilder) -> SegmentedFusion:
    return partition(b.build())


def largest(plan: SegmentedFusion) -> int:
    """Tensors that a kernel of a plan reads and writes, at most."""
    return max(len(s.inputs) + len(s.outputs) for s in plan.segments if s.kernels)


def summed(b: FusionBuilder, count: int) -> TensorView:
    total = b.tensor([64], Float)
    for _ in range(count - 1):
        total = op(b, "add", total, b.tensor([64], Float))
    return total


def test_a_value_of_many_tensors_is_computed_in_steps() -> None:
    for count, kernels in ((256, 1), (257, 2), (600, 3)):
        b = FusionBuilder()
        b.output(summed(b, count))
        plan = written(b)
        assert plan.kernels == kernels
        assert plan.bytes == plan.bytes_ideal + 2 * 256 * (kernels - 1)
        assert largest(plan) <= 257
        assert all("more than 256 tensors" in b.reason for b in plan.boundaries)


def test_a_chain_of_many_operations_is_computed_in_steps() -> None:
    for count, kernels in ((1024, 1), (1025, 2), (3000, 3)):
        b = FusionBuilder()
        x = b.tensor([64], Float)
        for _ in range(count):
            x = op(b, "sin", x)
        b.output(x)
        plan = written(b)
        assert plan.kernels == kernels
        assert all("more than 1,024 operations" in b.reason for b in plan.boundaries)


@pytest.mark.parametrize("count", [16, 17, 64, 65, 300])
@pytest.mark.parametrize("after", ["none", "relu", "sum"])
def test_pieces_of_a_long_cat_are_written_where_it_has_them(count: int, after: str) -> None:
    b = FusionBuilder()
    pieces = [b.tensor([5, 1 + k % 3], Float) for k in range(count)]
    x = b.cat(pieces, 1)
    b.output(
        x if after == "none" else op(b, "relu", x) if after == "relu" else b.reduce("sum", x, [1])
    )
    plan = written(b)
    is_stored = after == "sum" and count > limits.MANY_PIECES
    assert bool(plan.placement.slices) == (
        is_stored or (after != "sum" and count > limits.FEW_PIECES)
    )
    assert plan.bytes == plan.bytes_ideal + 2 * x.bytes * is_stored
    assert plan.kernels == is_stored + max(1, -(-count // 128) if plan.placement.slices else 1)
    inputs = [torch.randn(5, 1 + k % 3) for k in range(count)]
    if count in (17, 65):
        (found,) = CompiledFusion(b.build())(inputs)
        whole = torch.cat(inputs, 1)
        expected = {"none": whole, "relu": whole.relu(), "sum": whole.sum(1)}[after]
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("target", ["pieces", "cat"])
def test_updates_do_not_change_what_a_long_cat_is_of(target: str) -> None:
    """A flat copy of parameters that a step changes, and one that lies in a parameter."""
    b = FusionBuilder()
    pieces = [b.tensor([3], Float) for _ in range(20)]
    flat = b.tensor([60], Float)
    x = b.cat(pieces, 0)
    if target == "pieces":
        b.output(x)
        for piece in pieces[::3]:
            b.output(op(b, "mul", piece, 0.5), alias=piece)
    else:
        b.output(x, alias=flat)
        b.output(op(b, "mul", flat, 0.5))
    inputs = [*torch.randn(20, 3).unbind(), torch.randn(60)]
    inputs = [t.clone() for t in inputs]
    before = [t.clone() for t in inputs]
    whole = torch.cat(before[:20])
    (found,) = CompiledFusion(b.build())(inputs)
    if target == "pieces":
        torch.testing.assert_close(found, whole)
        torch.testing.assert_close(inputs[3], before[3] / 2)
        torch.testing.assert_close(inputs[4], before[4])
    else:
        torch.testing.assert_close(inputs[20], whole)
        torch.testing.assert_close(found, before[20] / 2)


def test_results_that_read_the_same_are_divided_by_their_parameters() -> None:
    """A kernel has at most so many tensors, whatever they have in common."""
    b = FusionBuilder()
    shared = b.tensor([64], Float)
    for _ in range(200):
        mine = shared
        for _ in range(5):
            mine = op(b, "add", mine, b.tensor([64], Float))
        b.output(mine)
    plan = written(b)
    assert plan.kernels == 3
    assert largest(plan) <= legality.MAX_POINTERS


def test_what_is_appended_to_itself_again_and_again_is_stored_now_and_then() -> None:
    b = FusionBuilder()
    x = b.tensor([7], Float)
    for _ in range(12):
        x = b.cat([x, x], 0)
    b.output(x)
    plan = written(b)
    assert plan.kernels == 2
    (boundary,) = plan.boundaries
    assert "it is wanted at" in boundary.reason
    assert boundary.bytes <= plan.bytes / 16


def test_shifted_copies_are_told_apart_by_their_indices() -> None:
    """Twenty steps of a stencil have twenty-one places, on a million ways."""
    for steps, kernels in ((20, 1), (40, 2)):
        b = FusionBuilder()
        x = b.tensor([100], Float)
        for _ in range(steps):
            n = x.sizes[0]
            left, right = (b.slice(x, [k], [n - 1 + k], [1]) for k in (0, 1))
            x = op(b, "add", left, right)
        b.output(x)
        assert written(b).kernels == kernels


@pytest.mark.parametrize("count", [8, 40])
def test_a_cast_of_an_input_is_not_stored_for_its_number_of_points(count: int) -> None:
    """Stored, it would be loaded as often, in twice the bytes."""
    b = FusionBuilder()
    x = b.tensor([count, 4096], DataType.BFloat16)
    wide = b.cast_tensor(x, Float)
    total = b.slice(wide, [0, 0], [1, 4096])
    for k in range(1, count):
        total = op(b, "add", total, b.slice(wide, [k, 0], [k + 1, 4096]))
    b.output(total)
    plan = partition(b.build())
    assert plan.kernels == 1
    assert plan.bytes == plan.bytes_ideal == (2 * count + 4) * 4096
