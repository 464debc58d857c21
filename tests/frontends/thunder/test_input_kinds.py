"""Tensors that are more than their elements: what is fused runs on them as Thunder runs it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import thunder
import torch
from torch.testing._internal.two_tensor import TwoTensor

from tests.frontends.thunder.programs import jit

pytestmark = pytest.mark.filterwarnings("ignore:Sparse CSR", "ignore:The PyTorch API of nested")

KINDS: dict[str, Callable[[], torch.Tensor]] = {
    "sparse": lambda: torch.eye(3).to_sparse(),
    "compressed": lambda: torch.eye(3).to_sparse_csr(),
    "mkldnn": lambda: torch.eye(3).to_mkldnn(),
    "subclass": lambda: TwoTensor(torch.eye(3), torch.eye(3) * 2),
}


@pytest.mark.parametrize("kind", KINDS)
def test_as_thunder_runs_it(kind: str) -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x * 2
        return y, y + x

    compiled = jit(program)
    expected = thunder.jit(program, executors=[])(KINDS[kind]())
    for _ in range(2):
        for found, wanted in zip(compiled(KINDS[kind]()), expected, strict=True):
            assert (type(found), found.layout) == (type(wanted), wanted.layout)
            torch.testing.assert_close(found.to_dense(), wanted.to_dense())
            if isinstance(found, TwoTensor):
                torch.testing.assert_close(found.b, wanted.b)


def test_gradients_of_sparse_tensors() -> None:
    x = torch.eye(3).to_sparse().requires_grad_()
    gradients = [
        torch.autograd.grad(run(x).to_dense().sum(), x)[0].to_dense()
        for run in (jit(lambda x: x * 2 * x), thunder.jit(lambda x: x * 2 * x, executors=[]))
    ]
    torch.testing.assert_close(*gradients)


def test_quantized_and_nested_tensors_are_refused_as_by_thunder() -> None:
    quantized = torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    for x in (quantized, nested):
        messages = []
        for compiled in (jit(torch.sin), thunder.jit(torch.sin, executors=[])):
            with pytest.raises(Exception) as caught:  # noqa: PT011 - Thunder's, whichever it is
                compiled(x)
            messages.append((caught.type, str(caught.value)[:60]))
        assert messages[0] == messages[1]
