"""A memory budget: what the backward computes again so that the forward saves less."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import thunder
import torch
from torch import Tensor
from torch.nn import functional as F

import thunder_fuser
from tests.frontends.thunder.memory import halves
from tests.frontends.thunder.programs import check, fake, jit
from thunder_fuser.errors import FuserValueError
from thunder_fuser.frontends.thunder.plans.segmented import SegmentedTrace
from thunder_fuser.segment.regions.budget import Traded

LAYERS, WIDTH = 3, 1024


def normed(x: Tensor) -> Tensor:
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5)


def llama(x: Tensor, *weights: Tensor) -> Tensor:
    """Layers of a norm, attention and a gated product."""
    batch, length, width = x.shape
    for k in range(0, len(weights), 4):
        qkv, up, gate, down = weights[k : k + 4]
        q, key, v = F.linear(normed(x), qkv).view(batch, length, 3, 2, width // 2).unbind(2)
        q, key, v = q.transpose(1, 2), key.transpose(1, 2), v.transpose(1, 2)
        y = F.scaled_dot_product_attention(q, key, v, is_causal=True)
        x = x + y.transpose(1, 2).reshape(batch, length, width)
        h = normed(x)
        x = x + F.linear(F.silu(F.linear(h, gate)) * F.linear(h, up), down)
    return x


def shapes(layers: int, width: int, batch: int) -> list[tuple[int, ...]]:
    wide = 3 * width
    weights = [(wide, width), (wide, width), (wide, width), (width, wide)] * layers
    return [(batch, 16, width), *weights]


@cache
def planned(budget: float | None) -> tuple[SegmentedTrace, ...]:
    options = {} if budget is None else {"memory_budget": budget}
    function = jit(llama, **options)
    inputs = fake(*shapes(LAYERS, WIDTH, 256), dtype=torch.bfloat16, grad=True)
    thunder.compile_data(function).get_computation_and_inputs(*inputs)
    return thunder_fuser.segments(function)


def told(plans: tuple[SegmentedTrace, ...]) -> Traded:
    traded = plans[0].traded
    assert traded is not None
    return traded


def test_half_of_what_is_saved_is_half_of_what_saving_adds() -> None:
    """At the worst moment of forward and backward, beside arguments."""
    whole, half = planned(None), planned(0.5)
    assert half[0].saved_bytes <= whole[0].saved_bytes / 2
    added = [
        max(part.peak_bytes for part in plans) - plans[0].argument_bytes for plans in (whole, half)
    ]
    # A layer of three is worked on at a time.
    assert added[1] <= added[0] * (0.5 + 1 / LAYERS)
    traded = told(half)
    assert traded.saved == half[0].saved_bytes <= traded.budget
    assert traded.unbudgeted == whole[0].saved_bytes
    assert half[0].flops == whole[0].flops
    assert half[1].flops == whole[1].flops + traded.flops
    assert traded.seconds > 0
    text = str(half[1])
    assert f"{traded.saved:,} B saved for backward" in text
    assert "computed again" in text


def test_statistics_of_a_loss_are_counted() -> None:
    """Which no call of the program gives: its fusions save them."""

    def program(x: Tensor, w: Tensor, classes: Tensor) -> Tensor:
        return F.cross_entropy(F.linear(x, w), classes)

    inputs = fake((256, 64), (4096, 64), dtype=torch.bfloat16, grad=True)
    inputs += fake((256,), dtype=torch.int64)
    function = jit(program, memory_budget=1 << 40)
    thunder.compile_data(function).get_computation_and_inputs(*inputs)
    forward, _ = thunder_fuser.segments(function)
    traded = forward.traded
    assert traded is not None
    assert traded.saved == traded.unbudgeted == forward.saved_bytes
    # The logits, and a maximum and a sum for each row; the count of rows is a number.
    assert forward.saved_bytes - 256 * 4096 * 2 - 2 * 256 * 4 in range(9)


def test_norms_and_activations_go_before_products() -> None:
    names = {row.name for row in told(planned(0.8)).recomputed}
    assert "silu" in names
    assert "linear" not in names
    assert {row.name for row in told(planned(0.0)).recomputed} >= names | {"linear"}


def test_less_is_saved_and_more_is_computed_where_a_budget_is_lower() -> None:
    found = [told(planned(budget)) for budget in (0.8, 0.5, 0.0)]
    saved = [traded.saved for traded in found]
    assert saved == sorted(saved, reverse=True)
    assert saved[0] <= found[0].budget < found[0].unbudgeted
    assert saved[-1] == 0
    assert [t.seconds for t in found] == sorted(t.seconds for t in found)


@pytest.mark.parametrize("budget", [0.5, 0.0])
def test_gradients_are_what_they_were(budget: float) -> None:
    torch.manual_seed(0)
    scaled = [torch.randn(shape) / shape[-1] ** 0.5 for shape in shapes(2, 16, 2)]
    check(llama, *(x.requires_grad_() for x in scaled), memory_budget=budget)


def mlp(x: Tensor, w: Tensor) -> Tensor:
    return torch.relu(torch.relu(torch.sin(x) @ w) @ w)


def dropped(x: Tensor, w: Tensor) -> Tensor:
    """Random numbers are drawn once."""
    return F.dropout(torch.tanh(x @ w), 0.5) @ w


def updated(x: Tensor, w: Tensor) -> Tensor:
    """What is overwritten cannot be computed again from what was there."""
    y = torch.sin(x)
    y.mul_(w)
    return torch.exp(y @ w) * y


def views(x: Tensor, w: Tensor) -> Tensor:
    a, b = torch.tanh(x @ w).chunk(2, -1)
    return (torch.cat((b, a), -1).t().reshape(8, 8) @ w).exp()[:, :4] * a


@pytest.mark.parametrize("program", [mlp, updated, views])
@pytest.mark.parametrize("budget", [0, 0.5])
def test_programs_keep_their_results(program: Any, budget: float) -> None:
    torch.manual_seed(1)
    inputs = [torch.randn(8, 8, requires_grad=True) for _ in range(2)]
    check(program, *inputs, memory_budget=budget)


def test_what_is_random_is_not_drawn_again() -> None:
    x, w = (torch.randn(64, 64, requires_grad=True) for _ in range(2))
    function = jit(dropped, memory_budget=0)
    result = function(x, w)
    (gradient,) = torch.autograd.grad(result.sum(), w)
    # What was dropped is known by the result's second factor: of the identity it is the first.
    eye = torch.eye(64)
    shown = jit(lambda x, w: F.dropout(torch.tanh(x @ w), 0.5) @ eye, memory_budget=0)
    kept = shown(x, w)
    (found,) = torch.autograd.grad(kept.sum(), w)
    kinds = kept.detach() != 0
    expected = x.detach().t() @ (2 * kinds * (1 - torch.tanh(x @ w).detach() ** 2))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert gradient.shape == w.shape


def test_an_inference_has_no_budget() -> None:
    (half,) = halves(mlp, torch.randn(8, 8), torch.randn(8, 8), memory_budget=0.5)
    assert half.kernels > 0


@pytest.mark.parametrize("budget", [-1, 1.5, True, "half"])
def test_other_budgets_are_refused(budget: Any) -> None:
    # Also where a bug of ours would be replaced by torch.
    with thunder_fuser.options(strict=False), pytest.raises(FuserValueError, match="memory_budget"):
        jit(mlp, memory_budget=budget)(torch.randn(8, 8), torch.randn(8, 8))


def test_what_a_gradient_compares_for_equality_is_not_folded_again() -> None:
    """A maximum's gradient goes to the elements that are equal to it. Another kernel folds them in
    another order, and none was: the gradient was 0 (the fuzzer's program 661251).
    """

    def program(x: Tensor) -> Tensor:
        variance, _ = torch.var_mean(torch.softmax(x.permute(1, 0), 1), -2)
        return torch.max(variance)

    compiled = thunder.jit(program, executors=[thunder_fuser.executor], memory_budget=0)
    for seed in range(20):
        torch.manual_seed(seed)
        x = torch.randn(4, 8, requires_grad=True)
        (exact,) = torch.autograd.grad(program(x.double()), x)
        (found,) = torch.autograd.grad(compiled(x), x)
        assert torch.allclose(found, exact, atol=1e-6)
