"""Lists and dictionaries that a program changes after a call has been given them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.frontends.thunder.programs import check


def _index(x: Tensor, z: Tensor) -> Tensor:
    index = [0, 1]
    y = x[index]
    index[0] = 1
    return y + z


def _sizes(x: Tensor, z: Tensor) -> Tensor:
    sizes = [4, 2]
    y = x.reshape(sizes)
    sizes.reverse()
    return y.t() + z


def _dense_block(x: Tensor, z: Tensor) -> Tensor:
    """Each layer reads the results of all before it, as in DenseNet."""
    states = [x]
    for _ in range(3):
        states.append(torch.cat(states, 1)[:, :2] * z.sum())
    return torch.cat(states, 1)


def _later(x: Tensor, z: Tensor) -> Tensor:
    states = [x]
    y = torch.cat(states)
    states.append(z)
    return y * z.sum()


def _nested(x: Tensor, z: Tensor) -> Tensor:
    parts = [x, z]
    index = [0, 1]
    y = torch.stack(parts)[:, index, 0]
    parts.clear()
    index.append(0)
    return y


def _keywords(x: Tensor, z: Tensor) -> Tensor:
    options = {"dim": [0], "keepdim": True}
    y = x.sum(**options)
    options["dim"].append(1)  # type: ignore[attr-defined]
    return y + z


@pytest.mark.parametrize(
    "program", [_index, _sizes, _dense_block, _later, _nested, _keywords], ids=lambda f: f.__name__
)
def test_a_call_has_the_list_as_it_was(program: Callable[[Tensor, Tensor], Tensor]) -> None:
    check(program, torch.randn(2, 4, requires_grad=True), torch.randn(2, 4, requires_grad=True))
