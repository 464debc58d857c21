"""Parts of one launch, each with blocks of its own.

The blocks of one part follow those of another, or the two take turns: the pieces of a cat then
proceed through memory together, and their stores are nearly consecutive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import ClassVar, Generic, Protocol, TypeVar

from thunder_fuser import kernel_ir as ir
from thunder_fuser.lower.frame import Frame
from thunder_fuser.lower.scalar_graph import ScalarGraph
from thunder_fuser.lower.store import Store


class Part(Protocol):
    """Blocks with a body of their own.

    blocks   their number, a multiple of `rounds`
    rounds   adjacent parts with as many rounds take turns: each has an equal share of its blocks in
             every round
    threads  threads of a block
    """

    @property
    def blocks(self) -> int: ...
    @property
    def rounds(self) -> int: ...
    @property
    def threads(self) -> int: ...
    @property
    def graph(self) -> ScalarGraph: ...
    @property
    def stores(self) -> tuple[Store, ...]: ...


P = TypeVar("P", bound=Part, covariant=True)
_LARGEST_SHARE = 64
"""Most blocks that the smallest part has in a round."""
_MOST_IDLE = 1 / 32
"""Largest fraction of blocks that parts get beyond what they need, for equal shares."""


@dataclass(frozen=True, slots=True)
class KernelOfParts(Generic[P]):
    """A schedule of several parts, in block order."""

    template: ClassVar[str]

    parts: tuple[P, ...]

    @property
    def blocks(self) -> int:
        return sum(part.blocks for part in self.parts)

    @property
    def block_threads(self) -> int:
        return max((part.threads for part in self.parts), default=1)

    @property
    def graphs(self) -> tuple[ScalarGraph, ...]:
        return tuple(part.graph for part in self.parts)

    @property
    def stores(self) -> tuple[Store, ...]:
        return tuple(store for part in self.parts for store in part.stores)

    def __str__(self) -> str:
        return "\n".join([self.template, *(f"  {part}" for part in self.parts)])


def _of_threads(threads: int, most: int, body: Sequence[ir.Stmt]) -> Sequence[ir.Stmt]:
    """Guard `body` for the first `threads` threads of a block."""
    if threads == most:
        return body
    return [ir.If((ir.less(ir.LaunchIndex.THREAD, threads),), tuple(body))]


def rounds_of(blocks: Sequence[int]) -> int:
    """Return the most rounds in which parts of so many blocks take turns, such that few blocks of a
    launch have nothing to do; 1 if there are none.
    """
    fewest = min(blocks)
    for share in range(1, min(fewest, _LARGEST_SHARE) + 1):
        rounds = -(-fewest // share)
        idle = sum(-n % rounds for n in blocks)
        if idle <= _MOST_IDLE * sum(blocks):
            return rounds
    return 1


def lower_parts(
    parts: Sequence[P], frame: Frame, lower: Callable[[P], Sequence[ir.Stmt]]
) -> ir.Body:
    """Lower all parts in order, each for as many threads of a block as it uses; in each, `block`
    counts the part's own blocks.
    """
    most = max((part.threads for part in parts), default=1)
    if len(parts) == 1:
        return (ir.Let("block", frame.index, ir.LaunchIndex.BLOCK), *lower(parts[0]))
    bodies = [_of_threads(part.threads, most, lower(part)) for part in parts]
    every = [(p.rounds, p.blocks // p.rounds, body) for p, body in zip(parts, bodies, strict=True)]
    alternatives: list[tuple[int, ir.Body]] = []
    begin = 0
    for rounds, adjacent in groupby(every, key=itemgetter(0)):
        turns = [(share, body) for _, share, body in adjacent]
        if rounds == 1 or len(turns) == 1:
            blocks = [(share * rounds, body) for share, body in turns]
            alternatives += _one_after_another(blocks, begin, frame)
        else:
            alternatives.append(_in_turns(turns, rounds, begin, frame))
        begin = alternatives[-1][0]
    return _chosen(ir.LaunchIndex.BLOCK, alternatives)


def _one_after_another(
    parts: Sequence[tuple[int, Sequence[ir.Stmt]]], begin: int, frame: Frame
) -> Iterator[tuple[int, ir.Body]]:
    """Yield, for each part of so many blocks from `begin` on, the end of its range and its body."""
    for count, body in parts:
        yield begin + count, (ir.Let("block", frame.index, _since(begin, frame)), *body)
        begin += count


def _in_turns(
    parts: Sequence[tuple[int, Sequence[ir.Stmt]]], rounds: int, begin: int, frame: Frame
) -> tuple[int, ir.Body]:
    """Return the end of a range of blocks from `begin` on, and a body in which every part has so
    many of each round's turns.
    """
    turns = sum(share for share, _ in parts)
    alternatives: list[tuple[int, ir.Body]] = []
    first = 0
    for share, body in parts:
        block: ir.Expr = ir.Var("round")
        if share > 1:
            turn = ir.Binary("-", ir.Var("turn"), ir.Int(first)) if first else ir.Var("turn")
            block = ir.add(ir.times(block, ir.Int(share)), turn)
        first += share
        alternatives.append((first, (ir.Let("block", frame.index, block), *body)))
    number = _since(begin, frame) if begin else ir.LaunchIndex.BLOCK
    quotient, rest = (ir.UnsignedBinary(op, number, ir.Int(turns)) for op in "/%")
    lets = ir.Let("round", frame.index, quotient), ir.Let("turn", frame.index, rest)
    return begin + rounds * turns, (*lets, *_chosen(ir.Var("turn"), alternatives))


def _since(begin: int, frame: Frame) -> ir.Expr:
    """Return the number of a block, counted from block `begin`."""
    number = ir.IntCast(ir.LaunchIndex.BLOCK, frame.index)
    return ir.Binary("-", number, ir.Int(begin)) if begin else number


def _chosen(value: ir.Expr, alternatives: Sequence[tuple[int, ir.Body]]) -> ir.Body:
    """Return the first of the alternatives whose end is above `value`."""
    *others, (_, found) = alternatives
    for end, body in reversed(others):
        found = (ir.If((ir.less(value, end),), body, found),)
    return found
