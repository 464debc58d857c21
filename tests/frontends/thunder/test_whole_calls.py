"""Calls that torch computes as a whole where Thunder's call, or its knowledge of torch's, differs:
writes of single elements, losses of one row, numbers as first operands, sizes that data decide.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

from tests.frontends.thunder.programs import check, jit

Function = Callable[..., Any]


def _differentiable(*sizes: int) -> torch.Tensor:
    return torch.randn(sizes).requires_grad_()


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("name", ["scatter", "scatter_add", "index_add", "index_copy"])
@pytest.mark.parametrize(
    ("sizes", "index", "source"),
    [((), (), ()), ((), (1,), ()), ((3,), (), ()), ((3,), (1,), (1,)), ((3,), (0,), (0,))],
)
def test_writes_at_indices_without_dimensions_or_elements(
    name: str, in_place: bool, sizes: Any, index: Any, source: Any
) -> None:
    if name.startswith("scatter") and len(index) != len(source):
        source = index
    if name == "index_add" and sizes and not source:
        source = (1,)  # torch takes no other
    x, written = _differentiable(*sizes), _differentiable(*source)

    def program(x: Any, index: Any, source: Any) -> Any:
        method = getattr(x * 1, name + "_" * in_place)
        return method(0, index, source) * 2

    check(program, x, torch.zeros(index, dtype=torch.int64), written)


def test_a_scatter_of_an_empty_index_of_another_rank() -> None:
    index = torch.empty(0, dtype=torch.int64)
    check(lambda x, i: torch.scatter(x, 0, i, x) * 2, torch.randn(3, 4), index)


def test_an_index_of_no_dimensions_in_rows() -> None:
    x, row = _differentiable(3, 4), _differentiable(1, 4)
    check(lambda x, i, row: torch.index_copy(x, 0, i, row) * 2, x, torch.tensor(2), row)


def test_sources_of_other_sizes_raise_torchs_error() -> None:
    x, index = torch.tensor(1.0), torch.tensor([0])
    with pytest.raises(RuntimeError, match="source tensor shape must match"):
        jit(lambda x, i: torch.index_add(x, 0, i, torch.ones(1)) * 2)(x, index)


def test_scatters_that_reduce() -> None:
    x, index = torch.randn(4), torch.tensor([3])
    check(lambda x, i: x.scatter(0, i, x[:1], reduce="add") * 2, x, index)


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_margin_losses_of_one_row(reduction: str) -> None:
    x, y = _differentiable(4), _differentiable(4)
    several, one = torch.tensor([3, 0, -1, 1]), torch.tensor(2)
    loss: Function = functional.multilabel_margin_loss
    check(lambda x, t, y: loss(x, t, reduction=reduction) + y, x, several, y)
    loss = functional.multi_margin_loss
    check(lambda x, t, y: loss(x, t, reduction=reduction) + y, x, one, y)
    assert jit(lambda x, t: loss(x, t, reduction="none").shape)(x, one) == ()


@pytest.mark.parametrize("loss", [functional.nll_loss, functional.cross_entropy])
@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_classes_of_one_row_in_a_vector(loss: Function, reduction: str) -> None:
    check(lambda x, t: loss(x, t, reduction=reduction) * 2, torch.randn(4), torch.tensor([2]))


def test_numbers_as_first_operands() -> None:
    x = torch.rand(3).requires_grad_()
    check(lambda x: torch.float_power(2, x) * 2, x)
    check(lambda x: torch.float_power(2, x) * 2, x, save_like_torch=True)
    check(lambda x: torch.xlogy(0.5, x) * 2, x)


def test_one_hot_of_unknown_classes_is_refused() -> None:
    classes = torch.tensor([0, 2])
    for program in (functional.one_hot, lambda i: functional.one_hot(i, num_classes=-1) * 2):
        with pytest.raises(NotImplementedError, match="one_hot: the size of its result"):
            jit(program)(classes)
    check(lambda i: functional.one_hot(i, num_classes=3) * 2, classes)


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool, torch.float16])
@pytest.mark.parametrize("number", [1.5, True, 300, 1.5 + 0j, 2**63])
@pytest.mark.parametrize(
    "made",
    [
        lambda x, n, d: torch.tensor(n, dtype=d),
        lambda x, n, d: torch.tensor([[n], [1]], dtype=d),
        lambda x, n, d: torch.as_tensor(n, dtype=d),
        lambda x, n, d: torch.asarray([n], dtype=d),
        lambda x, n, d: torch.full((2,), n, dtype=d),
        lambda x, n, d: torch.full_like(x, n, dtype=d),
        lambda x, n, d: x.to(d).fill_(n),
    ],
)
def test_numbers_that_a_dtype_does_not_hold(
    made: Function, number: Any, dtype: torch.dtype
) -> None:
    x = torch.randn(3)
    try:
        expected = made(x, number, dtype)
    except (RuntimeError, TypeError, ValueError) as error:
        with pytest.raises(type(error)):
            jit(lambda x: (made(x, number, dtype), x * 2))(x)
        return
    found = jit(lambda x: (made(x, number, dtype), x * 2))(x)[0]
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_arrays_of_tensors() -> None:
    check(lambda x: torch.asarray(x, dtype=torch.float64) * 2, _differentiable(3))
    check(lambda x: torch.asarray(x, copy=True).add_(1) * x, torch.randn(3))


@pytest.mark.parametrize(
    "program",
    [
        lambda x: x**1e30,
        lambda x: torch.pow(x, 70000),
        lambda x: functional.threshold(x, 1.0, 1e30),
        lambda x: functional.threshold(x, 1.0, -70000, inplace=True),
        lambda x: functional.softshrink(x, 70000.0),
    ],
)
def test_numbers_that_16_bits_do_not_hold_raise_torchs_error(program: Function) -> None:
    x = torch.rand(3, dtype=torch.float16)
    for function in (program, jit(lambda x: program(x * 1) * 2)):
        with pytest.raises(RuntimeError, match=r"without overflow|lambda"):
            function(x)


def test_bases_are_rounded_to_16_bits() -> None:
    x = torch.tensor([2.0, 3.0], dtype=torch.float16)
    assert torch.equal(jit(lambda x: (-1e30) ** x)(x), (-1e30) ** x)


@pytest.mark.parametrize("order", [(0, 2, 1), (1, 2, 0), (2, 0, 1)])
@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize(
    "pool",
    [
        lambda x: functional.max_pool1d(x, 2),
        lambda x: functional.max_pool1d(x, 2, return_indices=True)[0],
        lambda x: functional.max_pool1d(x, 3, 2, 1, ceil_mode=True),
        lambda x: functional.avg_pool1d(x, 3, 1, 1),
        lambda x: functional.adaptive_avg_pool1d(x, 3),
        lambda x: functional.interpolate(x, scale_factor=2),
        lambda x: functional.interpolate(x, scale_factor=1.0, mode="nearest-exact"),
        lambda x: functional.interpolate(x, scale_factor=2, mode="linear"),
    ],
)
def test_pools_of_permuted_lines_lie_as_in_torch(
    pool: Function, gradients: bool, order: Any
) -> None:
    x = torch.randn([7, 4, 5]).permute(order).requires_grad_(gradients)
    x = x.detach().requires_grad_(gradients)
    found = check(pool, x)(x)
    assert found.stride() == pool(x).stride()


@pytest.mark.parametrize("spatial", [1, 2, 3])
def test_pools_turned_around(spatial: int) -> None:
    pool = getattr(functional, f"max_pool{spatial}d")
    unpool = getattr(functional, f"max_unpool{spatial}d")
    x = _differentiable(2, 3, *[4, 7, 5][:spatial])

    def program(x: Any) -> Any:
        return unpool(*pool(x * 2, 2, return_indices=True), 2, output_size=x.shape) * x

    check(program, x)


@pytest.mark.parametrize("spatial", [2, 3])
def test_fractional_pools(spatial: int) -> None:
    pool = getattr(functional, f"fractional_max_pool{spatial}d")
    x, places = _differentiable(2, 3, *[4, 7, 5][:spatial]), torch.rand(2, 3, spatial)
    check(lambda x, s: pool(x * 2, 2, 2, _random_samples=s) * 2, x, places)
    # Whatever is drawn, a gradient goes to the elements that were chosen.
    compiled = jit(lambda x: pool(x * 2, 2, 2, return_indices=True))
    found, chosen = compiled(x)
    (gradient,) = torch.autograd.grad(found.sum(), [x])
    flat = x.detach().flatten(2)
    assert torch.equal(found.flatten(2), flat.gather(2, chosen.flatten(2)) * 2)
    expected = torch.zeros_like(flat).scatter_add(2, chosen.flatten(2), found.flatten(2) * 0 + 2)
    assert torch.equal(gradient.flatten(2), expected)


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_ctc_loss_by_name_and_by_number(reduction: str) -> None:
    number = {"none": 0, "mean": 1, "sum": 2}[reduction]
    x, lengths = _differentiable(6, 2, 4), torch.tensor([6, 5])
    targets, counts = torch.tensor([[1, 3], [2, 2]]), torch.tensor([2, 1])

    def named(x: Any, *rest: Any) -> Any:
        return functional.ctc_loss(x.log_softmax(-1), *rest, reduction=reduction) * 2

    def numbered(x: Any, *rest: Any) -> Any:
        return torch.ctc_loss(x.log_softmax(-1), *rest, 0, number) * 2

    check(named, x, targets, lengths, counts)
    check(numbered, x, targets, lengths, counts)
