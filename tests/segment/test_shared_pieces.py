"""Cats whose pieces read the same: one kernel goes through the points of one, and writes all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from tests.support.batch import Batch
from tests.support.building import op
from thunder_fuser.compile import compile_plan
from thunder_fuser.device_table import H200
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import Fusion, TensorView
from thunder_fuser.ir.reference import evaluate
from thunder_fuser.runtime.target import planned_for
from thunder_fuser.segment.planner import partition
from thunder_fuser.segment.shared_pieces import shared_pieces
from thunder_fuser.templates.estimate import estimate_segment

Define = Callable[[int], Fusion]


def halves(b: FusionBuilder, x: TensorView) -> tuple[TensorView, TensorView]:
    rows, columns = x.sizes
    middle = columns // 2
    first, last = b.slice(x, [0, 0], [rows, middle]), b.slice(x, [0, middle], [rows, columns])
    return first, last


def packed(rows: int) -> Fusion:
    """The gradient of sigmoid(gate) * up, which are halves of one tensor."""
    b = FusionBuilder()
    x, g = b.tensor([rows, 2048], DataType.Float), b.tensor([rows, 1024], DataType.Float)
    gate, up = halves(b, x)
    s = op(b, "sigmoid", gate)
    slope = op(b, "mul", s, op(b, "sub", b.scalar(1.0), s))
    b.output(b.cat([op(b, "mul", op(b, "mul", g, up), slope), op(b, "mul", g, s)], 1))
    return b.build()


def rotary(rows: int) -> Fusion:
    b = FusionBuilder()
    x = b.tensor([rows, 2048], DataType.Float)
    cos, sin = (b.tensor([2048], DataType.Float) for _ in range(2))
    first, last = halves(b, x)
    turned = b.cat([op(b, "neg", last), first], 1)
    b.output(op(b, "add", op(b, "mul", x, cos), op(b, "mul", turned, sin)))
    return b.build()


def in_rows(rows: int) -> Fusion:
    """Pieces below one another, three of them, and a second result."""
    b = FusionBuilder()
    x = b.tensor([rows, 256], DataType.Float)
    found = [op(b, name, x) for name in ("sin", "cos", "neg")]
    b.output(b.cat(found, 0))
    b.output(op(b, "mul", found[0], found[1]))
    return b.build()


PROGRAMS = pytest.mark.parametrize("define", [packed, rotary, in_rows])


@PROGRAMS
def test_what_no_cache_keeps_is_loaded_once(define: Define) -> None:
    plan = partition(define(1 << 17), device=H200)
    assert shared_pieces(plan, H200) == []
    (kernel,) = (s for s in plan.segments if s.kernels)
    assert len(kernel.outputs) > len(plan.fusion.outputs)
    assert plan.bytes == plan.bytes_ideal
    large = partition(define(1 << 17), device=replace(H200, l2_bytes=1 << 40))
    (pulled,) = (s for s in large.segments if s.kernels)
    asked = [estimate_segment(s, H200).sector_bytes for s in (kernel, pulled)]
    assert asked[0] <= 0.8 * asked[1]


@PROGRAMS
def test_what_a_cache_keeps_is_pulled(define: Define) -> None:
    plan = partition(define(512), device=H200)
    (kernel,) = (s for s in plan.segments if s.kernels)
    assert len(kernel.outputs) == len(plan.fusion.outputs)


def test_pieces_of_other_tensors_are_pulled() -> None:
    b = FusionBuilder()
    x, y = (b.tensor([1 << 17, 256], DataType.Float) for _ in range(2))
    b.output(b.cat([op(b, "sin", x), op(b, "cos", y)], 1))
    plan = partition(b.build(), device=H200)
    assert [s.kind for s in plan.segments] == ["pointwise"]


@PROGRAMS
def test_numbers_are_those_of_the_reference(define: Define, device: torch.device) -> None:
    """By plans for a device without a cache."""
    fusion = define(37)
    plan = partition(fusion, device=replace(planned_for(device), l2_bytes=1))
    assert any(s.kind == "concat" for s in plan.segments)
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(t.sizes, generator=generator) for t in fusion.tensor_inputs]
    run = compile_plan(plan, device, Batch(device))
    exact = evaluate(fusion, inputs).outputs
    for found, truth in zip(run([x.to(device) for x in inputs]), exact, strict=True):
        torch.testing.assert_close(found.cpu(), truth, rtol=1e-5, atol=1e-6)
