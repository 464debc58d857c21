"""Arguments of one storage beside updates in place: what they share may differ in each call."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import thunder
import torch

from tests.frontends.thunder.aliasing import interpreted
from tests.frontends.thunder.programs import flat, jit
from tests.support.shares import each_value

Way = Callable[[torch.Tensor], Sequence[torch.Tensor]]

WAYS: dict[str, Way] = {
    "apart": lambda b: (b[:6] * 1, b[10:16]),
    "rows": lambda b: (b[:6], b[10:16]),
    "neighbours": lambda b: (b[:6], b[6:12]),
    "turns": lambda b: (b[:12:2], b[1:12:2]),
    "one": lambda b: (b[:6],) * 2,
    "a view": lambda b: (b[:6], b[:6].view(2, 3).view(6)),
}


def first_is_updated(x: Any, y: Any) -> Any:
    x.mul_(2)
    return x * y + y


def both_are_updated(x: Any, y: Any) -> Any:
    x.mul_(2)
    y.add_(1)
    return x - y, x


def a_view_is_updated(x: Any, y: Any) -> Any:
    z = y * 3
    x[1:].add_(1)
    return z + y * x.sum()


def _ran(function: Any, ways: Sequence[str], grad: bool) -> list[torch.Tensor]:
    """Results, arguments, and gradients of results, of calls in turn."""
    found = []
    for way in ways:
        leaf = torch.linspace(-1, 2, 20, dtype=torch.float64).requires_grad_(grad)
        given = WAYS[way](leaf * 1)
        results = flat(function(*given))
        found += [x.detach().clone() for x in (*results, *given)]
        if grad:
            sum((x * (k + 1)).sin().sum() for k, x in enumerate(results)).backward()  # type: ignore[union-attr]
            assert leaf.grad is not None
            found.append(leaf.grad)
    return found


@each_value(program=[first_is_updated, both_are_updated, a_view_is_updated], grad=[False, True])
def test_calls_with_other_aliases(program: Any, grad: bool) -> None:
    ways = [way for way in WAYS if way != "a view" or not grad]
    for pair in itertools.combinations(ways, 2):
        calls = (*pair, pair[0])
        with interpreted():
            ours = _ran(jit(program), calls, grad)
        torch.testing.assert_close(ours, _ran(program, calls, grad), msg=str(calls))


def test_calls_that_share_alike_share_a_compilation() -> None:
    compiled = jit(first_is_updated)
    with interpreted():
        for way in ("rows", "neighbours", "turns", "rows", "one", "a view"):
            compiled(*WAYS[way](torch.ones(20)))
    assert thunder.cache_misses(compiled) == 2


def test_arguments_that_share_some_elements_are_refused() -> None:
    """Before anything is overwritten; also if those before shared none."""
    compiled, b = jit(first_is_updated), torch.ones(20)
    with interpreted():
        compiled(*WAYS["rows"](torch.ones(20)))
        with pytest.raises(NotImplementedError, match="share some elements"):
            compiled(b[:6], b[1:7])
    assert torch.equal(b, torch.ones(20))


class Counter(torch.nn.Module):
    """A running mean and a count, which the forward updates."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.linspace(0.5, 1.5, 4))
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.mean.mul_(0.5).add_(x.mean(0), alpha=0.5)
            self.steps += 1
        return (x - self.mean) * self.scale / self.steps


def _states(made: Callable[[Any], Any]) -> list[torch.Tensor]:
    """What is seen of a module from outside, between calls."""
    torch.manual_seed(0)
    module = Counter()
    called, found = made(module), []
    for k in range(5):
        x = torch.randn(3, 4)
        y = called(x)
        y.sin().sum().backward()
        found += [y, module.mean, module.steps, *called.state_dict().values()]
        found = [t.detach().clone() for t in found]
        if k == 1:
            called.load_state_dict({name: t * 2 for name, t in module.state_dict().items()})
        if k == 3:
            called = copy.deepcopy(called)
            found.append(called(x).detach())
    assert module.scale.grad is not None
    return [*found, module.scale.grad]


def test_buffers_between_calls() -> None:
    """They are read, loaded, and copied with the module."""
    for ours, eager in zip(_states(jit), _states(lambda module: module), strict=True):
        torch.testing.assert_close(ours, eager)
