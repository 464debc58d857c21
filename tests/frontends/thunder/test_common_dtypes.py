"""The dtype that a program reads of a tensor while it is traced is the one torch promotes to."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.frontends.thunder.programs import jit

DTYPES = (
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
    *(torch.complex64, torch.complex128),
)
OPERANDS = [torch.ones(shape, dtype=d) for d in DTYPES for shape in ((3,), ())]
NUMBERS = (True, 2, 2.0, 2j)


def test_of_every_pair() -> None:
    """`mask * 2` was int8 then, bytes times an int64 of no dimensions int16."""

    def products(tensors: list[Tensor]) -> tuple[Tensor, list[torch.dtype]]:
        found = [(a * b).dtype for a in tensors for b in (*tensors, *NUMBERS)]
        return tensors[0], found

    assert jit(products)(OPERANDS)[1] == products(OPERANDS)[1]


USES: dict[str, Callable[[Tensor, Tensor], object]] = {
    "to its dtype": lambda m, x: x.to((m + 1).dtype),
    "full_like": lambda m, x: torch.full_like(m * 2, 300),
    "new_full": lambda m, x: (m * 2).new_full((2,), 300),
    "its largest number": lambda m, x: x.long() + torch.iinfo((m * 1).dtype).max // 2,
    "a source": lambda m, x: torch.zeros(3, dtype=torch.int64).scatter_add(0, m * 1, m * 300),
    "its bytes": lambda m, x: (m * 1).view(torch.int32),
    "where": lambda m, x: x.to(torch.where(m, m, 2).dtype),
    "a sum with 16 bits": lambda m, x: x.to(torch.add(x.half(), m, alpha=0.5).dtype),
    "integers between floats": lambda m, x: x.to(F.hardtanh(x.int(), -1.0, 2.5).dtype),
    "integers between one": lambda m, x: x.to(F.hardtanh(x.int(), -0.5, 0.5).dtype),
    "bools between numbers": lambda m, x: torch.clamp(m, 0, 2).add_(300),
}


@pytest.mark.parametrize("name", USES)
def test_uses_of_it(name: str) -> None:
    m, x = torch.tensor([False, True, True]), torch.tensor([300.0, -5.0, 7.0])
    expected, found = USES[name](m, x), jit(USES[name])(m, x)
    assert isinstance(expected, Tensor)
    assert isinstance(found, Tensor)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
