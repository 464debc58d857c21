"""A whole trace as one fusion: its fusions, torch's calls between them, and views.

Torch calls without a row in `ir/tables/opaque.py` are cut out: their operands become outputs of the
fusion, and their results inputs, which are replicated on every device.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from thunder.core.prims import PrimIDs
from thunder.core.proxies import NumberProxy, Proxy, TensorProxy
from thunder.core.pytree import tree_flatten, tree_map
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceCtx

from thunder_fuser.errors import FuserError, FuserValueError
from thunder_fuser.frontends.thunder.claims.operands import data_type, is_static, number_type
from thunder_fuser.frontends.thunder.claims.table import TABLE, flatten
from thunder_fuser.frontends.thunder.plans.segmented import is_step
from thunder_fuser.frontends.thunder.symbol import call_of
from thunder_fuser.frontends.thunder.trace.origin import origin_of
from thunder_fuser.frontends.thunder.trace.torch_work import ROWS
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.fusion import Fusion, TensorView, Val
from thunder_fuser.ir.rebuild import Rebuild
from thunder_fuser.ir.tables import opaque

_CALLS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    **ROWS,
    "torch.ops.aten.embedding_backward": (
        "embedding_backward",
        ("grad", "index", "rows", "padding_idx", "scale_grad_by_freq"),
    ),
}


@dataclass(frozen=True, slots=True)
class WholeTrace:
    """The fusion of a trace, and its tensors by their names in the trace.

    given  names of the trace's arguments, in the order of the fusion's tensor inputs
    """

    fusion: Fusion
    named: Mapping[str, TensorView]
    given: tuple[str, ...]


def whole_trace(trace: TraceCtx) -> WholeTrace:
    """Return the fusion of a final trace. FuserValueError for symbolic sizes."""
    maker = _Maker()
    for bsym in trace.bound_symbols:
        if bsym.sym.id is PrimIDs.RETURN:
            maker.finish(tree_flatten((bsym.args, bsym.kwargs))[0])
        elif bsym.sym.id in (PrimIDs.UNPACK_TRIVIAL, PrimIDs.UNPACK_SEQUENCE):
            maker.give(bsym.flat_proxy_outs)
        elif is_step(bsym):
            maker.add(bsym)
    return maker.made()


class _Maker:
    def __init__(self) -> None:
        self._builder = FusionBuilder()
        self._values: dict[str, Val] = {}
        self._inputs: list[str] = []
        self._outputs: dict[str, None] = {}

    def give(self, proxies: Sequence[Proxy]) -> None:
        for proxy in proxies:
            if isinstance(proxy, (TensorProxy, NumberProxy)) and proxy.name not in self._values:
                self._values[proxy.name] = self._input(proxy)

    def _input(self, proxy: Proxy) -> Val:
        if isinstance(proxy, NumberProxy):
            return self._builder.scalar(None, number_type(proxy))
        if not is_static(proxy.shape):
            raise FuserValueError(f"{proxy.name}: a plan on a mesh needs known sizes")
        self._inputs.append(proxy.name)
        return self._builder.tensor(proxy.shape, data_type(proxy.dtype))

    def add(self, bsym: BoundSymbol) -> None:
        """Append a bound symbol."""
        made = self._made(bsym)
        if made is None:
            for proxy in bsym.flat_proxy_args:
                if proxy.name in self._values and isinstance(proxy, TensorProxy):
                    self._outputs[proxy.name] = None
            self.give([p for p in bsym.flat_proxy_outs if isinstance(p, TensorProxy)])
            return
        for name, value in made:
            self._values[name] = value

    def _made(self, bsym: BoundSymbol) -> list[tuple[str, Val]] | None:
        if (call := call_of(bsym)) is not None:
            inputs = [self._values[p.name] for p in bsym.args]
            return list(_zipped(bsym, self._inlined(call.fusion, inputs)))
        self._builder.origin = origin_of(bsym)
        if bsym.sym.name in _CALLS:
            return self._called(bsym)
        if bsym.sym.name == "torch_prims_reshape_impl":
            x = self._values[bsym.args[0].name]
            assert isinstance(x, TensorView)
            return list(_zipped(bsym, [self._builder.reshape(x, tuple(bsym.args[1]))]))
        return self._claimed(bsym)

    def _inlined(self, fusion: Fusion, inputs: Sequence[Val]) -> list[Val]:
        new = Rebuild(fusion, builder=self._builder, inputs=inputs)
        for expr in fusion.exprs:
            new.copy(expr)
        return [new[t] for t in fusion.outputs]

    def _called(self, bsym: BoundSymbol) -> list[tuple[str, Val]] | None:
        """Append a torch call with a row in `ir/tables/opaque.py`; None if its arguments do not
        fit the row.
        """
        name, parameters = _CALLS[bsym.sym.name]
        row = opaque.lookup(name)
        given = dict(zip(parameters, bsym.args, strict=False)) | dict(bsym.kwargs)
        operands: dict[str, TensorView] = {}
        attributes: dict[str, Any] = {}
        for key, x in given.items():
            if isinstance(x, TensorProxy):
                value = self._values[x.name]
                if key not in row.operands or not isinstance(value, TensorView):
                    return None
                operands[key] = value
            elif key in row.parameters and key not in row.operands:
                attributes[key] = tuple(x) if isinstance(x, list) else x
        try:
            return list(_zipped(bsym, self._builder.call(name, operands, attributes)))
        except FuserError:
            return None

    def _claimed(self, bsym: BoundSymbol) -> list[tuple[str, Val]] | None:
        """Append claimed prims outside of fusions, such as views; None if they cannot be built."""
        prims = list(flatten(bsym))
        if not prims or any(prim.sym.id not in TABLE for prim in prims):
            return None
        for prim in prims:
            claim = TABLE[prim.sym.id]
            try:
                args, kwargs = tree_map(self._value, (tuple(prim.args), dict(prim.kwargs)))
                built = claim.build(self._builder, *args, **kwargs)
            except (FuserError, KeyError):
                return None
            for name, value in _zipped(prim, built if isinstance(built, tuple) else (built,)):
                self._values[name] = value
        outs = [p for p in bsym.flat_proxy_outs if p.name in self._values]
        if len(outs) < len(bsym.flat_proxy_outs):
            return None
        return [(p.name, self._values[p.name]) for p in outs]

    def _value(self, argument: object) -> object:
        return self._values[argument.name] if isinstance(argument, Proxy) else argument

    def finish(self, returned: Sequence[Any]) -> None:
        for x in returned:
            if isinstance(x, TensorProxy) and x.name in self._values:
                self._outputs[x.name] = None

    def made(self) -> WholeTrace:
        # A result under several names is one output; an argument that is returned is none.
        given = {self._values[name] for name in self._inputs}
        returned: set[Val] = set()
        for name in self._outputs:
            value = self._values[name]
            if isinstance(value, TensorView) and value not in given and value not in returned:
                returned.add(value)
                self._builder.output(value)
        named = {n: v for n, v in self._values.items() if isinstance(v, TensorView)}
        return WholeTrace(self._builder.build(), named, tuple(self._inputs))


def _zipped(bsym: BoundSymbol, values: Sequence[Val]) -> Iterator[tuple[str, Val]]:
    """Yield names of results with their values; Thunder has None for an unread result."""
    output = bsym.output
    outs = tuple(output) if isinstance(output, (tuple, list)) else (output,)
    for out, value in zip(outs, values, strict=False):
        if isinstance(out, Proxy):
            yield out.name, value
