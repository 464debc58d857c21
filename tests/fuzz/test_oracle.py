"""The oracle's bounds where a result hangs on more digits than an operand has, and elsewhere."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.support import oracle
from thunder_fuser.frontends.definition import FusionDefinition

Body = Callable[[FusionDefinition, list], object]  # type: ignore[type-arg]

PERIODIC: dict[str, tuple[Body, float, float]] = {
    # A definition, an operand of which nothing is known of the result, and one of which it is.
    "frac": (lambda fd, x: fd.ops.frac(fd.ops.exp(x[0])), 16.0, 2.0),
    "sin": (lambda fd, x: fd.ops.sin(fd.ops.exp(x[0])), 18.0, 2.0),
    "cos": (lambda fd, x: fd.ops.cos(fd.ops.exp(x[0])), 18.0, 2.0),
    "remainder": (lambda fd, x: fd.ops.remainder(fd.ops.exp(x[0]), 0.75), 17.0, 2.0),
    "fmod": (
        lambda fd, x: fd.ops.fmod(fd.ops.exp(x[0]), fd.ops.exp(fd.ops.mul(x[0], 0.1))),
        *(20.0, 2.0),
    ),
}


def bound(body: Body, *given: Tensor) -> tuple[Tensor, Tensor]:
    """The result in float64, and how far from it a right answer may be."""
    with FusionDefinition() as fd:
        inputs = [fd.define_tensor(list(x.shape)) for x in given]
        fd.add_output(body(fd, inputs))
    (output,) = fd.fusion.plain.outputs
    truth = oracle.run(fd.fusion.plain, given)
    return truth.value(output), truth.error(output)


@pytest.mark.parametrize("name", PERIODIC)
def test_functions_of_numbers_that_may_be_off_by_a_period(name: str) -> None:
    body, lost, known = PERIODIC[name]
    _, error = bound(body, torch.full((3,), lost))
    assert bool((error > 0.25).all())
    _, error = bound(body, torch.full((3,), known))
    assert bool((error < 1e-3).all())


def test_products_below_the_least_number() -> None:
    """0 is right, and so is nothing else that fp32 can tell from it."""
    x, y = torch.full((2, 3), 1e-30), torch.full((3, 2), 1e-30)
    value, error = bound(lambda fd, x: fd.ops.matmul(x[0], x[1]), x, y)
    assert bool((value.abs() <= error).all())
    assert bool((error < 1e-43).all())
