"""Empty dictionaries are false in one step; what a function does and checks is as before."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Mapping

import pytest
import thunder
import torch
from thunder.core import jit_ext

from tests.frontends.thunder.programs import jit
from thunder_fuser.frontends.thunder.patches.interpreter import module_hooks


def scaled(x: torch.Tensor, scales: Mapping[str, float]) -> torch.Tensor:
    if scales:
        x = x * scales["a"]
    return x.exp()


def prologue(function: object, *args: object) -> list[str]:
    """The lines that check inputs, without the time that making them took, and without the numbers
    of guarded values, which count all names of the trace.
    """
    compiled = jit(function)
    compiled(*args)
    text = re.sub(r"given\d+", "given", str(thunder.last_prologue_traces(compiled)[-1]))
    return [line for line in text.splitlines() if not line.startswith("#")]


@pytest.mark.parametrize("scales", [OrderedDict(), OrderedDict(a=2.0), {}], ids=str)
def test_dictionaries_of_the_caller_are_checked_as_before(
    scales: Mapping[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = prologue(scaled, torch.ones(3), scales)
    monkeypatch.setitem(jit_ext._general_jit_lookaside_map, bool, module_hooks._original)
    assert found == prologue(scaled, torch.ones(3), scales)


def test_a_module_is_checked_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU())
    found = prologue(model, torch.ones(2, 3))
    monkeypatch.setitem(jit_ext._general_jit_lookaside_map, bool, module_hooks._original)
    assert found == prologue(model, torch.ones(2, 3))


def test_a_dictionary_that_is_filled_meanwhile_is_true() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        seen: OrderedDict[str, int] = OrderedDict()
        if seen:
            x = x + 1
        seen["a"] = 1
        return x * 2 if seen else x

    x = torch.ones(3)
    assert torch.equal(jit(function)(x), 2 * x)


def test_hooks_of_a_module_run() -> None:
    model = torch.nn.Linear(3, 3)
    model.register_forward_hook(lambda module, args, result: result * 2)
    x = torch.randn(2, 3)
    with torch.no_grad():
        assert torch.allclose(jit(model)(x), model(x))


def test_a_module_is_traced_in_few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty dictionary of hooks takes no call of an interpreted function."""
    asked: list[object] = []

    def original(value: object) -> object:
        asked.append(value)
        return kept(value)

    kept = module_hooks._original
    monkeypatch.setattr(module_hooks, "_original", original)
    model = torch.nn.Sequential(*(torch.nn.Linear(3, 3) for _ in range(4)))
    jit(model)(torch.ones(2, 3))
    assert [v for v in asked if isinstance(getattr(v, "value", v), OrderedDict)] == []
