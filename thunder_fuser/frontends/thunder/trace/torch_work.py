"""Work of symbols left to torch: bytes moved, and FLOPs by the rows of `ir/tables/opaque.py`.

Every symbol reads its arguments and writes its results once, but for a method that writes some
elements of its first argument. One without a row, also among its subsymbols, has no FLOPs.
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
from thunder_fuser.ir.tables.call_shapes import Attributes, Operands, Shaped
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
"""By symbol name: its row in `ir/tables/opaque.py`, and the row's names of operands and attributes,
in the order of the symbol's arguments."""


_WRITE_AN_OPERAND = frozenset(
    {
        *("index_copy_", "index_add_", "index_reduce_", "index_put_", "setitem_"),
        *("scatter_", "scatter_add_", "scatter_reduce_"),
    }
)
"""Methods that write as many elements of their first argument as the largest other one has."""


@dataclass(frozen=True, slots=True)
class Work:
    """Bytes and FLOPs of one torch call.

    itemsize  bytes per element of the first floating operand (4 if none), which sets the FLOP rate
    """

    bytes_read: int
    bytes_written: int
    flops: int
    itemsize: int

    @property
    def bytes(self) -> int:
        return self.bytes_read + self.bytes_written

    def seconds(self, device: DeviceInfo) -> float:
        """Return a lower bound on the time on a device, in seconds."""
        return estimate_call(self.bytes, self.flops, self.itemsize, device).seconds


def work_of(bsym: BoundSymbol) -> Work:
    """Return the work of a symbol, taken as one torch call."""
    read, made = _tensors(bsym.flat_proxy_args), _tensors(bsym.flat_proxy_outs)
    widths = [p.dtype.bytes for p in read if to_torch_dtype(p.dtype).is_floating_point]
    itemsize = next(iter(widths), 4)
    if bsym.sym.name in _WRITE_AN_OPERAND:
        target, *operands = read
        written = max(map(_elements, operands), default=0) * target.dtype.bytes
        return Work(sum(map(bytes_of, operands)), min(written, bytes_of(target)), 0, itemsize)
    return Work(sum(map(bytes_of, read)), sum(map(bytes_of, made)), _flops(bsym), itemsize)


def orders_of(bsym: BoundSymbol) -> tuple[tuple[int, ...], ...]:
    """Return the dimension order of each result in memory, outermost first, by the call's row; an
    empty order is row-major. () without a row.
    """
    found = _operands(bsym)
    return () if found is None else tuple(r.order for r in found.row.results(*found[1:]))


def bytes_of(proxy: Proxy) -> int:
    """Return the bytes of a dense tensor; 0 for other proxies, and for symbolic sizes."""
    if not isinstance(proxy, (TensorProxy, FutureTensorProxy)) or not is_static(proxy.shape):
        return 0
    size: int = elements(proxy) * proxy.dtype.bytes
    return size


class _Operands(NamedTuple):
    row: opaque.Call
    shaped: Operands
    given: Attributes


def _elements(proxy: Proxy) -> int:
    return elements(proxy) if is_static(proxy.shape) else 0


def _operands(bsym: BoundSymbol) -> _Operands | None:
    """Return the row of a symbol and its arguments; None without a row, for symbolic sizes, and for
    arguments that the row rejects, such as attention of other than four dimensions.
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
        key: Shaped(tuple(p.shape), from_torch(to_torch_dtype(p.dtype)))
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
