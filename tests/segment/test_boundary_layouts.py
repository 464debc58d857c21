"""Tensors between kernels lie as these write and read them best; results lie as torch has them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.support.building import op
from thunder_fuser.compiled_fusion import CompiledFusion
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import Fusion, TensorView
from thunder_fuser.ir.reference import evaluate

Float = DataType.Float
LAST = (0, 2, 3, 1)
Stored = Callable[[FusionBuilder], tuple[TensorView, TensorView]]
"""What goes from one kernel to another, and what the other reads beside it."""


def joined(b: FusionBuilder) -> tuple[TensorView, TensorView]:
    """A cat is row-major, whatever its pieces are."""
    x, y = (b.tensor([4, 16, 24, 24], Float, allocation=LAST) for _ in range(2))
    return b.cat([x, op(b, "neg", y)], 1), b.tensor([4, 32, 24, 24], Float, allocation=LAST)


def folded(b: FusionBuilder) -> tuple[TensorView, TensorView]:
    """So is a reduction."""
    x = b.tensor([16, 48, 40, 8], Float, allocation=(0, 2, 1, 3))
    return b.reduce("sum", x, [3]), b.tensor([16, 48, 40], Float, allocation=(0, 2, 1))


def masked(b: FusionBuilder) -> tuple[TensorView, TensorView]:
    """And what follows its first operand, if that is."""
    x, y = (b.tensor([96, 192], Float, allocation=(1, 0)) for _ in range(2))
    ramp = b.broadcast_in_dim(b.iota(192, 0.0, 1.0, Float), [96, 192], [1])
    return op(b, "where", op(b, "gt", ramp, 5.0), x, 0.0), y


def rows(b: FusionBuilder) -> tuple[TensorView, TensorView]:
    """Rows that the reader sees turned: one of them must step."""
    x = b.tensor([96, 192], Float)
    total = b.reduce("sum", op(b, "abs", x), [1], keepdim=True)
    return b.permute(op(b, "div", x, total), [1, 0]), b.tensor([192, 96], Float)


def across(stored: Stored, *, shown: bool) -> Fusion:
    b = FusionBuilder()
    x, y = stored(b)
    if shown:
        b.output(x)
    z = op(b, "add", y, op(b, "exp", b.segment_set(x)))
    b.output(op(b, "div", z, b.reduce("max", z, [z.rank - 1], keepdim=True)))
    return b.build()


STORED = pytest.mark.parametrize("stored", [joined, folded, masked, rows])


@pytest.mark.parametrize(
    ("stored", "strides"),
    [
        (joined, (32 * 24 * 24, 1, 24 * 32, 32)),
        (folded, (48 * 40, 1, 48)),
        (masked, (1, 96)),
        # What is permuted is a view of it.
        (rows, (192, 1)),
    ],
)
def test_what_is_stored_is_not_stepped_over(stored: Stored, strides: tuple[int, ...]) -> None:
    plan = CompiledFusion(across(stored, shown=False)).plan()
    (boundary, *_) = sorted(plan.boundaries, key=lambda v: -v.bytes)
    assert plan.placement.layouts[boundary.tensor].strides == strides


@pytest.mark.parametrize(
    ("stored", "strides"),
    [(joined, (32 * 24 * 24, 1, 24 * 32, 32)), (folded, (48 * 40, 40, 1)), (masked, (192, 1))],
)
def test_what_is_returned_as_well_lies_as_torch_has_it(
    stored: Stored, strides: tuple[int, ...]
) -> None:
    plan = CompiledFusion(across(stored, shown=True)).plan()
    assert plan.placement.layouts[plan.fusion.outputs[0]].strides == strides


@STORED
@pytest.mark.parametrize("shown", [False, True])
def test_numbers(stored: Stored, shown: bool, device: torch.device) -> None:
    fusion = across(stored, shown=shown)
    inputs = []
    for t in fusion.tensor_inputs:
        order = t.domain.allocation
        memory = torch.randn([t.sizes[k] for k in order], device=device)
        inputs.append(memory.permute([order.index(k) for k in range(t.rank)]))
    got = CompiledFusion(fusion)(inputs)
    exact = evaluate(fusion, inputs, double=True, device=device).outputs
    for mine, wanted in zip(got, exact, strict=True):
        torch.testing.assert_close(mine.double(), wanted, rtol=1e-5, atol=1e-5)
