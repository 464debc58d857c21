"""Tensors that are no arguments, in tuples and lists that calls replaced by ours are given."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from tests.frontends.thunder.programs import check, jit

Joined = Callable[[Sequence[Tensor]], Tensor]
CALLS: dict[str, Joined] = {
    "stack": torch.stack,
    "hstack": torch.hstack,
    "vstack": torch.vstack,
    "dstack": torch.dstack,
    "column_stack": torch.column_stack,
    "cat": torch.cat,
    "block_diag": lambda pair: torch.block_diag(*pair),
}


class Pair(torch.nn.Module):
    """Two parameters, joined."""

    def __init__(self, joined: Joined) -> None:
        super().__init__()
        self.joined = joined
        self.first, self.second = (torch.nn.Parameter(torch.randn(3, 4)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        return self.joined([self.first, self.second]) * x


@pytest.mark.parametrize("name", CALLS)
def test_parameters_in_a_list_are_read_anew_and_have_gradients(name: str) -> None:
    module = Pair(CALLS[name])
    eager, x = copy.deepcopy(module), torch.tensor(0.5)
    compiled = jit(module)
    for _ in range(2):
        compiled(x).square().sum().backward()
        eager(x).square().sum().backward()
        for own, theirs in zip(module.parameters(), eager.parameters(), strict=True):
            torch.testing.assert_close(own.grad, theirs.grad)
        with torch.no_grad():
            for own, theirs in zip(module.parameters(), eager.parameters(), strict=True):
                own.data, theirs.data = own.data - own.grad, theirs.data - theirs.grad


HELD = (torch.ones(3, 4), torch.zeros(3, 4))


@pytest.mark.parametrize("name", CALLS)
def test_tensors_of_a_global_tuple_are_read_anew(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def program(x: Tensor) -> Tensor:
        return CALLS[name](HELD) * x

    compiled, x = jit(program), torch.tensor(0.5)
    for _ in range(2):
        assert torch.equal(compiled(x), program(x))
        monkeypatch.setitem(globals(), "HELD", (HELD[0] + 1, HELD[1] + 2))


MASK = torch.tensor([True, False, True])
ROWS = (torch.tensor([0, 2]),)


def test_tensors_in_an_index() -> None:
    def program(x: Tensor) -> Tensor:
        y = x * 2
        y[(MASK,)] = 0.5
        return y[ROWS] + 1

    x = torch.randn(3, 4)
    assert torch.equal(jit(program)(x), program(x))


def set_columns(x: Tensor) -> Tensor:
    x = x.clone()
    x[:, range(2)] = 0
    return x


OF_OTHER_SEQUENCES: dict[str, Callable[[Tensor], Tensor]] = {
    "a tensor of a range": lambda x: torch.tensor(range(3, 7)) + x[0, 0],
    "a tensor of a range, with a step": lambda x: torch.as_tensor(range(5, 0, -2)) + x[0],
    "another tensor of a range": lambda x: x.new_tensor(range(3)) + x,
    "a tensor of a deque": lambda x: torch.tensor(deque([1, 2, 3])) + x,
    "an index": lambda x: x[:, range(2)] * 2,
    "an index that is written at": set_columns,
    "of sizes": lambda x: torch.tensor(range(x.shape[1])) * x,
}


@pytest.mark.parametrize("name", OF_OTHER_SEQUENCES)
def test_a_range_or_a_deque_is_taken_for_a_list(name: str) -> None:
    check(OF_OTHER_SEQUENCES[name], torch.rand(2, 3))


def test_a_range_that_is_an_argument_is_guarded() -> None:
    def program(x: Tensor, places: range) -> Tensor:
        return x[:, places] + torch.tensor(places)

    compiled, x = jit(program), torch.rand(2, 3)
    for places in (range(2), range(1, 3), range(3), range(2)):
        assert torch.equal(compiled(x, places), program(x, places))
