"""Code that asks for the dtype of a tensor takes the branch that it takes in eager torch."""

from __future__ import annotations

from typing import Any

import pytest
import thunder
import torch
from thunder.core import dtypes

from tests.frontends.thunder.programs import jit

DTYPES = [torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.bool]


def branches(x: torch.Tensor) -> list[Any]:
    return [
        x * 2 if x.dtype == torch.bfloat16 else x * 3,
        x * 2 if torch.float32 == x.dtype else x * 3,
        x * 2 if x.dtype != torch.bool else x.float(),
        x * 2 if x.dtype in (torch.float16, torch.bfloat16, torch.int64) else x * 3,
        x * 2 if x.dtype == x.float().dtype else x * 3,
        x * 2 if x.sum().dtype == torch.int64 else x * 3,
        x.dtype == torch.get_default_dtype(),
    ]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_branch_of_eager_code_is_compiled(dtype: torch.dtype) -> None:
    x = torch.tensor([0, 1, 1]).to(dtype)
    for found, expected in zip(jit(branches)(x), branches(x), strict=True):
        assert type(found) is type(expected)
        if isinstance(expected, torch.Tensor):
            assert found.dtype == expected.dtype
            assert torch.equal(found, expected)
        else:
            assert found == expected


def test_elsewhere_thunder_compares_as_before() -> None:
    assert dtypes.float32 != torch.float32
    compiled = thunder.jit(lambda x: x.dtype == torch.float32, executors=[])
    assert compiled(torch.ones(2)) is False
