"""Storages of a final trace: which tensors share memory, and its size.

For fusions the plan says so. Torch calls are run once on fake tensors, so that torch itself says
what is a view, the strides of results, and whether a reshape copies. Calls that cannot be run on
fake tensors (collectives, calls that need numbers) are taken to return new dense tensors.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from thunder.core.devices import to_torch_device
from thunder.core.dtypes import is_boolean_dtype, to_torch_dtype
from thunder.core.proxies import FutureTensorProxy, Proxy, TensorProxy
from thunder.core.pytree import tree_flatten
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceCtx, tracectx
from thunder.executors.torchex import ex as torch_executor
from torch._subclasses.fake_tensor import FakeTensorMode

from thunder_fuser.frontends.thunder.call import FusionCall
from thunder_fuser.frontends.thunder.claims.operands import is_static
from thunder_fuser.frontends.thunder.symbol import call_of
from thunder_fuser.frontends.thunder.trace.torch_work import bytes_of, orders_of
from thunder_fuser.ir.fusion import TensorView
from thunder_fuser.segment.placement import Buffer


class Storages:
    """Storages of a trace's tensors, by number, found symbol by symbol in execution order.

    sizes  bytes of each storage
    """

    def __init__(self, trace: TraceCtx) -> None:
        self.sizes: list[int] = []
        self._of: dict[str, int] = {}
        self._values: dict[str, torch.Tensor] = {}
        self._numbers: dict[int, int] = {}
        self._trace = trace
        # The source of a trace imports torch first.
        self._context = {"torch": torch, **trace.python_ctx()}
        self._mode = FakeTensorMode(allow_non_fake_inputs=True)

    def share(self, proxies: Iterable[Proxy], other: Storages) -> None:
        """Take over tensors of another trace, which may share storages."""
        self._mode = other._mode
        for proxy in proxies:
            if proxy.name in other._values:
                self._put(proxy, other._values[proxy.name])

    def of(self, proxies: Iterable[Proxy]) -> frozenset[int]:
        """Return the storages of tensors; one without a producer gets a new dense storage."""
        found = set()
        for proxy in proxies:
            if isinstance(proxy, (TensorProxy, FutureTensorProxy)):
                if proxy.name not in self._of:
                    self._make(proxy)
                found.add(self._of[proxy.name])
        return frozenset(found)

    def run(self, bsym: BoundSymbol) -> frozenset[int]:
        """Return the storages of a symbol's results, which it adds."""
        self.of(bsym.flat_proxy_args)
        call = call_of(bsym)
        if call is not None:
            self._fusion(call, bsym)
        elif orders := orders_of(bsym):
            for proxy, order in zip(bsym.flat_proxy_outs, orders, strict=False):
                self._make(proxy, order)
        else:
            for proxy, value in self._results(bsym):
                if isinstance(value, torch.Tensor):
                    self._put(proxy, value)
        return self.of(bsym.flat_proxy_outs)

    def _make(self, proxy: Proxy, order: Sequence[int] = ()) -> None:
        if not isinstance(proxy, TensorProxy) or not is_static(proxy.shape):
            self._of[proxy.name] = self._new(bytes_of(proxy))
            return
        with self._mode:
            device, dtype = to_torch_device(proxy.device), to_torch_dtype(proxy.dtype)
            # A result may have fewer dimensions than the table's row: torch's random state.
            order = order if len(order) == proxy.ndim else range(proxy.ndim)
            shape = [proxy.shape[dim] for dim in order]
            value = torch.empty(shape, dtype=dtype, device=device)
            value = value.permute([order.index(dim) for dim in range(proxy.ndim)])
        self._put(proxy, value)

    def _put(self, proxy: Proxy, value: torch.Tensor) -> None:
        storage = value.untyped_storage()
        number = self._numbers.get(storage._cdata)
        if number is None:
            number = self._numbers[storage._cdata] = self._new(storage.nbytes())
        # The value keeps its storage alive, so that its address is not reused.
        self._values[proxy.name] = value
        self._of[proxy.name] = number

    def _new(self, size: int) -> int:
        self.sizes.append(size)
        return len(self.sizes) - 1

    def _results(self, bsym: BoundSymbol) -> Iterator[tuple[Proxy, Any]]:
        """Yield the results of a torch call as fake tensors."""
        if bsym.sym.executor is not torch_executor or not _can_be_asked(bsym):
            return
        values: dict[str, Any] = {p.name: self._values.get(p.name) for p in bsym.flat_proxy_args}
        if any(value is None for value in values.values()):
            return
        if bsym.sym.name == "__getitem__":
            # A 0-dim integer index selects a view whatever its value, which is unknown here.
            indices = bsym.flat_proxy_args[1:]
            numbers = [p for p in indices if p.ndim == 0 and not is_boolean_dtype(p.dtype)]
            values |= {p.name: 0 for p in numbers}
        # The trace holds objects that its source cannot spell, such as a memory format, by name.
        with tracectx(self._trace):
            text = "\n".join(bsym.python(0, print_depth=1))
        self._context |= {known.name: known.obj for known in self._trace._object_ctx.values()}
        try:
            with self._mode, torch.no_grad():
                exec(text, self._context, values)
        except Exception:  # No fake tensor rule: results are taken to be new and dense.
            return
        for proxy in bsym.flat_proxy_outs:
            yield proxy, values.get(proxy.name)

    def _fusion(self, call: FusionCall, bsym: BoundSymbol) -> None:
        """Add the results of a fusion by the placement in its plan."""
        plan = call.plan()
        placement = plan.placement
        inputs = {
            value: proxy
            for value, proxy in zip(plan.fusion.inputs, bsym.args, strict=True)
            if isinstance(value, TensorView)
        }
        targets = {update.value: update.target for update in plan.fusion.updates}
        buffers: dict[TensorView, torch.Tensor] = {}
        with self._mode:
            for tensor, proxy in zip(plan.fusion.outputs, bsym.output, strict=False):
                if proxy is None:
                    continue
                target = targets.get(tensor)
                root = target if target is not None else placement.root(tensor)
                if root not in buffers and root in inputs:
                    given = self._values.get(inputs[root].name)
                    if given is None:
                        continue
                    buffers[root] = given
                elif root not in buffers:
                    place = placement.get(root)
                    size = int(place.bytes) if isinstance(place, Buffer) else bytes_of(proxy)
                    device = to_torch_device(proxy.device)
                    buffers[root] = torch.empty(size, dtype=torch.uint8, device=device)
                self._put(proxy, _seen(buffers[root], tensor, proxy, placement.layouts))


def _seen(memory: torch.Tensor, tensor: TensorView, proxy: Proxy, layouts: Any) -> torch.Tensor:
    """Return a tensor in the storage of `memory`, at offset 0: offsets do not matter here."""
    strides = layouts[tensor].strides if tensor in layouts else None
    sizes = tuple(map(int, proxy.shape))
    value = torch.empty(0, dtype=to_torch_dtype(proxy.dtype), device=memory.device)
    dense = torch.empty(sizes, device="meta").stride()
    return value.set_(memory.untyped_storage(), 0, sizes, strides or dense)


def _can_be_asked(bsym: BoundSymbol) -> bool:
    """True if a call takes and returns only tensors, and no process group."""
    proxies = (*bsym.flat_proxy_args, *bsym.flat_proxy_outs)
    if not bsym.flat_proxy_outs or not all(isinstance(p, TensorProxy) for p in proxies):
        return False
    flat, _ = tree_flatten((bsym.args, bsym.kwargs))
    return not any(type(x).__name__ == "ProcessGroup" for x in flat)
