"""Materialisation as a minimum cut: which values are stored, and which are recomputed where they
are read.

Several consumers want values. Each reads a value from memory or computes it from operands, which it
has in the same two ways. Having a value in memory costs a write, paid once; every read and every
computation costs whoever does it.

For one consumer this is a minimum cut (as in the min-cut partitioner of AOTAutograd, 2022): a value
is cut where it is read, and on the source's side where it is not computed. Consumers that share
writes make it NP-hard, so each in turn takes its best answer to what the others store, until none
changes anything. This starts from several guesses of who pays for a write; of the cheapest end,
each value is tried the other way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, Protocol

from thunder_fuser.ir.dag import backward_slice
from thunder_fuser.segment.min_cut import INFINITE, FlowNetwork

_ROUNDS = 8
NEVER = INFINITE >> 20
"""A price that is paid only where nothing else is possible."""
_TRIALS = 8
"""Values that are tried the other way, dearest first."""

WritePrice = Callable[[int], int]
"""What a consumer adds to the price of reading a value, for its being in memory."""


class Value(NamedTuple):
    """Something that consumers want, or compute other values from. Prices share one unit.

    operands  values that it is computed from, by number; each is smaller than its own
    write     price of its being in memory
    read      price of reading it
    compute   price of computing it from its operands; None where it cannot be
    """

    operands: tuple[int, ...]
    write: int
    read: int
    compute: int | None


@dataclass(frozen=True, slots=True)
class Choice:
    """What one consumer does: it reads some values and computes others."""

    read: frozenset[int]
    computed: frozenset[int]


class Values(Protocol):
    """Values by number, of which few may be asked for."""

    def __getitem__(self, number: int, /) -> Value: ...


class Lazily(dict[int, Value]):
    """Values that are made when they are asked for."""

    def __init__(self, make: Callable[[int], Value]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, number: int) -> Value:
        value = self[number] = self._make(number)
        return value


def materialize(values: Values, wanted: Sequence[Iterable[int]]) -> tuple[Choice, ...]:
    """The choice of each consumer, given the values that it wants.

    The price of all together is as low as a local search finds it.
    """
    problem = _Problem(values, wanted)
    shared = [v for v in problem.shared if values[v].compute is not None]
    if not shared:
        return tuple(problem.answers(frozenset()))
    starts = [
        problem.answers(frozenset()),
        problem.answers_sharing(),
        problem.answers(frozenset(problem.shared)),
        problem.answers(problem.as_one()),
    ]
    ends = [problem.improve(start) for start in starts]
    dearest = sorted(shared, key=lambda v: (-values[v].write, v))[:_TRIALS]
    return tuple(problem.toggled(min(ends, key=problem.price), dearest))


class _Problem:
    """subgraphs  what each consumer could read or compute, as far as that may be worth anything
    users      consumers that could read or compute a value, counted
    shared     values whose write several consumers could share
    """

    def __init__(self, values: Values, wanted: Sequence[Iterable[int]]) -> None:
        self.wanted = [tuple(dict.fromkeys(names)) for names in wanted]
        self._own = _own_operands(values, self.wanted)
        self.values = values = _without_vain(values, self._own, self.wanted)
        self._least = [_LeastOfComputing(values, self._own, names) for names in self.wanted]
        self.subgraphs = [
            _worth_asking(values, names, least, lambda v: values[v].write).keys()
            for names, least in zip(self.wanted, self._least, strict=True)
        ]
        self.users = Counter(v for subgraph in self.subgraphs for v in subgraph)
        self.shared = [v for v in sorted(self.users) if self.users[v] > 1 and values[v].write]
        self._common = [frozenset(self.shared).intersection(names) for names in self.subgraphs]
        self._answers: dict[tuple[int, Set[int], int | None], Choice] = {}

    def price(self, choices: Sequence[Choice]) -> int:
        """Of all consumers together."""
        total = sum(self.values[v].write for v in {v for c in choices for v in c.read})
        for choice in choices:
            total += sum(self.values[v].read for v in choice.read)
            total += sum(self.values[v].compute or 0 for v in choice.computed)
        return total

    def respond(self, consumer: int, extra: WritePrice) -> Choice:
        """The cheapest choice of one consumer."""
        return _response(self.values, self.wanted[consumer], self._least[consumer], extra)

    def answers(self, stored: Set[int]) -> list[Choice]:
        """What each does where some values are stored and the others are at its own expense."""
        return [self._answer(k, stored & common) for k, common in enumerate(self._common)]

    def answers_sharing(self) -> list[Choice]:
        """What each does where all who could read a value share in its write."""

        def part(v: int) -> int:
            return self.values[v].write // self.users[v]

        return [
            self.respond(k, part) if common else self._answer(k, frozenset())
            for k, common in enumerate(self._common)
        ]

    def as_one(self) -> frozenset[int]:
        """What would be stored if each value were read by all who could, or computed by all."""
        alike = Lazily(self._by_all)
        wanted = tuple(dict.fromkeys(v for names in self.wanted for v in names))
        least = _LeastOfComputing(alike, self._own, wanted)
        return _response(alike, wanted, least, lambda v: alike[v].write).read

    def _by_all(self, v: int) -> Value:
        """A value, at the prices that all who could pay together."""
        operands, write, read, compute = self.values[v]
        users = max(self.users[v], 1)
        return Value(operands, write, read * users, None if compute is None else compute * users)

    def improve(self, choices: Sequence[Choice]) -> list[Choice]:
        """Let each consumer answer the others until nothing changes."""
        choices = list(choices)
        readers = Counter(v for choice in choices for v in choice.read)
        for _ in range(_ROUNDS):
            before = list(choices)
            for k, mine in enumerate(before):
                common = self._common[k]
                # What others read; what this one reads, somebody else has to read, too.
                stored = frozenset(v for v in common if readers[v] > (v in mine.read))
                choices[k] = self._answer(k, stored)
                if choices[k] != mine:
                    readers.subtract(mine.read)
                    readers.update(choices[k].read)
            if choices == before:
                break
        return choices

    def toggled(self, choices: Sequence[Choice], tried: Iterable[int]) -> list[Choice]:
        """Try values the other way: computed by all if stored, else offered as if stored."""
        best, price = list(choices), self.price(choices)
        for v in tried:
            stored = {u for choice in best for u in choice.read}
            banned = v if v in stored else None
            offered = stored - {v} if banned is not None else stored | {v}
            changed = [
                self._answer(k, self._common[k] & offered, banned)
                if v in self.subgraphs[k]
                else choice
                for k, choice in enumerate(best)
            ]
            changed = self.improve(changed)
            if (found := self.price(changed)) < price:
                best, price = changed, found
        return best

    def _answer(self, consumer: int, stored: Set[int], banned: int | None = None) -> Choice:
        """The cheapest choice where some values are stored and one is better not read."""
        key = (consumer, stored, banned)
        if key not in self._answers:
            self._answers[key] = self.respond(
                consumer,
                lambda v: NEVER if v == banned else 0 if v in stored else self.values[v].write,
            )
        return self._answers[key]


def _response(
    values: Values, wanted: Sequence[int], least: Callable[[int], int], extra: WritePrice
) -> Choice:
    """The cheapest choice of a consumer that wants some values."""
    reads = _worth_asking(values, wanted, least, extra)
    rows: dict[int, _Row] = {}
    for v in sorted(reads):
        value = values[v]
        if value.compute is None or reads[v] <= least(v):
            rows[v] = _Row(reads[v], None, ())
        else:
            rows[v] = _Row(reads[v], value.compute, value.operands)
    # What is read anyway is there for whatever is computed from it.
    read = {v for v in wanted if rows[v].compute is None}
    computed: set[int] = set()
    for part in _independent(rows, read):
        places = {v: k for k, v in enumerate(part)}
        found = _cheapest(
            tuple(
                rows[v]._replace(operands=tuple(places[u] for u in rows[v].operands if u in places))
                for v in part
            ),
            tuple(sorted(places[v] for v in wanted if v in places)),
        )
        read.update(part[k] for k in found[0])
        computed.update(part[k] for k in found[1])
    return Choice(frozenset(read), frozenset(computed))


def _worth_asking(
    values: Values, wanted: Sequence[int], least: Callable[[int], int], extra: WritePrice
) -> dict[int, int]:
    """The prices of reading what a consumer wants, and what it would compute that from where
    reading is not as cheap as any way of computing: a network that does not grow with the program
    behind it.
    """
    found: dict[int, int] = {}

    def producers(v: int) -> Sequence[int]:
        value = values[v]
        found[v] = value.read + extra(v)
        is_dear = value.compute is not None and found[v] > least(v)
        return value.operands if is_dear else ()

    backward_slice(wanted, producers)
    return found


class _Row(NamedTuple):
    """The price of reading a value, of computing it, where that may pay, and its operands."""

    read: int
    compute: int | None
    operands: tuple[int, ...]


def _independent(rows: Mapping[int, _Row], settled: Set[int]) -> list[list[int]]:
    """Values, each with those that it is computed from or what else is computed from them, but for
    those that are settled: layers that are equal make equal parts.
    """
    whole: dict[int, list[int]] = {}
    for v, row in rows.items():
        if v in settled:
            continue
        mine = whole[v] = [v]
        for u in row.operands:
            other = whole.get(u, mine)
            if other is not mine:
                mine, other = (mine, other) if len(mine) >= len(other) else (other, mine)
                mine += other
                for w in other:
                    whole[w] = mine
    return [sorted(part) for part in {id(part): part for part in whole.values()}.values()]


@lru_cache(maxsize=4096)
def _cheapest(
    rows: tuple[_Row, ...], wanted: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Positions of what one consumer reads, and of what it computes."""
    network = FlowNetwork()
    source, sink = network.node(), network.node()
    inside: list[int] = []
    for read, compute, operands in rows:
        before, after = network.node(), network.node()
        inside.append(after)
        network.connect(before, after, read)
        network.connect(source, before, INFINITE if compute is None else compute)
        for k in operands:
            network.connect(inside[k], before, INFINITE)
    for k in wanted:
        network.connect(inside[k], sink, INFINITE)
    behind = network.cut(source, sink)
    return (
        tuple(k for k, node in enumerate(inside) if behind[node] and not behind[node - 1]),
        tuple(k for k, node in enumerate(inside) if behind[node - 1]),
    )


def _own_operands(values: Values, wanted: Iterable[Iterable[int]]) -> dict[int, list[int]]:
    """For each value that anybody could compute, the operands that no other is computed from."""

    def producers(v: int) -> Sequence[int]:
        return () if values[v].compute is None else values[v].operands

    operands = {
        v: tuple(dict.fromkeys(producers(v)))
        for v in backward_slice((v for names in wanted for v in names), producers)
    }
    readers = Counter(u for found in operands.values() for u in found)
    return {v: [u for u in found if readers[u] == 1] for v, found in operands.items()}


def _without_vain(
    values: Values, own: Mapping[int, Sequence[int]], wanted: Iterable[Iterable[int]]
) -> Mapping[int, Value]:
    """The values that anybody could want, of which none can be computed that it is never cheaper
    for all who do to compute than to read: a sum of which one term is wanted by nobody else, and
    takes as much to keep. What lies behind such values no consumer has to look at, so that the
    residual stream of a transformer does not make one network of its layers.
    """
    roots = {v for names in wanted for v in names}
    found: dict[int, Value] = {}
    # What having a value takes at least: once, and of each who has it.
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


class _LeastOfComputing:
    """For each value, less than which computing it never costs one consumer, whatever else it has:
    what it takes of operands that nothing else is computed from.

    own  these operands, of each value; one table for all consumers
    """

    def __init__(
        self, values: Values, own: Mapping[int, Sequence[int]], wanted: Iterable[int]
    ) -> None:
        self._values = values
        self._own = own
        self._wanted = frozenset(wanted)
        self._found: dict[int, int] = {}

    def __call__(self, v: int) -> int:
        found = self._found
        waiting = [] if v in found else [v]
        while waiting:
            u = waiting[-1]
            compute = self._values[u].compute
            own = [] if compute is None else [w for w in self._own[u] if w not in self._wanted]
            if unknown := [w for w in own if w not in found]:
                waiting += unknown
                continue
            least = INFINITE if compute is None else compute
            found[u] = least + sum(min(self._values[w].read, found[w]) for w in own)
            waiting.pop()
        return found[v]
