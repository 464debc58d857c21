"""Translation of a region of prims to a Fusion.

Thunder's proxies decide dtypes and shapes.  A row of `ir/tables/pointwise.py` computes 16-bit
floats in fp32 and has an fp32 result; the cast to the proxy's dtype is the rounding that torch does
too.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from thunder.core.proxies import NumberProxy, Proxy, TensorProxy
from thunder.core.symbol import BoundSymbol

from thunder_fuser.errors import InternalError
from thunder_fuser.frontends.thunder.claims.claim import Ending, InFormatOf, LiesAs, LiesAsIndexed
from thunder_fuser.frontends.thunder.claims.layout import (
    in_format_of,
    lying_as,
    lying_as_indexed,
)
from thunder_fuser.frontends.thunder.claims.operands import data_type, number_type
from thunder_fuser.frontends.thunder.claims.table import TABLE, role
from thunder_fuser.frontends.thunder.trace.origin import origin_of
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.fusion import Fusion, TensorView, Val
from thunder_fuser.segment.regions.joint_graph import Role


def build(
    inputs: Sequence[Proxy],
    prims: Sequence[BoundSymbol],
    outputs: Sequence[Proxy],
    device: torch.device,
) -> Fusion:
    """Return the Fusion that computes `outputs` from `inputs`, in their order, by claimed prims."""
    region = _Region(inputs, device)
    for prim in prims:
        region.add(prim)
    return region.finish(outputs)


@dataclass(frozen=True, slots=True)
class RegionProgram:
    """A region to be built: the arguments of `build`."""

    inputs: Sequence[Proxy]
    prims: Sequence[BoundSymbol]
    outputs: Sequence[Proxy]
    device: torch.device

    def build(self) -> Fusion:
        return build(self.inputs, self.prims, self.outputs, self.device)

    @property
    def signature(self) -> Hashable:
        """Hashable key of the region without names and source lines: regions of equal signature
        build equal fusions. None if an argument cannot be hashed or compared.
        """
        numbering = _Numbering()
        try:
            found = (
                *map(numbering, self.inputs),
                *map(numbering.of_symbol, self.prims),
                *map(numbering, self.outputs),
                self.device,
            )
            hash(found)
        except TypeError:
            return None
        return found


class _Numbering:
    """Canonical form of arguments: proxies are numbered in the order of first occurrence."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def of_symbol(self, prim: BoundSymbol) -> Hashable:
        """Return the canonical form of a prim. TypeError for an unknown kind of proxy."""
        kwargs = [(name, self(x)) for name, x in prim.kwargs.items()]
        read = prim.sym.id, *map(self, prim.args), *kwargs
        # Tags refer to proxies that are numbered already.
        return (*read, *self._of_tags(prim.tags), self(prim.output))

    def __call__(self, x: Any) -> Hashable:
        if isinstance(x, Proxy):
            number = self._numbers.get(x.name)
            if number is not None:
                return Proxy, number
            self._numbers[x.name] = len(self._numbers)
            if isinstance(x, TensorProxy):
                return (tuple(map(self._size, x.shape)), x.dtype, x.device)
            if isinstance(x, NumberProxy):
                return Proxy, x.python_type
            raise TypeError(type(x))
        if isinstance(x, (tuple, list)):
            return (type(x), *map(self, x))
        # 0.0 and -0.0 are equal, as 1, 1.0 and True are.
        return type(x), repr(x) if isinstance(x, (float, complex)) else x

    def _size(self, size: Any) -> Hashable:
        return self(size) if isinstance(size, Proxy) else size

    def _of_tags(self, tags: Iterable[object]) -> list[Hashable]:
        found: list[tuple[str, Hashable]] = []
        for tag in tags:
            match tag:
                case Ending():
                    found.append((tag.name, ()))
                case LiesAs():
                    found.append(("as", tuple(map(self._numbers.get, tag.names))))
                case InFormatOf():
                    found.append(("format", self._numbers.get(tag.name)))
                case LiesAsIndexed():
                    both = map(self._numbers.get, (tag.source, tag.index))
                    found.append(("indexed", (*both, tag.dim)))
        return sorted(found, key=repr) if len(found) > 1 else list(found)


class _Region:
    """Builder of a region's Fusion: the current value of each tensor, by proxy name.

    Further names of a tensor (the result of its update, a renaming) are mapped to its first name.
    """

    def __init__(self, inputs: Sequence[Proxy], device: torch.device) -> None:
        self._builder = FusionBuilder()
        self._device = device
        self._first: dict[str, str] = {}
        self._values: dict[str, Val] = {p.name: self._input(p, device) for p in inputs}
        self._memory = dict(self._values)
        self._updated: dict[str, None] = {}
        self._made: set[str] = set()

    def _input(self, proxy: Proxy, device: torch.device) -> Val:
        if isinstance(proxy, NumberProxy):
            return self._builder.scalar(None, number_type(proxy))
        return self._builder.tensor(
            proxy.shape,
            data_type(proxy.dtype),
            # Thunder neither records strides nor guards on them: they may differ in each call.
            contiguity=[None if size == 1 else False for size in proxy.shape],
            is_cpu=proxy.device.type != device.type,
        )

    def add(self, prim: BoundSymbol) -> None:
        """Append one prim."""
        claim = TABLE[prim.sym.id]
        self._builder.origin = origin_of(prim)
        args = [x if k in claim.unread else self._value(x) for k, x in enumerate(prim.args)]
        kwargs = {name: self._value(x) for name, x in prim.kwargs.items()}
        built = claim.build_for(self._device)(self._builder, *args, **kwargs)
        values = built if isinstance(built, tuple) else (built,)
        outs = prim.output if isinstance(prim.output, tuple) else (prim.output,)
        for out, value in zip(outs, values, strict=True):
            # Thunder puts None in the place of an unread result.
            if out is not None:
                self._define(prim, out, value)

    def _define(self, prim: BoundSymbol, out: TensorProxy, value: Val) -> None:
        """Define one result of a prim, cast to the dtype that Thunder expects."""
        wanted = data_type(out.dtype)
        if value.dtype is not wanted:
            value = self._builder.cast(value, wanted)
        if not isinstance(value, TensorView) or value.sizes != tuple(out.shape):
            raise InternalError(f"{prim.sym.name} gave {value}, but Thunder expects {out}")
        if Ending.ROUNDED in prim.tags:
            self._builder.round_last(value)
        if role(prim) is Role.UPDATE and self._writes_itself(prim):
            self._first[out.name] = self._first_name(prim.args[1])
            return
        for tag in prim.tags:
            if isinstance(tag, LiesAs):
                value = lying_as(self._builder, value, self._tensors(tag.names, value))
            if isinstance(tag, InFormatOf):
                value = self._in_format(value, tag.name)
            if isinstance(tag, LiesAsIndexed):
                value = self._indexed(value, tag)
        if Ending.ROW_MAJOR in prim.tags and _has_orders(value.sizes):
            row_major = _tensor(self._builder.full(value.sizes, 0, value.dtype))
            value = lying_as(self._builder, value, [row_major])
        if Ending.CHANNELS_LAST in prim.tags and value.rank:
            value = lying_as(self._builder, value, [self._builder.cat([value])])
        if Ending.NEW in prim.tags:
            value = self._builder.set(value)
        match role(prim):
            case Role.UPDATE:
                first = self._first[out.name] = self._first_name(prim.args[1])
                if first not in self._memory:
                    # An update keeps the layout of a tensor that the region defines.
                    value = lying_as(self._builder, value, [_tensor(self._values[first])])
                self._values[first] = value
                if first in self._memory:
                    self._updated[first] = None
            case Role.RENAME:
                (renamed,) = prim.flat_proxy_args
                first = self._first[out.name] = self._first_name(renamed)
                if first in self._made:
                    self._values[first] = value
            case _:
                self._values[out.name] = value
                self._made.add(out.name)

    def _tensors(self, names: Sequence[str], shown: TensorView) -> list[TensorView]:
        """Return the tensors of these names, or [] if one is not in the region or does not
        broadcast to the sizes of `shown`.
        """
        found = [self._values.get(self._first.get(name, name)) for name in names]
        tensors = [t for t in found if isinstance(t, TensorView) and _broadcasts(t, shown)]
        return tensors if len(tensors) == len(found) else []

    def _in_format(self, value: TensorView, name: str) -> TensorView:
        source = self._values.get(self._first.get(name, name))
        return (
            in_format_of(self._builder, value, source) if isinstance(source, TensorView) else value
        )

    def _indexed(self, value: TensorView, tag: LiesAsIndexed) -> TensorView:
        source, index = (self._values.get(self._first.get(n, n)) for n in (tag.source, tag.index))
        if isinstance(source, TensorView) and isinstance(index, TensorView):
            return lying_as_indexed(self._builder, value, source, tag.dim, index)
        return value

    def _writes_itself(self, prim: BoundSymbol) -> bool:
        """True for a copy of a tensor onto itself, which torch skips: it may be expanded."""
        source, target = prim.args[:2]
        return self._first_name(source) == self._first_name(target)

    def _first_name(self, proxy: Proxy) -> str:
        name: str = proxy.name
        return self._first.get(name, name)

    def _value(self, argument: object) -> object:
        """Return an argument with proxies replaced by values."""
        if isinstance(argument, Proxy):
            return self._values[self._first_name(argument)]
        if isinstance(argument, (tuple, list)):
            found = [self._value(x) for x in argument]
            return found if isinstance(argument, list) else tuple(found)
        return argument

    def finish(self, outputs: Sequence[Proxy]) -> Fusion:
        """Return the fusion with these outputs, and with the last update of each updated input."""
        returned: dict[str, TensorView] = {}
        for proxy in outputs:
            name = self._first_name(proxy)
            if name not in returned:
                returned[name] = _tensor(self._values[name])
            self._builder.output(returned[name])
        for name in self._updated:
            self._builder.output(_tensor(self._values[name]), _tensor(self._memory[name]))
        return self._builder.build()


def _has_orders(sizes: Sequence[int]) -> bool:
    """True if the dimension order of a tensor is observable: with two or more sizes other than 1,
    or with three or more dimensions, where a convolution takes the memory format from strides of
    dimensions of size 1, too.
    """
    return len(sizes) > 2 or sum(size != 1 for size in sizes) > 1


def _broadcasts(x: TensorView, to: TensorView) -> bool:
    pairs = zip(reversed(x.sizes), reversed(to.sizes), strict=False)
    return x.rank <= to.rank and all(a in (1, b) for a, b in pairs)


def _tensor(value: Val) -> TensorView:
    assert isinstance(value, TensorView)
    return value
