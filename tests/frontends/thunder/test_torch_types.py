"""Dtypes are torch's where Thunder states others, and what is computed from them is too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import thunder
import torch
import torch.nn.functional as F
from thunder.core import prims
from torch import Tensor, nn

from tests.frontends.thunder.programs import fake, jit, primitives, traced
from thunder_fuser import options, refusals

BOOL = torch.tensor([True, False, True])
FLOAT = torch.tensor([1.5, -2.0, 0.0])
INT32 = torch.tensor([2**30, 2**30, 5], dtype=torch.int32)
NUMBER = torch.tensor(5, dtype=torch.int32)


def _programs(m: Tensor, x: Tensor, i: Tensor, n: Tensor) -> dict[str, Tensor]:
    """What Thunder gets wrong: bools with numbers, weak integers, tensors without dimensions."""
    half = x.bfloat16()
    return {
        "mask * 1": x * (m * 1),
        "a product beyond int8": x * (m * 200),
        "mask * 2 - 1": x + (m * 2 - 1),
        "1 - mask * 1": x + (1 - (x == 0) * 1),
        "mask ** 2": m**2 + x,
        "sign from masks": (x > 0) * 1 - (x < 0) * 1,
        "eq * 2": torch.eq(x, x) * 2 * x,
        "shifted mask": (m << 2) | m,
        "sum of int32, keepdim": torch.sum(i, -1, keepdim=True) + i,
        "sum of bools, keepdim": x / m.sum(-1, keepdim=True),
        "prod of int32": torch.prod(i, 0) + i,
        "hardtanh of integers": F.hardtanh(i) * 2,
        "sine of integers, and bf16": torch.sin(i) + half,
        "copysign of integers": torch.copysign(i, half) * 2,
        "copysign of a number": torch.copysign(n, half) * 2,
        "uint8 and a number": torch.floor_divide(m.to(torch.uint8) + 7, n) >= n,
        "an empty range": torch.arange(0) * x[0],
    }


def test_results_have_the_dtypes_of_torch() -> None:
    inputs = (BOOL, FLOAT, INT32, NUMBER)
    compiled = jit(_programs)
    with options(strict=True):
        found = compiled(*inputs)
    for name, expected in _programs(*inputs).items():
        assert found[name].dtype is expected.dtype, name
        assert torch.equal(found[name], expected), name


def _with_numbers(m: Tensor, x: Tensor, i: Tensor) -> dict[str, Tensor]:
    """Bools stay bools beside numbers that are bools, and where a mask puts numbers; integers
    beyond an int64's range, were they subtracted.
    """
    powers, filled = m.clone(), m.clone()
    powers **= False
    filled.masked_fill_(x > 0, 2)
    return {
        "** False": m**False,
        "** True": m.t() ** True,
        "pow": torch.pow(m, True),
        "pow_": m.clone().pow_(False),
        "**=": powers,
        "float ** False": x**False,
        "a bool to an integer": m**1,
        "masked_fill of 2": m.masked_fill(x > 0, 2),
        "masked_fill of 0": torch.masked_fill(m, x > 0, 0),
        "masked_fill of 0.5": m.masked_fill(x > 0, value=0.5),
        "masked_fill_ of 2": filled,
        "masked_fill of integers": i.masked_fill(m, 2.7),
        "masked_fill of floats": x.masked_fill(m, True),
        "logsumexp of integers": torch.logsumexp(i, 0),
        "logsumexp of bools": m.logsumexp((0, 1), keepdim=True),
    }


def test_bools_and_integers_with_numbers() -> None:
    m = torch.tensor([[True, False, True], [False, False, True]])
    x = torch.tensor([[1.5, -2.0, 0.0], [-1.0, 0.25, 2.0]])
    i = torch.tensor([[-(2**63), 5, 2], [3, 4, 2**62]])
    with options(strict=True):
        found = jit(_with_numbers)(m, x, i)
    for name, expected in _with_numbers(m, x, i).items():
        assert found[name].dtype is expected.dtype, name
        assert found[name].stride() == expected.stride(), name
        torch.testing.assert_close(found[name], expected, msg=name)


def test_masks_and_counts_are_fused_with_what_reads_them() -> None:
    (mask,) = fake([64, 64], dtype=torch.bool)
    (x,), (n,) = (fake([64, 64], dtype=d) for d in (torch.float32, torch.int32))
    (report,) = traced(lambda m, x, n: (x * (m * 1), n + n.sum(-1, keepdim=True)), mask, x, n)
    assert primitives(report).count("mul") == 2
    assert [str(t.dtype) for t in report.outputs] == [
        "thunder.dtypes.float32",
        "thunder.dtypes.int64",
    ]


@pytest.mark.parametrize("function", [torch.amax, torch.amin], ids=lambda f: f.__name__)
def test_gradients_of_extremes_are_shared_by_ties(
    function: Callable[..., Tensor],
) -> None:
    x = torch.tensor([[1.0, 1.0, 0.5, 1.0], [2.0, 0.0, 2.0, 0.0]])
    mine, theirs = (x.clone().requires_grad_() for _ in range(2))
    compiled = jit(lambda x: function(x, -1))
    with options(strict=True):
        compiled(mine).sum().backward()
    function(theirs, -1).sum().backward()
    assert torch.equal(mine.grad, theirs.grad)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_gradients_of_numbers_in_16_bits(dtype: torch.dtype) -> None:
    """Thunder states that the gradient of a learned scale has no dimensions before it is summed."""

    def program(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        return x * scale + shift - x / scale

    gradients = []
    for function in (program, jit(program)):
        x = torch.tensor([1.0, 0.5, -0.25], dtype=dtype, requires_grad=True)
        numbers = [torch.tensor(v, dtype=dtype, requires_grad=True) for v in (2.0, 0.5)]
        with options(strict=True):
            function(x, *numbers).sum().backward()
        gradients.append([x.grad, *(n.grad for n in numbers)])
    for theirs, mine in zip(*gradients, strict=True):
        assert mine.dtype is dtype
        torch.testing.assert_close(mine, theirs)


def test_a_call_whose_parts_are_of_another_type_stays_with_torch() -> None:
    compiled = jit(lambda x: torch.floor_divide(x, 2) * 3)
    x = torch.tensor(5.0, dtype=torch.float16)
    found = compiled(x)
    assert "Thunder states float32[] where torch gives float16[]" in str(refusals(compiled))
    assert found.dtype is torch.float16
    assert found.item() == 6.0


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_gradient_that_is_stated_as_a_number(dtype: torch.dtype) -> None:
    """Autograd sums what arrives; the cast before that states the sizes of the sum."""
    x, scale = torch.randn(3, 4, requires_grad=True), torch.tensor(2.0, dtype=dtype)
    scale.requires_grad_()
    gradients = []
    for function in (_scaled_variance, jit(_scaled_variance)):
        with options(strict=True):
            gradients.append(torch.autograd.grad(function(x, scale).sum(), (x, scale)))
    torch.testing.assert_close(*gradients)


def _scaled_variance(x: Tensor, scale: Tensor) -> Tensor:
    return x.var(-1) * scale * 3


def test_a_trace_that_says_the_impossible_is_told_as_such() -> None:
    """The gradient of a number that a tensor was added to: Thunder's primitive does not sum it, and
    expands what it takes for a number. (Torch's addition is broadcast before.)
    """

    def program(x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = prims.add(torch.sin(x), x.sum())
        return found

    x = torch.randn(4, 4, requires_grad=True)
    compiled, alone = jit(program), thunder.jit(program, executors=[])
    with options(strict=True):
        found = torch.autograd.grad(compiled(x).sum(), x)
    torch.testing.assert_close(found, torch.autograd.grad(alone(x).sum(), x))
    told = [r.text for r in refusals(compiled) if r.code == "ill-typed"]
    assert len(told) == 1
    assert "says broadcast_in_dim of t" in told[0]
    assert ": f32[4, 4], which Thunder's own rule refuses" in told[0]


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32])
def test_a_diagonal_without_elements(dtype: torch.dtype) -> None:
    """Thunder gives it no dimension."""
    with options(strict=True):
        found = jit(lambda a: torch.log1p(torch.diagonal(a, 2)) * 2)(torch.ones(2, 2).to(dtype))
    assert found.shape == (0,)
    assert found.dtype is torch.float32


@pytest.mark.parametrize(
    "difference",
    [
        lambda x, m: x - m,
        lambda x, m: 1 - m,
        lambda x, m: m - 2.5,
        lambda x, m: x - True,
        lambda x, m: m.sub(1),
        lambda x, m: torch.subtract(x, m),
        lambda x, m: torch.rsub(x, m),
        lambda x, m: (x * 1).sub_(m),
    ],
    ids=["x - m", "1 - m", "m - 2.5", "x - True", "m.sub", "subtract", "rsub", "sub_"],
)
def test_bools_are_not_subtracted(difference: Callable[[Tensor, Tensor], Tensor]) -> None:
    x = torch.randn(4)
    for call in (difference, jit(difference)):
        with pytest.raises(RuntimeError, match="Subtraction, the `-` operator, with"):
            call(x, x > 0)


_KINDS: tuple[Any, ...] = (
    *(Tensor, nn.Parameter, (Tensor, nn.Parameter), (nn.Parameter, int), Tensor | nn.Parameter),
    *((int, (nn.Parameter,)), ((Tensor,), float), (int, float), object, nn.Parameter | int),
)


def test_a_tensor_is_one_of_the_classes_that_it_is_in_eager_code() -> None:
    def program(x: Tensor, p: Tensor) -> list[bool]:
        return [isinstance(t, kind) for t in (x, p, x + 1, p * 1) for kind in _KINDS]

    x, p = torch.ones(3), nn.Parameter(torch.ones(3))
    assert jit(program)(x, p) == program(x, p)


def test_a_program_is_valid_for_parameters_or_for_other_tensors_if_it_asks() -> None:
    def by_class(x: Tensor) -> Tensor:
        return x * 2 if isinstance(x, nn.Parameter) else x * 3

    def by_type(x: Tensor) -> Tensor:
        return x * 2 if type(x) is nn.Parameter else x * 3

    def without(x: Tensor) -> Tensor:
        return x * 2 if isinstance(x, Tensor) else x * 3

    leaf = torch.ones(3, requires_grad=True)
    for program, misses in ((by_class, 2), (by_type, 2), (without, 1)):
        compiled = jit(program)
        for x in (nn.Parameter(torch.ones(3)), leaf, nn.Parameter(torch.ones(3)), leaf):
            assert torch.equal(compiled(x), program(x))
        assert thunder.cache_misses(compiled) == misses
