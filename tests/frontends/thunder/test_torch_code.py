"""Functions of torch that are interpreted, and branches on values that they leave out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._dynamo.mutation_guard import GenerationTracker
from torch.distributions import Bernoulli, Categorical, Independent, Normal, kl_divergence

from tests.frontends.thunder.programs import Program, jit
from tests.support.shares import each_value

OPTIONS: dict[str, dict[str, Any]] = {
    "area": {"size": (5, 7), "mode": "area"},
    "area, a factor": {"scale_factor": 2, "mode": "area"},
    "bicubic": {"size": (5, 7), "mode": "bicubic"},
    "bicubic, factors": {"scale_factor": (1.5, 2.0), "mode": "bicubic", "align_corners": True},
    "bicubic, antialiased": {"size": (3, 4), "mode": "bicubic", "antialias": True},
    "bilinear, antialiased": {"size": (3, 4), "mode": "bilinear", "antialias": True},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_interpolations(name: str) -> None:
    def run(x: Tensor) -> Tensor:
        return F.interpolate(x.sin(), **OPTIONS[name]) * 2

    results = []
    for function in (jit(run), run):
        x = torch.arange(96.0).reshape(1, 2, 8, 6).requires_grad_()
        y = function(x)
        results.append([y, *torch.autograd.grad(y.square().sum(), x)])
    torch.testing.assert_close(*results)


def test_ranges_of_the_profiler() -> None:
    def run(x: Tensor) -> Tensor:
        with torch.profiler.record_function("first"):
            y = x * 2
        with torch.autograd.profiler.record_function("second"):
            return y.sin()

    x = torch.randn(5)
    compiled: Callable[[Tensor], Tensor] = jit(run)
    torch.testing.assert_close(compiled(x), run(x))


MASKS = {
    "causal": torch.ones(5, 5, dtype=torch.bool).triu(1),
    "added": torch.arange(25.0).view(5, 5).sin(),
}
MODULES: dict[str, Callable[[], nn.Module]] = {
    "encoder": lambda: nn.TransformerEncoder(
        nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0), 1, enable_nested_tensor=False
    ),
    "decoder": lambda: nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2, 12, dropout=0.0), 1),
}


@each_value(name=list(MODULES), mask=list(MASKS))
def test_masks_of_transformers_that_are_not_said_to_be_causal(name: str, mask: str) -> None:
    torch.manual_seed(0)
    module = MODULES[name]().double()
    inputs = [torch.randn(5, 2, 8, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    inputs = inputs[: 1 if name == "encoder" else 2]
    values = MASKS[mask] if mask == "causal" else MASKS[mask].double()
    found = []
    for run in (jit(module), module):
        result = run(*inputs, values)
        found.append([result, *torch.autograd.grad(result.sin().sum(), inputs)])
    torch.testing.assert_close(*found)


DISTRIBUTIONS: dict[str, Program] = {
    "normal": lambda x, y: Normal(x, y.exp()).log_prob(y),
    "independent": lambda x, y: Independent(Normal(x, y.exp()), 1).log_prob(y),
    "categorical": lambda x, y: Categorical(logits=x).log_prob(torch.zeros(4).long()) * y[:, 0],
    "entropy": lambda x, y: Categorical(logits=x).entropy() + y[:, 0],
    "bernoulli": lambda x, y: Bernoulli(logits=x).log_prob((y > 0).to(x.dtype)) * y,
    "divergence": lambda x, y: kl_divergence(Normal(x, y.exp()), Normal(torch.zeros_like(x), 1.0)),
}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_distributions(name: str) -> None:
    torch.manual_seed(0)
    x, y = (torch.randn(4, 3, dtype=torch.float64, requires_grad=True) for _ in range(2))
    found = []
    for run in (jit(DISTRIBUTIONS[name]), DISTRIBUTIONS[name]):
        result = run(x, y)
        found.append([result, *torch.autograd.grad(result.sum(), (x, y))])
    torch.testing.assert_close(*found)


def test_distributions_of_other_sizes_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    # torch.compile turns the checks off, for all that follows in a process.
    monkeypatch.setattr(torch.distributions.Distribution, "_validate_args", True)
    with pytest.raises(ValueError, match="not broadcastable"):
        jit(lambda x, y: Normal(x, 1.0).log_prob(y))(torch.ones(4), torch.ones(3))


def test_modules_made_behind_torch_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its tracer replaces `nn.Module.__init__`; the table of modules is not traced."""
    made = nn.Module.__init__

    def noting(self: nn.Module, *args: Any, **kwargs: Any) -> None:
        made(self, *args, **kwargs)
        GenerationTracker.tag(self)

    monkeypatch.setattr(nn.Module, "__init__", noting)
    kept = [nn.Identity() for _ in range(3)]
    before = len(GenerationTracker.generation_values.values)

    def run(x: Tensor) -> Tensor:
        distance: Tensor = nn.PairwiseDistance()(x, x * 2)
        return distance

    x = torch.randn(3, 4)
    found = jit(run)(x)
    assert len(GenerationTracker.generation_values.values) == before >= len(kept)
    torch.testing.assert_close(found, run(x))
