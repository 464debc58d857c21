"""Tensors without dimensions, in which torch sees one dimension, of one element."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.frontends.thunder.programs import jit

SHAPES: dict[str, Callable[[Tensor], Tensor]] = {
    "squeeze_(0)": lambda x: (x * 2).squeeze_(0),
    "squeeze_(-1)": lambda x: (x * 2).squeeze_(-1),
    "squeeze((0,))": lambda x: x.squeeze((0,)),
    "transpose_": lambda x: (x * 2).transpose_(0, -1),
    "swapaxes_": lambda x: (x * 2).swapaxes_(0, 0),
}


@pytest.mark.parametrize("name", SHAPES)
def test_changes_of_its_shape_that_keep_it(name: str) -> None:
    x = torch.tensor(3.0)
    torch.testing.assert_close(jit(SHAPES[name])(x), SHAPES[name](x))


WRITES: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "scatter_": lambda x, i, y: (x * 2).scatter_(0, i, y),
    "a number": lambda x, i, y: (x * 2).scatter_(0, i, 7.0),
    "scatter_add_": lambda x, i, y: (x * 2).scatter_add_(0, i, y),
    "index_copy_": lambda x, i, y: (x * 2).index_copy_(0, i, y),
}


@pytest.mark.parametrize("name", WRITES)
@pytest.mark.parametrize("of_one", [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2)], ids=str)
def test_writes_beside_tensors_of_one_element(name: str, of_one: tuple[int, ...]) -> None:
    """They raised where the three have not one rank."""
    made = (torch.tensor(3.0), torch.tensor(0), torch.tensor(5.0))
    given = [t.reshape(1) if k in of_one else t for k, t in enumerate(made)]
    expected = WRITES[name](*given)
    torch.testing.assert_close(jit(WRITES[name])(*given), expected)


@pytest.mark.parametrize("number", [0.0, 2.0, torch.inf, torch.nan])
@pytest.mark.parametrize("dims", [(), (0,)], ids=str)
def test_the_gradient_of_its_product_is_one(number: float, dims: tuple[int, ...]) -> None:
    """It was NaN of infinities and NaN."""
    x = torch.tensor(number, requires_grad=True)
    result = jit(lambda x: torch.prod(x, *dims))(x)
    assert torch.autograd.grad(result, x)[0].item() == 1.0


@pytest.mark.parametrize("smoothing", [0.0, 0.25])
def test_the_loss_of_one_class_that_is_certain_is_no_negative_zero(smoothing: float) -> None:
    def program(x: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        options = {"reduction": "none", "label_smoothing": smoothing}
        logarithms = torch.log_softmax(x, 0)
        return (
            torch.signbit(F.cross_entropy(x, target, **options)),
            torch.signbit(F.nll_loss(logarithms, target, reduction="none")),
        )

    given = torch.tensor([-2.0]), torch.tensor(0)
    assert jit(program)(*given) == program(*given) == (torch.tensor(False), torch.tensor(False))
