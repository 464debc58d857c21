"""Tensors of NumPy's arrays, of the old types of tensors, and conversions to these."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.frontends.thunder.programs import flat, jit

TABLE = np.arange(6.0).reshape(2, 3)


class Scaled(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = np.ones(3, dtype=np.float32)

    def forward(self, x: Tensor) -> Any:
        scale = torch.as_tensor(self.scale, device=x.device, dtype=torch.float64)
        return x * torch.from_numpy(self.scale), x * scale, torch.tensor(self.scale)


ARRAYS: dict[str, Callable[[Tensor, Any], Any]] = {
    "shared": lambda x, a: (torch.from_numpy(a) * x, torch.as_tensor(a), torch.asarray(a) + x),
    "copied": lambda x, a: (torch.tensor(a) * x, torch.tensor(a, dtype=torch.float16)),
    "converted": lambda x, a: torch.as_tensor(a, dtype=torch.float32) * x,
    "global": lambda x, a: torch.from_numpy(TABLE) * x,
    "computed": lambda x, a: x + torch.from_numpy(np.hanning(x.shape[-1])),
    "in a list": lambda x, a: x * torch.from_numpy([a, a][1]),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_an_array_is_read_at_each_call(name: str) -> None:
    """`torch.from_numpy` raised, and `torch.tensor` had the numbers of the first call."""
    program, x, array = ARRAYS[name], torch.ones(3), np.ones(3)
    compiled = jit(program)
    for step in range(3):
        torch.testing.assert_close(flat(compiled(x, array)), flat(program(x, array)))
        array[step] = 7
        TABLE[0, step] += 1


def test_an_array_of_a_module() -> None:
    module, x = Scaled(), torch.ones(3)
    compiled = jit(module)
    for step in range(3):
        torch.testing.assert_close(flat(compiled(x)), flat(module(x)))
        module.scale[step] = 7
    module.scale = module.scale * 2
    torch.testing.assert_close(flat(compiled(x)), flat(module(x)))


def test_an_update_is_seen_in_the_array() -> None:
    def program(x: Tensor, array: Any) -> Tensor:
        shared, copied = torch.from_numpy(array), torch.tensor(array)
        shared.add_(x)
        copied.add_(5)
        return shared * copied

    found = []
    for function in (jit(program), program):
        array = np.ones(3)
        found.append((function(torch.ones(3), array), torch.tensor(array)))
    torch.testing.assert_close(*found)


@pytest.mark.parametrize(
    "kind",
    [
        *(torch.FloatTensor, torch.HalfTensor, torch.LongTensor, torch.BoolTensor, torch.Tensor),
        *("torch.HalfTensor", "torch.DoubleTensor", torch.int32),
    ],
)
def test_conversions_to_old_types(kind: Any) -> None:
    """`x.type(torch.FloatTensor)` raised: an object with an unknown type."""
    x = torch.tensor([0.0, 1.5, -2.0])
    ours, eager = (f(x) for f in (jit(lambda x: (x * 2).type(kind)), lambda x: (x * 2).type(kind)))
    assert ours.dtype is eager.dtype
    assert torch.equal(ours, eager)


def test_new_tensors_of_old_types() -> None:
    def program(x: Tensor) -> Any:
        chosen = x[torch.LongTensor([1, 0])]
        made = (
            torch.FloatTensor([1, 2, 3]),
            torch.ByteTensor([1, 2]),
            torch.Tensor([[1, 2], [3, 4]]),
        )
        return chosen, *made, torch.zeros(2, 3).copy_(torch.FloatTensor(2, 3).fill_(4)), x.type()

    x = torch.tensor([0.0, 1.5, -2.0])
    ours, eager = jit(program)(x), program(x)
    torch.testing.assert_close(flat(ours), flat(eager))
    assert ours[-1] == eager[-1]
