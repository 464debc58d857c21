"""Joint graph: a whole program before its regions are formed, forward and, where it is trained,
backward.

Its nodes are calls, in the order of the program. A call that can be fused also is primitives: what
a kernel would compute in its place. Values are numbers; whose tensors they are, the frontend knows.
Liveness, order, rematerialisation and budgets of a program are decided here, once, for all of it.

A *partition* says which calls run as one. Each of its parts is a region, which becomes one fusion,
or a call of torch's.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from thunder_fuser.segment.prices import PriceUnits


class Role(enum.Enum):
    """What an operation is to the region that it joins."""

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
        """Whether a region that holds only this gains anything over torch."""
        return self in (Role.COMPUTE, Role.JOIN, Role.REDUCE, Role.SCAN)


class Motion(enum.Enum):
    """What a view does to the order in which elements lie."""

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
    """What the calls of one region have in common."""

    device: torch.device
    is_backward: bool


class Value(NamedTuple):
    """A tensor, or a number, under one of its names.

    bytes       of its elements; none of a number
    memory      the first value that lies where it may lie; two of one memory may share elements
    held        bytes of that memory
    is_kept     an argument, or a result of the forward: alive in the backward, too
    is_unsaved  the backward must not read it: the user may change it, and torch would not save it
    is_updated  something writes into its memory
    matters     anybody can tell it from another tensor with its elements
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
    """One operation of what a kernel would compute.

    reads, makes  values
    source        what a view looks at, or a renaming renames
    shows         results that lie in memory of what is read: (result, operand)
    cost          arithmetic for an element, in units of one fp32 instruction
    may_repeat    it gives the same result wherever it runs
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

    reads, makes     values, where torch runs it
    shows            results that lie in memory of what is read: (result, operand)
    primitives       numbers of what it is in a fusion; empty: it is torch's
    updates          it writes into memory that it is given
    has_effect       its place means more than its operands and results say
    is_argument      it names what the program is given
    begins_backward  it names a gradient that comes in
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
    """Calls that run as one, by number. place: where a region runs; None: torch runs the call."""

    calls: tuple[int, ...]
    place: DevicePhase | None


Partition = tuple[Part, ...]
"""All calls of a graph, in the order in which they run."""


@dataclass(frozen=True, slots=True, eq=False)
class JointGraph:
    """prices  of the devices that regions run on"""

    values: Sequence[Value]
    primitives: Sequence[Primitive]
    calls: Sequence[Call]
    prices: Mapping[torch.device, PriceUnits]

    def primitives_of(self, part: Part) -> Iterator[int]:
        """What a region computes, in order; nothing of a call of torch's."""
        if part.place is not None:
            for k in part.calls:
                yield from self.calls[k].primitives

    def made_by_region(self, part: Part) -> Iterator[int]:
        """The values that a region computes."""
        for p in self.primitives_of(part):
            yield from self.primitives[p].makes

    def updates(self, part: Part) -> bool:
        """Whether a part writes into memory that it is given."""
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
