"""`nn.MultiheadAttention` and the layers of transformers, in parts: numbers, gradients, strides."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.frontends.thunder.programs import as_double, assert_as_good_as_eager, flat, jit
from thunder_fuser import refusals

WIDTH, HEADS, QUERIES, KEYS, BATCH = 16, 4, 5, 3, 2
LATER = torch.ones(QUERIES, QUERIES).triu(1).bool()
PADDED = torch.arange(QUERIES).expand(BATCH, -1) >= torch.tensor([[5], [3]])


def attention(**options: Any) -> nn.Module:
    return nn.MultiheadAttention(WIDTH, HEADS, **options)


def numbers(*shape: int) -> Tensor:
    return torch.randn(*shape, requires_grad=True)


class OfItself(nn.Module):
    """Attention of a tensor to itself, with options of the call."""

    def __init__(self, made: Mapping[str, Any] | None = None, **options: Any) -> None:
        super().__init__()
        self.attention = attention(batch_first=True, **(made or {}))
        self.options = options

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        y = x * 1
        found: tuple[Tensor, Tensor | None] = self.attention(y, y, y, **self.options)
        return found


CASES: Mapping[str, Callable[[], tuple[nn.Module, tuple[Tensor, ...]]]] = {
    "itself": lambda: (OfItself(), (numbers(BATCH, QUERIES, WIDTH),)),
    "without weights": lambda: (
        OfItself(need_weights=False),
        (numbers(BATCH, QUERIES, WIDTH),),
    ),
    "causal": lambda: (
        OfItself(attn_mask=LATER, is_causal=True, need_weights=False),
        (numbers(BATCH, QUERIES, WIDTH),),
    ),
    "masks": lambda: (
        OfItself(attn_mask=LATER, key_padding_mask=PADDED, average_attn_weights=False),
        (numbers(BATCH, QUERIES, WIDTH),),
    ),
    "padding, without weights": lambda: (
        OfItself(key_padding_mask=PADDED, need_weights=False),
        (numbers(BATCH, QUERIES, WIDTH),),
    ),
    "a mask of each head": lambda: (
        OfItself(attn_mask=LATER.expand(BATCH * HEADS, -1, -1), need_weights=False),
        (numbers(BATCH, QUERIES, WIDTH),),
    ),
    "keys and values": lambda: (
        attention(),
        (numbers(QUERIES, BATCH, WIDTH), numbers(KEYS, BATCH, WIDTH), numbers(KEYS, BATCH, WIDTH)),
    ),
    "no batch, no bias": lambda: (
        attention(bias=False),
        (numbers(QUERIES, WIDTH), numbers(KEYS, WIDTH), numbers(KEYS, WIDTH)),
    ),
    "other widths": lambda: (
        attention(kdim=6, vdim=7),
        (numbers(QUERIES, BATCH, WIDTH), numbers(KEYS, BATCH, 6), numbers(KEYS, BATCH, 7)),
    ),
    "biases of keys and zeros": lambda: (
        attention(add_bias_kv=True, add_zero_attn=True),
        (numbers(QUERIES, BATCH, WIDTH), numbers(KEYS, BATCH, WIDTH), numbers(KEYS, BATCH, WIDTH)),
    ),
    "biases, masks, without weights": lambda: (
        OfItself(
            {"add_bias_kv": True, "add_zero_attn": True},
            attn_mask=LATER,
            key_padding_mask=PADDED,
            need_weights=False,
        ),
        (numbers(BATCH, QUERIES, WIDTH),),
    ),
    "encoder": lambda: (
        nn.TransformerEncoderLayer(WIDTH, HEADS, 24, dropout=0.0, batch_first=True),
        (numbers(BATCH, QUERIES, WIDTH),),
    ),
    "decoder, norms first": lambda: (
        nn.TransformerDecoderLayer(WIDTH, HEADS, 24, dropout=0.0, norm_first=True),
        (numbers(QUERIES, BATCH, WIDTH), numbers(KEYS, BATCH, WIDTH)),
    ),
}
TORCHS = {"linear", "matmul", "fuser_attention_forward", "fuser_attention_backward"}
# Each compiles for seconds; what is in others, too, runs in campaigns.
SELDOM = ("padding, without weights", "a mask of each head", "decoder, norms first")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.campaign] * (n in SELDOM)) for n in CASES]
)
def test_numbers_gradients_and_strides(name: str) -> None:
    torch.manual_seed(0)
    module, inputs = CASES[name]()
    compiled = jit(module)
    runs = [_run(compiled, module, inputs), _run(module, module, inputs)]
    exact = copy.deepcopy(module).double()
    runs.append(_run(exact, exact, [as_double(x) for x in inputs]))
    for k, (ours, eager, truth) in enumerate(zip(*runs, strict=True)):
        assert_as_good_as_eager(ours, eager, truth, f"result {k}", factor=4)
        assert ours.stride() == eager.stride()
    left = {r.subject for r in refusals(compiled) if r.code == "unclaimed"}
    assert left <= TORCHS


def _run(function: Any, module: nn.Module, inputs: Any) -> list[Tensor]:
    """Return results, then gradients of inputs and parameters."""
    results = flat(function(*inputs))
    seeds = [torch.linspace(-1, 2, t.numel()).view(t.shape).to(t.dtype) for t in results]
    return [
        *(t.detach() for t in results),
        *torch.autograd.grad(results, [*inputs, *module.parameters()], seeds),
    ]


def test_dropped_weights_are_those_that_are_returned() -> None:
    module = attention(dropout=0.5, bias=False)
    torch.nn.init.eye_(module.out_proj.weight)
    x = torch.randn(QUERIES, BATCH, WIDTH)
    result, weights = jit(module)(x, x, x, average_attn_weights=False)
    assert 0 < (weights == 0).sum() < weights.numel()
    values = (x @ module.in_proj_weight[2 * WIDTH :].t()).view(QUERIES, BATCH, HEADS, -1)
    expected = torch.einsum("bhqk,kbhd->qbhd", weights, values).reshape(result.shape)
    torch.testing.assert_close(result, expected)


def test_arguments_that_are_not_taken_apart_are_torchs() -> None:
    module = OfItself({"add_zero_attn": True}, attn_mask=LATER, is_causal=True, need_weights=False)
    x = torch.randn(BATCH, QUERIES, WIDTH)
    with torch.no_grad():
        compiled = jit(module)
        torch.testing.assert_close(compiled(x)[0], module(x)[0])
    assert "multi_head_attention_forward" in {r.subject for r in refusals(compiled)}
