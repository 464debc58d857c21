"""Joining of regions that other calls separate, without raising the peak of held memory.

Steps between two regions move before both, if the second region depends on them, or after both, if
they depend on the first. Either way tensors live longer: ten activations before ten matrix products
are alive at once. So two regions are joined only while no step holds more
bytes than its limit.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from thunder_fuser.segment.liveness import Liveness, Step
from thunder_fuser.segment.regions.joint_graph import JointGraph, Part, Partition
from thunder_fuser.segment.regions.rematerialization import Rematerialization
from thunder_fuser.segment.regions.storages import Alive, alive

_REACH = 64
"""Most positions between two regions that are joined."""
_TRIES = 8
"""Most earlier regions that each region is tried with."""


@dataclass(frozen=True, slots=True)
class Unit:
    """Joined parts, which run as one step.

    parts     by number, in order
    step      storages that they read and allocate
    needs     values that they read and do not compute
    makes     values that they compute
    """

    parts: tuple[int, ...]
    step: Step
    needs: frozenset[int]
    makes: frozenset[int]


class Joining:
    """Order of units under construction: a position holds a unit, or None after a join.

    _levels    bytes that are held before each position
    _position  of each part
    """

    def __init__(
        self,
        units: Sequence[Unit],
        memory: Liveness,
        limits: Sequence[int],
        places: Sequence[Hashable | None],
        stretches: Sequence[int],
    ) -> None:
        """Start with `units` of one part each, in program order.

        memory     storages of the parts, each a step
        limits     bytes that may be held while each part runs
        places     only parts of equal places are joined; None: never (a torch call)
        stretches  only parts of one stretch, between two fences, are joined
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
        """Join units, and return them in their final order."""
        for k in range(len(self._units)):
            position: int | None = k
            while position is not None:
                position = self._join(position)
        return [unit for unit in self._units if unit is not None]

    def _join(self, position: int) -> int | None:
        """Join the unit with an earlier one; return the new position, or None without a join."""
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
        """Return earlier positions of regions to join with, best first: those that share storages,
        then the nearest.
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
        """Yield orders in which the first and the last unit are joined, if dependencies permit.

        The joined unit takes the position of the first, or that of the last.
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
        """Join two units; storages that only they read become internal."""
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
        """Return storages of these steps that parts after `position` read."""
        storages = {s for step in steps for s in (*step.reads, *step.gives)}
        return {
            s
            for s in storages
            if any(self._position[k] > position for k in self._readers.get(s, ()))
        }

    def _place(self, order: Sequence[Unit], start: int, end: int, outlive: Iterable[int]) -> int:
        """Replace the units of a window by one less; return the position of the joined one."""
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
    """Join regions while no step holds more bytes than the program's peak, with separate peaks of
    forward and backward.
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
    # Rematerialisation, and forward calls that run in the backward, were decided for the old
    # regions, and may be decided otherwise for the new ones.
    before = alive(graph, partition, regions).peaks()
    after = alive(graph, joined, rematerialize(joined)).peaks()
    if any(now > then for now, then in zip(after, before, strict=True)):
        return partition
    return joined


def _units(graph: JointGraph, partition: Partition, found: Alive) -> list[Unit]:
    """Return the joined units of a partition, in their final order."""
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
    """Return the values that a part reads from others, and those that it computes."""
    nodes = (
        [graph.calls[k] for k in part.calls]
        if part.place is None
        else [graph.primitives[p] for p in graph.primitives_of(part)]
    )
    makes = frozenset(v for node in nodes for v in node.makes)
    return frozenset(v for node in nodes for v in node.reads) - makes, makes


def _is_fence(graph: JointGraph, part: Part) -> bool:
    """True if no part may move past this one, beyond its data dependencies: it writes into memory,
    communicates, or begins the backward. Random numbers of a region depend on no order.
    """
    if part.place is not None:
        return graph.updates(part)
    return any(graph.calls[k].has_effect for k in part.calls)
