"""Memory budget: recomputation in the backward so that the forward saves no more bytes than the
user asks for (`thunder.jit(..., memory_budget=)`).

Selective activation checkpointing, with prices instead of rules. Every forward value that the
backward needs is saved, or recomputed from others. The price of rerunning each call is known:
arithmetic, bytes moved for torch calls, their FLOPs. With a price per saved byte, the cheapest
choice is one minimum cut over the forward; the budget determines the price: the lowest at which the
saved bytes fit. So norms and activations are recomputed before products, and a lower budget never
saves more. Among equal layers, the first are recomputed first: their saved tensors live longest.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from thunder_fuser.segment.recompute.min_cut import INFINITE
from thunder_fuser.segment.recompute.price_bounds import Value
from thunder_fuser.segment.recompute.store_or_recompute import materialize
from thunder_fuser.segment.regions.joint_graph import Call, JointGraph
from thunder_fuser.segment.regions.storages import distinct_bytes

_NEVER = INFINITE >> 8
_STEPS = 24
"""Bisection steps for the price of a saved byte."""
_CHEAPEST, _DEAREST = -8.0, 24.0
"""Range of the price of a saved byte, as powers of two, in units of the time of moving it."""
_FIRST = 0.05
"""Relative surcharge on bytes that the first layer saves, falling to 0 for the last one."""


@dataclass(frozen=True, slots=True)
class Recomputed:
    """Calls of one name that the backward recomputes.

    is_fused  they are parts of fusions, not torch calls
    seconds   expected time; of fused ones, that of arithmetic, and of writing what torch reads
    """

    name: str
    count: int
    is_fused: bool
    flops: int
    seconds: float

    def __str__(self) -> str:
        where = "in fusions" if self.is_fused else "in torch"
        work = f"{self.flops:,} FLOPs, " if self.flops else ""
        return f"{self.count} x {self.name} {where} ({work}{1e6 * self.seconds:.1f} us)"


@dataclass(frozen=True, slots=True)
class Traded:
    """Effect of a memory budget.

    budget      bytes that the forward may save for the backward, besides arguments and results
    saved       bytes that it saves
    unbudgeted  bytes that it would save without a budget
    recomputed  calls that the backward recomputes for that, dearest first
    """

    budget: int
    saved: int
    unbudgeted: int
    recomputed: tuple[Recomputed, ...]

    @property
    def seconds(self) -> float:
        """Upper bound of the expected seconds of recomputation."""
        return sum(r.seconds for r in self.recomputed)

    @property
    def flops(self) -> int:
        return sum(r.flops for r in self.recomputed)

    def __str__(self) -> str:
        missed = "" if self.saved <= self.budget else " (no less can be had)"
        head = (
            f"memory budget {self.budget:,} B: {self.saved:,} B saved for backward{missed} where "
            f"{self.unbudgeted:,} B would be"
        )
        again = "; ".join(map(str, self.recomputed))
        return f"{head}; computed again: {again}" if again else head


class Rerun(NamedTuple):
    """Price of rerunning a forward call in the backward.

    price      in the unit of the device's prices
    is_fused   it is part of a fusion
    does_work  it gives a tensor that is no view of what it reads
    """

    price: int
    seconds: float
    flops: int
    is_fused: bool
    does_work: bool


class Choices:
    """Choices between saving and recomputing in one joint graph, by the price of a saved byte.

    reruns  price of rerunning each call; None if it cannot run again, or is a backward call
    byte    price of moving a byte
    late    forward calls that no forward result needs: they run in the backward anyway
    """

    def __init__(self, graph: JointGraph, reruns: Sequence[Rerun | None], byte: int) -> None:
        self._graph = graph
        self._reruns = reruns
        self._byte = byte
        self._calls = graph.calls[:-1]
        self._kept = {value.memory for value in graph.values if value.is_kept}
        self.late = self._found_late()
        # Call that makes a value, if it can run again.
        self._by: dict[int, int] = {}
        self._wanted = self._read_behind()
        self._values, self._places = self._cut_values()

    def _found_late(self) -> frozenset[int]:
        if any(call.updates for call in self._calls):
            return frozenset()
        needed = {v for v, value in enumerate(self._graph.values) if value.is_kept}
        for call in reversed(self._calls):
            if not needed.isdisjoint(call.makes):
                needed.update(call.reads)
        return frozenset(
            k
            for k, call in enumerate(self._calls)
            if not _is_backward(call)
            and self._reruns[k] is not None
            and needed.isdisjoint(call.makes)
        )

    def _read_behind(self) -> dict[int, None]:
        """Return forward values that the backward reads, in order."""
        made = {v for call in self._calls if not _is_backward(call) for v in call.makes}
        read = (v for call in self._calls if _reads(call) for v in call.reads)
        return {v: None for v in read if v in made}

    def _cut_values(self) -> tuple[list[Value], dict[int, int]]:
        """Return the values of the minimum cut, and each graph value's place there. A call with
        several results gets an extra value that cannot be read, and that each result depends on.
        """
        values: list[Value] = []
        places: dict[int, int] = {}
        for k, call in enumerate(self._calls):
            outs = [v for v in dict.fromkeys(call.makes) if v not in places]
            if _is_backward(call) or not outs:
                continue
            operands = tuple(places[v] for v in dict.fromkeys(call.reads) if v in places)
            rerun = self._reruns[k]
            price = None if rerun is None else rerun.price
            if price is not None:
                self._by.update(dict.fromkeys(outs, k))
                if len(outs) > 1:
                    values.append(Value(operands, 0, _NEVER, price))
                    operands, price = (len(values) - 1,), 0
            for v in outs:
                places[v] = len(values)
                values.append(Value(operands if price is not None else (), 0, 0, price))
        return values, places

    def within(self, budget: int) -> frozenset[int]:
        """Return the values to recompute at the lowest price at which no more than `budget` bytes
        are saved, or at the highest price.
        """
        low, high = _CHEAPEST, _DEAREST
        for _ in range(_STEPS):
            middle = (low + high) / 2
            if self._saved(self._at(middle)) <= budget:
                high = middle
            else:
                low = middle
        return self._at(high)

    def _at(self, power: float) -> frozenset[int]:
        """Return the values to recompute if saving a byte costs 2 ** power times moving it."""
        cost = self._byte * 2.0**power
        count = max(len(self._values), 1)
        values = list(self._values)
        for v, place in self._places.items():
            read = self._reading(v, cost, 1 - place / count)
            values[place] = values[place]._replace(read=read)
        wanted = [self._places[v] for v in self._wanted if v in self._places]
        (choice,) = materialize(values, [wanted])
        return frozenset(v for v, place in self._places.items() if place in choice.computed)

    def _reading(self, v: int, cost: float, early: float) -> int:
        """Return the price of saving a value; `early`: 1 in the first call, 0 after the last."""
        value = self._graph.values[v]
        if value.is_unsaved or self._by.get(v) in self.late:
            return _NEVER
        if value.memory in self._kept:
            return 0
        return round(cost * value.held * (1 + _FIRST * early))

    def _saved(self, again: Collection[int]) -> int:
        """Estimate the bytes that are saved if the values `again` are recomputed."""
        read = (v for k in self.calls(again) for v in self._calls[k].reads)
        return distinct_bytes(self._graph, (v for v in (*self._wanted, *read) if v not in again))

    def calls(self, again: Collection[int]) -> list[int]:
        """Return the calls that make these values, in order."""
        return sorted({self._by[v] for v in again if v in self._by})

    def recomputed(self, again: Collection[int]) -> tuple[Recomputed, ...]:
        """Summarise the calls that run again, by name."""
        found: dict[str, list[Rerun]] = {}
        for k in self.calls(again):
            rerun = self._reruns[k]
            if rerun is not None and rerun.does_work and k not in self.late:
                found.setdefault(self._calls[k].name, []).append(rerun)
        rows = [
            Recomputed(
                name,
                len(reruns),
                reruns[0].is_fused,
                sum(rerun.flops for rerun in reruns),
                sum(rerun.seconds for rerun in reruns),
            )
            for name, reruns in found.items()
        ]
        return tuple(sorted(rows, key=lambda row: (-row.seconds, row.name)))


def _is_backward(call: Call) -> bool:
    return call.is_backward or call.begins_backward


def _reads(call: Call) -> bool:
    """True if a call reads in the backward; calls that begin the backward only name a gradient."""
    return call.is_backward and not call.begins_backward
