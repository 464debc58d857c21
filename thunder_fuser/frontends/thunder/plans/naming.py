"""Names of a fusion plan's tensors in the trace: Thunder's proxies for them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from thunder.core.devices import to_device
from thunder.core.dtypes import to_dtype
from thunder.core.proxies import Proxy, TensorProxy
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import detached_trace

from thunder_fuser.ir.fusion import TensorView
from thunder_fuser.segment.plan import SegmentedFusion

_NAME = re.compile(r"\bT(\d+)\b")


class ComparedByName:
    """Dataclasses with Thunder's proxies in their fields, of which names are compared: to compare
    proxies themselves is an operation of a trace.
    """

    __slots__ = ()

    def _named(self) -> Any:
        return tuple(_by_name(getattr(self, f.name)) for f in fields(self) if f.compare)  # type: ignore[arg-type]

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        equal: bool = self._named() == other._named()
        return equal

    def __hash__(self) -> int:
        return hash(self._named())


def _by_name(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_by_name, value))
    return value.name if isinstance(value, Proxy) else value


@dataclass(frozen=True, slots=True)
class Names:
    """Proxies of a fusion's bound symbol: its arguments, its results (None for one that Thunder
    dropped), and the results of its prims.
    """

    inputs: tuple[Proxy, ...]
    outputs: tuple[Proxy | None, ...]
    inner: tuple[Proxy, ...]

    @classmethod
    def of(cls, bsym: BoundSymbol) -> Names:
        inner = tuple(p for b in bsym.subsymbols for p in b.flat_proxy_outs)
        return cls(tuple(bsym.args), tuple(bsym.output), inner)


class Naming:
    """Map from a plan's tensors to Thunder's proxies.

    A value without a name in the trace, because it is internal to a prim, gets a proxy with a
    generated name. `results` maps names in the plan's origins to names in this trace: the plan may
    be that of an equal fusion.
    """

    def __init__(self, names: Names, plan: SegmentedFusion, results: Mapping[str, str]) -> None:
        self._results = results
        self._plan = plan
        self._definitions = plan.fusion.definitions()
        self._device = next(
            p.device for p in (*names.outputs, *names.inputs) if hasattr(p, "device")
        )
        self._known = {p.name: p for p in names.inner}
        outputs = zip(plan.fusion.outputs, names.outputs, strict=False)
        self._proxies: dict[object, Proxy] = {t: p for t, p in outputs if p is not None}
        self._proxies |= dict(zip(plan.fusion.inputs, names.inputs, strict=True))
        # The result of an in-place update has the memory of its target.
        for update in plan.fusion.updates:
            self._proxies.setdefault(update.value, self._proxies[update.target])

    def proxy(self, tensor: TensorView) -> Proxy:
        if tensor not in self._proxies:
            self._proxies[tensor] = self._inner(tensor)
        return self._proxies[tensor]

    def text(self) -> str:
        """Return the printed plan with names of the trace."""
        return self.named(str(self._plan))

    def named(self, text: str) -> str:
        """Replace tensor names of the plan (`T12`) in a text by names of the trace."""
        tensors = {v.id: v for v in self._plan.fusion.values() if isinstance(v, TensorView)}

        def called(match: re.Match[str]) -> str:
            tensor = tensors.get(int(match[1]))
            return match[0] if tensor is None else self.proxy(tensor).name

        return _NAME.sub(called, text)

    def _inner(self, tensor: TensorView) -> Proxy:
        result = self._definitions[tensor].origin.result
        name = self._results.get(result, result)
        known = self._known.get(name)
        shape, dtype = tuple(tensor.sizes), to_dtype(tensor.dtype.torch)
        if known is not None and (tuple(known.shape), known.dtype) == (shape, dtype):
            return known
        with detached_trace():
            # One of several values of a prim.
            return TensorProxy(
                f"{name}_{tensor.name}", shape=shape, device=to_device(self._device), dtype=dtype
            )
