"""Whole models, forward and backward: numbers against float64, and what is left to torch."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch

from benchmarks.models import kept
from tests.frontends.thunder.programs import as_double, jit
from tests.zoo.models import MODELS, Model, in_float64
from thunder_fuser import refusals

# Matrix products and what goes with them; writes at places that data decide; sorts.
TORCHS = {
    "linear",
    "matmul",
    "bmm (matmul)",
    "embedding_backward",
    "topk",
    "scatter_add",
    *(f"fuser_attention_{way}" for way in ("forward", "backward")),
    *(f"fuser_convolution{of}" for of in ("", "_input_gradient", "_weight_gradient")),
}


# Each compiles for seconds; the others run in campaigns.
ALWAYS = ("Mixtral-like", "ViT")
CASES = [
    pytest.param(m, cast, id=f"{m.name}{' autocast' * cast}", marks=marks)
    for cast, always in ((False, ALWAYS[:1]), (True, ALWAYS[1:]))
    for m in MODELS
    for marks in [[] if m.name in always else pytest.mark.campaign]
]


@pytest.mark.slow
@pytest.mark.parametrize(("model", "cast"), CASES)
def test_gradients_are_as_near_to_the_truth_as_in_eager(model: Model, cast: bool) -> None:
    """cast: under autocast, where products round to bf16"""
    torch.manual_seed(0)
    sizes = replace(model.small, layers=1)
    nets = [model.make(sizes)]
    nets += [copy.deepcopy(nets[0]), copy.deepcopy(nets[0]).double()]
    batch = model.batch(sizes, torch.float32, "cpu")
    compiled = jit(nets[0])
    with torch.autocast("cpu", torch.bfloat16, enabled=cast):
        losses = [compiled(*batch), nets[1](*batch)]
    with in_float64():
        losses.append(nets[2](*map(as_double, batch)))
    assert losses[0].dtype == losses[1].dtype == torch.float32
    least = 4 * torch.finfo(torch.bfloat16 if cast else torch.float32).eps
    for loss in losses:
        loss.backward()
    errors = []
    named = [list(net.named_parameters()) for net in nets]
    for (name, ours), (_, eager), (_, truth) in zip(*named, strict=True):
        size = truth.grad.norm()
        far, bar = ((p.grad.double() - truth.grad).norm() / size for p in (ours, eager))
        assert far <= 1.5 * bar + least, name
        errors.append((far, bar))
    ours_all, eager_all = torch.tensor(errors).norm(dim=0)
    assert ours_all <= 1.5 * eager_all
    for ours, eager in zip(nets[0].buffers(), nets[1].buffers(), strict=True):
        torch.testing.assert_close(ours, eager)
    left = {r.subject for r in refusals(compiled) if r.code == "unclaimed"}
    assert left <= TORCHS, left - TORCHS


@pytest.mark.slow
def test_our_share_of_what_no_product_moves() -> None:
    """Of a layer with experts; torch keeps the gradient of the words, which 12 layers share."""
    model = next(m for m in MODELS if m.name == "Mixtral-like")
    found = kept(model, layers=1)
    assert found["forward"].share >= 0.99
    assert found["backward"].others.keys() == {"embedding_backward", "scatter_add"}
    assert found["backward"].share >= 0.9
    assert all(passed.bytes <= 1.02 * passed.bytes_ideal for passed in found.values())
