"""Joining of what a program keeps apart, as far as no more memory is held for that.

Where other steps lie between two regions, those that the second needs go in front of both, or those
that need the first go behind both. Either makes tensors live longer: ten activations in front of
ten matrix products are alive at once. So two regions are joined only while no step holds more than
it may.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from thunder_fuser.segment.liveness import Liveness, Step
from thunder_fuser.segment.regions.joint_graph import JointGraph, Part, Partition
from thunder_fuser.segment.regions.rematerialization import Rematerialization
from thunder_fuser.segment.regions.storages import Alive, alive

_REACH = 64
"""Positions that a region may move."""
_TRIES = 8
"""Earlier regions that one is tried with."""


@dataclass(frozen=True, slots=True)
class Unit:
    """Parts that run at once.

    parts     by number, in order
    step      the storages that they read and give
    needs     values that they are computed from
    makes     values that they compute
    """

    parts: tuple[int, ...]
    step: Step
    needs: frozenset[int]
    makes: frozenset[int]


class Joining:
    """The order in the making: a position holds a unit, or None where one was joined to another.

    levels    bytes that are held before a position
    position  of a part
    """

    def __init__(
        self,
        units: Sequence[Unit],
        memory: Liveness,
        limits: Sequence[int],
        places: Sequence[Hashable | None],
        stretches: Sequence[int],
    ) -> None:
        """The parts, each a unit of its own, in the order of the program.

        memory     of them, each a step
        limits     bytes that may be held while a part runs
        places     only parts of one place are joined; none with what has none
        stretches  only parts of one stretch are joined
        """
        self._memory = memory
        self._limits = limits
        self._places = places
        self._stretches = stretches
        self._units: list[Unit | None] = list(units)
        self._levels = [level.before for level in memory.levels()]
        self._position = list(range(len(units)))
        self._readers: dict[int, list[int]] = {}
        for k, step in enumerate(memory.steps):
            for storage in step.reads:
                self._readers.setdefault(storage, []).append(k)

    def joined(self) -> list[Unit]:
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
            best: tuple[tuple[int, int], list[Unit]] | None = None
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
        place, stretch = self._places[unit.parts[0]], self._stretches[unit.parts[0]]
        if place is None:
            return []
        mine = unit.step.reads | unit.step.gives
        found = []
        for k in range(position - 1, max(position - _REACH, 0) - 1, -1):
            other = self._units[k]
            if other is None:
                continue
            if self._stretches[other.parts[0]] != stretch:
                break
            if self._places[other.parts[0]] == place:
                found.append((mine.isdisjoint(other.step.reads | other.step.gives), -k))
        return [-k for _, k in sorted(found)[:_TRIES]]

    def _orders(self, window: Sequence[Unit]) -> Iterator[list[Unit]]:
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

    def _both(self, first: Unit, last: Unit) -> Unit:
        """Two units as one, which keeps to itself what only they read."""
        parts = (*first.parts, *last.parts)
        gives = first.step.gives | last.step.gives
        inside = {
            s for s in gives - self._memory.kept if set(self._readers.get(s, ())) <= set(parts)
        }
        reads = (first.step.reads | last.step.reads) - gives
        makes = first.makes | last.makes
        needs = (first.needs | last.needs) - makes
        return Unit(parts, Step(reads, gives - inside), needs, makes)

    def _read_after(self, position: int, steps: Sequence[Step]) -> set[int]:
        """Storages that these steps read or give and that something behind `position` reads."""
        storages = {s for step in steps for s in (*step.reads, *step.gives)}
        return {
            s
            for s in storages
            if any(self._position[k] > position for k in self._readers.get(s, ()))
        }

    def _place(self, order: Sequence[Unit], start: int, end: int, outlive: Iterable[int]) -> int:
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


def join(graph: JointGraph, partition: Partition, rematerialize: Rematerialization) -> Partition:
    """The same calls with fewer regions, while no step holds more bytes than the program did at its
    worst, forward and backward each for itself.
    """
    if all(part.place is None for part in partition):
        return partition
    regions = rematerialize(partition)
    found = alive(graph, partition, regions, as_split=False)
    groups = [unit.parts for unit in _units(graph, partition, found)]
    if len(groups) == len(partition):
        return partition
    joined = tuple(
        Part(tuple(n for k in group for n in partition[k].calls), partition[group[0]].place)
        for group in groups
    )
    # What regions compute again, and what of the forward is left to the backward, was decided for
    # the old ones, and may turn out otherwise.
    before = alive(graph, partition, regions).peaks()
    after = alive(graph, joined, rematerialize(joined)).peaks()
    if any(now > then for now, then in zip(after, before, strict=True)):
        return partition
    return joined


def _units(graph: JointGraph, partition: Partition, found: Alive) -> list[Unit]:
    """The parts in their final order."""
    peaks = found.peaks()
    units, stretches = [], []
    fences = 0
    for k, (part, step) in enumerate(zip(partition, found.memory.steps, strict=True)):
        units.append(Unit((k,), step, *_values(graph, part)))
        # There is a fence between parts of two stretches.
        is_fence = _is_fence(graph, part)
        stretches.append(fences := fences + is_fence)
        fences += is_fence
    return Joining(
        units,
        found.memory,
        limits=[peaks[backward] for backward in found.backward],
        places=[part.place for part in partition],
        stretches=stretches,
    ).joined()


def _values(graph: JointGraph, part: Part) -> tuple[frozenset[int], frozenset[int]]:
    """What a part is computed from, and what it computes."""
    nodes = (
        [graph.calls[k] for k in part.calls]
        if part.place is None
        else [graph.primitives[p] for p in graph.primitives_of(part)]
    )
    makes = frozenset(v for node in nodes for v in node.makes)
    return frozenset(v for node in nodes for v in node.reads) - makes, makes


def _is_fence(graph: JointGraph, part: Part) -> bool:
    """Whether order around a part means more than its operands and results say: it writes into
    memory, talks to other processes, or begins the backward. Random numbers of a region depend on
    no order.
    """
    if part.place is not None:
        return graph.updates(part)
    return any(graph.calls[k].has_effect for k in part.calls)
