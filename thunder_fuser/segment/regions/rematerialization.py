"""Rematerialisation between regions: which values are stored, and which regions recompute.

Values that a backward region reads are saved for it, so this decides on saved tensors, by bytes. A
tensor that is in memory anyway, and stays alive, costs its readers a read; one that would be freed
with the forward costs its size once more; one that exists only in registers also costs a write. The
alternative is the arithmetic of recomputation. The forward is decided first, so that the backward
finds the tensors that forward regions store for each other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from thunder_fuser.segment.prices import PriceUnits
from thunder_fuser.segment.recompute.price_bounds import Lazily, Value, Values
from thunder_fuser.segment.recompute.store_or_recompute import NEVER, Choice, materialize
from thunder_fuser.segment.regions.canonical_values import Reading, read_outside
from thunder_fuser.segment.regions.joint_graph import (
    DevicePhase,
    JointGraph,
    Motion,
    Part,
    Partition,
    Primitive,
    Role,
)
from thunder_fuser.segment.regions.leaving import leaving


@dataclass(frozen=True, slots=True)
class Region:
    """One fusion, by numbers of primitives and values.

    primitives  those that it computes; recomputed ones of other regions come first
    swaps       by primitive: replacements of operands
    shows       results that share memory of operands or of other results: (result, operand)
    inputs      values that it reads and does not compute
    outputs     values that it returns
    views       primitives that torch runs after it
    shown       bases of these that the fusion does not return
    """

    primitives: tuple[int, ...]
    swaps: Mapping[int, Mapping[int, int]]
    shows: tuple[tuple[int, int], ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    views: tuple[int, ...] = ()
    shown: tuple[int, ...] = ()


Regions = Mapping[int, Region]
"""Regions by the position of their parts in the partition."""


class Rematerialization:
    """Rematerialisation of a graph, for each of its partitions; cached by partition."""

    def __init__(self, graph: JointGraph) -> None:
        self.graph = graph
        self._decided: dict[Partition, Regions] = {}

    def __call__(self, partition: Partition) -> Regions:
        """Return the region of each fused part, with recomputed primitives in front. Parts without
        outputs and updates are left out.
        """
        if partition not in self._decided:
            self._decided[partition] = _regions(self.graph, partition)
        return self._decided[partition]


def storing_all(graph: JointGraph, partition: Partition) -> Regions:
    """Return regions that recompute nothing, and store every value that another part reads."""
    readers: dict[int, set[int]] = {}
    for k, part in enumerate(partition):
        for v in (v for n in part.calls for v in graph.calls[n].reads):
            readers.setdefault(v, set()).add(k)
    reading = Reading(graph, (), frozenset())
    return {
        k: _region(graph, reading, (*graph.primitives_of(part),), [
            v
            for v in dict.fromkeys(graph.made_by_region(part))
            if readers.get(v, {k}) != {k}
        ])
        for k, part in enumerate(partition)
        if part.place is not None
    }  # fmt: skip


def _regions(graph: JointGraph, partition: Partition) -> Regions:
    outside = read_outside(graph, partition)
    reading = Reading(graph, partition, outside)
    table = _Table(graph, partition, reading, outside)
    choices: dict[int, Choice] = {}
    places = {part.place for part in partition if part.place is not None}
    for place in sorted(places, key=lambda p: (p.is_backward, str(p.device))):
        mine = [k for k, part in enumerate(partition) if part.place == place]
        values = table.values(place, _read(choices.values()))
        found = materialize(values, [table.wanted(k) for k in mine])
        choices.update(zip(mine, found, strict=True))
    there = outside | _read(choices.values())
    made = {v for part in partition for v in graph.made_by_region(part)}
    regions: dict[int, Region] = {}
    for k, (outputs, views) in sorted(leaving(graph, partition, reading, made & there).items()):
        own = tuple(graph.primitives_of(partition[k]))
        again = dict.fromkeys(p for v in sorted(choices[k].computed) for p in table.makers(v))
        if outputs or views or any(graph.primitives[p].role is Role.UPDATE for p in own):
            regions[k] = _region(graph, reading, (*again, *own), outputs, views)
    return regions


def _region(
    graph: JointGraph,
    reading: Reading,
    primitives: tuple[int, ...],
    outputs: Collection[int],
    views: tuple[int, ...] = (),
) -> Region:
    live = _live(graph, reading, primitives, outputs)
    inside = {v for p in live for v in graph.primitives[p].makes}
    read = dict.fromkeys(v for p in live for v in reading.of(p))
    sources = (reading.source(p) for p in views)
    return Region(
        live,
        {p: swaps for p in live if (swaps := reading.swaps(p))},
        tuple(pair for p in primitives for pair in reading.shows(p)),
        tuple(v for v in read if v not in inside),
        tuple(outputs),
        views,
        tuple(v for v in dict.fromkeys(sources) if v is not None and v not in outputs),
    )


def _live(
    graph: JointGraph, reading: Reading, primitives: Sequence[int], outputs: Collection[int]
) -> tuple[int, ...]:
    """Return the primitives that the outputs depend on, and all in-place updates."""
    needed = set(outputs)
    found: list[int] = []
    for p in reversed(primitives):
        prim = graph.primitives[p]
        if prim.role is Role.UPDATE or not needed.isdisjoint(prim.makes):
            found.append(p)
            needed.update(reading.of(p))
    return tuple(found[::-1])


def _read(choices: Iterable[Choice]) -> frozenset[int]:
    return frozenset().union(*(choice.read for choice in choices))


class _Arithmetic(NamedTuple):
    """Price of recomputing a primitive.

    operands      values that it reads
    instructions  fp32 instructions, 0 for data movement; None if it cannot be recomputed
    launches      1 for a reduction or scan, which may need a kernel of its own
    """

    operands: tuple[int, ...]
    instructions: int | None
    launches: int


class _Home(NamedTuple):
    """Origin of a value.

    by        the primitive of a region that computes it; None for all others
    place     of that region
    backward  True if the backward computes it
    """

    by: int | None
    place: DevicePhase | None
    backward: bool


_GIVEN = _Home(None, None, False)


class _Table:
    """All values of a partitioned graph: origins, readers, storages and prices."""

    def __init__(
        self,
        graph: JointGraph,
        partition: Partition,
        reading: Reading,
        outside: frozenset[int],
    ) -> None:
        self._graph = graph
        self._reading = reading
        # Read by calls that are not fused.
        self._outside = outside
        self._homes: dict[int, _Home] = {}
        # First value of the storage that a value would share, and True if both have one order.
        self._memory: dict[int, tuple[int, bool]] = {}
        self._wanted: dict[int, tuple[int, ...]] = {}
        self._prices: dict[int, _Arithmetic] = {}
        for k, part in enumerate(partition):
            if part.place is None:
                self._add_calls(part)
            else:
                self._add_region(k, part, part.place)
        self._times = self._evaluated(partition)
        apart = (graph.calls[n] for part in partition if part.place is None for n in part.calls)
        self._alive = {v for call in apart if call.is_backward for v in call.reads}
        self._alive |= {v for v, value in enumerate(graph.values) if value.is_kept}

    def _add_calls(self, part: Part) -> None:
        for call in (self._graph.calls[n] for n in part.calls):
            for v in call.reads:
                self._homes.setdefault(v, _GIVEN)
            for v in call.makes:
                self._homes.setdefault(v, _Home(None, None, call.is_backward))

    def _add_region(self, k: int, part: Part, place: DevicePhase) -> None:
        read: dict[int, None] = {}
        made: set[int] = set()
        for p in self._graph.primitives_of(part):
            for v in self._reading.of(p):
                read[v] = None
                self._homes.setdefault(v, _GIVEN)
            prim = self._graph.primitives[p]
            made.update(prim.makes)
            for v in prim.makes:
                if v not in self._homes:
                    self._homes[v] = _Home(p, place, place.is_backward)
                    if shared := self._shared(v, prim, self._reading.source(p)):
                        self._memory[v] = shared
        self._wanted[k] = tuple(v for v in read if v not in made)

    def _shared(self, v: int, prim: Primitive, source: int | None) -> tuple[int, bool] | None:
        """Return the entry of `_memory` for a view of all of another value; None for others."""
        if prim.role not in (Role.VIEW, Role.RENAME) or source is None:
            return None
        first, is_ordered = self._place_of(source)
        if self._homes.get(first, _GIVEN).by is None:
            # Not made by a region: it is in memory, and readers take it from there.
            return None
        if self._bytes(source) != self._bytes(v) or prim.motion is Motion.LAYS_OUT:
            return None
        if prim.motion is Motion.RESHAPES and not is_ordered:
            return None
        return first, is_ordered and prim.motion is not Motion.PERMUTES

    def _place_of(self, v: int) -> tuple[int, bool]:
        return self._memory.get(v, (v, True))

    def _memories(self, values: Iterable[int]) -> frozenset[int]:
        return frozenset(self._place_of(v)[0] for v in values)

    def _evaluated(self, partition: Partition) -> dict[int, float]:
        """Return the evaluations per element of a value if all its consumers are recomputed: one
        for each overlapping slice, such as the windows of a pool. Values left out: one.
        """
        times: dict[int, float] = {}
        shown: dict[int, float] = {}
        for part in reversed(partition):
            for p in reversed([*self._graph.primitives_of(part)]):
                prim = self._graph.primitives[p]
                if prim.role in (Role.REDUCE, Role.SCAN):
                    continue
                each = max((self._times_of(v, times, shown) for v in prim.makes), default=1.0)
                for v in self._reading.of(p):
                    if prim.motion is Motion.SLICES:
                        shown[v] = shown.get(v, 0.0) + each * sum(map(self._count, prim.makes))
                    elif each > 1:
                        times[v] = max(times.get(v, 1.0), each)
        return {v: self._times_of(v, times, shown) for v in {*times, *shown}}

    def _times_of(self, v: int, times: dict[int, float], shown: dict[int, float]) -> float:
        return max(1.0, times.get(v, 1.0), shown.get(v, 0.0) / max(self._count(v), 1))

    def makers(self, v: int) -> tuple[int, ...]:
        """Return the primitive that computes a value, if a region does."""
        made_by = self._homes[v].by
        return () if made_by is None else (made_by,)

    def wanted(self, part: int) -> tuple[int, ...]:
        """Return the values that a part reads and does not compute itself."""
        return self._wanted[part]

    def values(self, place: DevicePhase, stored: frozenset[int]) -> Values:
        """Return the values' prices for the regions of one place; `stored` is in memory already."""
        there = self._outside | stored
        memories, alive = self._memories(there), self._memories(self._alive)
        prices = self._graph.prices[place.device]

        def value(v: int) -> Value:
            memory, _ = self._place_of(v)
            return self._value(v, place, prices, v in there, memory in memories, memory in alive)

        return Lazily(value)

    def _value(
        self,
        v: int,
        place: DevicePhase,
        prices: PriceUnits,
        is_there: bool,
        in_memory: bool,
        stays: bool,
    ) -> Value:
        """Return the prices of one value.

        is_there   it is in memory under its name
        in_memory  it is in memory, perhaps under another name
        stays      its memory lives until the backward ends
        """
        home = self._homes[v]
        is_made = home.by is not None
        size = prices(0, self._bytes(v))
        read = size
        if place.is_backward and self._graph.values[v].is_unsaved:
            read = NEVER
        dies = place.is_backward and not home.backward and not stays
        write = size * ((is_made and not in_memory) + dies)
        # Another name of a stored tensor costs next to nothing.
        write += is_made and in_memory and not is_there
        if home.by is None or home.place is None or home.place.device != place.device:
            return Value((), write, read, None)
        known = self._prices.get(v)
        if known is None:
            known = self._prices[v] = self._arithmetic(home.by)
        if known.instructions is None:
            return Value((), write, read, None)
        often = self._times.get(v, 1.0)
        price = round(known.instructions * often) + prices(known.launches, 0)
        return Value(known.operands, write, read, price)

    def _bytes(self, v: int) -> int:
        return self._graph.values[v].bytes

    def _count(self, v: int) -> int:
        return self._graph.values[v].elements

    def _arithmetic(self, p: int) -> _Arithmetic:
        """Return the price of recomputing a primitive, independent of the device."""
        prim = self._graph.primitives[p]
        sources = tuple(dict.fromkeys(self._reading.of(p)))
        if not prim.may_repeat:
            return _Arithmetic(sources, None, 0)
        if prim.role in (Role.VIEW, Role.COPY, Role.RENAME):
            return _Arithmetic(sources, 0, 0)
        read = max(map(self._count, sources), default=1)
        made = max(map(self._count, prim.makes), default=1)
        folds = prim.role is Role.SCAN or (prim.role is Role.REDUCE and made < read)
        return _Arithmetic(sources, prim.cost * max(read, made), int(folds))
