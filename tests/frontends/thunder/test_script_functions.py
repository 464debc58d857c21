"""Functions and modules of TorchScript in compiled functions."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.frontends.thunder.programs import check, jit


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_functions_are_interpreted_and_modules_refused() -> None:
    """Each aborted the process."""

    @torch.jit.script
    def scaled(x: Tensor, factor: int) -> Tensor:
        if x.size(-1) > 2:
            x = x * torch.sqrt(torch.tensor(x.size(-1), dtype=x.dtype) * factor)
        return x

    traced = torch.jit.trace(lambda x: x.cos() + 1, torch.ones(2))
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    check(lambda x: [scaled(x, 3), traced(x)], x)

    for module in (torch.jit.script(torch.nn.ReLU()), torch.jit.trace(torch.nn.ReLU(), x)):
        with pytest.raises(NotImplementedError, match="TorchScript, whose operations"):
            jit(lambda x, module=module: module(x))(x)
