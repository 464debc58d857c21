"""Work of symbols that stay torch's: the bytes that they move, and their arithmetic, as the table
of torch's calls (`ir/tables/opaque.py`) has it.

A symbol that is no row, and has none among its parts, moves its arguments and results once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from thunder.core.dtypes import to_torch_dtype
from thunder.core.proxies import FutureTensorProxy, Proxy, TensorProxy
from thunder.core.symbol import BoundSymbol

from thunder_fuser.device import DeviceInfo
from thunder_fuser.errors import FuserError
from thunder_fuser.frontends.thunder.autograd.attention import Attention
from thunder_fuser.frontends.thunder.claims.operands import elements, is_static
from thunder_fuser.ir.dtypes import from_torch
from thunder_fuser.ir.tables import opaque
from thunder_fuser.templates.estimate import estimate_call

_CONVOLUTION = ("stride", "padding", "dilation", "transposed", "output_padding", "groups")
_STATE = ("output", "logsumexp", "philox_seed", "philox_offset")

ROWS: Mapping[str, tuple[str, tuple[str, ...]]] = MappingProxyType(
    {
        "linear": ("linear", ("arg1", "arg2", "bias")),
        "matmul": ("matmul", ("arg1", "arg2")),
        "_grouped_mm": ("grouped_mm", ("mat1", "mat2", "offsets")),
        "convolution": ("convolution", ("input", "weight", "bias", *_CONVOLUTION)),
        "fuser_convolution": ("convolution", ("input", "weight", "bias", *_CONVOLUTION)),
        "fuser_attention": ("sdpfa_fwd", Attention._fields),
        "fuser_attention_forward": ("sdpfa_fwd", Attention._fields),
        "fuser_attention_backward": ("sdpfa_bwd", ("grad_output", *_STATE, *Attention._fields)),
    }
)
"""Names of symbols whose row says how much arithmetic they do: the row, and what its operands and
attributes are called, in the order of the symbol's arguments."""


@dataclass(frozen=True, slots=True)
class Work:
    """itemsize  of the elements of the first operand, which says how fast they are multiplied"""

    bytes_read: int
    bytes_written: int
    flops: int
    itemsize: int

    @property
    def bytes(self) -> int:
        return self.bytes_read + self.bytes_written

    def seconds(self, device: DeviceInfo) -> float:
        """What a device takes at least."""
        return estimate_call(self.bytes, self.flops, self.itemsize, device).seconds


def work_of(bsym: BoundSymbol) -> Work:
    """What a symbol does, as one call."""
    read, made = _tensors(bsym.flat_proxy_args), _tensors(bsym.flat_proxy_outs)
    widths = [p.dtype.bytes for p in read if to_torch_dtype(p.dtype).is_floating_point]
    return Work(
        sum(map(bytes_of, read)), sum(map(bytes_of, made)), _flops(bsym), next(iter(widths), 4)
    )


def orders_of(bsym: BoundSymbol) -> tuple[tuple[int, ...], ...]:
    """How results lie in memory, the outermost dimension first, as the row of a call says; an empty
    order is row-major.
    """
    found = _operands(bsym)
    return () if found is None else tuple(r.order for r in found.row.results(*found[1:]))


def bytes_of(proxy: Proxy) -> int:
    """Of the elements of a tensor, dense; 0 of everything else, and where sizes are open."""
    if not isinstance(proxy, (TensorProxy, FutureTensorProxy)) or not is_static(proxy.shape):
        return 0
    size: int = elements(proxy) * proxy.dtype.bytes
    return size


class _Operands(NamedTuple):
    row: opaque.Call
    shaped: opaque.Operands
    given: opaque.Attributes


def _operands(bsym: BoundSymbol) -> _Operands | None:
    """The row of a symbol, and what it is given; None without a row, where sizes are open, and for
    what a row does not take: attention of other than four dimensions.
    """
    row = ROWS.get(bsym.sym.name)
    if row is None:
        return None
    name, parameters = row
    given = dict(zip(parameters, bsym.args, strict=False)) | dict(bsym.kwargs)
    tensors = {key: p for key, p in given.items() if isinstance(p, TensorProxy)}
    if not all(is_static(p.shape) for p in tensors.values()):
        return None
    shaped = {
        key: opaque.Shaped(tuple(p.shape), from_torch(to_torch_dtype(p.dtype)))
        for key, p in tensors.items()
    }
    found = _Operands(opaque.lookup(name), shaped, given)
    try:
        found.row.results(shaped, given)
    except FuserError:
        return None
    return found


def _flops(bsym: BoundSymbol) -> int:
    if bsym.sym.name not in ROWS:
        return sum(map(_flops, bsym.subsymbols))
    found = _operands(bsym)
    return 0 if found is None else found.row.flops(found.shaped, found.given)


def _tensors(proxies: Iterable[Proxy]) -> list[Proxy]:
    found = {p.name: p for p in proxies if isinstance(p, (TensorProxy, FutureTensorProxy))}
    return list(found.values())
