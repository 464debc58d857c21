"""Rematerialisation between the regions of a trace: what goes through memory, and what each region
computes again.

Thunder saves for backward what backward regions read, so this decides what is saved, by bytes. A
tensor that is in memory anyway, and stays alive, costs its readers a read; one that would die with
the forward costs its life besides; one that exists in registers alone also costs a write. Against
that stands the arithmetic of computing it again. (Thunder's own rematerialization weighs dtypes,
not sizes.) The forward is decided first: what its regions store for each other, backward finds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from thunder.core.prims import OpTags, PrimIDs
from thunder.core.proxies import Proxy, TensorProxy
from thunder.core.symbol import BoundSymbol, BoundSymbolTag

from thunder_fuser.frontends.thunder.claims.claim import Role
from thunder_fuser.frontends.thunder.claims.operands import elements
from thunder_fuser.frontends.thunder.claims.table import TABLE, operands, role
from thunder_fuser.frontends.thunder.regions.formation import (
    DevicePhase,
    Region,
    RegionCandidate,
    TraceInfo,
    region_of,
)
from thunder_fuser.frontends.thunder.regions.view_replay import replay_views
from thunder_fuser.frontends.thunder.trace.canonical_names import Prims, one_input, one_name
from thunder_fuser.runtime.target import planned_for
from thunder_fuser.segment.store_or_recompute import (
    NEVER,
    Choice,
    Lazily,
    Value,
    Values,
    materialize,
)
from thunder_fuser.segment.time_model import Prices


class Rematerialization:
    """Decides for a trace, each time that its regions are formed anew; for regions that it has seen
    it decided already.
    """

    def __init__(self, facts: TraceInfo) -> None:
        self.facts = facts
        # By the addresses of what is kept beside them.
        self._decided: dict[tuple[object, ...], tuple[dict[int, Region], object]] = {}

    def __call__(self, parts: Sequence[RegionCandidate], prims: Prims) -> dict[int, Region]:
        """A region for each part that is to be fused, with what it computes again in front.

        `parts` are the whole trace, in order. A part of which nobody reads anything any more has no
        region.
        """
        key = (*map(id, parts), *((k, id(own)) for k, own in prims.items()))
        if key not in self._decided:
            regions = _regions(parts, prims, self.facts)
            self._decided[key] = regions, (tuple(parts), dict(prims))
        return dict(self._decided[key][0])


def _regions(parts: Sequence[RegionCandidate], prims: Prims, facts: TraceInfo) -> dict[int, Region]:
    apart = [b for k, part in enumerate(parts) if k not in prims for b in part.symbols]
    prims = one_name(prims, {p.name for b in apart for p in b.flat_proxy_args}, facts.aliases)
    table = _Table(parts, prims, facts)
    choices: dict[int, Choice] = {}
    for place in sorted(set(table.places.values()), key=lambda p: (p.is_backward, str(p.device))):
        mine = [k for k in prims if table.places[k] == place]
        values = table.values(place, _read(choices.values()))
        found = materialize(values, [table.wanted(k) for k in mine])
        choices.update(zip(mine, found, strict=True))
    stored = _read(choices.values())
    made = {p.name for own in prims.values() for b in own for p in b.flat_proxy_outs}
    kept = {name for name in made if table.is_kept(name, stored)}
    leaving = replay_views(prims, kept, facts.aliases)
    regions: dict[int, Region] = {}
    for k, own in prims.items():
        again = {id(b): b for v in sorted(choices[k].computed) if (b := table.made_by[v])}
        outputs, views = leaving[k]
        if outputs or views or any(role(b) is Role.UPDATE for b in own):
            whole = one_input((*again.values(), *own), facts.aliases)
            regions[k] = region_of(whole, outputs, views)
    return regions


def _read(choices: Iterable[Choice]) -> frozenset[int]:
    return frozenset().union(*(choice.read for choice in choices))


class _Arithmetic(NamedTuple):
    """operands      values that a primitive computes from, by number
    instructions  of fp32, none for what only moves data; None where it cannot be computed again
    launches      a fold may take a kernel of its own
    """

    operands: tuple[int, ...]
    instructions: int | None
    launches: int


class _Table:
    """Every value of a trace, numbered in the order in which they come to be.

    made_by  the primitive of a region that computes a value; None for all others
    places   of the parts that are to be fused
    """

    def __init__(self, parts: Sequence[RegionCandidate], prims: Prims, facts: TraceInfo) -> None:
        self.made_by: list[BoundSymbol | None] = []
        self.places: dict[int, DevicePhase] = {}
        self._proxies: list[Proxy] = []
        self._numbers: dict[str, int] = {}
        self._of_part: list[DevicePhase | None] = []
        self._is_backward: list[bool] = []
        # The first value that lies where a value would, and whether both are in one order.
        self._memory: list[tuple[int, bool]] = []
        self._elements: dict[int, int] = {}
        self._prices: dict[int, _Arithmetic] = {}
        self._wanted: dict[int, dict[int, None]] = {}
        # Read by symbols that are not fused; those of them that run in the backward.
        self._outside: set[int] = set()
        self._alive: set[int] = set()
        for k, part in enumerate(parts):
            place = part.place if k in prims else None
            if place is not None:
                self.places[k] = place
                self._wanted[k] = {}
            for bsym in prims.get(k, part.symbols):
                backward = BoundSymbolTag.BACKWARD in bsym.tags
                for proxy in operands(bsym) if place else bsym.flat_proxy_args:
                    name = proxy.name
                    number = self._numbers.get(name)
                    if number is None:
                        number = self._add(proxy, name, None, None, False)
                    if place is None:
                        self._outside.add(number)
                        if backward:
                            self._alive.add(number)
                    else:
                        self._wanted[k][number] = None
                for proxy in bsym.flat_proxy_outs:
                    if (name := proxy.name) not in self._numbers:
                        self._add(proxy, name, bsym if place else None, place, backward)
        for k, own in prims.items():
            for name in {p.name for b in own for p in b.flat_proxy_outs}:
                self._wanted[k].pop(self._numbers[name], None)
        self._times = self._evaluated(prims)
        self._alive |= {n for name, n in self._numbers.items() if name in facts.kept}
        self._aliases = facts.aliases
        self._unsaved = facts.unsaved

    def _add(
        self,
        proxy: Proxy,
        name: str,
        made_by: BoundSymbol | None,
        place: DevicePhase | None,
        backward: bool,
    ) -> int:
        number = self._numbers[name] = len(self._proxies)
        self._proxies.append(proxy)
        self.made_by.append(made_by)
        self._of_part.append(place)
        self._is_backward.append(place.is_backward if place else backward)
        self._memory.append(self._shared(number, made_by) or (number, True))
        return number

    def _shared(self, number: int, prim: BoundSymbol | None) -> tuple[int, bool] | None:
        """For a value that shows all of another one: where that lies."""
        if prim is None or role(prim) not in (Role.VIEW, Role.RENAME):
            return None
        source = self.number(prim.flat_proxy_args[0])
        first, is_ordered = self._memory[source]
        if self.made_by[first] is None:
            # Whoever wants it takes it from there.
            return None
        if self._size(source) != self._size(number):
            return None
        match prim.sym.id:
            case PrimIDs.TRANSPOSE:
                return first, False
            case PrimIDs.STRIDE_ORDER:
                return None
            case PrimIDs.RESHAPE if not is_ordered:
                return None
        return first, is_ordered

    def _evaluated(self, prims: Prims) -> dict[int, float]:
        """How often an element of a value is computed, where everything behind it is computed
        again: once for each of the overlapping slices that show it, as the windows of a pool do.
        Left out: once.
        """
        times: dict[int, float] = {}
        shown: dict[int, float] = {}
        for own in reversed(list(prims.values())):
            for prim in reversed(own):
                outs = [self.number(p) for p in prim.flat_proxy_outs]
                if role(prim) in (Role.REDUCE, Role.SCAN):
                    continue
                each = max((self._times_of(n, times, shown) for n in outs), default=1.0)
                for n in map(self.number, operands(prim)):
                    if prim.sym.id is PrimIDs.SLICE:
                        shown[n] = shown.get(n, 0.0) + each * sum(map(self._count, outs))
                    elif each > 1:
                        times[n] = max(times.get(n, 1.0), each)
        return {n: self._times_of(n, times, shown) for n in {*times, *shown}}

    def _times_of(self, n: int, times: dict[int, float], shown: dict[int, float]) -> float:
        return max(1.0, times.get(n, 1.0), shown.get(n, 0.0) / max(self._count(n), 1))

    def _memories(self, numbers: Iterable[int]) -> frozenset[int]:
        return frozenset(self._memory[n][0] for n in numbers)

    def number(self, proxy: Proxy) -> int:
        return self._numbers[proxy.name]

    def is_kept(self, name: str, stored: frozenset[int]) -> bool:
        """Whether a value is stored, or read by somebody who is not a region."""
        number = self._numbers[name]
        return number in self._outside or number in stored

    def wanted(self, part: int) -> tuple[int, ...]:
        """What a part reads and does not compute itself."""
        return tuple(self._wanted[part])

    def values(self, place: DevicePhase, stored: frozenset[int]) -> Values:
        """Prices for the regions of one place; `stored` is in memory already."""
        there = self._outside | stored
        memories, alive = self._memories(there), self._memories(self._alive)
        prices = Prices.of(planned_for(place.device))

        def value(n: int) -> Value:
            memory, _ = self._memory[n]
            return self._value(n, place, prices, n in there, memory in memories, memory in alive)

        return Lazily(value)

    def _value(
        self,
        number: int,
        place: DevicePhase,
        prices: Prices,
        is_there: bool,
        in_memory: bool,
        stays: bool,
    ) -> Value:
        """The price of one value.

        is_there   under its name
        in_memory  perhaps under another one
        stays      until the backward is over
        """
        proxy, prim = self._proxies[number], self.made_by[number]
        size = prices(0, self._size(number))
        read = size
        if place.is_backward and self._aliases.memory(proxy.name) in self._unsaved:
            read = NEVER
        dies = place.is_backward and not self._is_backward[number] and not stays
        write = size * ((prim is not None and not in_memory) + dies)
        # Another name for what is there costs next to nothing.
        write += prim is not None and in_memory and not is_there
        made = self._of_part[number]
        if prim is None or made is None or made.device != place.device:
            return Value((), write, read, None)
        known = self._prices.get(number)
        if known is None:
            known = self._prices[number] = self._arithmetic(prim)
        if known.instructions is None:
            return Value((), write, read, None)
        often = self._times.get(number, 1.0)
        price = round(known.instructions * often) + prices(known.launches, 0)
        return Value(known.operands, write, read, price)

    def _size(self, number: int) -> int:
        """Bytes of a value, 0 of a number."""
        proxy = self._proxies[number]
        is_tensor = isinstance(proxy, TensorProxy)
        return self._count(number) * proxy.dtype.bytes if is_tensor else 0

    def _count(self, number: int) -> int:
        """Elements of a value, 1 of a number."""
        if number not in self._elements:
            proxy = self._proxies[number]
            self._elements[number] = elements(proxy) if isinstance(proxy, TensorProxy) else 1
        return self._elements[number]

    def _arithmetic(self, prim: BoundSymbol) -> _Arithmetic:
        """What computing a value again takes, on whichever device."""
        sources = tuple(dict.fromkeys(self.number(p) for p in operands(prim)))
        if not self._may_repeat(prim):
            return _Arithmetic(sources, None, 0)
        claim = TABLE[prim.sym.id]
        if role(prim) in (Role.VIEW, Role.COPY, Role.RENAME):
            return _Arithmetic(sources, 0, 0)
        read = max(map(self._count, sources), default=1)
        made = max((self._count(self.number(p)) for p in prim.flat_proxy_outs), default=1)
        folds = claim.role is Role.SCAN or (claim.role is Role.REDUCE and made < read)
        return _Arithmetic(sources, claim.cost * max(read, made), int(folds))

    def _may_repeat(self, prim: BoundSymbol) -> bool:
        """Whether a primitive gives the same result wherever it runs. What an update writes is one
        tensor: another of the same values would keep them.
        """
        if role(prim) is Role.UPDATE or OpTags.RANDOM_OP in (prim.sym.tags or ()):
            return False
        tensors = (*operands(prim), *prim.flat_proxy_outs)
        return not any(self._aliases.is_updated(p.name) for p in tensors)
