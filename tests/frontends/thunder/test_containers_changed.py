"""Lists and dictionaries of the caller that a compiled function changes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import thunder
import torch
from torch import Tensor, nn

import thunder_fuser

Program = Callable[[Tensor, Any], Any]
GLOBAL: list[Tensor] = []


def append(x: Tensor, given: Any) -> Any:
    given["list"].append(x + 1)
    return x * 2


def assign(x: Tensor, given: Any) -> Any:
    given["list"].append(x + 1)
    given["list"][0] = x * 3
    given["list"].insert(0, 5)
    return sum(given["list"])


def key(x: Tensor, given: Any) -> Any:
    given["new"] = x + 1
    given["first"] = given["first"] + x
    return given["new"] * given["first"]


def delete(x: Tensor, given: Any) -> Any:
    del given["first"]
    last = given["list"].pop()
    return x * last


def the_same_list(x: Tensor, given: Any) -> Any:
    given["list"].append(x + 1)
    return given["list"]


PROGRAMS = [append, assign, key, delete, the_same_list]


def made() -> dict[str, Any]:
    return {"list": [torch.ones(3), torch.full((3,), 2.0)], "first": torch.full((3,), 7.0)}


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_containers_are_changed_as_in_python(program: Program) -> None:
    compiled = thunder.jit(program, executors=[thunder_fuser.executor])
    for k in range(2):
        x, ours, theirs = torch.randn(3) + k, made(), made()
        held = ours["list"]
        found = compiled(x, ours)
        torch.testing.assert_close(found, program(x, theirs))
        torch.testing.assert_close(ours, theirs)
        assert ours["list"] is held
    assert thunder.cache_misses(compiled) == 1


def test_a_list_that_grows() -> None:
    def run(x: Tensor) -> Tensor:
        GLOBAL.append(x.sum())
        return x * len(GLOBAL)

    compiled = thunder.jit(run, executors=[thunder_fuser.executor])
    GLOBAL.clear()
    x = torch.randn(4)
    for k in range(1, 4):
        torch.testing.assert_close(compiled(x), x * k)
        torch.testing.assert_close(GLOBAL, [x.sum()] * k)


def test_containers_of_a_module() -> None:
    class Keeping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.losses: list[Tensor] = []
            self.kept: dict[str, Tensor] = {}

        def forward(self, x: Tensor) -> Any:
            loss = self.linear(x).sum()
            self.losses.append(loss.detach())
            self.kept["x"] = x + 1
            return loss

    model = Keeping()
    eager = copy.deepcopy(model)
    compiled = thunder.jit(model, executors=[thunder_fuser.executor])
    for _ in range(3):
        x = torch.randn(2, 4)
        found, expected = compiled(x), eager(x)
        found.backward()
        expected.backward()
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(model.linear.weight.grad, eager.linear.weight.grad)
        torch.testing.assert_close(model.losses, eager.losses)
        torch.testing.assert_close(model.kept, eager.kept)


def test_a_trace_that_fails_changes_nothing() -> None:
    def run(x: Tensor, given: list[Tensor]) -> Tensor:
        given.append(x + 1)
        raise ValueError("no")

    given = [torch.ones(3)]
    with pytest.raises(ValueError, match="no"):
        thunder.jit(run, executors=[thunder_fuser.executor])(torch.ones(3), given)
    assert len(given) == 1
    assert isinstance(given[0], Tensor)
