"""Scans through thunder.jit: one kernel with what comes before and behind, and what torch keeps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.frontends.thunder.programs import check, jit
from thunder_fuser.frontends.thunder import fusions, refusals
from thunder_fuser.frontends.thunder.claims.scans import LONGEST_ROW


def kinds(compiled: Any) -> list[str]:
    return [s.kind for fusion in fusions(compiled) for s in fusion.plan.segments if s.kernels]


@pytest.mark.parametrize(
    "dtype",
    [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8,
     torch.complex64],
    ids=str,
)  # fmt: skip
def test_a_scan_is_one_kernel_with_what_is_around_it(dtype: torch.dtype) -> None:
    def program(x: Any) -> Any:
        return torch.cumsum(x * 2, -1) + x, x.cumsum(1)

    x = torch.randn(5, 300, dtype=torch.complex64) if dtype.is_complex else torch.randn(5, 300)
    x = (x * 4).to(dtype) if dtype is not torch.uint8 else torch.randint(9, (5, 300)).to(dtype)
    if dtype is torch.uint8:
        compiled = check(lambda x: x.cumsum(1), x, fusion_count=1)
    else:
        compiled = check(program, x, fusion_count=1)
    assert kinds(compiled) == ["scan"]
    assert refusals(compiled) == {}


def test_a_dtype_is_what_elements_are_converted_to() -> None:
    x = torch.randn(3, 70).mul(4)
    compiled = check(
        lambda x: (torch.cumsum(x, -1, dtype=torch.int32), x.cumsum(1, dtype=torch.float64)),
        x,
        fusion_count=1,
    )
    assert kinds(compiled) == ["scan"]


def test_gradients() -> None:
    x = torch.randn(4, 257, requires_grad=True)
    compiled = check(lambda x: torch.sin(x).cumsum(-1) * 2, x)
    forward, *backward = kinds(compiled)
    assert forward == "scan"
    # What scans from the end is read from there, and put in order by a kernel of its own.
    assert backward == ["scan", "pointwise"]
    assert refusals(compiled) == {}


@pytest.mark.parametrize("shape", [(), (1,), (0,), (3, 0), (0, 3), (7, 1), (2, 5, 1)], ids=str)
def test_small_and_empty_shapes(shape: tuple[int, ...]) -> None:
    check(lambda x: torch.exp(torch.cumsum(x, -1)), torch.randn(shape))


REFUSED: list[tuple[Callable[[Any], Any], torch.Tensor, str]] = [
    (lambda x: x.cumsum(0), torch.randn(64, 128), "it scans dimension 0 of [64, 128]"),
    (lambda x: x.cumsum(-1), torch.zeros(2, LONGEST_ROW + 1), "rows of 65,537 elements"),
    (lambda x: x.cumsum(-1), torch.tensor([True, False, True]), "no result of dtype Bool"),
]


@pytest.mark.parametrize(("program", "x", "reason"), REFUSED, ids=["dimension", "row", "bool"])
def test_what_torch_keeps_and_why(
    program: Callable[[Any], Any], x: torch.Tensor, reason: str
) -> None:
    compiled = jit(program)
    assert torch.equal(compiled(x), program(x))
    (refusal,) = refusals(compiled)
    assert reason in refusal.text
    assert fusions(compiled) == ()


def test_a_last_dimension_of_one_element_is_no_row() -> None:
    compiled = check(lambda x: x.cumsum(-2), torch.randn(3, 40, 1), fusion_count=1)
    assert kinds(compiled) == ["scan"]
