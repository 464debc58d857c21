"""Arguments and values at the edges of reductions and losses: no dimensions, no elements, zeros."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

from tests.frontends.thunder.programs import jit
from tests.support.shares import each_pair, each_value

Call = Callable[[torch.Tensor], torch.Tensor]

INFINITE = torch.tensor(complex(math.inf, 1.25))


@each_value(
    call=[lambda x: x.sum(()), lambda x: torch.sum(x, []) * x.sum()],
    sizes=[(3, 2), (0,), (2, 0), ()],
)
def test_sums_over_no_named_dimension_are_of_all(call: Call, sizes: tuple[int, ...]) -> None:
    found = []
    for function in (call, jit(call)):
        x = torch.ones(sizes, requires_grad=True)
        result = function(x)
        result.backward()
        found.append((result.detach(), x.grad))
    torch.testing.assert_close(found[1], found[0])


@each_pair(
    norm=[torch.norm, torch.linalg.vector_norm],
    order=[math.inf, -math.inf, -1, 2],
    dtype=[torch.float32, torch.bfloat16, torch.complex64],
)
def test_norms_of_which_there_are_none(norm: Call, order: float, dtype: torch.dtype) -> None:
    """Torch's shape rule takes a negative dimension for an empty one."""
    x = torch.empty(2, 0, 3, dtype=dtype)
    for dim in ((-3,), (0,), -1, (-1, 0)):
        wanted = norm(x, order, dim, keepdim=True)  # type: ignore[call-arg]
        found = jit(lambda x, d=dim: norm(x, order, d, keepdim=True))(x)
        assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype)


@pytest.mark.parametrize("x", [INFINITE, INFINITE[None], torch.tensor(-1000.0 + 2j)])
def test_logsumexp_of_a_complex_number(x: torch.Tensor) -> None:
    torch.testing.assert_close(jit(lambda x: torch.logsumexp(x, -1))(x), torch.logsumexp(x, -1))


def test_logsumexp_wants_a_dimension() -> None:
    with pytest.raises(RuntimeError, match="at least one dimension"):
        jit(lambda x: torch.logsumexp(x, None))(torch.ones(3))


@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("sizes", [(0,), (2, 0)])
def test_logsumexp_of_no_elements_over_no_named_dimension(
    sizes: tuple[int, ...], keepdim: bool
) -> None:
    x = torch.ones(sizes)
    found = jit(lambda x: torch.logsumexp(x, [], keepdim=keepdim))(x)
    assert torch.equal(found, torch.logsumexp(x, [], keepdim=keepdim))


@each_pair(reduction=["none", "sum"], smoothing=[0.0, 0.25], sizes=[(2, 1, 3), (2, 0, 3), (1,)])
def test_losses_of_certain_classes_are_negative_zeros(
    reduction: str, smoothing: float, sizes: tuple[int, ...]
) -> None:
    def loss(x: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(x, x * 0, reduction=reduction, label_smoothing=smoothing)

    x = torch.ones(sizes)
    wanted, found = loss(x), jit(loss)(x)
    assert torch.equal(found, wanted)
    assert torch.equal(found.signbit(), wanted.signbit())


@pytest.mark.filterwarnings("ignore:.*size_average")
@each_value(
    smoothing=[0.0, 0.25],
    flags=[{"size_average": False}, {"reduce": False}, {"size_average": True, "reduce": True}],
)
def test_reductions_of_losses_by_flags(smoothing: float, flags: dict[str, bool]) -> None:
    """Flags of earlier versions of torch, which give the name of a reduction."""
    x, classes = torch.randn(4, 5, generator=torch.Generator().manual_seed(0)), torch.arange(4)

    def loss(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(x, target, label_smoothing=smoothing, **flags)

    for target in (classes, x.softmax(1)):
        torch.testing.assert_close(jit(loss)(x, target), loss(x, target))
