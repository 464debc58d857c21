"""Materialisation as a minimum cut: which values are stored, and which are recomputed where read.

Several consumers need values. Each reads a value from memory or computes it from operands, which it
obtains in the same two ways. A value in memory costs a write, paid once; every read and every
computation is paid by the consumer that does it.

For one consumer this is a minimum cut (as in the min-cut partitioner of AOTAutograd, 2022): the arc
of a value is cut if it is read; otherwise the value is on the sink's side if it is computed, and on
the source's side if not. With shared writes the problem is NP-hard, so each consumer in turn takes
its best response to what the others store, until nothing changes, at most `_ROUNDS` times. The
search starts from several guesses of who pays for a write; from the cheapest end, values are
toggled one by one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import NamedTuple

from thunder_fuser.ir.dag import backward_slice
from thunder_fuser.segment.recompute.min_cut import INFINITE, FlowNetwork
from thunder_fuser.segment.recompute.price_bounds import (
    Bits,
    Lazily,
    LeastOfComputing,
    Profitable,
    Value,
    Values,
    bits,
    own_operands,
    union,
    without_vain,
)

_ROUNDS = 8
NEVER = INFINITE >> 20
"""Price of a choice that is made only if nothing else is possible."""
_TRIALS = 8
"""Most shared values that are toggled between stored and recomputed, dearest write first."""

WritePrice = Callable[[int], int]
"""Share of a value's write price, by value number, that a consumer pays in addition to the read."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The values that one consumer reads, and those that it computes."""

    read: frozenset[int]
    computed: frozenset[int]


def materialize(values: Values, wanted: Sequence[Iterable[int]]) -> tuple[Choice, ...]:
    """Return the choice of each consumer, given the values that it needs.

    A local search minimises the price of all together.
    """
    problem = _Problem(values, wanted)
    shared = [v for v in problem.shared if values[v].compute is not None]
    if not shared:
        return tuple(problem.answers(0))
    starts = [
        problem.answers(0),
        problem.answers_sharing(),
        problem.answers(bits(problem.shared)),
        problem.answers(bits(problem.as_one())),
    ]
    ends = [problem.improve(start) for start in starts]
    dearest = sorted(shared, key=lambda v: (-values[v].write, v))[:_TRIALS]
    return tuple(problem.toggled(min(ends, key=problem.price), dearest))


class _Problem:
    """Materialisation problem of several consumers.

    least      lower bounds of the price at which each consumer computes a value; in `alone`, what
               only values that are worth computing read is paid for by the one that reads it
    subgraphs  values that each consumer could profitably read or compute
    users      number of consumers that could read or compute a value
    shared     values whose write several consumers could share
    """

    def __init__(self, values: Values, wanted: Sequence[Iterable[int]]) -> None:
        self.wanted = [tuple(dict.fromkeys(names)) for names in wanted]
        self._own = own = own_operands(values, self.wanted)
        self.values = values = without_vain(values, own, self.wanted)
        self._readers = _readers(values, own)
        self._profitable = Profitable(values, own)
        self._least = [LeastOfComputing(values, own, names) for names in self.wanted]
        self.subgraphs = list(map(self._profitable.of, self.wanted, self._least))
        self._alone = [Lazily(partial(self._own_alone, k)) for k, _ in enumerate(self.wanted)]
        self.users = Lazily(lambda v: sum(names >> v & 1 for names in self.subgraphs))
        once = twice = 0
        for names in self.subgraphs:
            once, twice = once | names, twice | once & names
        self.shared = [v for v in sorted(values) if twice >> v & 1 and values[v].write]
        self._common = [bits(self.shared) & names for names in self.subgraphs]
        self._answers: dict[tuple[int, Bits, int | None], Choice] = {}

    def price(self, choices: Sequence[Choice]) -> int:
        """Return the price of all consumers together."""
        total = sum(self.values[v].write for v in {v for c in choices for v in c.read})
        for choice in choices:
            total += sum(self.values[v].read for v in choice.read)
            total += sum(self.values[v].compute or 0 for v in choice.computed)
        return total

    def _own_alone(self, consumer: int, v: int) -> Sequence[int]:
        """Return the operands of a value that are operands of no other value that may be cheaper to
        compute than to read for one consumer, even if it pays for the whole write.
        """
        if not self._is_worth_computing(consumer, v):
            return self._own[v]
        return [
            u
            for u in dict.fromkeys(self.values[v].operands)
            if sum(self._is_worth_computing(consumer, reader) for reader in self._readers[u]) == 1
        ]

    def _is_worth_computing(self, consumer: int, v: int) -> bool:
        is_asked = self.subgraphs[consumer] >> v & 1
        return bool(is_asked) and self._profitable.is_dear(self._least[consumer], v)

    def respond(self, consumer: int, extra: WritePrice, *, banned: bool = False) -> Choice:
        """Return the cheapest choice of one consumer. If a value is `banned` from being read, the
        consumer may compute others than those that were worth it.
        """
        values, names = self.values, self.wanted[consumer]
        own = self._own if banned else self._alone[consumer]
        least = LeastOfComputing(values, own, names, extra)
        return _response(values, names, least, extra)

    def answers(self, stored: Bits) -> list[Choice]:
        """Return each consumer's choice if writes of `stored` are free, others at its expense."""
        return [self._answer(k, stored & common) for k, common in enumerate(self._common)]

    def answers_sharing(self) -> list[Choice]:
        """Return each consumer's choice if all potential users of a value share its write."""

        def part(v: int) -> int:
            return self.values[v].write // max(self.users[v], 1)

        return [
            self.respond(k, part) if common else self._answer(k, 0)
            for k, common in enumerate(self._common)
        ]

    def as_one(self) -> frozenset[int]:
        """Return the values stored if each were read by all potential users or computed by all."""
        alike = Lazily(self._by_all)
        wanted = tuple(dict.fromkeys(v for names in self.wanted for v in names))
        least = LeastOfComputing(alike, self._own, wanted)
        return _response(alike, wanted, least, lambda v: alike[v].write).read

    def _by_all(self, v: int) -> Value:
        """Return a value with the prices of all its potential users together."""
        operands, write, read, compute = self.values[v]
        users = max(self.users[v], 1)
        return Value(operands, write, read * users, None if compute is None else compute * users)

    def improve(self, choices: Sequence[Choice]) -> list[Choice]:
        """Iterate best responses of the consumers until nothing changes."""
        choices = list(choices)
        readers = Counter(v for choice in choices for v in choice.read)
        stored = bits(readers)
        for _ in range(_ROUNDS):
            before = list(choices)
            for k, mine in enumerate(before):
                # Values that others read, without the reads of this consumer.
                others = stored & ~bits(v for v in mine.read if readers[v] == 1)
                choices[k] = self._answer(k, others & self._common[k])
                if choices[k] != mine:
                    readers.subtract(mine.read)
                    readers.update(choices[k].read)
                    stored = others | bits(choices[k].read)
            if choices == before:
                break
        return choices

    def toggled(self, choices: Sequence[Choice], tried: Iterable[int]) -> list[Choice]:
        """Toggle values, and keep improvements: stored ones are banned, others offered free."""
        best, price = list(choices), self.price(choices)
        for v in tried:
            stored = union(bits(choice.read) for choice in best)
            banned = v if stored >> v & 1 else None
            offered = stored ^ 1 << v
            changed = [
                self._answer(k, self._common[k] & offered, banned)
                if self.subgraphs[k] >> v & 1
                else choice
                for k, choice in enumerate(best)
            ]
            changed = self.improve(changed)
            if (found := self.price(changed)) < price:
                best, price = changed, found
        return best

    def _answer(self, consumer: int, stored: Bits, banned: int | None = None) -> Choice:
        """Return a consumer's choice with free writes of `stored` and without reading `banned`."""
        key = (consumer, stored, banned)
        if key not in self._answers:
            self._answers[key] = self.respond(
                consumer,
                lambda v: NEVER if v == banned else 0 if stored >> v & 1 else self.values[v].write,
                banned=banned is not None,
            )
        return self._answers[key]


def _response(
    values: Values, wanted: Sequence[int], least: LeastOfComputing, extra: WritePrice
) -> Choice:
    """Return the cheapest choice of a consumer that needs some values."""
    reads = _worth_asking(values, wanted, least, extra)
    rows: dict[int, _Row] = {}
    for v in sorted(reads):
        value = values[v]
        if value.compute is None or least.reaches(v, reads[v]):
            rows[v] = _Row(reads[v], None, ())
        else:
            rows[v] = _Row(reads[v], value.compute, value.operands)
    # Wanted values that cannot be computed are read, hence available as operands.
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
    values: Values, wanted: Sequence[int], least: LeastOfComputing, extra: WritePrice
) -> dict[int, int]:
    """Return the read prices of wanted values, and of operands of those for which computing may be
    cheaper than reading. This keeps the flow network independent of the size of the program.
    """
    found: dict[int, int] = {}

    def producers(v: int) -> Sequence[int]:
        value = values[v]
        found[v] = value.read + extra(v)
        is_dear = value.compute is not None and not least.reaches(v, found[v])
        return value.operands if is_dear else ()

    backward_slice(wanted, producers)
    return found


class _Row(NamedTuple):
    """Read price, compute price (None: it is read), and operands of a value."""

    read: int
    compute: int | None
    operands: tuple[int, ...]


def _independent(rows: Mapping[int, _Row], settled: Set[int]) -> list[list[int]]:
    """Return connected components of values and operands, without `settled` values. Equal layers
    give equal components, which are solved once.
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
    """Return the positions of values that a consumer reads, and of those that it computes."""
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


def _readers(values: Values, computable: Iterable[int]) -> dict[int, list[int]]:
    """Return for each value those that are computed from it."""
    found: dict[int, list[int]] = {}
    for v in computable:
        for u in dict.fromkeys(values[v].operands if values[v].compute is not None else ()):
            found.setdefault(u, []).append(v)
    return found
