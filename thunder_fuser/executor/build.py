"""A region of primitives as a Fusion: every value that a kernel sees is made here.

Thunder's proxies decide dtypes and shapes.  A row of `ir/ops.py` computes 16-bit floats in fp32 and
says so in its result; the cast to what the proxy says is the rounding that torch does too.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from thunder.core.proxies import NumberProxy, Proxy, TensorProxy
from thunder.core.pytree import tree_map
from thunder.core.symbol import BoundSymbol

from thunder_fuser.errors import InternalError
from thunder_fuser.executor.claims.claim import Role
from thunder_fuser.executor.claims.operands import data_type, number_type
from thunder_fuser.executor.claims.table import TABLE
from thunder_fuser.executor.origin import origin_of
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.fusion import Fusion, TensorView, Val


def build(
    inputs: Sequence[Proxy],
    prims: Sequence[BoundSymbol],
    outputs: Sequence[Proxy],
    device: torch.device,
) -> Fusion:
    """The Fusion that computes `outputs` from `inputs`, in their order, by claimed primitives."""
    region = _Region(inputs, device)
    for prim in prims:
        region.add(prim)
    return region.finish(outputs)


class _Region:
    """Values by proxy name, and which of the inputs they update."""

    def __init__(self, inputs: Sequence[Proxy], device: torch.device) -> None:
        self._builder = FusionBuilder()
        self._values: dict[str, Val] = {}
        self._memory: dict[str, TensorView] = {}
        self._updated: dict[TensorView, TensorView] = {}
        for proxy in inputs:
            self._values[proxy.name] = self._input(proxy, device)

    def _input(self, proxy: Proxy, device: torch.device) -> Val:
        if isinstance(proxy, NumberProxy):
            return self._builder.scalar(None, number_type(proxy))
        view = self._builder.tensor(
            proxy.shape,
            data_type(proxy.dtype),
            # Thunder neither records strides nor checks them: each call brings its own.
            contiguity=[None if size == 1 else False for size in proxy.shape],
            is_cpu=proxy.device.type != device.type,
        )
        self._memory[proxy.name] = view
        return view

    def add(self, prim: BoundSymbol) -> None:
        """Append one primitive."""
        claim = TABLE[prim.sym.id]
        self._builder.origin = origin_of(prim)
        args, kwargs = tree_map(self._value, (prim.args, prim.kwargs))
        value = claim.build(self._builder, *args, **kwargs)
        out = prim.output
        wanted = data_type(out.dtype)
        if value.dtype is not wanted:
            value = self._builder.cast(value, wanted)
        if not isinstance(value, TensorView) or value.sizes != tuple(out.shape):
            raise InternalError(f"{prim.sym.name} gave {value}, but Thunder expects {out}")
        if claim.role is Role.UPDATE:
            self._update(prim.args[1], out, value)
        else:
            self._values[out.name] = value

    def _value(self, argument: object) -> object:
        if not isinstance(argument, Proxy):
            return argument
        memory = self._memory.get(argument.name)
        if memory is not None and memory in self._updated:
            return self._updated[memory]
        return self._values[argument.name]

    def _update(self, target: TensorProxy, out: TensorProxy, value: TensorView) -> None:
        # The result of an update is the updated tensor: from here on, both names show the value.
        memory = self._memory[target.name]
        self._memory[out.name] = memory
        self._updated[memory] = value

    def finish(self, outputs: Sequence[Proxy]) -> Fusion:
        """The fusion with these results, and with the last update of each input."""
        for proxy in outputs:
            value = self._value(proxy)
            assert isinstance(value, TensorView)
            self._builder.output(value)
        for memory, value in self._updated.items():
            self._builder.output(value, memory)
        return self._builder.build()
