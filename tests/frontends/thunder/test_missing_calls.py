"""Functions, arguments and attributes of torch that Thunder does not know."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.frontends.thunder.programs import check, jit

FACTORS = {torch.float32: 2.0, torch.bfloat16: 3.0, torch.int64: 5.0}


def by_dtype(x: Tensor) -> list[Any]:
    return [
        x * (2 if x.dtype is torch.float32 else 3),
        x * FACTORS[x.dtype],
        x * FACTORS.get(x.sum().dtype, 7.0),
        x * (2 if x.dtype in {torch.bfloat16, torch.int64} else 3),
        x.float() * x.dtype.itemsize if x.dtype.is_floating_point else x * 4,
        torch.zeros(2, dtype=x.dtype) + torch.ones(2).to(x.dtype),
        str(x.dtype),
    ]


@pytest.mark.parametrize("dtype", FACTORS, ids=str)
def test_the_dtype_of_a_tensor_is_torchs(dtype: torch.dtype) -> None:
    x = torch.tensor([1, 2, 3]).to(dtype)
    for found, expected in zip(jit(by_dtype)(x), by_dtype(x), strict=True):
        assert type(found) is type(expected)
        if isinstance(expected, Tensor):
            assert found.dtype == expected.dtype
            assert torch.equal(found, expected)
        else:
            assert found == expected


def test_variances_by_unbiased() -> None:
    def program(x: Tensor) -> list[Tensor]:
        return [
            x.std(-1, unbiased=False),
            x.var(-1, False),
            x.var(1, True, True),
            torch.var(x, dim=0, unbiased=True, keepdim=True),
            torch.std(x, False),
            x.std(unbiased=True),
            x.var(0, keepdim=True),
            *torch.var_mean(x, -1, unbiased=False),
        ]

    torch.manual_seed(0)
    check(program, torch.randn(4, 6, requires_grad=True))


def test_new_tensors() -> None:
    def program(x: Tensor) -> list[Tensor]:
        same = torch.eye(4, dtype=torch.bool, device=x.device)
        return [
            x.masked_fill(same, 0.5),
            x[:, :3] + torch.eye(4, 3),
            torch.linspace(1e-4, 0.02, 11) * 2,
            torch.linspace(3, -1, steps=4, dtype=torch.float64) + 1,
            torch.linspace(2.5, 7, 1) * 1,
        ]

    check(program, torch.randn(4, 4))
    with pytest.raises(NotImplementedError, match="two numbers and an int"):
        jit(lambda x: torch.linspace(x.sum(), 1, 3))(torch.ones(3))


def test_dropout_in_place() -> None:
    def program(x: Tensor) -> Tensor:
        y = x * 2
        F.dropout(y, 0.5, training=True, inplace=True)
        return y + 1

    torch.manual_seed(0)
    x = torch.ones(1000, requires_grad=True)
    y = jit(program)(x)
    y.sum().backward()
    assert set(y.tolist()) == {1.0, 5.0}
    assert torch.equal(x.grad, y.detach() - 1)
    assert torch.equal(jit(lambda x: F.dropout(x * 2, 0.5, False, True))(x), x * 2)


def test_transformer_layers_serve() -> None:
    """In eager code whole layers are one kernel for inference, which no trace knows."""
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(16, 2, 24, batch_first=True).eval()
    net = torch.nn.TransformerEncoder(layer, 1, enable_nested_tensor=False).eval()
    x, padding = torch.randn(2, 5, 16), torch.arange(5).expand(2, -1) >= torch.tensor([[5], [3]])
    with torch.no_grad():
        found = jit(net)(x, src_key_padding_mask=padding)
        expected = net(x, src_key_padding_mask=padding)
    torch.testing.assert_close(found[~padding], expected[~padding])
