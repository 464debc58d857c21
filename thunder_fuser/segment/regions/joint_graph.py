"""Joint graph: a whole program before regions are formed, forward and, for training, backward.

Its nodes are calls, in program order. A fusible call also has primitives, which a kernel would
compute in its place. Values are numbers; the frontend maps them to tensors. Liveness, order,
rematerialisation and memory budgets are decided on this graph, for the whole program at once.

A *partition* groups calls into parts. Each part is a region, which becomes one fusion, or a call of
torch.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from thunder_fuser.segment.prices import PriceUnits


class Role(enum.Enum):
    """Kind of a primitive, as seen by fusion into regions."""

    COMPUTE = "one value a point from the operands' values"
    JOIN = (
        "moves data so that it cannot be a view: several sources, new elements, a data-given place"
    )
    REDUCE = "one value from the elements along some dimensions"
    SCAN = "one value from each element and those before it along a dimension"
    VIEW = "the data of its first argument, seen differently"
    COPY = "new memory with the data of its first argument"
    CREATE = "a tensor from nothing"
    UPDATE = "writes into the memory of its second argument"
    RENAME = "its argument under another name, which orders reads after updates"

    @property
    def is_worth_a_kernel(self) -> bool:
        """True if a region of only this primitive may be faster than torch."""
        return self in (Role.COMPUTE, Role.JOIN, Role.REDUCE, Role.SCAN)


class Motion(enum.Enum):
    """Effect of a view on the order of elements in memory."""

    KEEPS = "the elements that it shows are in their order"
    SLICES = "it shows some of the elements"
    RESHAPES = "it keeps the order of the index, and copies where no strides say that"
    PERMUTES = "it changes the order of the index"
    LAYS_OUT = "it has an order of its own, and copies where memory has another"

    @property
    def may_copy(self) -> bool:
        return self in (Motion.RESHAPES, Motion.LAYS_OUT)


@dataclass(frozen=True, slots=True)
class DevicePhase:
    """Device and phase, which all calls of a region have in common."""

    device: torch.device
    is_backward: bool


class Value(NamedTuple):
    """A tensor or scalar, under one of its names.

    bytes       of its elements; 0 for a scalar
    memory      first value of the storage that it may lie in; values of one may share elements
    held        bytes of that storage
    is_kept     an argument, or a result of the forward: alive in the backward, too
    is_unsaved  the backward must not read it: the user may change it, and torch would not save it
    is_updated  its memory is written in place
    matters     its identity is observable: a copy of its elements would not do
    """

    elements: int
    bytes: int
    is_tensor: bool
    memory: int
    held: int
    is_kept: bool
    is_unsaved: bool
    is_updated: bool
    matters: bool


class Primitive(NamedTuple):
    """One operation of a fusible call.

    reads, makes  operands and results
    source        operand of a view or renaming, None for others
    shows         results that share memory of operands: (result, operand)
    cost          arithmetic per element, in units of one fp32 instruction
    may_repeat    it may be recomputed: it gives the same result wherever it runs
    """

    reads: tuple[int, ...]
    makes: tuple[int, ...]
    role: Role
    motion: Motion
    source: int | None
    shows: tuple[tuple[int, int], ...]
    cost: int
    may_repeat: bool


class Call(NamedTuple):
    """A node of the graph.

    reads, makes     operands and results, if torch runs it
    shows            results that share memory of operands: (result, operand)
    primitives       numbers of its primitives; empty: only torch can run it
    updates          it writes into memory of operands
    has_effect       it has side effects, so that its position in the order matters
    is_argument      it names an argument of the program
    begins_backward  it names an incoming gradient
    """

    name: str
    reads: tuple[int, ...]
    makes: tuple[int, ...]
    shows: tuple[tuple[int, int], ...]
    primitives: range
    is_backward: bool
    updates: bool = False
    has_effect: bool = False
    is_argument: bool = False
    begins_backward: bool = False


class Part(NamedTuple):
    """Calls that run as one, by number. place: of a region; None: a call that torch runs."""

    calls: tuple[int, ...]
    place: DevicePhase | None


Partition = tuple[Part, ...]
"""Parts with all calls of a graph, in execution order."""


@dataclass(frozen=True, slots=True, eq=False)
class JointGraph:
    """Values, primitives and calls of a program. prices: of the devices that regions run on."""

    values: Sequence[Value]
    primitives: Sequence[Primitive]
    calls: Sequence[Call]
    prices: Mapping[torch.device, PriceUnits]

    def primitives_of(self, part: Part) -> Iterator[int]:
        """Yield the primitives of a region, in order; none for a torch call."""
        if part.place is not None:
            for k in part.calls:
                yield from self.calls[k].primitives

    def made_by_region(self, part: Part) -> Iterator[int]:
        """Yield the values that a region computes."""
        for p in self.primitives_of(part):
            yield from self.primitives[p].makes

    def updates(self, part: Part) -> bool:
        """True if a part writes into memory of its operands."""
        return any(self.calls[k].updates for k in part.calls)

    def begins_backward(self, part: Part) -> bool:
        return self.calls[part.calls[0]].begins_backward

    def __str__(self) -> str:
        rows = []
        for k, call in enumerate(self.calls):
            read, made = (", ".join(map(str, x)) for x in (call.reads, call.makes))
            phase = "backward" if call.is_backward else "forward"
            of = f", {len(call.primitives)} primitives" if call.primitives else ""
            rows.append(f"{k}: {call.name}({read}) -> ({made}), {phase}{of}")
        return "\n".join(rows)
