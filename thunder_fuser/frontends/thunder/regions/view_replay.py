"""View replay: a region returns memory, and torch makes the views of it that leave the region.

A kernel that writes `a[:2]` beside `a` would give two tensors where eager code has one memory: an
update of either would not show in the other. So where that matters, what leaves is the tensor that
the view looks at, and the same views follow the region as symbols of their own, which torch runs.
Inside, a region still reads through its views. (AOTAutograd does this for views that a whole
function returns.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import thunder.torch as thunder_torch
from thunder.core.prims import PrimIDs
from thunder.core.proxies import Proxy
from thunder.core.symbol import BoundSymbol

from thunder_fuser.frontends.thunder.claims.claim import Role
from thunder_fuser.frontends.thunder.claims.table import renamed, role
from thunder_fuser.frontends.thunder.trace.aliases import Aliases


class Leaving(NamedTuple):
    """What leaves a region: tensors that it returns, and views that torch makes after it."""

    outputs: tuple[Proxy, ...]
    views: tuple[BoundSymbol, ...]


def replay_views(
    prims: Mapping[int, Sequence[BoundSymbol]], wanted: Collection[str], aliases: Aliases
) -> dict[int, Leaving]:
    """What leaves each region so that others have the tensors `wanted`, by name."""
    missing = set(wanted)
    everywhere = {p.name for own in prims.values() for prim in own for p in prim.flat_proxy_outs}
    found: dict[int, Leaving] = {}
    # The last regions first: their views may look at what earlier ones make.
    for k in sorted(prims, reverse=True):
        made = {p.name: prim for prim in prims[k] for p in prim.flat_proxy_outs}
        proxies = {p.name: p for prim in prims[k] for p in prim.flat_proxy_outs}
        outputs: set[str] = set()
        views: set[str] = set()
        paths = {
            name: _path(name, made) if aliases.matters(name) else []
            for name in proxies
            if name in missing
        }
        copies = _shared_copies(paths.values())
        for name, path in paths.items():
            source = _source(path[0]) if path else name
            is_given = source not in everywhere and not aliases.is_updated(name)
            if source in made:
                is_returned = all(role(prim) is Role.RENAME for prim in path)
            else:
                is_returned = is_given and not any(id(prim) in copies for prim in path)
            if is_returned:
                # A plan has views of what it is given; names of one tensor are one result.
                outputs.add(name)
                continue
            views.update(p.name for prim in path for p in prim.flat_proxy_outs)
            (outputs if source in made else missing).add(source)
        found[k] = Leaving(
            tuple(p for name, p in proxies.items() if name in outputs),
            tuple(_for_torch(prim) for name, prim in made.items() if name in views),
        )
    return found


def _shared_copies(paths: Iterable[Sequence[BoundSymbol]]) -> set[int]:
    """By `id`: what may be new memory, where there are no strides for a view, and what several
    paths lead through. It must be the same memory for all of them.
    """
    may_copy = (PrimIDs.RESHAPE, PrimIDs.STRIDE_ORDER)
    through = Counter(id(prim) for path in paths for prim in path if prim.sym.id in may_copy)
    return {prim for prim, times in through.items() if times > 1}


def _for_torch(prim: BoundSymbol) -> BoundSymbol:
    """A view as Thunder's torch executor makes one: its primitive for a dense order always copies,
    the call does not copy what is dense already.
    """
    if prim.sym.id is not PrimIDs.STRIDE_ORDER:
        return prim
    source, order = prim.args
    if list(order) != list(reversed(range(source.ndim))):
        return prim
    call = thunder_torch.contiguous.bind(source, output=prim.output, subsymbols=(prim,))
    return call.from_bsym(
        source_filename=prim.source_filename,
        source_positions=prim.source_positions,
        tags=prim.tags,
    )


def _path(name: str, made: Mapping[str, BoundSymbol]) -> Sequence[BoundSymbol]:
    """The views and renamings that lead to a tensor from what is computed, updated or given."""
    path: list[BoundSymbol] = []
    prim = made.get(name)
    while prim is not None and role(prim) in (Role.VIEW, Role.RENAME):
        path.append(prim)
        prim = made.get(_source(prim))
    return path[::-1]


def _source(prim: BoundSymbol) -> str:
    """What a view looks at, or a renaming renames."""
    sources = [old for _, old in renamed(prim)] if role(prim) is Role.RENAME else None
    name: str = (sources or prim.flat_proxy_args)[0].name
    return name
