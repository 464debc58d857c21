"""`nn.LSTM`, `nn.GRU` and `nn.RNN`, trained, and modules with parametrized weights."""

from __future__ import annotations

import copy

import pytest
import thunder
import torch
from torch import nn
from torch.nn.utils import parametrizations

from tests.frontends.thunder.programs import flat, jit

MODULES = {
    "LSTM": lambda: nn.LSTM(3, 4, 2, batch_first=True),
    "LSTM, projected": lambda: nn.LSTM(3, 4, proj_size=2),
    "GRU": lambda: nn.GRU(3, 4, bidirectional=True),
    "RNN": lambda: nn.RNN(3, 4),
    "weight norm": lambda: parametrizations.weight_norm(nn.Linear(3, 4)),
    "spectral norm": lambda: parametrizations.spectral_norm(nn.Linear(3, 4)),
}


@pytest.mark.parametrize("name", MODULES)
def test_training_steps(name: str) -> None:
    torch.manual_seed(0)
    module = MODULES[name]().double()
    eager, compiled = copy.deepcopy(module), jit(module)
    x = torch.randn(2, 5, 3, dtype=torch.float64)
    for step in range(3):
        for net, run in ((module, compiled), (eager, eager)):
            found = flat(run(x))
            sum(t.square().sum() for t in found).backward()
            net.last = [t.detach() for t in found]
        torch.testing.assert_close(module.last, eager.last)
        torch.testing.assert_close(list(module.buffers()), list(eager.buffers()))
        for own, theirs in zip(module.parameters(), eager.parameters(), strict=True):
            torch.testing.assert_close(own.grad, theirs.grad)
            # In place, then by another tensor.
            for p in (own, theirs):
                p.data = p.data - p.grad / 8 if step else p.data.sub_(p.grad / 8)
                p.grad = None
    assert thunder.cache_misses(compiled) == 1


def test_dropout_between_layers_is_refused() -> None:
    """Its gradient would run the layers again, with other random numbers."""
    module = nn.LSTM(3, 4, 2, dropout=0.5)
    x = torch.randn(5, 2, 3)
    with pytest.raises(NotImplementedError, match="draws random numbers"):
        jit(module)(x)
    module.eval()
    torch.testing.assert_close(jit(module)(x)[0], module(x)[0])
