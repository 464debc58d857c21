"""The prims of a region candidate, tagged with what torch's kernel for each call gives: memory,
layout and rounding of its result.

Thunder decomposes a call of the user's into prims; torch runs one kernel for it, which rounds once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from thunder.core import dtypes
from thunder.core import prims as prims_of_thunder
from thunder.core.prims import PrimIDs
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import BoundSymbol

from thunder_fuser.frontends.thunder.claims.claim import (
    ORDERS,
    Ending,
    InFormatOf,
    LiesAs,
    LiesAsIndexed,
)
from thunder_fuser.frontends.thunder.claims.operands import is_supported
from thunder_fuser.frontends.thunder.claims.table import flatten, role
from thunder_fuser.frontends.thunder.regions.formation import RegionCandidate, TraceInfo, tensors
from thunder_fuser.frontends.thunder.remembered import relabelled
from thunder_fuser.frontends.thunder.trace.aliases import Aliases
from thunder_fuser.frontends.thunder.trace.call_facts import LIKE
from thunder_fuser.frontends.thunder.trace.origin import Recorded, is_backward
from thunder_fuser.frontends.thunder.trace.rng_state import RngStates
from thunder_fuser.segment.regions.joint_graph import Role


def primitives(
    part: RegionCandidate, recorded: Recorded, draws: RngStates, facts: TraceInfo
) -> tuple[BoundSymbol, ...]:
    """Return the prims of a part: with source lines and layout tags, and with stateless random
    prims.
    """
    prims = [
        draws.stateless(_tagged(recorded.located(prim, whole), recorded, facts.aliases))
        for whole in part.symbols
        for prim in _with_operand(whole)
    ]
    prims = _tagged_where_made(list(_rounded_once(_tagged_as_indexed(prims), recorded)))
    return tuple(_same_gradients(prims) if part.place and part.place.is_backward else prims)


def _tagged_where_made(prims: Sequence[BoundSymbol]) -> list[BoundSymbol]:
    """Return the prims with tags for a value propagated to the prim that computes it: layout tags
    through renamings, and rounding through copies, views and updates, too.
    """
    wanted: dict[str, frozenset[object]] = {}
    found: list[BoundSymbol] = []
    for prim in reversed(prims):
        tags = {
            tag for tag in prim.tags if isinstance(tag, (InFormatOf, LiesAs)) or tag in _PROPAGATED
        }
        tags = tags.union(*(wanted.get(p.name, frozenset()) for p in prim.flat_proxy_outs))
        passed = tags if role(prim) is Role.RENAME else tags & {Ending.ROUNDED}
        if passed and role(prim) in _SHOW_THEIR_SOURCE:
            source = prim.flat_proxy_args[0].name
            wanted[source] = wanted.get(source, frozenset()) | passed
        found.append(relabelled(prim, tags=prim.tags | tags) if tags - prim.tags else prim)
    return found[::-1]


_PROPAGATED = ORDERS | {Ending.ROUNDED}
_SHOW_THEIR_SOURCE = frozenset({Role.VIEW, Role.COPY, Role.UPDATE, Role.RENAME})


def _tagged_as_indexed(prims: Sequence[BoundSymbol]) -> list[BoundSymbol]:
    """Return the prims with a `LiesAsIndexed` tag on those that end an indexing by a tensor.

    Thunder wraps negative indices, flattens the index, takes, and reshapes the result to the
    index's shape.
    """
    by = {b.output.name: b for b in prims if isinstance(b.output, TensorProxy)}

    def made(x: object, name: PrimIDs) -> Sequence[Any]:
        """Return the arguments of the prim that defines `x` if its id is `name`, or ()."""
        b = by.get(x.name) if isinstance(x, TensorProxy) else None
        return b.args if b is not None and b.sym.id is name else ()

    found: dict[str, LiesAsIndexed] = {}
    ended: list[BoundSymbol] = []
    for prim in prims:
        tag = None
        if prim.sym.id is PrimIDs.TAKE:
            source, flat, dim = prim.args
            wrapped = next(iter(made(flat, PrimIDs.RESHAPE)), flat)
            index, offset = made(wrapped, PrimIDs.ADD) or (None, None)
            offset = next(iter(made(offset, PrimIDs.CONVERT_ELEMENT_TYPE)), offset)
            if index is not None and made(offset, PrimIDs.WHERE):
                tag = found[prim.output.name] = LiesAsIndexed(source.name, dim, index.name)
                tag = tag if index.ndim == 1 else None
        elif prim.sym.id is PrimIDs.RESHAPE:
            tag = found.get(prim.args[0].name)
        ended.append(relabelled(prim, tags=prim.tags | {tag}) if tag else prim)
    return ended


_FILL = frozenset({PrimIDs.FULL, PrimIDs.UNIFORM, PrimIDs.RANDN})


def _with_operand(whole: BoundSymbol) -> Iterator[BoundSymbol]:
    """Yield the prims of a symbol; in a call such as zeros_like, what fills the result gets the
    operand whose layout it has. Not in the backward: no tensor is saved for a gradient's layout
    alone.
    """
    knows = whole.sym.id in LIKE and not is_backward(whole)
    read = tensors(whole.flat_proxy_args) if knows else []
    like = next((p for p in read if p.device == whole.flat_proxy_outs[0].device), None)
    for prim in flatten(whole):
        if like is not None and prim.sym.id in _FILL and is_supported(like):
            prim = prim.from_bsym(kwargs={**prim.kwargs, "like": like})
        yield prim


def _tagged(prim: BoundSymbol, recorded: Recorded, aliases: Aliases) -> BoundSymbol:
    """Return the prim with tags for memory, layout and rounding of the call that it ends."""
    outs = tensors(prim.flat_proxy_outs)
    names = [p.name for p in outs]
    ends = {
        Ending.NEW: aliases.is_owner(prim),
        Ending.ROW_MAJOR: any(map(recorded.is_row_major, names)),
        Ending.CHANNELS_LAST: any(map(recorded.keeps_channels_last, names)),
        Ending.ROUNDED: any(map(recorded.is_result, names)) and any(map(_is_wide, outs)),
    }
    found: set[Ending | InFormatOf | LiesAs] = {tag for tag, holds in ends.items() if holds}
    leaders = map(recorded.leaders, names)
    found.update(tag for tag in leaders if tag is not None)
    return relabelled(prim, tags=prim.tags | found) if found else prim


def _rounded_once(prims: Sequence[BoundSymbol], recorded: Recorded) -> Iterator[BoundSymbol]:
    """Yield the prims without round trips through 16 bits inside one call of the user's.

    Thunder decomposes a call such as gelu into prims that each round to the tensor's dtype. Torch's
    kernel for the call computes in fp32 and rounds once, at its end; so does a fusion.
    """
    unrounded: dict[str, TensorProxy] = {}
    for prim in prims:
        if prim.sym.id is not PrimIDs.CONVERT_ELEMENT_TYPE:
            yield prim
            continue
        (source, dtype), out = prim.args, prim.output
        wide = unrounded.get(source.name) if isinstance(source, TensorProxy) else None
        if isinstance(source, TensorProxy) and _narrows(source, out):
            unrounded[out.name] = source
        elif wide is not None and recorded.round_once(source.name, out.name):
            prim = prim.from_bsym(args=(wide, dtype))
        yield prim


def _same_gradients(prims: Sequence[BoundSymbol]) -> Iterator[BoundSymbol]:
    """Yield the prims with a widening and narrowing back of a gradient replaced by a shallow copy.

    Thunder's rules upcast to fp32 even where nothing is computed. A gradient may alias the tensor
    that autograd passed in; elsewhere a cast gives new memory, which the user may write to.
    """
    widened: dict[str, TensorProxy] = {}
    for prim in prims:
        if prim.sym.id is PrimIDs.CONVERT_ELEMENT_TYPE and isinstance(prim.args[0], TensorProxy):
            source, out = prim.args[0], prim.output
            if _narrows(out, source):
                widened[out.name] = source
            origin = widened.get(source.name)
            if origin is not None and origin.dtype == out.dtype:
                same = prims_of_thunder.shallow_copy.bind(origin, output=out)
                prim = same.from_bsym(
                    source_filename=prim.source_filename,
                    source_positions=prim.source_positions,
                    tags=prim.tags,
                )
        yield prim


def _narrows(source: TensorProxy, out: TensorProxy) -> bool:
    return source.dtype == dtypes.float32 and out.dtype in (dtypes.bfloat16, dtypes.float16)


def _is_wide(x: TensorProxy) -> bool:
    return x.dtype in (dtypes.float32, dtypes.float64)
