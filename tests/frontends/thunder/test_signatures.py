"""Signatures of regions: of one signature are equal fusions, and only these."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import thunder
import torch
from thunder.core.trace import TraceCtx
from torch.nn import functional

import thunder_fuser
from tests.frontends.thunder.training_blocks import Llama, batch
from thunder_fuser.frontends.thunder.call import FusionCall
from thunder_fuser.frontends.thunder.symbol import call_of


def calls_of(f: Callable[..., Any], *inputs: Any) -> list[FusionCall]:
    """The fusions of a function, forward and backward, of which nothing runs."""
    compiled = thunder.jit(f, executors=[thunder_fuser.executor])
    entry, _, _ = thunder.compile_data(compiled).get_computation_and_inputs(*inputs)
    traces: list[TraceCtx] = [entry.computation_traces[-1], *entry.backward_traces[-1:]]
    found = [call_of(bsym) for trace in traces for bsym in trace.bound_symbols]
    return [call for call in found if call is not None]


def signature(f: Callable[..., Any], *inputs: Any) -> Any:
    (call,) = calls_of(f, *inputs)
    assert call._program is not None
    return call._program.signature


def test_layers_are_built_once_and_keep_their_names() -> None:
    def layers(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        for _ in range(4):
            x = functional.gelu(x @ w + 1) * x
        return x

    calls = calls_of(layers, torch.randn(8, 8, requires_grad=True), torch.randn(8, 8))
    assert len({id(call.compiled) for call in calls}) < len(calls)
    assert all(call.fusion == call.compiled.fusion for call in calls)
    assert len({tuple(call.names().values()) for call in calls}) == len(calls)


X, Y = torch.linspace(-1, 1, 6).reshape(2, 3), torch.linspace(0, 1, 6).reshape(2, 3)

DIFFERENT: list[tuple[Callable[..., Any], tuple[Any, ...]]] = [
    (lambda x, y: x * 2 + y, (X, Y)),
    (lambda x, y: x * 3 + y, (X, Y)),
    (lambda x, y: x * 2 + x, (X, Y)),
    (lambda x, y: y * 2 + x, (X, Y.double())),
    (lambda x, y: x * 2 + y, (X.half(), Y.half())),
    (lambda x, y: x * 2 + y, (X[:1], Y[:1])),
    (lambda x, y: torch.where(x > 0, 0.0, y), (X, Y)),
    (lambda x, y: torch.where(x > 0, -0.0, y), (X, Y)),
    (lambda x, y: (x + y).sum(0), (X, Y)),
    (lambda x, y: (x + y).sum(1), (X, Y)),
    (lambda x, y: (x + y).sum(1, keepdim=True), (X, Y)),
    (lambda x, y: torch.cat([x, y + 1]), (X, Y)),
    (lambda x, y: torch.cat([y + 1, x]), (X, Y)),
    (lambda x, y: (x + 1, y + 1), (X, Y)),
    (lambda x, y: (y + 1, x + 1), (X, Y)),
    (lambda x, y: torch.logical_and(x + 1, y), (X, Y)),
    (lambda x, y: ((x + 1) != 0) & (y != 0), (X, Y)),
]


def test_other_programs_have_other_signatures() -> None:
    seen: dict[Any, Any] = {}
    for f, inputs in DIFFERENT:
        (call,) = calls_of(f, *inputs)
        assert call._program is not None
        known = seen.setdefault(call._program.signature, call.fusion)
        assert known == call.fusion
    assert len(seen) >= len(DIFFERENT) - 1  # results may be swapped without a difference


def test_names_make_no_difference() -> None:
    def one(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        return torch.tanh(first) * second

    def other(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        unused = a @ b.mT
        del unused
        return torch.tanh(a) * b

    assert signature(one, X, Y) == signature(other, X, Y) is not None


def test_regions_of_a_training_block_are_what_their_signatures_promise() -> None:
    torch.manual_seed(0)
    net = Llama()
    calls = calls_of(
        lambda x, *others: net(x, *others) + net(2 * x, *others), *batch(torch.float32, "cpu")
    )
    assert len({id(call.compiled) for call in calls}) < len(calls)
    for call in calls:
        assert call.fusion == call.compiled.fusion
