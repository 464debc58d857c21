"""`x is y` of tensors: one tensor in two places is one, in each call as in eager code."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import thunder
import torch
from torch import Tensor, nn

from tests.frontends.thunder.programs import jit

KEPT = torch.ones(4)


def by_operator(x: Tensor, y: Tensor) -> Tensor:
    return x * 2 if x is y else x + y * 3


def by_its_negation(x: Tensor, y: Tensor) -> Tensor:
    return x + y * 3 if x is not y else x * 2


def by_function(x: Tensor, y: Tensor) -> Tensor:
    return x * 2 if operator.is_(x, y) else x + y * 3


def by_negated_function(x: Tensor, y: Tensor) -> Tensor:
    return x + y * 3 if operator.is_not(x, y) else x * 2


@pytest.mark.parametrize(
    "function", [by_operator, by_its_negation, by_function, by_negated_function]
)
def test_arguments_that_are_one_tensor_in_some_calls(function: Callable[..., Tensor]) -> None:
    a, b = torch.randn(4), torch.randn(4)
    compiled = jit(function)
    for x, y in ((a, b), (a, a), (b, b), (a, a.view(4)), (b, a), (a, a.detach()), (a, a)):
        assert torch.equal(compiled(x, y), function(x, y))
    # One program for one tensor, one for two, and one for two of one storage.
    assert thunder.cache_misses(compiled) == 3


def in_containers(x: Tensor, kept: dict[str, Any]) -> tuple[Tensor, bool]:
    query = kept["query"]
    return (x * 2 if query is x else query - x), all(t is x for t in kept["others"])


def test_tensors_in_containers() -> None:
    a, b = torch.randn(4), torch.randn(4)
    compiled = jit(in_containers)
    for x, query, others in ((a, a, [b, a]), (a, b, [a, a]), (a, a, [a, a]), (b, a, [a])):
        kept = {"query": query, "others": others}
        found, expected = compiled(x, kept), in_containers(x, kept)
        assert torch.equal(found[0], expected[0])
        assert found[1] == expected[1]


def with_a_global(x: Tensor) -> Tensor:
    return x * 2 if x is KEPT else x * 5


def test_a_global_tensor_that_is_given() -> None:
    compiled, other = jit(with_a_global), torch.ones(4)
    for x in (other, KEPT, other):
        assert torch.equal(compiled(x), with_a_global(x))


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        scale = 0.5 if self.head.weight is self.embedding.weight else 1.0
        return self.head(self.embedding(x)) * scale


def test_weights_that_are_tied_and_no_longer_tied() -> None:
    model, x = Tied(), torch.randn(3, 4)
    compiled = jit(model)
    for _ in range(2):
        compiled(x).sum().backward()
        found = [p.grad for p in model.parameters()]
        model.zero_grad()
        model(x).sum().backward()
        for a, p in zip(found, model.parameters(), strict=True):
            torch.testing.assert_close(a, p.grad)
        model.zero_grad()
        torch.testing.assert_close(compiled(x), model(x))
        model.head.weight = nn.Parameter(torch.randn(4, 4))


def test_the_gradient_of_one_tensor_given_twice() -> None:
    compiled = jit(by_operator)
    for same in (True, False, True):
        x = torch.randn(4, requires_grad=True)
        y = x if same else torch.randn(4, requires_grad=True)
        compiled(x, y).sum().backward()
        assert x.grad is not None
        assert torch.equal(x.grad, torch.full((4,), 2.0 if same else 1.0))


def returned_by_updates(x: Tensor, y: Tensor) -> list[bool]:
    total, row = x.add_(1), x[0]
    added = torch.add(x, 1, out=y)
    found = [total is x, total.mul_(2) is x, torch.relu_(y) is y, y.copy_(x) is y, added is y]
    return [*found, row.mul_(2) is row, row.mul_(2) is x, total is y, total is not x]


def returned_as_they_are(x: Tensor, y: Tensor) -> list[bool]:
    doubled = x * 2
    calls = [x.to(torch.float32), x.float(), x.cpu(), x.type_as(y), x.real, x.contiguous()]
    others = [x.detach(), x.view_as(x), x.reshape(x.shape), x.clone(), x.double(), x.permute(0, 1)]
    return [*(t is x for t in (*calls, *others)), doubled.contiguous() is doubled]


def returned_beside_updates(x: Tensor, y: Tensor) -> list[bool]:
    mean, variance = y[0], y[1].abs()
    normal = torch.nn.functional.batch_norm(x, mean, variance, training=True)
    return [normal is x, normal is mean, normal is variance, mean is y]


@pytest.mark.parametrize(
    "function", [returned_by_updates, returned_as_they_are, returned_beside_updates]
)
def test_what_calls_return(function: Callable[..., list[bool]]) -> None:
    compiled = jit(function)
    for x in (torch.randn(3, 3), torch.randn(3, 3).t(), torch.randn(3, 3)):
        y = torch.randn(3, 3)
        assert compiled(x.clone(), y.clone()) == function(x.clone(), y.clone())
        assert compiled(x, y) == function(x, y)


def of_what_is_updated(x: Tensor, y: Tensor) -> tuple[Tensor, bool, bool, bool, bool]:
    result = x.add_(1)
    return result, result is y, y is not result, x.float() is y, y.contiguous() is x.float()


def test_a_result_is_the_other_argument_where_both_are_one() -> None:
    compiled = jit(of_what_is_updated)
    for is_one in (True, False, True):
        found, expected = (
            f(x, x if is_one else torch.ones(4))
            for f, x in ((compiled, torch.ones(4)), (of_what_is_updated, torch.ones(4)))
        )
        assert found[1:] == expected[1:]
        assert torch.equal(found[0], expected[0])
