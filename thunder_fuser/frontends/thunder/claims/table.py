"""The claims table, and queries of bound symbols: refusals, roles, operands, claimed prims."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from thunder.core.prims import PrimIDs
from thunder.core.proxies import Proxy
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import tracectx

from thunder_fuser.errors import Refusal
from thunder_fuser.frontends.thunder.claims import (
    activations,
    calls,
    complex_calls,
    create,
    indexing,
    pointwise,
    random,
    reductions,
    scans,
    shape,
)
from thunder_fuser.frontends.thunder.claims.claim import Apart, Claim, Ending
from thunder_fuser.frontends.thunder.claims.operands import refuse_kind, refuse_proxies
from thunder_fuser.frontends.thunder.remembered import leaves_in, proxies_in, remembered
from thunder_fuser.segment.regions.joint_graph import Motion, Role

TABLE: Mapping[PrimIDs | str, Claim] = MappingProxyType(
    {
        **pointwise.CLAIMS,
        **reductions.CLAIMS,
        **scans.CLAIMS,
        **shape.CLAIMS,
        **create.CLAIMS,
        **random.CLAIMS,
        **indexing.CLAIMS,
        **calls.CLAIMS,
        **activations.CLAIMS,
        **complex_calls.CLAIMS,
    }
)

# Symbols that compute nothing, and are never refused.
_BOOKKEEPING = frozenset(p for p in PrimIDs if p.name.startswith("UNPACK")) | {PrimIDs.GET_GRAD}

_WRITES_AT_INDEX = (
    "writes where data say, perhaps twice to one place; kernels write each point once"
)

MOST_TAPS = 49
"""Most elements of a pool's window: each costs a load per output, and a load and a comparison per
element in the gradient."""

_PRODUCT = "a matrix product, which torch's libraries compute"
_CONVOLUTION = "a convolution, which torch's libraries compute"
_SCAN = "a scan: each element waits for the one before it"
_ATTENTION = "attention, for which torch has kernels"
_POOL = (
    "a pool whose window has too many elements for a kernel to read at each point (more than "
    f"{MOST_TAPS}), or whose dtype torch alone has"
)
_SORT = "a sort: data decide where each element goes"

# Reasons that prims, and calls by name, are not in the table.
_LEFT_TO_TORCH: Mapping[PrimIDs | str, str] = {
    PrimIDs.MATMUL: _PRODUCT,
    PrimIDs.LINEAR: _PRODUCT,
    PrimIDs.CONVOLUTION: _CONVOLUTION,
    **dict.fromkeys(
        (
            "fuser_convolution",
            "fuser_convolution_input_gradient",
            "fuser_convolution_weight_gradient",
            "fuser_convolution_gradients",
        ),
        _CONVOLUTION,
    ),
    "scaled_dot_product_attention": _ATTENTION,
    **dict.fromkeys(("fuser_attention", "fuser_attention_forward"), _ATTENTION),
    "fuser_attention_backward": _ATTENTION,
    **dict.fromkeys(
        (
            *(f"max_pool{k}d{end}" for k in (1, 2, 3) for end in ("", "_with_indices")),
            *(f"max_pool{k}d_with_indices_backward" for k in (2, 3)),
        ),
        _POOL,
    ),
    PrimIDs.SORT: _SORT,
    PrimIDs.TOPK: _SORT,
    "argsort": _SORT,
    **dict.fromkeys(("cummax", "cummin", "logcumsumexp"), _SCAN),
    PrimIDs.EMBEDDING_BACKWARD: _WRITES_AT_INDEX,
    PrimIDs.INDEX_ADD: _WRITES_AT_INDEX,
    PrimIDs.INDEX_COPY: _WRITES_AT_INDEX,
    PrimIDs.INDEX_PUT: _WRITES_AT_INDEX,
    PrimIDs.SCATTER: _WRITES_AT_INDEX,
    PrimIDs.SCATTER_ADD: _WRITES_AT_INDEX,
    PrimIDs.EMPTY: "a tensor without values needs no kernel",
}


def refuse_call(
    claimed: PrimIDs | str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Refusal | None:
    """Return why a claimed prim or call is not fused with these arguments, or None.

    Nothing is recorded: with symbolic values Thunder records that a shape was read, on the tensor
    that was asked, which has another name in the trace that is being made.
    """
    with tracectx(None):
        return refuse_proxies(proxies_in((args, kwargs))) or TABLE[claimed].refuse(*args, **kwargs)


def refusal_of(bsym: BoundSymbol) -> Refusal | None:
    """Return why a claimed bound symbol is not fused, or None. Cached, as the arguments of a bound
    symbol do not change.
    """
    return remembered(bsym, "refusal", _refusal)


def _refusal(bsym: BoundSymbol) -> Refusal | None:
    return refuse_call(bsym.sym.id, bsym.args, bsym.kwargs)


def _is_claimed_whole(bsym: BoundSymbol) -> bool:
    """True if the symbol itself is claimed; a call that its claim refuses may still be fused by its
    subsymbols.
    """
    if bsym.sym.id not in TABLE:
        return False
    if not bsym.subsymbols:
        return True
    return Apart.STATISTICS not in bsym.tags and refusal_of(bsym) is None


def refuse(bsym: BoundSymbol) -> Iterator[Refusal]:
    """Yield all reasons that a symbol, or a subsymbol, cannot be fused; none if it can.

    The subject of each is the name of the refused symbol.
    """
    prim = bsym.sym.id
    if _is_claimed_whole(bsym):
        if refused := refusal_of(bsym):
            yield replace(refused, subject=bsym.sym.name)
    elif bsym.subsymbols:
        for part in bsym.subsymbols:
            yield from refuse(part)
    elif prim not in _BOOKKEEPING:
        named = _LEFT_TO_TORCH.get(bsym.sym.name, "no claim covers it; it stays with torch")
        reason = _LEFT_TO_TORCH.get(prim, named)
        unclaimed = Refusal("unclaimed", reason)
        kinds = filter(None, map(refuse_kind, bsym.flat_proxy_args))
        yield replace(next(kinds, unclaimed), subject=bsym.sym.name)


def renamed(prim: BoundSymbol) -> Iterator[tuple[Proxy, Proxy]]:
    """Yield pairs of new and old proxy for a prim that only renames tensors."""
    old, new = leaves_in(prim.args), leaves_in(prim.output)
    yield from ((n, o) for n, o in zip(new, old, strict=True) if isinstance(n, Proxy))


def role(prim: BoundSymbol) -> Role:
    """Return the role of a claimed symbol; one that ends a call with new memory is a copy."""
    return Role.COPY if Ending.NEW in prim.tags else TABLE[prim.sym.id].role


_MOTIONS = {
    PrimIDs.SLICE: Motion.SLICES,
    PrimIDs.RESHAPE: Motion.RESHAPES,
    PrimIDs.TRANSPOSE: Motion.PERMUTES,
    PrimIDs.STRIDE_ORDER: Motion.LAYS_OUT,
}


def motion(prim: BoundSymbol) -> Motion:
    """Return the effect of a claimed view on the order of elements in memory."""
    return _MOTIONS.get(prim.sym.id, Motion.KEEPS)


def operands(prim: BoundSymbol) -> list[Proxy]:
    """Return the proxies that a claimed symbol reads, each once."""
    unread = TABLE[prim.sym.id].unread
    if not unread:
        return list(prim.flat_proxy_args)
    read = [x for k, x in enumerate(prim.args) if k not in unread]
    return list({p.name: p for p in proxies_in((read, prim.kwargs))}.values())


def flatten(bsym: BoundSymbol) -> Iterator[BoundSymbol]:
    """Yield the claimed symbols of a fusible symbol, in order: mostly prims.

    A renaming of several tensors is split into one for each, so that a reader of one does not
    depend on the others.
    """
    if bsym.sym.id is PrimIDs.UPDATE_ALIASES and len(bsym.flat_proxy_outs) > 1:
        for new, old in renamed(bsym):
            yield bsym.from_bsym(args=((old,),), output=(new,))
    elif _is_claimed_whole(bsym):
        yield bsym
    else:
        for part in bsym.subsymbols:
            yield from flatten(part)
