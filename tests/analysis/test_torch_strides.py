"""Strides of results are those that torch gives, whatever the operands' memory looks like."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import torch

from tests.support.building import op
from tests.support.inputs import laid_out
from thunder_fuser.analysis.tensor_iterator import iteration_order
from thunder_fuser.analysis.torch_strides import memory_orders, torch_memory
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.domain import Layout, dense_strides
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import TensorView
from thunder_fuser.passes import run

CASES = 3_000


def steps(t: torch.Tensor) -> list[int]:
    """The strides that matter."""
    return [s for n, s in zip(t.shape, t.stride(), strict=True) if n > 1]


def expected_steps(sizes: Sequence[int], order: Sequence[int]) -> list[int]:
    strides = dense_strides(sizes, order)
    return [s for n, s in zip(sizes, strides, strict=True) if n > 1]


def operand(rng: random.Random, sizes: Sequence[int]) -> torch.Tensor:
    """Permuted, with gaps, with repeated elements, with fewer dimensions or ones."""
    own = [1 if rng.random() < 0.15 else n for n in sizes]
    t, _ = laid_out(rng, torch.zeros(own))
    if rng.random() < 0.3:
        t = t.expand(sizes)
    return t if rng.random() < 0.8 else t[tuple(0 for _ in range(rng.randint(0, len(sizes))))]


def test_operands_decide_the_order_as_in_torch() -> None:
    rng = random.Random(0)
    for _ in range(CASES):
        sizes = [rng.choice((1, 2, 3, 4, 4, 5)) for _ in range(rng.randint(1, 4))]
        x, y = operand(rng, sizes), operand(rng, sizes)
        result = x + y
        shown = [t.expand(result.shape).stride() for t in (x, y)]
        order = iteration_order(result.shape, shown)
        assert expected_steps(result.shape, order) == steps(result), (x.stride(), y.stride(), sizes)


def bound(b: FusionBuilder, t: torch.Tensor) -> tuple[TensorView, Layout]:
    expanded = [n > 1 and s == 0 for n, s in zip(t.shape, t.stride(), strict=True)]
    flags = [None if n == 1 or e else False for n, e in zip(t.shape, expanded, strict=True)]
    view = b.tensor(t.shape, DataType.Float, contiguity=flags, expanded=expanded)
    strides = tuple(0 if n == 1 else s for n, s in zip(t.shape, t.stride(), strict=True))
    return view, Layout(strides)


@pytest.mark.parametrize("widths", [[1, 1], [0, 1, 1, 0], [-1, 1, 0, 2], [1, -1]])
def test_pads_are_row_major_or_channels_last(widths: list[int]) -> None:
    rng = random.Random(str(widths))
    for _ in range(100):
        sizes = [rng.choice((2, 3, 4)) for _ in range(rng.randint(len(widths) // 2, 5))]
        x, _ = laid_out(rng, torch.zeros(sizes))
        if len(sizes) == 4 and rng.random() < 0.5:
            x = x.contiguous(memory_format=torch.channels_last)
        b = FusionBuilder()
        view, layout = bound(b, x)
        padded = b.pad(view, widths)
        b.output(padded)
        order = memory_orders(torch_memory(b.build(), {view: layout}))[padded]
        result = torch.nn.functional.pad(x, widths)
        assert expected_steps(padded.sizes, order) == steps(result), (x.shape, x.stride())


def test_results_behind_views_of_repeated_elements() -> None:
    """A broadcast in torch is a view that steps over nothing."""
    for seed in range(300):
        rng = random.Random(seed)
        sizes = [rng.choice((1, 2, 3, 5)) for _ in range(rng.randint(1, 3))]
        x, _ = laid_out(rng, torch.zeros(sizes))
        b = FusionBuilder()
        view, layout = bound(b, x)
        wide = [rng.choice((2, 3)), *(4 if n == 1 else n for n in sizes)]
        shown = b.broadcast_in_dim(view, wide, range(1, len(wide)))
        result = b.pointwise("neg", b.permute(shown, list(reversed(range(len(wide))))))
        assert isinstance(result, TensorView)
        b.output(result)
        order = memory_orders(torch_memory(b.build(), {view: layout}))[result]
        torchs = -x.expand(wide).permute(list(reversed(range(len(wide)))))
        assert expected_steps(result.sizes, order) == steps(torchs), f"seed {seed}"


def test_what_passes_make_of_a_view_of_an_input_lies_the_same() -> None:
    x = torch.zeros(60).as_strided((3, 2, 7), (7, 21, 1))
    b = FusionBuilder()
    view, layout = bound(b, x)
    b.output(op(b, "neg", b.broadcast(view, [False, True, False, False])))
    fusion = run(b.build())
    assert any(t.domain.transforms for t in fusion.tensor_inputs)
    order = memory_orders(torch_memory(fusion, {fusion.tensor_inputs[0]: layout}))[
        fusion.outputs[0]
    ]
    assert expected_steps(fusion.outputs[0].sizes, order) == steps(-x.unsqueeze(1))


def test_an_updated_argument_keeps_its_memory() -> None:
    x, y = torch.zeros(3, 4).t(), torch.zeros(4, 3)
    b = FusionBuilder()
    (target, of_x), (source, of_y) = bound(b, x), bound(b, y)
    value = b.set(source)
    result = op(b, "neg", value)
    b.output(result)
    b.output(value, target)
    order = memory_orders(torch_memory(b.build(), {target: of_x, source: of_y}))[result]
    assert expected_steps(result.sizes, order) == steps(-x)
