"""Materialisation: which values go through memory, and which are computed where they are read.

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

from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from thunder_fuser.segment.min_cut import INFINITE, Network

_ROUNDS = 8
_TRIALS = 64
"""Values that are tried the other way, dearest first."""

Prices = Callable[[int], int]
"""What a consumer adds to the price of reading a value, for its being in memory."""


@dataclass(frozen=True, slots=True)
class Value:
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


def materialize(values: Sequence[Value], wanted: Sequence[Iterable[int]]) -> tuple[Choice, ...]:
    """The choice of each consumer, given the values that it wants.

    The price of all together is as low as a local search finds it.
    """
    cones = [_cone(values, names) for names in wanted]
    problem = _Problem(values, tuple(tuple(dict.fromkeys(names)) for names in wanted), cones)
    users: dict[int, int] = {}
    for cone in cones:
        for v in cone:
            users[v] = users.get(v, 0) + 1
    if all(values[v].write == 0 for v, count in users.items() if count > 1):
        return tuple(problem.respond(k, lambda v: values[v].write) for k in range(len(cones)))
    starts: list[Prices] = [
        lambda v: values[v].write,
        lambda v: values[v].write // users[v],
        lambda v: 0,
    ]
    together = problem.as_one(users)
    starts.append(lambda v: 0 if v in together else values[v].write)
    ends = [problem.improve(problem.answers(start)) for start in starts]
    shared = [
        v for v in users if users[v] > 1 and values[v].write and values[v].compute is not None
    ]
    shared.sort(key=lambda v: (-values[v].write, v))
    return problem.toggled(min(ends, key=problem.price), shared[:_TRIALS])


def _cone(values: Sequence[Value], wanted: Iterable[int]) -> tuple[int, ...]:
    """Everything that could be read or computed on the way to what is wanted, in order."""
    seen: set[int] = set()
    stack = list(wanted)
    while stack:
        v = stack.pop()
        if v not in seen:
            seen.add(v)
            if values[v].compute is not None:
                stack.extend(values[v].operands)
    return tuple(sorted(seen))


@dataclass(frozen=True, slots=True)
class _Problem:
    values: Sequence[Value]
    wanted: tuple[tuple[int, ...], ...]
    cones: Sequence[tuple[int, ...]]

    def price(self, choices: Sequence[Choice]) -> int:
        """Of all consumers together."""
        total = sum(self.values[v].write for v in _stored(choices))
        for choice in choices:
            total += sum(self.values[v].read for v in choice.read)
            total += sum(self.values[v].compute or 0 for v in choice.computed)
        return total

    def respond(self, consumer: int, extra: Prices) -> Choice:
        """The cheapest choice of one consumer."""
        network = Network()
        source, sink = network.node(), network.node()
        inside: dict[int, int] = {}
        for v in self.cones[consumer]:
            value = self.values[v]
            before, after = network.node(), network.node()
            inside[v] = after
            network.connect(before, after, value.read + extra(v))
            if value.compute is None:
                network.connect(source, before, INFINITE)
            else:
                network.connect(source, before, value.compute)
                for u in value.operands:
                    network.connect(inside[u], before, INFINITE)
        for v in self.wanted[consumer]:
            network.connect(inside[v], sink, INFINITE)
        behind = network.cut(source, sink)
        read = [v for v, node in inside.items() if behind[node] and not behind[node - 1]]
        computed = [v for v, node in inside.items() if behind[node - 1]]
        return Choice(frozenset(read), frozenset(computed))

    def answers(self, extra: Prices) -> list[Choice]:
        return [self.respond(k, extra) for k in range(len(self.wanted))]

    def as_one(self, users: Mapping[int, int]) -> frozenset[int]:
        """What would be stored if each value were read by all who could, or computed by all."""
        alike = [
            Value(
                value.operands,
                value.write,
                value.read * users.get(v, 1),
                None if value.compute is None else value.compute * users.get(v, 1),
            )
            for v, value in enumerate(self.values)
        ]
        wanted = tuple(dict.fromkeys(v for names in self.wanted for v in names))
        one = _Problem(alike, (wanted,), (_cone(alike, wanted),))
        return one.respond(0, lambda v: alike[v].write).read

    def improve(self, choices: Sequence[Choice]) -> list[Choice]:
        """Let each consumer answer the others until nothing changes."""
        choices = list(choices)
        for _ in range(_ROUNDS):
            before = list(choices)
            for k in range(len(choices)):
                stored = _stored(choices[:k] + choices[k + 1 :])
                choices[k] = self.respond(k, self._extra(stored))
            if choices == before:
                break
        return choices

    def _extra(self, stored: AbstractSet[int], banned: AbstractSet[int] = frozenset()) -> Prices:
        def extra(v: int) -> int:
            if v in stored:
                return 0
            # A ban can be afforded where nothing else is possible.
            return INFINITE >> 20 if v in banned else self.values[v].write

        return extra

    def toggled(self, choices: Sequence[Choice], shared: Iterable[int]) -> tuple[Choice, ...]:
        """Try each of `shared` the other way: computed by all if it is stored, else offered to all
        as if it were stored already.
        """
        best, price = list(choices), self.price(choices)
        for v in shared:
            stored = _stored(best)
            extra = self._extra(stored - {v}, {v}) if v in stored else self._extra(stored | {v})
            tried = [
                self.respond(k, extra) if v in self.cones[k] else choice
                for k, choice in enumerate(best)
            ]
            tried = self.improve(tried)
            if (found := self.price(tried)) < price:
                best, price = tried, found
        return tuple(best)


def _stored(choices: Iterable[Choice]) -> frozenset[int]:
    """Values that somebody reads."""
    return frozenset().union(*(choice.read for choice in choices))
