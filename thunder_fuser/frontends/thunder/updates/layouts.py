"""Which calls of `reshape` and `contiguous` in a trace copy, and which return a view.

That depends on strides, which a trace does not have. The strides of the first call's arguments are
recorded while it is traced, and the calls are run on meta tensors with these strides. Gradients of
in-place updates follow the outcome. A later call whose strides lead to another outcome is refused
before anything runs.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import thunder.torch as ltorch
import torch
from thunder.core import dtypes, proxies, update_aliases
from thunder.core.compile_data import get_compile_data
from thunder.core.prims import OpTags, PrimIDs
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import BoundSymbol

from thunder_fuser.errors import FuserValueError
from thunder_fuser.frontends.thunder.patches.patched import is_patched
from thunder_fuser.frontends.thunder.trace.meta_results import is_plain, on_meta, stated
from thunder_fuser.frontends.thunder.updates.effects import effect

_Strides = tuple[int, ...]

_Noted = tuple[object, _Strides, int, weakref.ref[torch.Tensor]]
_noted: weakref.WeakKeyDictionary[Any, dict[int, _Noted]]
_noted = weakref.WeakKeyDictionary()
"""Provenance, strides, storage offset and tensor of the arguments of the call that is traced, by
compile data and `id` of the provenance, which a proxy keeps as its name changes.
"""


def _proxy(original: Callable[..., TensorProxy], t: torch.Tensor, /, **options: Any) -> TensorProxy:
    """Return the proxy of an argument, whose strides are noted."""
    found = original(t, **options)
    if (data := get_compile_data()) is not None and t.layout is torch.strided:
        noted = found.history, t.stride(), t.storage_offset(), weakref.ref(t)
        _noted.setdefault(data, {})[id(found.history)] = noted
    return found


def tensor_of(x: TensorProxy) -> torch.Tensor | None:
    """Return the argument in the call that is traced, if it is a plain tensor in memory."""
    noted = _noted_of(x)
    t = None if noted is None else noted[-1]()
    return t if type(t) in (torch.Tensor, torch.nn.Parameter) else None


def layout_of(x: TensorProxy) -> tuple[_Strides, int] | None:
    """Return strides and storage offset of an argument in the call that is traced; None of other
    tensors.
    """
    noted = _noted_of(x)
    return None if noted is None or len(noted[1]) != x.ndim else noted[1:3]


def _noted_of(x: TensorProxy) -> _Noted | None:
    return _noted.get(get_compile_data(), {}).get(id(x.history))


def _strides_of(x: TensorProxy) -> _Strides:
    """Return the strides of an argument in the call that is traced; row-major if unknown."""
    if (layout := layout_of(x)) is not None:
        return layout[0]
    dense: _Strides = torch.empty(x.shape, device="meta").stride()
    return dense


def copying_calls(
    symbols: Sequence[BoundSymbol], strides: Mapping[str, _Strides]
) -> frozenset[str]:
    """Return names of results in memory that is updated, if they were views, which torch copies.
    `symbols`: of a trace before `update_aliases` is inserted; `strides`: of its arguments.
    """
    known: dict[str, torch.Tensor] = {}
    for symbol in symbols:
        for x in (*symbol.flat_proxy_args, *symbol.flat_proxy_outs):
            if x.name in strides and x.name not in known and is_plain(x):
                dtype, shape = stated(x)
                made = torch.empty_strided(shape, strides[x.name], dtype=dtype, device="meta")
                known[x.name] = made
    found = {name for symbol in symbols for name in run_on_meta(symbol, known, set())}
    return frozenset(found & _shown(symbols).keys())


def _shown(symbols: Sequence[BoundSymbol]) -> dict[str, BoundSymbol]:
    """Return calls that may give views of memory that is updated somewhere, by result."""
    memories, updated = memories_of(symbols)
    return {
        x.name: symbol
        for symbol in symbols
        if update_aliases._is_view_creation_op(symbol)
        for x in symbol.flat_proxy_outs
        if memories.get(x.name) in updated
    }


def memories_of(symbols: Sequence[BoundSymbol]) -> tuple[dict[str, str], set[str]]:
    """Return the first tensor in the memory of each view, or result of an update, by name, and
    which of these are updated; of symbols before `update_aliases` is inserted. What may be a view
    counts as one.
    """
    memories: dict[str, str] = {}
    updated: set[str] = set()
    for symbol in symbols:
        if not symbol.flat_proxy_args:
            continue
        name = symbol.flat_proxy_args[0].name
        name = memories.get(name, name)
        is_update = update_aliases._is_inplace_op(symbol)
        if is_update:
            updated.add(name)
        if is_update or update_aliases._is_view_creation_op(symbol):
            memories |= dict.fromkeys((x.name for x in symbol.flat_proxy_outs), name)
    return memories, updated


def run_on_meta(
    symbol: BoundSymbol, known: dict[str, torch.Tensor], unknown: set[str]
) -> Iterator[str]:
    """Run a call on meta tensors; yield results that are copies though Thunder counts them as
    views.

    known    meta tensors by name, to which results are added
    unknown  names of results of which the strides are assumed, to which others are added
    """
    outs = [x for x in symbol.flat_proxy_outs if isinstance(x, TensorProxy)]
    if not outs or not all(map(is_plain, outs)) or all(x.name in known for x in outs):
        return
    source = known.get(symbol.flat_proxy_args[0].name) if symbol.flat_proxy_args else None
    if update_aliases._is_inplace_op(symbol) and source is not None:
        known |= dict.fromkeys((x.name for x in outs), source)
        return
    function = _IN_TORCH.get(symbol.sym.id)
    if function is not None and source is not None:
        found: list[torch.Tensor] | None = [function(source, *symbol.args[1:])]
    else:
        found = on_meta(symbol, known)
    if found is None and symbol.subsymbols:
        for part in symbol.subsymbols:
            yield from run_on_meta(part, known, unknown)
    pairs = zip(outs, found if found is not None else [None] * len(outs), strict=True)
    for x, value in pairs:
        if value is None or tuple(value.shape) != tuple(x.shape):
            dtype, shape = stated(x)
            value = torch.empty(shape, dtype=dtype, device="meta")
            if x.name not in known:
                unknown.add(x.name)
        value = known.setdefault(x.name, value)
        if update_aliases._is_view_creation_op(symbol) and not _share(value, source):
            yield x.name


def _broadcast(x: torch.Tensor, shape: Sequence[int], dims: Sequence[int]) -> torch.Tensor:
    for k in range(len(shape)):
        x = x if k in dims else x.unsqueeze(k)
    return x.expand(shape)


_IN_TORCH: Mapping[object, Callable[..., torch.Tensor]] = {
    PrimIDs.TRANSPOSE: torch.permute,
    PrimIDs.SQUEEZE: torch.squeeze,
    PrimIDs.BROADCAST_IN_DIM: _broadcast,
    PrimIDs.SHALLOW_COPY: lambda x: x,
    PrimIDs.CONVERT_ELEMENT_TYPE: lambda x, dtype: x.to(dtypes.to_torch_dtype(dtype)),
}
"""Primitives for which the torch executor has a transform and no function."""


def _share(one: torch.Tensor, other: torch.Tensor | None) -> bool:
    if other is None:
        return False
    return bool(one.untyped_storage()._cdata == other.untyped_storage()._cdata)


# ---- the check


@dataclass
class _Check:
    """Raises a FuserValueError if the strides of arguments decide otherwise than those of the call
    that was traced.

    known  strides that decide alike
    """

    symbols: Sequence[BoundSymbol]
    names: Sequence[str]
    copies: frozenset[str]
    known: set[tuple[_Strides, ...]] = field(default_factory=set)

    def __call__(self, *tensors: torch.Tensor) -> None:
        strides = tuple(x.stride() for x in tensors)
        if strides in self.known:
            return
        given = dict(zip(self.names, strides, strict=True))
        if other := copying_calls(self.symbols, given) ^ self.copies:
            calls = _shown(self.symbols)
            named = ", ".join(dict.fromkeys(calls[name].sym.name for name in sorted(other)))
            raise FuserValueError(
                f"{named} gives a view or a copy, by the arguments' strides, and an update in "
                "place reaches its result or not. The gradients were compiled for strides that"
                f" decide otherwise than {given}: pass tensors that lie as in the first call, or "
                "compile the function again for these"
            )
        self.known.add(strides)


_checks: weakref.WeakKeyDictionary[Any, BoundSymbol] = weakref.WeakKeyDictionary()
"""Checks of traces that are compiled, by compile data."""


def decide(symbols: Sequence[BoundSymbol], arguments: Sequence[object]) -> frozenset[str]:
    """Return `copying_calls` of the call that is traced. `take_check` returns the symbol that
    checks, when it is run, whether other arguments decide alike.
    """
    tensors = [x for x in arguments if is_plain(x)]
    given = {x.name: _strides_of(x) for x in tensors}
    _noted.pop(get_compile_data(), None)
    copies = copying_calls(symbols, given)
    symbol = effect("fuser_check_layouts", _Check(symbols, list(given), copies))
    if any(map(_depends_on_strides, _shown(symbols).values())):
        _checks[get_compile_data()] = symbol.bind(*tensors, output=None)
    return copies


def take_check() -> BoundSymbol | None:
    """Return the check of the trace that is compiled, once; None if strides decide nothing."""
    found: BoundSymbol | None = _checks.pop(get_compile_data(), None)
    return found


# ---- calls that give views

_MAY_GIVE_VIEWS = frozenset(ltorch._syms_that_may_return_views)
_VIEWS = frozenset(
    {
        *(PrimIDs.TRANSPOSE, PrimIDs.SLICE, PrimIDs.SQUEEZE, PrimIDs.BROADCAST_IN_DIM),
        *("torch.moveaxis", "torch.Tensor.type_as", "torch.conj", "torch.resolve_conj"),
    }
)
"""Further calls than Thunder lists, which attributes such as `mT` record as primitives."""
_MAY_COPY = frozenset({PrimIDs.RESHAPE, PrimIDs.STRIDE_ORDER, "torch.ravel", "torch.Tensor.type"})

_gives_view_of_thunder = update_aliases._is_view_creation_op


def _gives_view(symbol: BoundSymbol) -> bool:
    if _gives_view_of_thunder(symbol):
        return True
    is_further = symbol.sym.id in _VIEWS or symbol.sym.id in _MAY_COPY
    return is_patched() and (is_further or is_whole_view(symbol))


def is_whole_view(symbol: BoundSymbol) -> bool:
    """True if a call that Thunder does not decompose gives a view of its first tensor in torch, as
    meta tensors show.
    """
    if OpTags.AUTO_REGISTERED not in (symbol.sym.tags or ()) or not symbol.flat_proxy_args:
        return False
    first = symbol.flat_proxy_args[0]
    if symbol.subsymbols or not is_plain(first):
        return False
    dtype, shape = stated(first)
    source = torch.empty(shape, dtype=dtype, device="meta")
    found = on_meta(symbol, {first.name: source}) or ()
    return any(_share(x, source) for x in found)


def _depends_on_strides(symbol: BoundSymbol) -> bool:
    return symbol.sym in _MAY_GIVE_VIEWS or symbol.sym.id in _MAY_COPY


def register() -> None:
    """Patch Thunder's list of views, and its proxies of arguments to note their strides."""
    update_aliases._is_view_creation_op = _gives_view
    proxies.tensorproxy = partial(_proxy, proxies.tensorproxy)
