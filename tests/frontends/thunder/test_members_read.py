"""Prologues that read members of modules by single names."""

from __future__ import annotations

import re
from typing import Any

import thunder
import torch
from thunder.core.transform_common import Transform
from torch import Tensor, nn

import thunder_fuser
from tests.frontends.thunder.programs import jit


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.BatchNorm1d(4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.norm(x)).relu()


def prologue(compiled: Any) -> str:
    return str(thunder.last_prologue_traces(compiled)[-1])


def model() -> nn.Module:
    return nn.Sequential(nn.Sequential(Block(), Block()), Block()).eval()


def test_each_member_is_one_step_from_its_module() -> None:
    module, x = model(), torch.randn(3, 4)
    compiled = jit(module)
    torch.testing.assert_close(compiled(x), module(x))
    text = prologue(compiled)
    assert not re.search(r"get_(parameter|buffer|submodule)\(", text)
    for name in ("weight", "bias", "running_mean"):
        assert len(re.findall(rf"= m\d+\['{name}'\]", text)) == (3 if "_" in name else 6)
    homes = re.findall(r"= (m\w*)\._modules", text)
    assert len(homes) == len(set(homes)) == 5  # The outermost, one inside, and three blocks.


def test_members_are_those_of_each_call() -> None:
    module, x = model(), torch.randn(3, 4)
    compiled = jit(module)
    for change in range(4):
        if change == 1:
            module[1].linear.weight = nn.Parameter(torch.eye(4))
        elif change == 2:
            module[0][1].norm.running_mean = torch.ones(4)
        elif change == 3:
            module[0][0] = nn.Tanh()
        torch.testing.assert_close(compiled(x), module(x))
    assert thunder.cache_misses(compiled) == 2


def test_modules_with_transforms_are_asked_by_whole_names() -> None:
    """Transforms replace parameters of the compiled module."""

    class Doubled(Transform):  # type: ignore[misc]
        def transform_module(self, module: Any) -> None:
            weight = module.get_parameter("1.linear.weight")
            module._overrides_parameters["1.linear.weight"] = nn.Parameter(weight.detach() * 2)

    module, x = model(), torch.randn(3, 4)
    compiled = thunder.jit(module, executors=[thunder_fuser.executor], transforms=[Doubled()])
    found = compiled(x)
    with torch.no_grad():
        module[1].linear.weight.mul_(2)
    torch.testing.assert_close(found, module(x))
    assert "get_parameter('1.linear.weight')" in prologue(compiled)
