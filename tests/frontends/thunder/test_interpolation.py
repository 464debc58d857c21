"""Interpolations that are fused, at the elements that torch's kernels read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import thunder_fuser
from tests.frontends.thunder.programs import check, jit
from tests.support.shares import each_value
from thunder_fuser.frontends.thunder import fusions
from thunder_fuser.frontends.thunder.composites.lines import Line, ReadingWindows

SIZES = (1, 2, 3, 4, 5, 6, 7, 9, 14, 15, 16, 30)


def all_sizes(n: int, mode: str) -> Callable[[torch.Tensor], list[torch.Tensor]]:
    def program(x: torch.Tensor) -> list[torch.Tensor]:
        y = x * 2
        return [F.interpolate(y, size=m, mode=mode) + 1 for m in SIZES]

    return program


@each_value(n=[7, 11, 14], mode=["nearest", "nearest-exact"])
def test_nearest_elements_of_a_line(n: int, mode: str) -> None:
    program = all_sizes(n, mode)
    x = torch.arange(float(n))[None, None]
    for ours, eager in zip(jit(program)(x), program(x), strict=True):
        assert torch.equal(ours, eager)


@each_value(mode=["nearest", "bilinear"], scale=[2, 0.5, 1.5, 2.3, (0.7, 3), 1.1, (1.19, 2)])
def test_by_a_factor(mode: str, scale: float | Sequence[float]) -> None:
    """The factor says where elements are read, not the quotient of sizes, which are rounded."""
    x = torch.randn(2, 3, 5, 7, requires_grad=True)
    check(lambda x: F.interpolate(x * 2, scale_factor=scale, mode=mode) + 1, x)


@each_value(size=[(3, 4), (7, 9), (1, 1), 5], corners=[None, False, True])
def test_bilinear_to_a_size(size: Any, corners: bool | None) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(x * 2, size=size, mode="bilinear", align_corners=corners)

    compiled = check(program, torch.randn(2, 3, 5, 7, requires_grad=True))
    assert fusions(compiled)


@each_value(
    scale=[(2, 2), (4, 8), (1, 2)],
    sizes=[(7, 28), (1, 2), (3, 64), (2, 150)],
    dtype=[torch.float32, torch.bfloat16],
)
def test_powers_of_two_between_elements_are_read_without_an_index(
    scale: tuple[int, int], sizes: tuple[int, int], dtype: torch.dtype
) -> None:
    """Views of a tensor with its ends repeated, each weighted as in torch: an infinity beside a
    weight of 0 is NaN there, too.
    """
    torch.manual_seed(0)
    x = torch.randn(2, 3, *sizes, dtype=dtype, requires_grad=True)

    def program(x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(x, scale_factor=scale, mode="bilinear") * 2

    compiled = check(program, x)
    with torch.no_grad():
        x[0, 0, 0, 0], x[1, 2, -1, -1], x[1, 0, 0, min(1, sizes[1] - 1)] = inf, -inf, inf
        torch.testing.assert_close(compiled(x), program(x), equal_nan=True)
    for fusion in fusions(compiled):
        assert fusion.plan.bytes == fusion.plan.bytes_ideal
        assert not any("checked_position" in kernel.source for kernel in fusion.kernels)


def test_lines_volumes_and_16_bits() -> None:
    check(lambda x: F.interpolate(x * 2, size=9, mode="linear"), torch.randn(1, 2, 6))
    x = torch.randn(1, 2, 6, 5, 4)
    check(lambda x: F.interpolate(x * 2, scale_factor=1.6, mode="trilinear"), x)
    check(lambda x: F.interpolate(x * 2, scale_factor=2) + 1, x.bfloat16())
    check(lambda x: F.interpolate(x * 2, scale_factor=1.6, mode="bilinear"), x[0].bfloat16())


@pytest.mark.parametrize("mode", ["linear", "bilinear", "trilinear", "nearest"])
def test_torch_runs_what_is_not_fused(mode: str) -> None:
    sizes = {"bilinear": (4, 5), "trilinear": (4, 3, 2)}.get(mode, (4,))
    aligned = None if mode == "nearest" else True

    def program(x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(x, scale_factor=1.7, mode=mode, align_corners=aligned)

    x = torch.rand(2, 3, *sizes)
    with thunder_fuser.options(fuel=0):
        torch.testing.assert_close(jit(program)(x), program(x))


def test_a_gradient_is_one_sum_rounded_once() -> None:
    """Of the elements of each window, whatever the dimensions, in one kernel."""
    torch.manual_seed(0)
    x = torch.randn(2, 3, 4, 5, 6, dtype=torch.bfloat16, requires_grad=True)
    compiled = jit(lambda x: F.interpolate(x, scale_factor=(2, 1, 3), mode="nearest") * 2)
    result = compiled(x)
    gradient = torch.randn_like(result)
    result.backward(gradient)
    windows = (gradient * 2).double().unflatten(4, (6, 3)).unflatten(2, (4, 2)).sum((3, 6))
    assert x.grad is not None
    # Sums of six numbers of 8 bits, nearly exact in float32: less than a unit of bfloat16 away.
    torch.testing.assert_close(x.grad.double(), windows, rtol=2**-8, atol=1e-6)
    plan = fusions(compiled)[-1].plan
    assert (plan.kernels, plan.bytes) == (1, plan.bytes_ideal)


SCALES: list[dict[str, Any]] = [
    *({"scale_factor": scale} for scale in (3, 1.5, 0.4, (2, 3))),
    *({"size": size} for size in ((3, 40), (25, 9))),
]


@each_value(mode=["nearest", "nearest-exact", "bilinear", "corners"], options=SCALES)
def test_gradients_are_gathered(mode: str, options: dict[str, Any]) -> None:
    """Of the results that read an element, in the order of results."""
    torch.manual_seed(0)
    named = {"mode": "bilinear", "align_corners": True} if mode == "corners" else {"mode": mode}
    dtype = torch.bfloat16 if "size" in options else torch.float32
    x = torch.randn(2, 3, 13, 19, dtype=dtype, requires_grad=True)
    check(lambda x: F.interpolate(x, **options, **named) * 2, x)


@each_value(corners=[False, True], n=[1, 7, 16])
def test_lines_of_all_sizes(corners: bool, n: int) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        sizes = (1, 4, 9, 33)
        return torch.cat(
            [F.interpolate(x, size=m, mode="linear", align_corners=corners) for m in sizes], 2
        )

    check(program, torch.randn(1, 2, n, dtype=torch.float64, requires_grad=True))


@each_value(
    options=[{"scale_factor": 2}, {"scale_factor": 1.5}, {"size": (109, 109)}],
    mode=["bilinear", "nearest"],
)
def test_gradients_have_no_index_and_move_each_byte_once(options: Any, mode: str) -> None:
    x = torch.randn(2, 3, 56, 56, requires_grad=True)
    compiled = jit(lambda x: F.interpolate(x, **options, mode=mode) * 2)
    compiled(x).sum().backward()
    plan = fusions(compiled)[-1].plan
    assert (plan.kernels, plan.bytes) == (1, plan.bytes_ideal)
    for fusion in fusions(compiled):
        assert not any("checked_position" in kernel.source for kernel in fusion.kernels)


def test_an_infinite_gradient_reaches_what_its_result_reads() -> None:
    """All windows are as long as the longest, and hold results that read other elements."""
    x = torch.randn(1, 1, 9, requires_grad=True)

    def program(x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(x, size=14, mode="linear")

    gradients = []
    for run in (jit(program), program):
        results = run(x)
        gradient = torch.zeros_like(results)
        gradient[..., 6] = inf
        gradients += torch.autograd.grad(results, x, gradient)
    assert torch.equal(*gradients)


def test_windows_hold_all_results_that_read_an_element() -> None:
    """By numbers alone: each result is in the window of each element that it reads, and windows
    are at most two results longer than the largest must be.
    """
    for n in range(2, 40):
        for count in range(2, 40):
            for line in (Line(n, 0, count), Line(2 * n, n - count, 2 * count), Line(n, n, count)):
                read = [[min(max(k, 0), n - 1)] for k in line.elements(count)]
                windows = ReadingWindows.of(line, read, n)
                starts = [k - windows.before for k in windows.line.elements(n)]
                assert windows.line.b >= 0
                assert starts[-1] + windows.taps <= count + windows.behind
                for result, (element,) in enumerate(read):
                    assert starts[element] <= result < starts[element] + windows.taps
                longest = max(map(read.count, read))
                assert windows.taps <= longest + 2 or line.a * 2 < line.c


def test_repeated_elements_in_front_of_a_torch_call_have_memory_of_their_own() -> None:
    """Not fused, they are an expanded tensor, in which an update would show several times."""

    def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = F.interpolate(F.unfold(x, 1)[None, None], size=9)
        return y, F.interpolate(y.flatten(0, 1), scale_factor=(0.5, 2), mode="bicubic")

    x = torch.tensor([[[[1.0, 2.0]]]])
    ours, eager = jit(program)(x), program(x)
    for made in (ours, eager):
        made[0].add_(torch.arange(9.0))
    assert ours[0].stride() == eager[0].stride()
    torch.testing.assert_close(ours, eager)
