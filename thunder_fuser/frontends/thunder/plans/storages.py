"""Storages of a final trace: which tensors lie in one memory, and how large that is.

Fusions say it by their plans. What torch runs is run once on tensors without memory, so that torch
itself says what is a view, how results lie, and whether a reshape copies. What cannot be asked that
way (collectives, calls that want numbers) is taken to give new dense tensors.
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
    """The storages of the tensors of a trace, by number, as its symbols are asked one by one.

    sizes  in bytes
    """

    def __init__(self, trace: TraceCtx) -> None:
        self.sizes: list[int] = []
        self._of: dict[str, int] = {}
        self._values: dict[str, torch.Tensor] = {}
        self._numbers: dict[int, int] = {}
        self._trace = trace
        # The text of a trace imports torch before anything else.
        self._context = {"torch": torch, **trace.python_ctx()}
        self._mode = FakeTensorMode(allow_non_fake_inputs=True)

    def share(self, proxies: Iterable[Proxy], other: Storages) -> None:
        """Take over tensors of another trace, which may lie in one memory."""
        self._mode = other._mode
        for proxy in proxies:
            if proxy.name in other._values:
                self._put(proxy, other._values[proxy.name])

    def of(self, proxies: Iterable[Proxy]) -> frozenset[int]:
        """Where tensors lie; those that nobody has made are given, and dense."""
        found = set()
        for proxy in proxies:
            if isinstance(proxy, (TensorProxy, FutureTensorProxy)):
                if proxy.name not in self._of:
                    self._make(proxy)
                found.add(self._of[proxy.name])
        return frozenset(found)

    def run(self, bsym: BoundSymbol) -> frozenset[int]:
        """Where the results of a symbol lie."""
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
            # A call may have results of fewer dimensions than its row: torch's random state.
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
        # The value keeps its storage, so that no other one takes its address.
        self._values[proxy.name] = value
        self._of[proxy.name] = number

    def _new(self, size: int) -> int:
        self.sizes.append(size)
        return len(self.sizes) - 1

    def _results(self, bsym: BoundSymbol) -> Iterator[tuple[Proxy, Any]]:
        """The results of a torch call, as torch gives them to tensors without memory."""
        if bsym.sym.executor is not torch_executor or not _can_be_asked(bsym):
            return
        values: dict[str, Any] = {p.name: self._values.get(p.name) for p in bsym.flat_proxy_args}
        if any(value is None for value in values.values()):
            return
        if bsym.sym.name == "__getitem__":
            # A number in a tensor selects a view, whichever it is; here it has no value.
            indices = bsym.flat_proxy_args[1:]
            numbers = [p for p in indices if p.ndim == 0 and not is_boolean_dtype(p.dtype)]
            values |= {p.name: 0 for p in numbers}
        # The trace names what its text cannot spell, such as a memory format.
        with tracectx(self._trace):
            text = "\n".join(bsym.python(0, print_depth=1))
        self._context |= {known.name: known.obj for known in self._trace._object_ctx.values()}
        try:
            with self._mode, torch.no_grad():
                exec(text, self._context, values)
        except Exception:  # Torch has no rule for it: what it gives is taken to be new and dense.
            return
        for proxy in bsym.flat_proxy_outs:
            yield proxy, values.get(proxy.name)

    def _fusion(self, call: FusionCall, bsym: BoundSymbol) -> None:
        """Results of a fusion lie where its plan has placed them."""
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
    """A tensor of some memory. Where in it does not matter."""
    strides = layouts[tensor].strides if tensor in layouts else None
    sizes = tuple(map(int, proxy.shape))
    value = torch.empty(0, dtype=to_torch_dtype(proxy.dtype), device=memory.device)
    dense = torch.empty(sizes, device="meta").stride()
    return value.set_(memory.untyped_storage(), 0, sizes, strides or dense)


def _can_be_asked(bsym: BoundSymbol) -> bool:
    """Whether a call needs nothing but tensors: collectives talk to other processes."""
    proxies = (*bsym.flat_proxy_args, *bsym.flat_proxy_outs)
    if not bsym.flat_proxy_outs or not all(isinstance(p, TensorProxy) for p in proxies):
        return False
    flat, _ = tree_flatten((bsym.args, bsym.kwargs))
    return not any(type(x).__name__ == "ProcessGroup" for x in flat)
