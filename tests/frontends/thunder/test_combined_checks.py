"""One check for each object that a program reads, and one reading of each place."""

from __future__ import annotations

import math
import re
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
import thunder
import torch
from torch import Tensor, nn

import thunder_fuser
from tests.frontends.thunder.programs import jit


def statements(compiled: Any) -> list[str]:
    """The lines of the prologue that runs, without names of what they set."""
    lines = str(thunder.last_prologue_traces(compiled)[-1]).splitlines()
    lines = [line.strip() for line in lines if not line.strip().startswith("#")]
    return [re.sub(r"^[\w, ]+(: \"[^\"]*\")? = ", "", line) for line in lines if line]


class Block(nn.Module):
    def __init__(self, options: SimpleNamespace) -> None:
        super().__init__()
        self.linear, self.options, self.index = nn.Linear(4, 4), options, 3

    def forward(self, x: Tensor) -> Tensor:
        if hasattr(self.options, "shift") or "bias" in vars(self.options):
            x = x + 1
        y = self.linear(x) * self.options.scale * self.index
        return torch.sigmoid(y) if self.options.act == "sigmoid" else y * self.options.scale


def test_each_place_is_read_once_and_each_object_checked_once() -> None:
    options = SimpleNamespace(scale=2.0, act="none", eps=1e-5)
    model = nn.Sequential(*[Block(options) for _ in range(4)])
    compiled = jit(model)
    compiled(torch.randn(2, 4))
    found = statements(compiled)
    reads = [line for line in found if re.fullmatch(r"\w+(\.\w+|\[[^\]]+\])", line)]
    assert [line for line, count in Counter(reads).items() if count > 1] == []
    checked = Counter(re.findall(r"check_object\((\w+),", "\n".join(found), re.MULTILINE))
    assert checked
    assert max(checked.values()) == 1
    assert not any(line.startswith(("check_number", "check_string")) for line in found)


@pytest.mark.parametrize(
    "changed",
    [
        *({"scale": 3.0}, {"scale": 2}, {"act": "sigmoid"}, {"shift": 1}, {"bias": None}),
        *({"scale": math.nan}, {"scale": -2.0}, {"scale": True}),
    ],
    ids=str,
)
def test_a_program_is_compiled_for_each_constant(changed: dict[str, Any]) -> None:
    options = SimpleNamespace(scale=2.0, act="none")
    model = nn.Sequential(Block(options), Block(options))
    compiled, x = jit(model), torch.randn(2, 4)
    torch.testing.assert_close(compiled(x), model(x))
    vars(options).update(changed)
    for _ in range(2):
        torch.testing.assert_close(compiled(x), model(x), equal_nan=True)
    assert thunder.cache_misses(compiled) == 2


def test_zeros_of_both_signs_and_nan_are_compiled_once_each() -> None:
    options = SimpleNamespace(scale=0.0)
    compiled = jit(lambda x: torch.copysign(x, torch.tensor(options.scale)))
    for scale in (0.0, -0.0, math.nan, 0.0, -0.0, math.nan):
        options.scale = scale
        x = torch.rand(3) + 1
        expected = torch.copysign(x, torch.tensor(scale))
        torch.testing.assert_close(compiled(x), expected, rtol=0, atol=0)
    assert thunder.cache_misses(compiled) == 3


def test_what_is_deleted_and_other_types_are_misses() -> None:
    """What a check cannot look up is no constant of the program."""
    options: Any = SimpleNamespace(scale=2.0)
    compiled = jit(lambda x: x * getattr(options, "scale", 5.0))
    x = torch.randn(3)
    torch.testing.assert_close(compiled(x), x * 2)
    options.scale = torch.full((3,), 4.0)
    torch.testing.assert_close(compiled(x), x * 4)
    del options.scale
    torch.testing.assert_close(compiled(x), x * 5)


def test_symbolic_numbers_are_inputs() -> None:
    def f(x: Tensor, scale: float) -> Tensor:
        return x * scale

    compiled = thunder.jit(f, executors=[thunder_fuser.executor], cache="symbolic values")
    for scale in (2.0, 3.0):
        x = torch.randn(3)
        torch.testing.assert_close(compiled(x, scale), x * scale)
    assert thunder.cache_misses(compiled) == 1


def test_arguments_have_names_of_builtins() -> None:
    options = SimpleNamespace(scale=2.0, index=3, act="none")

    def f(type: Tensor, int: Tensor, str: Tensor, float: Tensor, getattr: Tensor) -> Tensor:
        y = type * int * options.scale + str * float * options.index
        return y if options.act == "none" else y * getattr

    compiled = jit(f)
    x = [torch.randn(3) for _ in range(5)]
    for act in ("none", "times", "none"):
        options.act = act
        torch.testing.assert_close(compiled(*x), f(*x))
    assert thunder.cache_misses(compiled) == 2
