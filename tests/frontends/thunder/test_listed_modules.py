"""Modules in lists and dictionaries that a module holds beside its submodules."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from tests.frontends.thunder.programs import jit

WIDTH = 4


class Listed(nn.Sequential):
    """Layers in a list, which are submodules, too; the last holds one that is none of its own."""

    def __init__(self) -> None:
        super().__init__()
        inner = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH))
        self.layers = [nn.Linear(WIDTH, WIDTH), nn.ReLU(), inner]
        self.named = {"last": nn.Linear(WIDTH, WIDTH)}
        for k, layer in enumerate(self.layers):
            self.add_module(str(k), layer)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        found: Tensor = self.named["last"](x)
        return found


@pytest.mark.parametrize("is_inner", [False, True])
def test_modules_in_a_list_train(is_inner: bool) -> None:
    listed = Listed()
    model: nn.Module = nn.Sequential(listed, nn.Linear(WIDTH, 2)) if is_inner else listed
    compiled, x = jit(model), torch.randn(5, WIDTH)
    linear, replaced = listed.layers[0], nn.Linear(WIDTH, WIDTH)
    for layer in (linear, linear, replaced):
        listed.layers[0] = layer
        gradients = []
        norm = listed.layers[2][1]
        before = norm.running_mean.clone()
        for net in (model, compiled):
            norm.running_mean.copy_(before)
            for held in (
                *model.parameters(),
                *layer.parameters(),
                *listed.named["last"].parameters(),
            ):
                held.grad = None
            result = net(x)
            result.pow(2).sum().backward()
            weights = (layer.weight, layer.bias, norm.weight, listed.named["last"].weight)
            gradients.append([result, norm.running_mean.clone(), *(w.grad for w in weights)])
        torch.testing.assert_close(gradients[1], gradients[0])
