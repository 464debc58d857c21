"""Splitting of regions: what has nothing in common is taken apart where fusing it would hold too
much at once.

Neighbours in a trace that share no tensor are fused to save launches. All that they read is then in
memory until all that they give is, while one after the other frees in between. Where that takes a
region above the worst moment of the trace with nothing fused, its pieces stay apart: that costs
launches, and not a byte of traffic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate

from thunder.core.proxies import TensorProxy
from thunder.core.symbol import BoundSymbol

from thunder_fuser.frontends.thunder.claims.table import flatten, operands
from thunder_fuser.frontends.thunder.memory.liveness import liveness
from thunder_fuser.frontends.thunder.memory.rematerialization import Rematerialization
from thunder_fuser.frontends.thunder.regions.formation import Region, RegionCandidate, region_of
from thunder_fuser.frontends.thunder.trace.aliases import updates
from thunder_fuser.frontends.thunder.trace.canonical_names import Prims

Pieces = Sequence[Sequence[int]]
"""Symbols of a part, by position."""


def take_apart(
    parts: Sequence[RegionCandidate], prims: Prims, rematerialize: Rematerialization
) -> tuple[list[RegionCandidate], Prims]:
    """The same parts and primitives, with the pieces of regions that hold too much."""
    pieces = {
        k: found
        for k, own in prims.items()
        if len(found := _pieces(parts[k], own)) > 1 and not any(map(updates, own))
    }
    if pieces:
        single = [replace(part, symbols=(b,)) for part in parts for b in part.symbols]
        facts = rematerialize.facts
        limits = liveness(single, {}, {}, facts).peaks()
        # The first estimate is high, and quick: every region stores what any other one reads.
        for regions in (_storing_all, rematerialize):
            alive = liveness(parts, prims, regions(parts, prims), facts)
            levels = zip(alive.parts, alive.backward, alive.memory.levels(), strict=True)
            above = {k for k, backward, held in levels if held.during > limits[backward]}
            pieces = {k: pieces[k] for k in pieces if k in above}
            if not pieces:
                break
    return _with_pieces(parts, prims, pieces)


def _pieces(part: RegionCandidate, prims: Sequence[BoundSymbol]) -> Pieces:
    """Symbols that share tensors, directly or through others, in the order of their first."""
    whole = list(range(len(part.symbols)))

    def piece(k: int) -> int:
        while whole[k] != k:
            k = whole[k]
        return k

    first: dict[str, int] = {}
    for k, own in enumerate(_by_symbol(part, prims)):
        for proxy in (p for prim in own for p in (*operands(prim), *prim.flat_proxy_outs)):
            if isinstance(proxy, TensorProxy):
                low, high = sorted((piece(k), piece(first.setdefault(proxy.name, k))))
                whole[high] = low
    found: dict[int, list[int]] = {}
    for k in range(len(whole)):
        found.setdefault(piece(k), []).append(k)
    return list(found.values())


def _by_symbol(part: RegionCandidate, prims: Sequence[BoundSymbol]) -> list[Sequence[BoundSymbol]]:
    """The primitives of a part, symbol by symbol."""
    ends = list(accumulate(sum(1 for _ in flatten(b)) for b in part.symbols))
    return [prims[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def _with_pieces(
    parts: Sequence[RegionCandidate], prims: Prims, pieces: Mapping[int, Pieces]
) -> tuple[list[RegionCandidate], Prims]:
    """Each part as its pieces, where it has some."""
    new: list[RegionCandidate] = []
    own: dict[int, Sequence[BoundSymbol]] = {}
    for k, part in enumerate(parts):
        if k not in pieces:
            if k in prims:
                own[len(new)] = prims[k]
            new.append(part)
            continue
        by_symbol = _by_symbol(part, prims[k])
        for piece in pieces[k]:
            own[len(new)] = [prim for n in piece for prim in by_symbol[n]]
            new.append(replace(part, symbols=tuple(part.symbols[n] for n in piece)))
    return new, own


def _storing_all(parts: Sequence[RegionCandidate], prims: Prims) -> Mapping[int, Region]:
    """Regions that compute nothing again."""
    readers: dict[str, set[int]] = {}
    for k, part in enumerate(parts):
        for bsym in part.symbols:
            for proxy in bsym.flat_proxy_args:
                readers.setdefault(proxy.name, set()).add(k)
    made = {k: {p.name: p for b in own for p in b.flat_proxy_outs} for k, own in prims.items()}
    return {
        k: region_of(own, [p for name, p in made[k].items() if readers.get(name, {k}) != {k}])
        for k, own in prims.items()
    }
