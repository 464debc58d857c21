"""Reordering of regions: those that a trace keeps apart are joined, as far as no more memory is
held for that.

Thunder's option `fusion_type="consecutive"` forbids another order. Where symbols that are not fused
lie between two regions, those that the second needs go in front of both, or those that need the
first go behind both. Either makes tensors live longer: ten activations in front of ten matrix
products are alive at once. So two regions are joined only while no step holds more bytes than the
trace did at its worst, forward and backward each for itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from thunder.core.prims import OpTags, PrimIDs
from thunder.core.proxies import FutureTensorProxy
from thunder.core.symbol import BoundSymbol

from thunder_fuser.frontends.thunder.claims.table import operands
from thunder_fuser.frontends.thunder.memory.liveness import Alive, liveness
from thunder_fuser.frontends.thunder.memory.rematerialization import Rematerialization
from thunder_fuser.frontends.thunder.regions.formation import RegionCandidate
from thunder_fuser.frontends.thunder.trace.aliases import updates
from thunder_fuser.frontends.thunder.trace.canonical_names import Prims
from thunder_fuser.segment.liveness import Step

_REACH = 64
"""Positions that a region may move."""
_TRIES = 8
"""Earlier regions that one is tried with."""


@dataclass(frozen=True, slots=True)
class _Unit:
    """Parts that run at once.

    parts     by number, in order
    step      the storages that they read and give
    needs     names of values that they are computed from
    makes     names of values that they compute
    """

    parts: tuple[int, ...]
    step: Step
    needs: frozenset[str]
    makes: frozenset[str]


def join(
    parts: Sequence[RegionCandidate], prims: Prims, rematerialize: Rematerialization
) -> tuple[list[RegionCandidate], Prims]:
    """The same trace with fewer regions, as parts and the primitives of those to be fused."""
    if not prims:
        return list(parts), prims
    facts = rematerialize.facts
    regions = rematerialize(parts, prims)
    alive = liveness(parts, prims, regions, facts, as_split=False)
    groups = [unit.parts for unit in _Order(parts, prims, alive).joined()]
    if len(groups) == len(parts):
        return list(parts), prims
    new = [
        RegionCandidate(
            tuple(b for k in group for b in parts[k].symbols),
            parts[group[0]].place,
            parts[group[0]].refusals,
        )
        for group in groups
    ]
    own = {
        k: tuple(b for p in group for b in prims[p])
        for k, group in enumerate(groups)
        if group[0] in prims
    }
    # What regions compute again, and what of the forward is left to the backward, was decided for
    # the old ones, and may turn out otherwise.
    before = liveness(parts, prims, regions, facts).peaks()
    after = liveness(new, own, rematerialize(new, own), facts).peaks()
    if any(now > then for now, then in zip(after, before, strict=True)):
        return list(parts), prims
    return new, own


class _Order:
    """The order in the making: a position holds a unit, or None where one was joined to another.

    levels    bytes that are held before a position
    stretch   of a part; there is a fence between parts of two stretches
    position  of a part
    """

    def __init__(self, parts: Sequence[RegionCandidate], prims: Prims, alive: Alive) -> None:
        self._memory = alive.memory
        self._places = [part.place if k in prims else None for k, part in enumerate(parts)]
        peaks = alive.peaks()
        self._limits = [peaks[backward] for backward in alive.backward]
        self._units: list[_Unit | None] = [
            _Unit((k,), step, *_values(parts[k], prims.get(k)))
            for k, step in enumerate(alive.memory.steps)
        ]
        self._levels = [level.before for level in alive.memory.levels()]
        self._position = list(range(len(parts)))
        self._readers: dict[int, list[int]] = {}
        for k, step in enumerate(alive.memory.steps):
            for storage in step.reads:
                self._readers.setdefault(storage, []).append(k)
        self._stretch: list[int] = []
        fences = 0
        for k, part in enumerate(parts):
            is_fence = _is_fence(part, k in prims)
            self._stretch.append(fences := fences + is_fence)
            fences += is_fence

    def joined(self) -> list[_Unit]:
        """The units of the final order."""
        for k in range(len(self._units)):
            position: int | None = k
            while position is not None:
                position = self._join(position)
        return [unit for unit in self._units if unit is not None]

    def _join(self, position: int) -> int | None:
        """Join the unit with an earlier one, and say where the two are now."""
        for earlier in self._candidates(position):
            window = [unit for unit in self._units[earlier : position + 1] if unit is not None]
            steps = [u.step for u in window]
            outlive = self._read_after(position, steps)
            best: tuple[tuple[int, int], list[_Unit]] | None = None
            for order in self._orders(window):
                levels = list(
                    self._memory.levels_of([u.step for u in order], self._levels[earlier], outlive)
                )
                price = max(during for _, during in levels), sum(during for _, during in levels)
                if price[0] <= self._limits[position] and (best is None or price < best[0]):
                    best = price, order
            if best is not None:
                return self._place(best[1], earlier, position, outlive)
        return None

    def _candidates(self, position: int) -> list[int]:
        """Earlier positions of regions that could take in the one here, the best first: those that
        share memory with it, and those that are near.
        """
        unit = self._units[position]
        assert unit is not None
        place, stretch = self._places[unit.parts[0]], self._stretch[unit.parts[0]]
        if place is None:
            return []
        mine = unit.step.reads | unit.step.gives
        found = []
        for k in range(position - 1, max(position - _REACH, 0) - 1, -1):
            other = self._units[k]
            if other is None:
                continue
            if self._stretch[other.parts[0]] != stretch:
                break
            if self._places[other.parts[0]] == place:
                found.append((mine.isdisjoint(other.step.reads | other.step.gives), -k))
        return [-k for _, k in sorted(found)[:_TRIES]]

    def _orders(self, window: Sequence[_Unit]) -> Iterator[list[_Unit]]:
        """The units between the first and the last around the two as one, where that is possible.

        The two are where the first was, or where the last was.
        """
        first, *between, last = window
        made = set(first.makes)
        behind = set()
        for k, unit in enumerate(between):
            if not made.isdisjoint(unit.needs):
                behind.add(k)
                made |= unit.makes
        if not last.needs.isdisjoint(made - first.makes):
            return
        wanted = set(last.needs)
        ahead = set()
        for k, unit in reversed(list(enumerate(between))):
            if not wanted.isdisjoint(unit.makes):
                ahead.add(k)
                wanted |= unit.needs
        both = self._both(first, last)
        for moved in (ahead, {k for k in range(len(between)) if k not in behind}):
            yield [
                *(u for k, u in enumerate(between) if k in moved),
                both,
                *(u for k, u in enumerate(between) if k not in moved),
            ]

    def _both(self, first: _Unit, last: _Unit) -> _Unit:
        """Two units as one, which keeps to itself what only they read."""
        parts = (*first.parts, *last.parts)
        gives = first.step.gives | last.step.gives
        inside = {
            s for s in gives - self._memory.kept if set(self._readers.get(s, ())) <= set(parts)
        }
        reads = (first.step.reads | last.step.reads) - gives
        makes = first.makes | last.makes
        needs = (first.needs | last.needs) - makes
        return _Unit(parts, Step(reads, gives - inside), needs, makes)

    def _read_after(self, position: int, steps: Sequence[Step]) -> set[int]:
        """Storages that these steps read or give and that something behind `position` reads."""
        storages = {s for step in steps for s in (*step.reads, *step.gives)}
        return {
            s
            for s in storages
            if any(self._position[k] > position for k in self._readers.get(s, ()))
        }

    def _place(self, order: Sequence[_Unit], start: int, end: int, outlive: Iterable[int]) -> int:
        """Put units where one more was; say where the joined one is."""
        old = {u.parts for u in self._units[start : end + 1] if u is not None}
        free = [k for k in range(start, end + 1) if self._units[k] is not None]
        self._units[start : end + 1] = [None] * (end + 1 - start)
        steps = [u.step for u in order]
        joined = start
        found = self._memory.levels_of(steps, self._levels[start], outlive)
        for k, unit, (level, _) in zip(free, order, found, strict=False):
            self._units[k], self._levels[k] = unit, level
            for part in unit.parts:
                self._position[part] = k
            if unit.parts not in old:
                joined = k
        return joined


def _values(
    part: RegionCandidate, prims: Sequence[BoundSymbol] | None
) -> tuple[frozenset[str], frozenset[str]]:
    """Names of what a part is computed from, and of what it computes."""
    symbols = part.symbols if prims is None else prims
    makes = frozenset(p.name for b in symbols for p in b.flat_proxy_outs)
    reads = (p for b in symbols for p in (b.flat_proxy_args if prims is None else operands(b)))
    return frozenset(p.name for p in reads) - makes, makes


_EFFECTS = frozenset(
    {OpTags.DONT_DCE, OpTags.IN_PLACE, OpTags.RANDOM_OP, OpTags.CTX_MANAGER_ENTER_EXIT_OP}
)


def _is_fence(part: RegionCandidate, is_region: bool) -> bool:
    """Whether order around a part means more than its arguments and results say: it writes into
    memory, talks to other processes, or begins the backward.
    """
    if is_region:
        # Its random numbers depend on no order.
        return any(map(updates, part.symbols))
    return any(map(_has_effect, part.symbols))


def _has_effect(bsym: BoundSymbol) -> bool:
    proxies = bsym.flat_proxy_outs
    return (
        not proxies
        or bsym.sym.id is PrimIDs.GET_GRAD
        or not _EFFECTS.isdisjoint(bsym.sym.tags or ())
        or any(isinstance(p, FutureTensorProxy) for p in (*proxies, *bsym.flat_proxy_args))
        or any(map(_has_effect, bsym.subsymbols))
    )
