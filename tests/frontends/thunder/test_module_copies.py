"""Copies of compiled modules."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import thunder
import torch
from torch import nn

import thunder_fuser
from tests.frontends.thunder.programs import jit
from thunder_fuser.errors import FuserTypeError


def test_a_copy_is_compiled_anew() -> None:
    module = jit(nn.Sequential(nn.Linear(3, 4), nn.GELU()), memory_budget=0.5)
    x = torch.randn(2, 3)
    expected = module(x)
    saved = io.BytesIO()
    torch.save(module, saved)
    saved.seek(0)
    copies = [
        copy.deepcopy(module),
        pickle.loads(pickle.dumps(module)),
        torch.load(saved, weights_only=False),
    ]
    for other in copies:
        assert torch.equal(other(x), expected)
        assert thunder.compile_data(other).compile_options == {"memory_budget": 0.5}
        assert len(thunder_fuser.fusions(other)) == len(thunder_fuser.fusions(module))
        other(x).sum().backward()
    assert all(p.grad is None for p in module.parameters())


def test_averaged_weights() -> None:
    module = jit(nn.Linear(3, 4))
    averaged = torch.optim.swa_utils.AveragedModel(module)
    averaged.update_parameters(module)
    x = torch.randn(2, 3)
    assert torch.equal(averaged(x), module(x))


def test_transformed_modules_are_not_copied() -> None:
    module = jit(nn.Linear(3, 4))
    module._lc_transforms.append(object())
    with pytest.raises(FuserTypeError, match="state_dict"):
        copy.deepcopy(module)
