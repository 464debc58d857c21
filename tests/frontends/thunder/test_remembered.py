"""Proxies of a symbol, found in our own way: as Thunder finds them."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import thunder
import torch
from thunder.core.proxies import Proxy
from thunder.core.pytree import tree_flatten_with_dataclass
from thunder.core.symbol import BoundSymbol

import thunder_fuser
from thunder_fuser.frontends.thunder.remembered import look_through, proxies_in


@dataclass
class _Pair:
    first: object
    second: object


def _symbols(symbols: list[BoundSymbol]) -> list[BoundSymbol]:
    return [part for b in symbols for part in (b, *_symbols(b.subsymbols))]


def _proxies(count: int) -> list[Proxy]:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(x * k for k in range(count))

    compiled = thunder.jit(f, executors=[])
    compiled(torch.randn(2))
    symbols = thunder.last_traces(compiled)[0].bound_symbols
    return [p for b in symbols for p in b.flat_proxy_outs][-count:]


def test_proxies_of_containers_come_in_thunders_order() -> None:
    a, b, c = _proxies(3)
    trees: list[object] = [
        a,
        None,
        ((a, [b, 1, "x"], {"z": a, "a": (b,), "m": None}), {}),
        {"dtype": torch.float32, "size": torch.Size([2, 3]), "device": torch.device("cpu"), "k": c},
        (slice(a, None, b), c, ..., float, 1.5, True),
        (_Pair(b, [a]), torch.channels_last, thunder.dtypes.float32),
        ((), [], {}, [()]),
    ]
    for tree in trees:
        flat, _ = tree_flatten_with_dataclass(tree)
        expected = [x for x in flat if isinstance(x, Proxy)]
        assert [p.name for p in proxies_in(tree)] == [p.name for p in expected], tree


@pytest.mark.parametrize("executors", [[thunder_fuser.executor], []], ids=["ours", "torch's"])
def test_proxies_of_every_symbol_of_a_trace_are_those_that_thunder_finds(
    executors: list[object],
) -> None:
    def f(x: torch.Tensor, w: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        first, second = (x @ w).split(8, dim=-1)
        y = torch.nn.functional.layer_norm(first * torch.sigmoid(second), (8,))
        return torch.cat([y[:, ::2], y.index_select(1, k)], dim=1).sum(dim=[0], keepdim=True)

    compiled = thunder.jit(f, executors=executors)
    x, w = torch.randn(4, 8, requires_grad=True), torch.randn(8, 16, requires_grad=True)
    compiled(x, w, torch.tensor([1, 3]))
    traces = [*thunder.last_traces(compiled), *thunder.last_backward_traces(compiled)]
    seen = 0
    for bsym in (b for trace in traces for b in _symbols(trace.bound_symbols)):
        new = bsym.from_bsym()
        look_through([new])
        assert new.flat_proxy_args == bsym.from_bsym().flat_proxy_args
        assert new.flat_proxy_outs == bsym.from_bsym().flat_proxy_outs
        seen += len(new.flat_proxy_args)
    assert seen > 100
