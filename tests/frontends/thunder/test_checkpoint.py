"""`torch.utils.checkpoint`: what the backward computes again has the forward's names inside."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import thunder
import torch
import torch.nn.functional as F
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceCtx
from torch.utils.checkpoint import checkpoint

from tests.frontends.thunder.programs import jit
from thunder_fuser.config import options
from thunder_fuser.frontends.thunder import fusions
from thunder_fuser.frontends.thunder.fuser import Fuser
from thunder_fuser.frontends.thunder.trace.single_assignment import single_assignment

Tensors = list[torch.Tensor]


def again(function: Callable[..., Any], *inputs: Any) -> Any:
    return checkpoint(function, *inputs, use_reentrant=False)


def gradients(program: Callable[..., Any], inputs: Tensors) -> Tensors:
    """The result, then the gradients of its sum."""
    inputs = [x.detach().clone().requires_grad_(x.is_floating_point()) for x in inputs]
    result = program(*inputs)
    return [result, *torch.autograd.grad(result.sum(), [x for x in inputs if x.requires_grad])]


def test_a_softmax() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return again(lambda x: torch.softmax(x * 2, -1) * 3, x)  # type: ignore[no-any-return]

    x = [torch.randn(4, 5, dtype=torch.float64)]
    torch.testing.assert_close(gradients(jit(program), x), gradients(program, x))


def attention(x: torch.Tensor, weight: torch.Tensor, p: float) -> torch.Tensor:
    q, k, v = F.linear(F.layer_norm(x, x.shape[-1:]), weight).chunk(3, -1)
    scores = torch.softmax(q @ k.transpose(-1, -2) / 4, -1)
    return x + F.dropout(scores, p) @ v


def mlp(x: torch.Tensor, up: torch.Tensor, down: torch.Tensor, p: float) -> torch.Tensor:
    hidden = F.gelu(F.linear(F.rms_norm(x, x.shape[-1:]), up), approximate="tanh")
    return x + F.dropout(F.linear(hidden, down), p)


def blocks(depth: int, p: float, wrap: Callable[..., Any]) -> Callable[..., torch.Tensor]:
    """Two transformer blocks and a loss, inside `depth` checkpoints."""

    def block(x: torch.Tensor, qkv: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> Any:
        if depth == 3:
            return wrap(mlp, wrap(attention, x, qkv, p), up, down, p)
        return mlp(attention(x, qkv, p), up, down, p)

    def body(x: torch.Tensor, target: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        for _ in range(2):
            x = wrap(block, x, *weights) if depth > 1 else block(x, *weights)
        return F.cross_entropy(x.flatten(0, 1), target, reduction="none")

    return functools.partial(wrap, body)


def inputs_of_blocks() -> Tensors:
    shapes = [(2, 3, 8), (24, 8), (16, 8), (8, 16)]
    x, *weights = [torch.randn(s, dtype=torch.float64) / 2 for s in shapes]
    return [x, torch.tensor([0, 3, 7, 1, 1, 2]), *weights]


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_transformer_blocks(depth: int) -> None:
    program, inputs = blocks(depth, 0.0, again), inputs_of_blocks()
    with options(strict=True):
        found = gradients(jit(program), inputs)
    torch.testing.assert_close(found, gradients(program, inputs))


def test_transformer_blocks_with_dropout() -> None:
    # The same numbers are drawn whether something is computed again or not.
    inputs, found = inputs_of_blocks(), []
    for wrap in (again, lambda function, *inputs: function(*inputs)):
        torch.manual_seed(5)
        found.append(gradients(jit(blocks(3, 0.5, wrap)), inputs))
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("is_fused", [True, False], ids=["with-others", "alone"])
def test_random_numbers_are_those_of_the_forward(is_fused: bool) -> None:
    def inner(x: torch.Tensor) -> torch.Tensor:
        mask = torch.rand(5, 5, dtype=x.dtype)
        return x * (mask > 0.5) if is_fused else x @ mask

    x = torch.randn(5, 5, dtype=torch.float64)
    result, gradient = gradients(jit(lambda x: again(inner, x)), [x])
    # It is linear in x.
    torch.testing.assert_close((gradient * x).sum(), result.sum())


def test_what_is_computed_again_is_rounded_as_before() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return again(lambda x: F.gelu(x) * x, x)  # type: ignore[no-any-return]

    inputs = [torch.randn(64).bfloat16()]
    compiled = jit(program)
    plain = gradients(jit(lambda x: F.gelu(x) * x), inputs)
    torch.testing.assert_close(gradients(compiled, inputs), plain, rtol=0, atol=0)
    backward = fusions(compiled)[-1]
    assert {o.line for o in backward.origins} == {program.__code__.co_firstlineno + 1}


def joint_trace(program: Callable[..., Any], inputs: Tensors) -> TraceCtx:
    """What the fusion pass gets for a program."""
    seen: list[TraceCtx] = []

    class Watching(Fuser):
        def fusion_pass(self, trace: TraceCtx) -> TraceCtx:
            seen.append(trace)
            return trace

    gradients(thunder.jit(program, executors=[Watching("watching", "watched")]), inputs)
    return seen[0]


def names_given(trace: TraceCtx) -> list[str]:
    """Of what primitives give, once a primitive."""

    def of(bsym: Any) -> list[str]:
        if bsym.subsymbols:
            return [name for part in bsym.subsymbols for name in of(part)]
        read = {p.name for p in bsym.flat_proxy_args}
        return [p.name for p in bsym.flat_proxy_outs if p.name not in read]

    return [name for bsym in trace.bound_symbols for name in of(bsym)]


def test_every_definition_has_a_name_of_its_own() -> None:
    trace = joint_trace(blocks(3, 0.5, again), inputs_of_blocks())
    given = names_given(trace)
    assert len(set(given)) < len(given)
    renamed, originals = single_assignment(trace)
    given = names_given(renamed)
    assert len(set(given)) == len(given)
    assert set(originals) <= set(given)
    assert single_assignment(renamed) == (renamed, {})


def test_a_mistake_in_a_trace_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_a_definition(symbols: Sequence[BoundSymbol]) -> list[BoundSymbol]:
        return [b for b in symbols if b.sym.name != "matmul"]

    monkeypatch.setattr(sys.modules[Fuser.__module__], "live", without_a_definition)

    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.exp(torch.matmul(x * 2, x) + 1)

    x = [torch.randn(3, 3, dtype=torch.float64)]
    warned = pytest.warns(RuntimeWarning, match="is read before anything gives it")
    with options(strict=False), warned:
        found = gradients(jit(program), x)
    torch.testing.assert_close(found, gradients(program, x))
    with options(strict=True), pytest.raises(Exception, match="is read before anything gives it"):
        jit(program)(*x)
