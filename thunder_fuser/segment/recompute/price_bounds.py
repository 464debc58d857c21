"""Values with their prices, lower bounds of what it costs to compute them, and which of them a
consumer could profitably read or compute, as far as the bounds tell.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from operator import or_
from typing import NamedTuple, Protocol, TypeVar

from thunder_fuser.ir.dag import backward_slice
from thunder_fuser.segment.recompute.min_cut import INFINITE

_T = TypeVar("_T")


class Value(NamedTuple):
    """A value that consumers need, or compute other values from. Prices share one unit.

    operands  values that it is computed from, by number; each is smaller than its own
    write     price of storing it
    read      price of reading it
    compute   price of computing it from its operands; None if it cannot be computed
    """

    operands: tuple[int, ...]
    write: int
    read: int
    compute: int | None


class Values(Protocol):
    """Values by number; may be lazy."""

    def __getitem__(self, number: int, /) -> Value: ...


class Lazily(dict[int, _T]):
    """What is made of values, by number, on first access."""

    def __init__(self, make: Callable[[int], _T]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, number: int) -> _T:
        value = self[number] = self._make(number)
        return value


def own_operands(values: Values, wanted: Iterable[Iterable[int]]) -> dict[int, list[int]]:
    """Return for each computable value its operands that are operands of no other value."""

    def producers(v: int) -> Sequence[int]:
        return () if values[v].compute is None else values[v].operands

    operands = {
        v: tuple(dict.fromkeys(producers(v)))
        for v in backward_slice((v for names in wanted for v in names), producers)
    }
    readers = Counter(u for found in operands.values() for u in found)
    return {v: [u for u in found if readers[u] == 1] for v, found in operands.items()}


def without_vain(
    values: Values, own: Mapping[int, Sequence[int]], wanted: Iterable[Iterable[int]]
) -> Mapping[int, Value]:
    """Return all values that may be wanted; those that are never cheaper to compute than to read,
    for any number of consumers, get `compute=None`: such as a sum with a term of the same size that
    has no other user. Consumers need not look beyond such values, so that the residual stream of a
    transformer does not connect its layers to one network.
    """
    roots = {v for names in wanted for v in names}
    found: dict[int, Value] = {}
    # Lower bounds of obtaining a value: paid once, and by each consumer.
    least: dict[int, tuple[int, int]] = {}
    for v in sorted(own):
        value = found[v] = values[v]
        once, each = value.write, value.read
        if value.compute is not None:
            parts = [least[u] for u in own[v] if u not in roots]
            together = sum(part[0] for part in parts)
            alone = value.compute + sum(part[1] for part in parts)
            if once <= together and each <= alone:
                found[v] = value._replace(compute=None)
            once, each = min(once, together), min(each, alone)
        least[v] = once, each
    return found


class LeastOfComputing:
    """Lower bound of the price of computing a value, for one consumer: the value's own computation,
    plus what it costs to read or compute operands that are operands of nothing else, unless the
    consumer wants them anyway.

    own    these operands, of each value
    extra  what the consumer pays in addition to a read, at the least
    """

    def __init__(
        self,
        values: Values,
        own: Mapping[int, Sequence[int]],
        wanted: Iterable[int],
        extra: Callable[[int], int] = lambda v: 0,
    ) -> None:
        self._values = values
        self._own = own
        self._wanted = frozenset(wanted)
        self._extra = extra
        # Bounds as far as they are known.
        self._exact: dict[int, int] = {}
        self._reached: dict[int, int] = {}

    def reaches(self, v: int, price: int) -> bool:
        """True if the bound is at least `price`. What a value is computed from is looked at only as
        far as that takes, such as a few layers of a residual stream.
        """
        waiting = [self._asked(v, price)]
        while True:
            asked = waiting[-1]
            if asked.operands and asked.found < asked.most:
                w = asked.operands.pop()
                read = self._values[w].read + self._extra(w)
                waiting.append(self._asked(w, min(read, asked.most - asked.found)))
                continue
            waiting.pop()
            if asked.found < asked.most:
                self._exact[asked.value] = asked.found
            else:
                self._reached[asked.value] = asked.most
            if not waiting:
                return asked.found >= price
            waiting[-1].found += min(asked.found, asked.most)

    def _asked(self, v: int, most: int) -> _Asked:
        if v in self._exact or self._reached.get(v, -1) >= most:
            return _Asked(v, most, self._exact.get(v, most), [])
        value = self._values[v]
        if value.compute is None:
            return _Asked(v, most, INFINITE, [])
        own = [w for w in self._own[v] if w not in self._wanted]
        return _Asked(v, most, value.compute, own)


@dataclass(slots=True)
class _Asked:
    """A bound that is being found.

    most      as much of it as is asked for
    found     of the value itself and of the operands added so far
    operands  those that are left to add
    """

    value: int
    most: int
    found: int
    operands: list[int]


Bits = int
"""Set of values: bit v is value v. Of each consumer there are as many as there are values."""


def bits(values: Iterable[int]) -> Bits:
    return union(1 << v for v in values)


def union(sets: Iterable[Bits]) -> Bits:
    return reduce(or_, sets, 0)


class Profitable:
    """What consumers could profitably read or compute: the values that they want, and operands of
    those that may be cheaper to compute than to read, even if one consumer pays for the write.

    dear   these, for a consumer that wants no operands of theirs
    reach  each value, and what can be reached from it through dear ones
    """

    def __init__(self, values: Mapping[int, Value], own: Mapping[int, Sequence[int]]) -> None:
        self._values = values
        self._reader = {u: v for v, operands in own.items() for u in operands}
        self._dear = set(filter(partial(self.is_dear, LeastOfComputing(values, own, ())), own))
        self._reach: dict[int, Bits] = {}
        for v in sorted(own):
            behind = values[v].operands if v in self._dear else ()
            self._reach[v] = 1 << v | union(map(self._reach.__getitem__, behind))

    def is_dear(self, least: LeastOfComputing, v: int) -> bool:
        """True for a value that a consumer may compute for less than it reads it for."""
        value = self._values[v]
        return value.compute is not None and not least.reaches(v, value.read + value.write)

    def of(self, wanted: Iterable[int], least: LeastOfComputing) -> Bits:
        """Return the values for one consumer, with its bounds."""
        found = union(map(self._reach.__getitem__, wanted))
        # What it wants anyway costs a value nothing that is computed from it.
        cheaper = self._readers(wanted) - self._dear
        while more := [v for v in cheaper if found >> v & 1 and self.is_dear(least, v)]:
            cheaper.difference_update(more)
            found |= union(self._reach[u] for v in more for u in self._values[v].operands)
        return found

    def _readers(self, wanted: Iterable[int]) -> set[int]:
        """Return the values whose bounds differ because a consumer wants some."""
        found: set[int] = set()
        for v in wanted:
            reader = self._reader.get(v)
            while reader is not None and reader not in found:
                found.add(reader)
                reader = self._reader.get(reader)
        return found
