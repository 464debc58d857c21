"""Regions from all over a trace: joined where that holds no more memory, taken apart where
neighbours would.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import thunder
import torch
from torch import Tensor

from tests.frontends.thunder.memory import halves, held
from tests.frontends.thunder.programs import check, fake, jit
from tests.support.seeds import blocks
from tests.zoo.plan_programs import BLOCK
from thunder_fuser.errors import FuserValueError

KINDS = pytest.mark.parametrize("kind", ["consecutive", "dataflow"])
ROUNDING = 512
"""Torch's allocator has no smaller blocks."""
F32 = torch.float32
CHAINS = 10


def chains(*tensors: Tensor) -> list[Tensor]:
    """The program of lightning-thunder 1337."""
    half = len(tensors) // 2
    return [torch.relu(x) @ w for x, w in zip(tensors[:half], tensors[half:], strict=True)]


def summed(*tensors: Tensor) -> Tensor:
    half = len(tensors) // 2
    total = tensors[0].sum()
    for x, w in zip(tensors[:half], tensors[half:], strict=True):
        total = total + (torch.relu(x) @ w).sum()
    return total


# ---- ten chains


@pytest.mark.parametrize(
    ("program", "grad", "kind"),
    [
        (chains, True, "consecutive"),
        pytest.param(chains, True, "dataflow", marks=pytest.mark.campaign),
        (summed, False, "dataflow"),
        pytest.param(summed, True, "consecutive", marks=pytest.mark.campaign),
    ],
)
def test_ten_chains_hold_no_more_than_torch(
    program: Callable[..., Any], grad: bool, kind: str
) -> None:
    tensors = fake(*[(256, 256)] * 2 * CHAINS, dtype=F32, grad=grad)
    theirs = halves(program, *tensors, torch_alone=True)
    ours = halves(program, *tensors, fusion_type=kind)
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.fusions
        assert mine.peak <= other.peak + ROUNDING


@KINDS
def test_chains_compute_what_they_should(kind: str) -> None:
    leaves = [torch.randn(4, 4, requires_grad=True) for _ in range(6)]
    check(chains, *leaves, fusion_type=kind)


def test_chains_are_joined_where_all_results_stay_anyway() -> None:
    """Ten activations in front are no more than the ten results at the end."""
    tensors = fake(*[(256, 256)] * 2 * CHAINS, dtype=F32)
    (forward,) = halves(chains, *tensors, fusion_type="dataflow")
    assert len(forward.fusions) == 1
    (summed_up,) = halves(summed, *tensors, fusion_type="dataflow")
    assert len(summed_up.fusions) == CHAINS + 1


# ---- what dataflow joins


def siblings(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    return torch.sin(x), x @ w, torch.cos(x)


def test_siblings_read_their_input_once() -> None:
    inputs = fake((64, 64), (64, 64), dtype=F32)
    (apart,) = halves(siblings, *inputs, fusion_type="consecutive")
    (joined,) = halves(siblings, *inputs)
    assert (apart.kernels, joined.kernels) == (2, 1)
    assert joined.peak == apart.peak
    (report,) = joined.fusions
    assert report.plan.bytes == 3 * 64 * 64 * 4


def test_siblings_next_to_each_other_are_one_kernel() -> None:
    (x,) = fake((64, 64), dtype=F32)
    (half,) = halves(lambda x: (torch.sin(x), torch.cos(x), torch.exp(x)), x)
    assert half.kernels == len(half.fusions) == 1


def test_a_cycle_is_not_joined() -> None:
    def program(x: Tensor, w: Tensor) -> Tensor:
        return torch.sin(torch.sin(x) @ w)

    inputs = fake((64, 64), (64, 64), dtype=F32)
    (half,) = halves(program, *inputs, fusion_type="dataflow")
    assert len(half.fusions) == 2


def test_a_block_of_llama_moves_less_in_the_same_memory() -> None:
    block, inputs = BLOCK.function, BLOCK.inputs()
    apart, joined = halves(block, *inputs, fusion_type="consecutive"), halves(block, *inputs)
    for one, other in zip(apart, joined, strict=True):
        assert other.peak <= one.peak
        assert other.kernels <= one.kernels
    # SwiGLU's two gradients lie on both sides of matrix products.
    moved = [sum(report.plan.bytes for report in half.fusions) for half in (apart[1], joined[1])]
    assert moved[0] - moved[1] == 3 * 2 * 2048 * 2816 * 2


def test_another_kind_is_refused() -> None:
    with pytest.raises(FuserValueError, match=r"fusion_type.*dataflow.*'vertical'"):
        jit(torch.sin, fusion_type="vertical")(torch.ones(3))


# ---- what must keep its order


@KINDS
def test_an_update_stays_between_what_reads_before_and_after(kind: str) -> None:
    def program(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        before = torch.sin(x)
        y = before @ w
        x.add_(y)
        after = torch.cos(x)
        return before, y @ w, after, torch.exp(y)

    x, w = torch.randn(4, 4), torch.randn(4, 4)
    mine = x.clone()
    found = jit(program, fusion_type=kind)(mine, w)
    for ours, eager in zip((*found, mine), (*program(x, w), x), strict=True):
        torch.testing.assert_close(ours, eager)


@KINDS
def test_torchs_random_numbers_keep_their_order(kind: str) -> None:
    def program(x: Tensor) -> tuple[Tensor, ...]:
        first = torch.randint(0, 100, (8,))
        y = torch.sin(x)
        second = torch.randint(0, 100, (8,))
        return first, torch.cos(x) + second, y @ x, second

    x = torch.randn(8, 8)
    torch.manual_seed(7)
    eager = program(x)
    torch.manual_seed(7)
    for ours, theirs in zip(jit(program, fusion_type=kind)(x), eager, strict=True):
        torch.testing.assert_close(ours, theirs)


# ---- programs at random


def at_random(seed: int, length: int = 14) -> Callable[..., tuple[Tensor, ...]]:
    """Matrix products and what fuses, on square matrices."""

    def program(*inputs: Tensor) -> tuple[Tensor, ...]:
        choose = random.Random(seed)
        values = list(inputs)
        for _ in range(length):
            a, b = choose.choice(values[-6:]), choose.choice(values[-6:])
            values.append(
                choose.choice(
                    [
                        lambda a, b: a @ b / 4,
                        lambda a, b: a.t() @ b / 4,
                        lambda a, b: torch.relu(a),
                        lambda a, b: a + b,
                        lambda a, b: torch.sin(a) * 0.1,
                        lambda a, b: a * a.mean(1, keepdim=True),
                    ]
                )(a, b)
            )
        return values[-1] + sum(inputs), values[-3]

    return program


@blocks(6, 1, always=2)
def test_no_order_holds_more(first: int) -> None:
    inputs = fake(*[(64, 64)] * 3, dtype=F32, grad=first % 2 == 1)
    before = halves(at_random(first), *inputs)
    after = halves(at_random(first), *inputs, fusion_type="dataflow")
    for one, other in zip(before, after, strict=True):
        assert other.peak <= one.peak + ROUNDING
        assert len(other.fusions) <= len(one.fusions)


@blocks(6, 1, always=2)
def test_another_order_computes_the_same(first: int) -> None:
    inputs = [torch.randn(6, 6, requires_grad=True) for _ in range(3)]
    check(at_random(first), *inputs, fusion_type="dataflow")


# ---- neighbours


def strangers(x: Tensor, w: Tensor, y: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    """The sum and the activation are neighbours, and each has a large tensor."""
    return (x @ w).sum(), torch.relu(y) @ v


def stranger_inputs(make: Callable[..., Sequence[Tensor]]) -> Sequence[Tensor]:
    return make((64, 8), (8, 512), (256, 128), (128, 4))


def test_neighbours_stay_apart_where_together_they_hold_more() -> None:
    inputs = stranger_inputs(lambda *shapes: fake(*shapes, dtype=F32))
    (ours,) = halves(strangers, *inputs)
    (theirs,) = halves(strangers, *inputs, torch_alone=True)
    assert len(ours.fusions) == 2
    assert ours.peak <= theirs.peak


def test_neighbours_are_joined_where_more_is_held_elsewhere() -> None:
    def program(*inputs: Tensor) -> tuple[Tensor, ...]:
        x, w, y, v = inputs
        total, small = strangers(x, w, y, v)
        return total, small, torch.relu(y.repeat(4, 1)) @ v

    inputs = stranger_inputs(lambda *shapes: fake(*shapes, dtype=F32))
    (ours,) = halves(program, *inputs)
    (theirs,) = halves(program, *inputs, torch_alone=True)
    assert len(ours.fusions) == 2
    assert ours.peak <= theirs.peak


def test_what_neighbours_hold_is_measured() -> None:
    inputs = stranger_inputs(lambda *shapes: [torch.randn(s) for s in shapes])
    peaks = []
    for compiled in (jit(strangers), thunder.jit(strangers, executors=[])):
        compiled(*inputs)
        trace = thunder.last_traces(compiled)[-1]
        names = [p.name for p in trace.args]
        steps = held(trace, dict(zip(names, inputs, strict=True)))
        peaks.append(max(n for _, n in steps))
    assert peaks[0] <= peaks[1]
