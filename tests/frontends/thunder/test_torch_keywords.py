"""Arguments by torch's names, and by NumPy's, which torch takes, too."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.frontends.thunder.programs import jit
from thunder_fuser import options

X = torch.arange(12.0).reshape(3, 4) - 5.5

CALLS: dict[str, Callable[[Tensor], Tensor | tuple[Tensor, ...]]] = {
    "sums": lambda x: (
        torch.sum(input=x, dim=-1),
        torch.sum(x, axis=0),
        x.sum(axis=-1, keepdims=True),
        x.mean(axis=1),
        torch.amax(x, axis=1, keepdim=True),
        torch.var(input=x, dim=1),
        torch.argmax(input=x, dim=1),
        x.argmin(axis=0),
        torch.any(input=x > 0, dim=1),
        torch.cumsum(input=x, dim=1),
    ),
    "softmaxes": lambda x: (
        torch.softmax(input=x, dim=-1),
        F.softmax(input=x, dim=0),
        F.log_softmax(input=x, dim=-1),
        torch.logsumexp(input=x, dim=1),
        x.softmax(dim=0),
    ),
    "pointwise": lambda x: (
        torch.add(x, other=x),
        torch.add(input=x, other=2, alpha=3),
        x.mul(other=2),
        torch.maximum(input=x, other=-x),
        torch.eq(x, other=0.5),
        torch.exp(input=x),
        F.gelu(input=x, approximate="tanh"),
        F.silu(input=x),
        torch.clamp(input=x, min=0),
        torch.where(condition=x > 0, input=x, other=-x),
        torch.pow(input=x, exponent=2),
        torch.pow(x, exponent=2),
    ),
    "views": lambda x: (
        torch.transpose(input=x, dim0=0, dim1=1),
        torch.reshape(input=x, shape=(4, 3)),
        torch.unsqueeze(x, dim=0),
        torch.permute(input=x, dims=(1, 0)),
        torch.flatten(input=x, start_dim=0),
        torch.cat(tensors=(x, x), dim=0),
        torch.cat((x, x), axis=1),
        torch.stack(tensors=(x, x)),
        x.transpose(dim0=0, dim1=1),
        x.flatten(end_dim=-1),
    ),
    "new": lambda x: (
        torch.full(size=(2,), fill_value=1.0) + x[0, :2],
        torch.zeros_like(input=x),
        torch.full_like(input=x, fill_value=2),
    ),
    "no memory to write to": lambda x: (
        torch.matmul(x, x.T, out=None),
        torch.add(x, x, out=None),
        torch.sum(x, 0, out=None),
        torch.max(x, 1, out=None).values,
        torch.cat([x, x], out=None),
        torch.zeros(4, out=None) + x,
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_calls_by_keyword(name: str) -> None:
    with options(strict=True):
        ours = jit(CALLS[name])(X)
    torch.testing.assert_close(ours, CALLS[name](X))


def test_a_keyword_that_torch_does_not_have_raises() -> None:
    with pytest.raises(TypeError, match="axes"):
        jit(lambda x: torch.sum(x, axes=1))(X)
