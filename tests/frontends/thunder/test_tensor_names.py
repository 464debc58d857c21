"""Names of arguments: whatever the keys that lead to them, each is one tensor's."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tests.frontends.thunder.programs import jit


def test_paths_that_spell_one_name() -> None:
    def program(held: Any) -> Any:
        return held["a"]["b"] * 2 + held["a_b"] * 5 + held["a.b"] * 7 + held["a b"] * 11

    held = {"a": {"b": 1.0}, "a_b": 2.0, "a.b": 3.0, "a b": 4.0}
    tensors = {key: torch.ones(2) for key in held} | {"a": {"b": torch.zeros(2)}}
    compiled = jit(program)
    for k in range(2):
        tensors["a_b"] = torch.full((2,), k + 3.0)
        assert torch.equal(compiled(tensors), program(tensors))


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.a_b = nn.Linear(2, 2), nn.Linear(2, 2)
        self.a.b_weight = nn.Parameter(torch.randn(2, 2))

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.a(x) + self.a_b(x) @ self.a.b_weight
        return found


def test_parameters_that_spell_one_name() -> None:
    module, x = Nested(), torch.randn(3, 2)
    compiled = jit(module)
    found, expected = (
        [y, *torch.autograd.grad(y.pow(2).sum(), list(module.parameters()))]
        for y in (compiled(x), module(x))
    )
    torch.testing.assert_close(found, expected)


def test_keys_that_are_no_identifiers() -> None:
    keys = ("layer.0.weight", "x-y", "1", "", "é", "a'b", 'a"b', "lambda", "None", "t_0_x")
    held = {key: torch.full((2,), k + 1.0) for k, key in enumerate(keys)}
    compiled = jit(lambda held: [value * 2 for value in held.values()])
    assert all(map(torch.equal, compiled(held), [value * 2 for value in held.values()]))
