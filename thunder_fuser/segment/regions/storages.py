"""Storages of a joint graph: estimate of the bytes held during execution, for any partition.

There are no layouts yet: views share the memory of their bases, values internal to a region take
none, and arguments are held by the caller.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import or_
from typing import NamedTuple

from thunder_fuser.segment.liveness import Liveness, Step
from thunder_fuser.segment.regions.joint_graph import JointGraph, Part, Partition
from thunder_fuser.segment.regions.rematerialization import Region, Regions

_SMALLEST = 512
"""Bytes below which a storage counts as 0: torch's allocator has no smaller blocks, and less than
that, such as a sum, is not worth a launch."""


@dataclass(frozen=True, slots=True)
class Alive:
    """Liveness of a partition; memory that the caller holds is not counted.

    parts     part of each step
    backward  True for each step of the backward
    """

    parts: tuple[int, ...]
    backward: tuple[bool, ...]
    memory: Liveness

    def peaks(self) -> tuple[int, int]:
        """Return the most bytes held in the forward, and in the backward."""
        peaks = [0, 0]
        for level, backward in zip(self.memory.levels(), self.backward, strict=True):
            peaks[backward] = max(peaks[backward], level.during)
        return peaks[0], peaks[1]


class _Crossing(NamedTuple):
    """Values that a part reads from memory and writes to it, and pairs of (result, value whose
    memory it shares).
    """

    reads: tuple[int, ...]
    makes: tuple[int, ...]
    shows: tuple[tuple[int, int], ...]


def alive(
    graph: JointGraph, partition: Partition, regions: Regions, as_split: bool = True
) -> Alive:
    """Return the liveness of a partition; `regions`: its parts that become fusions.

    as_split  in the order in which the parts will run, instead of that of the partition
    """
    crossings = _crossings(graph, partition, regions)
    order = _as_split(graph, partition, crossings) if as_split else list(range(len(partition)))
    storages = _Storages(graph)
    steps: list[Step] = []
    given: set[int] = set()
    kept: set[int] = set()
    for k in order:
        reads, makes, shows = crossings[k]
        read = {storages.read(v) for v in reads}
        made = set(storages.made(reads, makes, shows)) - given - read
        given |= made
        if graph.calls[partition[k].calls[0]].is_argument:
            kept |= made
        kept |= {storages.read(v) for v in (*reads, *makes) if graph.values[v].is_kept}
        steps.append(Step(frozenset(read), frozenset(made)))
    # Storages that no step makes belong to the caller.
    kept |= set(range(len(storages.sizes))) - given
    backward = accumulate((graph.begins_backward(partition[k]) for k in order), or_)
    memory = Liveness(tuple(steps), storages.sizes, frozenset(kept))
    return Alive(tuple(order), tuple(backward), memory)


def saved_bytes(graph: JointGraph, partition: Partition, regions: Regions) -> int:
    """Return the bytes that the forward keeps only for its backward."""
    crossings = _crossings(graph, partition, regions)
    forward: set[int] = set()
    needed = {v for v, value in enumerate(graph.values) if value.is_kept}
    behind: list[int] = []
    for part, crossing in reversed([*zip(partition, crossings, strict=True)][:-1]):
        call = graph.calls[part.calls[0]]
        if call.is_argument or not needed.isdisjoint(crossing.makes):
            needed.update(crossing.reads)
            forward.update(crossing.makes)
        elif not call.begins_backward:
            behind += crossing.reads
    return distinct_bytes(graph, (v for v in behind if v in forward))


def distinct_bytes(graph: JointGraph, values: Iterable[int]) -> int:
    """Return the bytes of distinct storages of values, without those that are kept anyway."""
    kept = {value.memory for value in graph.values if value.is_kept}
    found: dict[int, int] = {}
    for value in (graph.values[v] for v in values):
        if value.memory not in kept:
            found[value.memory] = max(found.get(value.memory, 0), value.held)
    return sum(found.values())


def _crossings(graph: JointGraph, partition: Partition, regions: Regions) -> list[_Crossing]:
    return [_crossing(graph, part, regions.get(k)) for k, part in enumerate(partition)]


def _crossing(graph: JointGraph, part: Part, region: Region | None) -> _Crossing:
    if region is not None:
        views = [v for p in region.views for v in graph.primitives[p].makes]
        reads = (*region.inputs, *(v for v in region.shown if v not in views))
        return _Crossing(reads, (*region.outputs, *views), region.shows)
    if part.place is not None:
        return _Crossing((), (), ())
    calls = [graph.calls[k] for k in part.calls]
    return _Crossing(
        tuple(v for call in calls for v in call.reads),
        tuple(v for call in calls for v in call.makes),
        tuple(pair for call in calls for pair in call.shows),
    )


def _as_split(graph: JointGraph, partition: Partition, crossings: Sequence[_Crossing]) -> list[int]:
    """Return the parts in execution order: Thunder moves forward calls that no forward result needs
    to the backward.
    """
    everything = list(range(len(partition)))
    begins = [k for k in everything if graph.begins_backward(partition[k])]
    if not begins:
        return everything
    needed = {v for v, value in enumerate(graph.values) if value.is_kept}
    later: dict[int, None] = {}
    for k in reversed(everything[: begins[0]]):
        reads, makes, _ = crossings[k]
        if not makes or graph.updates(partition[k]) or not needed.isdisjoint(makes):
            needed.update(reads)
        else:
            later[k] = None
    end = begins[-1] + 1
    return [*(k for k in everything[:end] if k not in later), *reversed(later), *everything[end:]]


class _Storages:
    """Storages, by number, and the storage of each value; `sizes` in bytes."""

    def __init__(self, graph: JointGraph) -> None:
        self.sizes: list[int] = []
        self._graph = graph
        self._of: dict[int, int] = {}

    def read(self, v: int) -> int:
        """Return the storage of a value; a new one, of the caller, if no step made it."""
        if v not in self._of:
            self._of[v] = self._new(v)
        return self._of[v]

    def made(
        self, reads: Iterable[int], makes: Sequence[int], shows: Iterable[tuple[int, int]]
    ) -> list[int]:
        """Return the storages of a part's results. Results that are views of a value internal to
        the part share a new storage.
        """
        base: dict[int, int] = {}
        for new, source in shows:
            base[new] = base.get(source, source)
        here = {v: self._of[v] for v in reads}
        for v in makes:
            owner = base.get(v, v)
            if owner not in here:
                here[owner] = self._new(v)
            self._of[v] = here[owner]
        return [self._of[v] for v in makes]

    def _new(self, v: int) -> int:
        size = self._graph.values[v].bytes
        self.sizes.append(size if size >= _SMALLEST else 0)
        return len(self.sizes) - 1
