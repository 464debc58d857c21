"""Conversion of a trace to a joint graph, and of the graph's regions back to bound symbols.

Values of the graph are numbers of proxy names, in the order of their first occurrence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import thunder.torch as thunder_torch
import torch
from thunder.core.prims import OpTags, PrimIDs
from thunder.core.proxies import FutureTensorProxy, Proxy, TensorProxy, Variable, variableify
from thunder.core.symbol import BoundSymbol

from thunder_fuser.frontends.thunder.claims.operands import elements, is_static
from thunder_fuser.frontends.thunder.claims.table import (
    TABLE,
    flatten,
    motion,
    operands,
    renamed,
    role,
)
from thunder_fuser.frontends.thunder.claims.targets import updates
from thunder_fuser.frontends.thunder.regions.formation import (
    Region,
    RegionCandidate,
    TraceInfo,
    region_of,
)
from thunder_fuser.frontends.thunder.trace.aliases import Aliases
from thunder_fuser.frontends.thunder.trace.origin import is_backward
from thunder_fuser.frontends.thunder.trace.torch_work import bytes_of
from thunder_fuser.runtime.target import planned_for
from thunder_fuser.segment.prices import PriceUnits
from thunder_fuser.segment.regions import rematerialization
from thunder_fuser.segment.regions.joint_graph import (
    Call,
    JointGraph,
    Part,
    Partition,
    Primitive,
    Role,
    Value,
)

_EFFECTS = frozenset(
    {OpTags.DONT_DCE, OpTags.IN_PLACE, OpTags.RANDOM_OP, OpTags.CTX_MANAGER_ENTER_EXIT_OP}
)

Prims = Mapping[int, Sequence[BoundSymbol]]
"""Prims of the parts that are to be fused, by position of the part."""


@dataclass(frozen=True, slots=True)
class TraceGraph:
    """The joint graph of a trace, and its bound symbols and proxies.

    partition   the initial partition: the parts as formed
    symbols     bound symbol of each call
    primitives  bound symbol of each primitive
    proxies     proxy of each value
    """

    graph: JointGraph
    partition: Partition
    symbols: Sequence[BoundSymbol]
    primitives: Sequence[BoundSymbol]
    proxies: Sequence[Proxy]
    _parts: Sequence[RegionCandidate]
    _part_of: Sequence[int]
    _aliases: Aliases

    def parts(self, partition: Partition) -> list[RegionCandidate]:
        """Return the parts of a partition as region candidates."""
        return [
            replace(
                self._parts[self._part_of[part.calls[0]]],
                symbols=tuple(self.symbols[k] for k in part.calls),
            )
            for part in partition
        ]

    def region(self, region: rematerialization.Region) -> Region:
        """Return a region of the graph as bound symbols."""
        proxies = self.proxies
        prims = []
        for p in region.primitives:
            prim = self.primitives[p]
            if swapped := region.swaps.get(p):
                swaps = {variableify(proxies[v]): proxies[u] for v, u in swapped.items()}
                prim = prim.from_bsym_swap_proxies(swaps, skip_output=True)
            prims.append(prim)
        return region_of(
            one_input(prims, self._aliases),
            [proxies[v] for v in region.outputs],
            [_for_torch(self.primitives[p]) for p in region.views],
        )


def trace_graph(parts: Sequence[RegionCandidate], prims: Prims, facts: TraceInfo) -> TraceGraph:
    """Return the joint graph of a whole trace, given its parts in order."""
    maker = _Maker(facts)
    partition: list[Part] = []
    part_of: list[int] = []
    for k, part in enumerate(parts):
        start = len(maker.calls)
        own = iter(prims.get(k, ()))
        for bsym in part.symbols:
            fused = [next(own) for _ in flatten(bsym)] if k in prims else []
            maker.add(bsym, fused)
            part_of.append(k)
        calls = tuple(range(start, len(maker.calls)))
        partition.append(Part(calls, part.place if k in prims else None))
    devices = {part.place.device for part in partition if part.place is not None}
    return TraceGraph(
        maker.graph(devices),
        tuple(partition),
        maker.symbols,
        maker.primitives,
        maker.proxies,
        parts,
        part_of,
        facts.aliases,
    )


class _Maker:
    """Builder of a trace's joint graph."""

    def __init__(self, facts: TraceInfo) -> None:
        self.symbols: list[BoundSymbol] = []
        self.primitives: list[BoundSymbol] = []
        self.proxies: list[Proxy] = []
        self.calls: list[Call] = []
        self._facts = facts
        self._numbers: dict[str, int] = {}
        self._prims: list[Primitive] = []

    def add(self, bsym: BoundSymbol, fused: Sequence[BoundSymbol]) -> None:
        """Append a symbol; `fused`: its prims in a fusion, empty if it is left to torch."""
        first = len(self._prims)
        reads = self._of(bsym.flat_proxy_args)
        for prim in fused:
            self._prims.append(self._primitive(prim))
            self.primitives.append(prim)
        self.symbols.append(bsym)
        self.calls.append(
            Call(
                bsym.sym.name,
                reads,
                self._of(bsym.flat_proxy_outs),
                self._shown(bsym),
                range(first, len(self._prims)),
                is_backward(bsym),
                updates(bsym),
                _has_effect(bsym),
                bsym.sym.id is PrimIDs.UNPACK_TRIVIAL,
                bsym.sym.id is PrimIDs.GET_GRAD,
            )
        )

    def _primitive(self, prim: BoundSymbol) -> Primitive:
        reads, makes = self._of(operands(prim)), self._of(prim.flat_proxy_outs)
        kind = role(prim)
        source = None
        if kind is Role.RENAME:
            source = next((self._number(old) for _, old in renamed(prim)), None)
        elif kind is Role.VIEW:
            source = self._number(prim.flat_proxy_args[0])
        return Primitive(
            reads,
            makes,
            kind,
            motion(prim),
            source,
            self._shown(prim),
            TABLE[prim.sym.id].cost,
            self._may_repeat(prim, kind),
        )

    def _may_repeat(self, prim: BoundSymbol, kind: Role) -> bool:
        """True if a prim can be recomputed elsewhere with the same result: not a random one, nor
        one on updated memory, as a recomputed copy would not see the update.
        """
        if kind is Role.UPDATE or OpTags.RANDOM_OP in (prim.sym.tags or ()):
            return False
        aliases = self._facts.aliases
        if not aliases.updated:
            return True
        tensors = (*operands(prim), *prim.flat_proxy_outs)
        return not any(aliases.is_updated(p.name) for p in tensors)

    def _shown(self, bsym: BoundSymbol) -> tuple[tuple[int, int], ...]:
        """Return pairs of a result and the argument that it aliases, by value number."""
        claim = TABLE.get(bsym.sym.id)
        if claim is None:
            return tuple(pair for part in bsym.subsymbols for pair in self._shown(part))
        pairs: list[tuple[Proxy, Proxy]] = []
        if claim.role is Role.RENAME:
            pairs = list(renamed(bsym))
        elif claim.role is Role.VIEW:
            pairs = [(bsym.flat_proxy_outs[0], bsym.flat_proxy_args[0])]
        elif claim.role is Role.UPDATE:
            pairs = [(bsym.flat_proxy_outs[0], bsym.args[1])]
        return tuple((self._number(new), self._number(old)) for new, old in pairs)

    def _of(self, proxies: Sequence[Proxy]) -> tuple[int, ...]:
        return tuple(map(self._number, proxies))

    def _number(self, proxy: Proxy) -> int:
        number = self._numbers.get(proxy.name)
        if number is None:
            number = self._numbers[proxy.name] = len(self.proxies)
            self.proxies.append(proxy)
        return number

    def graph(self, devices: set[torch.device]) -> JointGraph:
        prices = {device: PriceUnits.of(planned_for(device)) for device in devices}
        values = tuple(map(self._value, self.proxies))
        return JointGraph(values, tuple(self._prims), tuple(self.calls), prices)

    def _value(self, proxy: Proxy) -> Value:
        facts, name = self._facts, proxy.name
        root = facts.aliases.memory(name)
        memory = self._numbers.get(root)
        size = bytes_of(proxy)
        is_sized = isinstance(proxy, TensorProxy) and is_static(proxy.shape)
        return Value(
            elements(proxy) if is_sized else 1,
            size,
            isinstance(proxy, TensorProxy),
            # The graph has no values for names inside of a call.
            self._numbers[name] if memory is None else memory,
            size if memory is None else bytes_of(self.proxies[memory]),
            name in facts.kept,
            root in facts.unsaved,
            facts.aliases.is_updated(name),
            facts.aliases.matters(name),
        )


def one_input(prims: Sequence[BoundSymbol], aliases: Aliases) -> Sequence[BoundSymbol]:
    """Return a region's prims with all names of an updated input tensor replaced by the first: each
    name would be a separate input of the fusion.
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


def _for_torch(prim: BoundSymbol) -> BoundSymbol:
    """Return a view as Thunder's torch executor should run it: its prim STRIDE_ORDER always copies,
    while `contiguous` does not copy a tensor that is contiguous already.
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


def _has_effect(bsym: BoundSymbol) -> bool:
    proxies = bsym.flat_proxy_outs
    return (
        not proxies
        or bsym.sym.id is PrimIDs.GET_GRAD
        or not _EFFECTS.isdisjoint(bsym.sym.tags or ())
        or any(isinstance(p, FutureTensorProxy) for p in (*proxies, *bsym.flat_proxy_args))
        or any(map(_has_effect, bsym.subsymbols))
    )
