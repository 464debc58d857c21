"""Named tuples: those of torch's functions, of arguments and of results."""

from __future__ import annotations

from collections import namedtuple
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tests.frontends.thunder.programs import check, jit

Pair = namedtuple("Pair", "first second")


class Typed(NamedTuple):
    """Two tensors, by a class."""

    first: Tensor
    second: Tensor


def test_results_of_torch_functions_have_names() -> None:
    def program(x: Tensor) -> list[Tensor]:
        low, places = x.min(dim=-1)
        return [
            x.max(-1).values + torch.max(x, dim=1).values,
            x.topk(2).values * 2,
            x.sort(-1, descending=True).values[..., 0] + low,
            x.sort().indices + places[:, None],
            x.median(-1).values * x.kthvalue(2, -1).values,
            x.cummax(-1).values + 1,
            torch.linalg.qr(x).R.abs() + 0,
            x.argmax(-1),
        ]

    torch.manual_seed(0)
    check(program, torch.randn(4, 4, dtype=torch.float64, requires_grad=True))
    x = torch.randn(4, 4)
    found = jit(lambda x: x.topk(2))(x)
    assert type(found) is torch.return_types.topk
    assert torch.equal(found.indices, x.topk(2).indices)


def test_arguments_and_results() -> None:
    def program(pair: Pair, typed: Typed) -> tuple[Pair, list[Typed]]:
        pair = pair._replace(first=pair.first + 1)
        return Pair(pair.first * 2, typed), [Typed(first=typed.second, second=pair.second.exp())]

    tensors = torch.randn(4, 3, 2)
    given = Pair(*tensors[:2]), Typed(*tensors[2:])
    found, expected = jit(program)(*given), program(*given)
    assert type(found[0]) is Pair
    assert type(found[0].second) is Typed
    assert type(found[1][0]) is Typed
    torch.testing.assert_close(found[0].first, expected[0].first)
    torch.testing.assert_close(found[1][0].second, expected[1][0].second)
    assert torch.equal(found[0].second.second, given[1].second)


def test_those_of_the_caller_are_the_objects_that_it_has() -> None:
    """Also those that a program does not read, beside an element that it changes."""
    held: list[Any] = [Pair(1.0, 2.0), torch.Size([2, 3]), 0.0]

    def program(x: Tensor, given: Pair) -> tuple[Tensor, Pair]:
        held[2] = Pair(x * 2, given)
        return x * 3, given

    compiled = jit(program)
    for given in (Pair(3.0, 4.0), Pair(torch.ones(2), [5.0])):
        held[0] = kept = Pair(0.5, torch.ones(3))
        found, same = compiled(torch.ones(2), given)
        assert torch.equal(found, torch.full((2,), 3.0))
        assert same is given
        assert held[0] is kept
        assert held[1] == torch.Size([2, 3])
        assert type(held[2]) is Pair
        assert torch.equal(held[2].first, torch.full((2,), 2.0))
        assert held[2].second is given
