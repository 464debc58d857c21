"""Canonical names: one for each tensor that regions pass to each other, or are given.

Thunder renames a tensor wherever a result must not be the proxy of another: one in memory may have
several names. Symbols that are not fused read one of them and a region another, so that a region
would store, and save for backward, what is in memory already, or compute it again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from thunder.core.proxies import Proxy, Variable, variableify
from thunder.core.symbol import BoundSymbol

from thunder_fuser.frontends.thunder.claims.claim import Role
from thunder_fuser.frontends.thunder.claims.table import operands, role
from thunder_fuser.frontends.thunder.trace.aliases import Aliases

Prims = Mapping[int, Sequence[BoundSymbol]]
"""Primitives of the parts that are to be fused, by position of the part."""


def one_name(prims: Prims, outside: Set[str], aliases: Aliases) -> Prims:
    """The same primitives, where a region reads what another one makes under one name only.

    `outside` are names that symbols read which are not fused; such a name is the one, if a tensor
    has it. What lies where an update writes keeps its names: they order reads and updates.
    """
    region_of: dict[str, int] = {}
    chosen: dict[str, Proxy] = {}
    for k, own in prims.items():
        names: dict[str, list[Proxy]] = {}
        for prim in own:
            if role(prim) is Role.RENAME:
                source, new = operands(prim)[0], prim.flat_proxy_outs[0]
                made_here = region_of.get(source.name) == k
                if made_here and not aliases.is_updated(new.name):
                    same = names.setdefault(source.name, [source])
                    same.append(new)
                    names[new.name] = same
            region_of.update((p.name, k) for p in prim.flat_proxy_outs)
        for name, same in names.items():
            one = next((p for p in same if p.name in outside), same[0])
            if one.name != name:
                chosen[name] = one
    return {
        k: tuple(_reading(prim, k, region_of, chosen) for prim in own) for k, own in prims.items()
    }


def one_input(prims: Sequence[BoundSymbol], aliases: Aliases) -> Sequence[BoundSymbol]:
    """The same primitives of one region, which read a tensor that an update writes under the first
    name of several that came from outside: each name would be a value of its own.
    """
    if not aliases.updated:
        return prims
    made = {p.name for prim in prims for p in prim.flat_proxy_outs}
    first: dict[str, Proxy] = {}
    swaps: dict[Variable, Proxy] = {}
    for proxy in (p for prim in prims for p in prim.flat_proxy_args):
        if proxy.name not in made and aliases.is_updated(proxy.name):
            same = first.setdefault(aliases.tensor(proxy.name), proxy)
            if same.name != proxy.name:
                swaps[variableify(proxy)] = same
    if not swaps:
        return prims
    return [prim.from_bsym_swap_proxies(swaps, skip_output=True) for prim in prims]


def _reading(
    prim: BoundSymbol, region: int, region_of: Mapping[str, int], chosen: Mapping[str, Proxy]
) -> BoundSymbol:
    """A primitive of a region with the chosen names for what other regions make."""
    if not chosen or all(p.name not in chosen for p in prim.flat_proxy_args):
        return prim
    swaps = {
        variableify(p): chosen[p.name]
        for p in operands(prim)
        if p.name in chosen and region_of[p.name] != region
    }
    return prim.from_bsym_swap_proxies(swaps, skip_output=True) if swaps else prim
