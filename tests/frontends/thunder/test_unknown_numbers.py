"""Numbers that are read of tensors, as by `x.item()`: computed with, and never guessed."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import thunder
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.frontends.thunder.programs import check, flat, jit

COUNTS = torch.tensor([3, 4])

COMPUTED: dict[str, Callable[[Tensor], Any]] = {
    "a product with a float": lambda x: x * x.sum().item() ** 2,
    "a product with an int": lambda x: x * COUNTS.sum().item(),
    "a quotient by an int": lambda x: x / COUNTS.sum().item(),
    "numbers of two types": lambda x: x * (COUNTS.sum().item() * 2 + x.sum().item() + 1.5),
    "minus an int": lambda x: x * -COUNTS.max().item(),
    "a bool": lambda x: x * (x > 0).all().item(),
    "a fill": lambda x: x.masked_fill(x > 0, x.max().item()),
    "a bound": lambda x: x.clamp(max=x.mean().item()),
    "a factor of terms": lambda x: torch.addcmul(x, x, x, value=x.sum().item()),
    "a tensor as a factor of terms": lambda x: torch.addcmul(x, x, x, value=x.sum()),
    "a tensor as a factor of quotients": lambda x: torch.addcdiv(x, x, x + 1, value=1 - x.sum()),
    "a full tensor": lambda x: torch.full((2,), COUNTS.sum().item()) + x.sum(),
    "a tensor of one": lambda x: torch.tensor(x.sum().item()) + x,
    "a tensor of a count": lambda x: torch.tensor(COUNTS.sum().item()) + x,
    "a tensor of a list": lambda x: torch.tensor([[x.sum().item(), 2], [COUNTS.sum().item(), 0]]),
    "a tensor of tensors": lambda x: torch.as_tensor([x.sum(), 2.0]) * x,
    "a tensor of a tensor": lambda x: torch.tensor(x.detach()) * x,
    "is there": lambda x: x * 2 if x.sum().item() is not None else x,
    "its type": lambda x: x * 2 if isinstance(x.sum().item(), float) else x,
    "the type of a count": lambda x: x if isinstance(COUNTS.sum().item(), float) else x * 3,
}

DECIDING: dict[str, Callable[[Tensor], Any]] = {
    "is positive": lambda x: x * 2 if x.sum().item() > 0 else x,
    "is not zero": lambda x: x * 2 if x.sum().item() != 0 else x,
    "is less, reversed": lambda x: x * 2 if x.sum().item() > 0 else x,
    "is between": lambda x: x * 2 if 0 < x.sum().item() < 9 else x,
    "is itself": lambda x: x * 2 if (n := x.sum().item()) == n else x,
    "is true": lambda x: x * 2 if (x > 0).any().item() else x,
    "is false": lambda x: x * 2 if not (x > 0).any().item() else x,
    "is True": lambda x: x * 2 if (x > 0).any().item() is True else x,
    "is not False": lambda x: x * 2 if False is not (x > 0).any().item() else x,
    "of arithmetic": lambda x: x * 2 if COUNTS.sum().item() * 2 - 1 > 0 else x,
    "a condition": lambda x: x * (x.sum().item() and 3),
    "a maximum": lambda x: x * max(x.sum().item(), 1.0),
    "a member": lambda x: x * 2 if COUNTS.max().item() in (1, 4) else x,
    "a size": lambda x: x.sum() + torch.zeros(int(COUNTS.max().item())),
    "a Python float": lambda x: x * float(x.sum().item()),
}


@pytest.mark.filterwarnings("ignore:To copy construct", "ignore:Converting a tensor")
@pytest.mark.parametrize("name", COMPUTED)
def test_it_is_computed_with(name: str) -> None:
    check(COMPUTED[name], torch.tensor([0.5, 1.25]))


@pytest.mark.parametrize("name", DECIDING)
def test_what_it_would_decide_raises(name: str) -> None:
    """These took the branch of a number that is None."""
    with pytest.raises(NotImplementedError, match="depends on a number that is read of a tensor"):
        jit(DECIDING[name])(torch.ones(2))


def test_conversions_are_printed_as_before() -> None:
    compiled = jit(lambda x: x.double() * 2)
    compiled(torch.ones(2))
    assert " = prims.convert_element_type(" in str(thunder.last_traces(compiled)[0])


def test_dtypes_that_a_trace_has_not_are_named() -> None:
    with pytest.raises(Exception, match=r"torch.uint16: a trace has no tensors of this dtype"):
        jit(torch.clone)(torch.ones(2).to(torch.uint16))


def test_unsigned_integers_of_64_bits_are_converted_and_moved() -> None:
    """`x.to(torch.uint64)` raised an unknown dtype, and arithmetic a KeyError."""
    wide = torch.tensor([1, 2, 2**63], dtype=torch.uint64)
    for program, x in (
        (lambda x: (x * 2).long().to(torch.uint64), torch.tensor([0.5, 1.25])),
        (lambda x: x.float() * 2, wide),
        (lambda x: x.view(torch.int64) + 1, wide),
        (lambda x: x[1:].clone(), wide),
    ):
        ours, eager = jit(program)(x), program(x)
        assert ours.dtype is eager.dtype
        assert ours.tolist() == eager.tolist()
    with pytest.raises(NotImplementedError, match=r"arithmetic of torch.uint64.*x\.to"):
        jit(lambda x: x * 2)(wide)


def test_an_array_of_numpy_is_copied() -> None:
    def program(x: Tensor) -> Tensor:
        return x * torch.tensor(np.arange(2)) + torch.tensor(np.ones((2, 2)), dtype=torch.float16)

    check(program, torch.tensor([0.5, 1.25]))


@pytest.mark.parametrize("data", [None, "text", {1, 2}])
def test_a_tensor_of_anything_else_raises(data: Any) -> None:
    with pytest.raises(NotImplementedError, match="make the tensor outside"):
        jit(lambda x: torch.tensor(data) + x)(torch.ones(2))


OPTIONS: dict[str, Callable[..., Any]] = {
    "celu": lambda x, n: F.celu(x, n),
    "alpha": lambda x, n: torch.add(x, x * x, alpha=n) + x.sub(x * x, alpha=n),
    "addmm": lambda x, n: torch.addmm(x, x, x, alpha=n, beta=n),
    "delta": lambda x, n: F.huber_loss(x, x * 2, delta=n) + F.smooth_l1_loss(x, x * 2, beta=n),
    "bounds": lambda x, n: (F.hardtanh(x, -n, n), F.softshrink(x, n), x.clamp(-n, n), x.clamp(n)),
    "nan": lambda x, n: torch.nan_to_num(x / x.detach().relu(), nan=n),
    "norm": lambda x, n: (torch.norm(x, p=n), torch.linalg.vector_norm(x, n), F.normalize(x, n)),
    "eps": lambda x, n: torch.logit(x.sigmoid(), eps=n) + F.layer_norm(x, (2,), eps=n),
    "quotient": lambda x, n: (
        x.detach() // n * x,
        torch.div(x.detach(), n, rounding_mode="floor") + x % n,
    ),
    "ends": lambda x, n: torch.linspace(0, n, 2) * torch.full((2,), n) * torch.tensor([n, 1.0]) * x,
    "slope": lambda x, n: F.leaky_relu(x, n) + F.elu(x, n) + torch.lerp(x, x * x, n),
    "quantile": lambda x, n: torch.quantile(x, n),
}
"""Where a decomposition asks for the number."""


@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_is_a_number_that_is_read(name: str) -> None:
    """The call is torch's, and so is its gradient; these raised."""
    x = torch.tensor([[0.5, 1.25], [-0.75, 2.0]], requires_grad=True)

    def program(x: Tensor, n: Tensor) -> Any:
        return OPTIONS[name](x, n.item())

    compiled = check(program, x, torch.tensor(0.25, dtype=torch.float64))
    for n in (0.5, 0.75):
        found = flat(compiled(x, torch.tensor(n))), flat(program(x, torch.tensor(n)))
        torch.testing.assert_close(*found)


SIZES: dict[str, Callable[..., Any]] = {
    "arange": lambda x, n: torch.arange(n),
    "repeat": lambda x, n: x.repeat(n, 1),
    "view": lambda x, n: x.view(n, -1),
    "topk": lambda x, n: x.topk(n),
    "narrow": lambda x, n: x.narrow(0, n, 1),
    "dropout": lambda x, n: F.dropout(x, n / 2),
    "add_": lambda x, n: (x * 1).add_(x, alpha=n),
}


@pytest.mark.parametrize("name", SIZES)
def test_a_call_that_cannot_take_the_number_is_named(name: str) -> None:
    with pytest.raises(NotImplementedError, match=f"{name}: its result depends on a number"):
        jit(lambda x, n: SIZES[name](x, n.item()))(torch.ones(4, 4), torch.tensor(1))


def test_a_method_that_thunder_takes_for_another_function() -> None:
    """`x.unfold(1, 2, 1)` is no `torch.nn.functional.unfold`."""
    check(lambda x: x.unfold(1, 2, 1) * 2, torch.randn(2, 4, 3))


NUMBERS: dict[str, tuple[Callable[..., Any], str]] = {
    "a format": (lambda x, n: (f"{n:.2f}", x), "format of '.2f': its result depends"),
    "a space": (lambda x, n: torch.logspace(0, n, 3), "logspace: its result depends"),
    "a width": (lambda x, n: F.pad(x, (int(n), 1)), "depends on a number"),
    "a width as it is": (lambda x, n: F.pad(x, (n, 1)), "pad: its result depends"),
    "rounded": (lambda x, n: x * round(n), "depends on a number"),
    "rounded to digits": (lambda x, n: x * round(n, 2), "depends on a number"),
    "a floor": (lambda x, n: x * math.floor(n), "depends on a number"),
    "a remainder": (lambda x, n: x * divmod(n, 2)[1], "depends on a number"),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_of_python_that_is_not_known_is_refused(name: str) -> None:
    program, message = NUMBERS[name]
    with pytest.raises(NotImplementedError, match=message):
        jit(lambda x, n: program(x, n.item()))(torch.ones(4, 4), torch.tensor(1.5))
