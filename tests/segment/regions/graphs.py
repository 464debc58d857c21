"""Joint graphs by hand and at random, and what a partition of one must keep."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from thunder_fuser.device_table import H200
from thunder_fuser.segment.prices import PriceUnits
from thunder_fuser.segment.regions.joint_graph import (
    Call,
    DevicePhase,
    JointGraph,
    Motion,
    Part,
    Partition,
    Primitive,
    Role,
    Value,
)
from thunder_fuser.segment.regions.rematerialization import Regions

DEVICE = torch.device("cpu")
PLACES = {backward: DevicePhase(DEVICE, backward) for backward in (False, True)}
LARGE = 1 << 20


@dataclass
class Builder:
    """A graph in the making; every method that computes gives the value that it makes."""

    values: list[Value] = field(default_factory=list)
    primitives: list[Primitive] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    is_backward: bool = False

    def value(self, elements: int = LARGE, memory: int | None = None, kept: bool = False) -> int:
        number, size = len(self.values), 4 * elements
        memory = number if memory is None else memory
        self.values.append(
            Value(elements, size, True, memory, size, kept, False, False, memory != number)
        )
        return number

    def keep(self, v: int) -> None:
        """Make a value a result of the forward."""
        self.values[v] = self.values[v]._replace(is_kept=True)

    def argument(self, elements: int = LARGE) -> int:
        v = self.value(elements, kept=True)
        self._call("argument", (), (v,), is_argument=True, has_effect=True)
        return v

    def gradient(self, elements: int = LARGE) -> int:
        """What comes to the backward, which begins here."""
        v = self.value(elements)
        self._call("gradient", (), (v,), begins_backward=True, has_effect=True)
        self.is_backward = True
        return v

    def product(self, *reads: int, elements: int = LARGE) -> int:
        """A call that is torch's."""
        v = self.value(elements)
        self._call("product", reads, (v,))
        return v

    def point(self, *reads: int, cost: int = 1, may_repeat: bool = True) -> int:
        """A call that can be fused."""
        v = self.value(max(self.values[u].elements for u in reads))
        self._fusible("point", reads, v, Role.COMPUTE, cost, may_repeat)
        return v

    def view(self, source: int) -> int:
        """A call that can be fused, and shows half of a value."""
        elements = self.values[source].elements // 2
        v = self.value(elements, memory=self.values[source].memory)
        self.values[source] = self.values[source]._replace(matters=True)
        self._fusible("view", (source,), v, Role.VIEW, 0, True)
        return v

    def results(self, *values: int) -> None:
        self._call("return", values, (), has_effect=True)

    def _fusible(
        self, name: str, reads: Sequence[int], v: int, role: Role, cost: int, may_repeat: bool
    ) -> None:
        is_view = role is Role.VIEW
        shows = ((v, reads[0]),) if is_view else ()
        motion = Motion.SLICES if is_view else Motion.KEEPS
        source = reads[0] if is_view else None
        self.primitives.append(
            Primitive(tuple(reads), (v,), role, motion, source, shows, cost, may_repeat)
        )
        number = len(self.primitives) - 1
        self._call(name, reads, (v,), primitives=range(number, number + 1), shows=shows)

    def _call(
        self, name: str, reads: Sequence[int], makes: tuple[int, ...], **facts: object
    ) -> None:
        given = {"primitives": range(0), "shows": (), **facts}
        self.calls.append(
            Call(name, tuple(reads), makes, is_backward=self.is_backward, **given)  # type: ignore[arg-type]
        )

    def graph(self) -> JointGraph:
        prices = {DEVICE: PriceUnits.of(H200)}
        return JointGraph(tuple(self.values), tuple(self.primitives), tuple(self.calls), prices)


def consecutive(graph: JointGraph) -> Partition:
    """Neighbours of one phase that can be fused are a region."""
    parts: list[Part] = []
    for k, call in enumerate(graph.calls):
        place = PLACES[call.is_backward] if call.primitives else None
        if place is not None and parts and parts[-1].place == place:
            parts[-1] = parts[-1]._replace(calls=(*parts[-1].calls, k))
        else:
            parts.append(Part((k,), place))
    return tuple(parts)


def check(graph: JointGraph, partition: Partition, regions: Regions) -> None:
    """Every call runs once, regions are of one phase, and whatever a part reads is in memory: given
    by an earlier part, or computed inside from what is.
    """
    assert sorted(k for part in partition for k in part.calls) == list(range(len(graph.calls)))
    there: set[int] = set()
    for k, part in enumerate(partition):
        calls = [graph.calls[n] for n in part.calls]
        if part.place is None:
            for call in calls:
                assert there.issuperset(call.reads), call
                there.update(call.makes)
            continue
        assert all(call.is_backward is part.place.is_backward for call in calls)
        if k not in regions:
            continue
        region = regions[k]
        assert there.issuperset(region.inputs)
        inside = set(region.inputs)
        for p in region.primitives:
            swaps = region.swaps.get(p, {})
            assert inside.issuperset(swaps.get(v, v) for v in graph.primitives[p].reads)
            inside.update(graph.primitives[p].makes)
        assert inside.issuperset(region.outputs)
        there.update(region.outputs)
        for p in region.views:
            assert graph.primitives[p].source in there
            there.update(graph.primitives[p].makes)


def at_random(seed: int) -> JointGraph:
    """Products, what can be fused, and views, forward and backward."""
    dice = random.Random(seed)
    b = Builder()
    known = [b.argument(dice.choice((64, LARGE))) for _ in range(dice.randint(1, 3))]
    is_trained = dice.random() < 0.7

    def grow(count: int) -> None:
        for _ in range(count):
            reads = [dice.choice(known[-6:]) for _ in range(dice.randint(1, 3))]
            kind = dice.random()
            if kind < 0.25:
                known.append(b.product(*reads, elements=dice.choice((64, LARGE))))
            elif kind < 0.4:
                known.append(b.view(reads[0]))
            else:
                repeat = dice.random() < 0.8
                known.append(b.point(*reads, cost=dice.choice((1, 20, 400)), may_repeat=repeat))

    grow(dice.randint(1, 16))
    results = [known[-1], *dice.sample(known, min(len(known), 2))]
    for v in results:
        b.keep(v)
    if is_trained:
        known.append(b.gradient())
        grow(dice.randint(1, 16))
        results += known[-2:]
    b.results(*results)
    return b.graph()
