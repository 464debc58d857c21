"""Rows so short that one vector covers them: what a tensor is read for then depends on the row for
some lanes, and on the lane alone for others.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch

from tests.frontends.thunder.programs import jit, traced
from tests.support.batch import batch_for, executable
from tests.support.shares import each_value
from thunder_fuser.compiled_fusion import CompiledFusion
from thunder_fuser.segment.plan import SegmentedFusion

Results = torch.Tensor | tuple[torch.Tensor, ...]


def half_turned(x: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat((-second, first), -1)


def of_neighbours(x: torch.Tensor) -> torch.Tensor:
    steps = (-1, 0, 1)
    return sum((x.roll((i, j), (0, 1)) for i in steps for j in steps), torch.zeros_like(x))


PROGRAMS: dict[str, Callable[[torch.Tensor], Results]] = {
    "rolls": lambda x: x.roll((1, 2), (0, 1)) + x.roll(2, 1),
    "two results": lambda x: (x.roll((1, 3), (0, 1)), x.roll(3, 1)),
    "token shift": lambda x: half_turned(torch.cat((x[:1], x[:-1]))) + half_turned(x),
    "token shift by a pad": lambda x: (
        half_turned(torch.nn.functional.pad(x, (0, 0, 1, 0))[:-1]) + half_turned(x)
    ),
    "cat of a roll": lambda x: torch.cat((x[:, 2:], x.roll(1, 0)[:, :2]), 1),
    "rows of two": lambda x: torch.stack((x.roll(1, 0), x), 1).flatten(0, 1),
    "neighbours": of_neighbours,
}


def plan_of(program: Callable[[torch.Tensor], Results], x: torch.Tensor) -> SegmentedFusion:
    (fusion,) = traced(program, x)
    return fusion.plan


@each_value(name=list(PROGRAMS), schedule=["own", "H200"])
def test_numbers(name: str, schedule: str, device: torch.device) -> None:
    """A load under a condition on the row hid those of the other lanes, which had none."""
    batch, made = batch_for(device, schedule), []
    dtypes = (torch.float32, torch.bfloat16, torch.float64)
    kinds = list(itertools.product((4, 8, 12, 16), dtypes))
    # Of a large program either schedule has every other one.
    some = kinds[schedule == "own" :: 2] if name == "neighbours" else kinds
    for columns, dtype in some:
        x = torch.arange(7 * columns).reshape(7, columns).remainder(97).to(device, dtype)
        fusion = plan_of(PROGRAMS[name], x).fusion
        made.append((x, executable(CompiledFusion(fusion), [x], batch, device)))
    for x, run in made:
        expected = PROGRAMS[name](x)
        for ours, theirs in zip(
            run([x]), expected if isinstance(expected, tuple) else (expected,), strict=True
        ):
            assert torch.equal(ours, theirs), (x.dtype, x.shape)


def test_gradients_of_a_periodic_stencil() -> None:
    x = torch.randn(6, 8, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(6, 8, dtype=torch.float64)
    for program in (of_neighbours, PROGRAMS["rolls"]):
        found, expected = (
            torch.autograd.grad((f(x) * weight).sum(), x)[0] for f in (jit(program), program)
        )
        torch.testing.assert_close(found, expected)
