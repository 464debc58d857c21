"""Explicit RNG state: one draw from torch's generator per call of a trace, and stateless prims.

Thunder's own `replace_uniform` reads the generator once for each random tensor, which splits the
region around it, and does not support CPUs. Here a trace draws once for each device, before the
first fusion that needs it: a seed, and an offset for each random tensor. Both are numbers, so that
a backward which draws the same tensor again saves these instead of the tensor.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from thunder.core.devices import Device, to_torch_device
from thunder.core.prims import OpTags, PrimIDs, uniform_philox
from thunder.core.proxies import NumberProxy, numberproxy
from thunder.core.symbol import BoundSymbol, Symbol
from thunder.core.trace import TraceCtx, tracectx
from thunder.extend import FusionExecutor

from thunder_fuser.frontends.thunder.claims.random import NORMAL_PHILOX
from thunder_fuser.frontends.thunder.trace.origin import Recorded, is_backward
from thunder_fuser.runtime.generator import Seed, draw

_NAME = "fuser_draw"
_normal_philox = Symbol(NORMAL_PHILOX, id=NORMAL_PHILOX, is_prim=True)


def register(executor: FusionExecutor) -> Symbol:
    """Register and return the draw operator: (device, count) -> (seed, offset, ..), with `count`
    offsets.
    """

    def meta(device: Device, count: int) -> tuple[NumberProxy, ...]:
        return tuple(numberproxy(int, None) for _ in range(1 + count))

    symbol: Symbol = executor.register_operator(
        _NAME, meta=meta, fn=_draw, tags=(OpTags.RANDOM_OP,)
    )
    return symbol


def _draw(device: Any, count: int) -> tuple[Seed, ...]:
    where = device if isinstance(device, torch.device) else to_torch_device(device)
    seed, offset = draw(where, count)
    return (seed, *range(offset, offset + count))


class RngStates:
    """Collects the seeds and offsets of one trace."""

    def __init__(self, trace: TraceCtx, recorded: Recorded, symbol: Symbol) -> None:
        self._trace = trace
        self._recorded = recorded
        self._symbol = symbol
        self._seeds: dict[Device, NumberProxy] = {}
        self._offsets: dict[Device, list[NumberProxy]] = {}
        self._states: dict[str, tuple[NumberProxy, NumberProxy]] = {}

    def stateless(self, prim: BoundSymbol) -> BoundSymbol:
        """Return the prim, or its Philox form with seed and offset if it advances the generator.

        A backward that recomputes a part of the forward (`torch.utils.checkpoint`) gets the random
        numbers of the forward; new ones would give the gradient of another function.
        """
        match prim.sym.id:
            case PrimIDs.UNIFORM:
                shape, low, high = prim.args
                symbol, args = uniform_philox, (shape, float(low), float(high))
            case PrimIDs.RANDN:
                symbol, args = _normal_philox, prim.args
            case _:
                return prim
        seed, offset = self._state(prim)
        return prim.from_bsym(
            sym=symbol, args=args, kwargs={**prim.kwargs, "seed": seed, "offset": offset}
        )

    def _state(self, prim: BoundSymbol) -> tuple[NumberProxy, NumberProxy]:
        name, device = prim.output.name, prim.kwargs["device"]
        if is_backward(prim):
            first = self._states.get(self._recorded.first_name(name))
            if first is not None:
                return first
        with tracectx(self._trace):
            if device not in self._seeds:
                self._seeds[device] = numberproxy(int, None)
            offset = numberproxy(int, None)
        self._offsets.setdefault(device, []).append(offset)
        self._states[name] = state = (self._seeds[device], offset)
        return state

    def drawn(self, symbols: Sequence[BoundSymbol]) -> Iterator[BoundSymbol]:
        """Yield a trace's symbols with one draw per device before its first reader; offsets without
        a reader are not drawn.
        """
        read = {p.name for bsym in symbols for p in bsym.flat_proxy_args}
        left = dict(self._seeds)
        for bsym in symbols:
            reads = {p.name for p in bsym.flat_proxy_args}
            for device in [d for d, seed in left.items() if seed.name in reads]:
                offsets = [p for p in self._offsets[device] if p.name in read]
                output = (left.pop(device), *offsets)
                yield self._symbol.bind(device, len(offsets), output=output)
            yield bsym
