"""Reductions and scans of kernel IR: accumulators, and threads that reduce together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from thunder_fuser.kernel_ir.types import Reducer

if TYPE_CHECKING:
    from thunder_fuser.kernel_ir.expressions import Expr
    from thunder_fuser.kernel_ir.statements import Let


# ---- expressions


@dataclass(frozen=True, slots=True)
class InitAccumulator:
    """Initial value of an accumulator: the reduction's identity.

    is_zero  a sum starts at 0.0, to which registers are set in pairs; else at -0.0, so that its
             first element takes no instruction
    """

    reducer: Reducer
    is_zero: bool = False


@dataclass(frozen=True, slots=True)
class AsElement:
    """A value converted to the reducer's element type."""

    reducer: Reducer
    value: Expr


@dataclass(frozen=True, slots=True)
class Accumulate:
    """`accumulator` reduced with one more element, at `position` if the reducer takes positions."""

    reducer: Reducer
    accumulator: Expr
    element: Expr
    position: Expr | None


@dataclass(frozen=True, slots=True)
class AccumulateVector:
    """`accumulator` reduced with the first `present` elements of a register array."""

    reducer: Reducer
    accumulator: Expr
    elements: Expr
    present: Expr


@dataclass(frozen=True, slots=True)
class Present:
    """Number of valid lanes of a vector whose last valid lane is `last`: min(last + 1, lanes)."""

    last: Expr
    lanes: int


@dataclass(frozen=True, slots=True)
class Combine:
    """Two accumulators merged into one, `left` first."""

    reducer: Reducer
    left: Expr
    right: Expr


@dataclass(frozen=True, slots=True)
class FinalizeAccumulator:
    """Result of a reduction, computed from its final accumulator."""

    reducer: Reducer
    accumulator: Expr


@dataclass(frozen=True, slots=True)
class Lane:
    """One lane of `ReducerLanes`."""

    lanes: Expr
    lane: Expr


@dataclass(frozen=True, slots=True)
class WarpReduce:
    """Warp all-reduce of an accumulator over `threads` adjacent lanes."""

    reducer: Reducer
    threads: int
    value: Expr


@dataclass(frozen=True, slots=True)
class BlockReduce:
    """Block all-reduce of an accumulator over `threads` threads: the block, or one of its `groups`,
    which have barriers of their own. Over a cluster if `blocks` > 1.

    slots   address in shared memory, of this reduction's slots and those of others
    at      byte offset from `slots` of this reduction's slots, one for each warp
    thread  index of this thread in its group
    blocks  blocks of a cluster that reduce together, `threads` of each; 1: no cluster
    rank    rank of this block in its cluster
    """

    reducer: Reducer
    threads: int
    value: Expr
    slots: Expr
    at: int
    thread: Expr
    groups: int = 1
    blocks: int = 1
    rank: Expr | None = None


@dataclass(frozen=True, slots=True)
class ReducePartials:
    """Block reduction of a point's `count` partial results, parts[i * stride + point]. Threads with
    equal indices modulo `points` share a point, and all of them get its accumulator.
    """

    reducer: Reducer
    threads: int
    points: int
    count: int
    parts: Expr
    stride: Expr
    point: Expr
    slots: Expr


# ---- statements


@dataclass(frozen=True, slots=True)
class GroupedReduce:
    """Several reductions of a block that share barriers. Each declares one name; the values are all
    `BlockReduce` of equally many threads, or all `ReducePartials` of equal shape at one point.
    """

    lets: tuple[Let, ...]


@dataclass(frozen=True, slots=True)
class OuterBlockReduce:
    """All-reduce of an outer reduction: each thread holds accumulators of `vector` rows; threads of
    the block with equal indices modulo `groups` share these rows, and all get the results.

    slots  shared memory for partial results; None if the block is one warp
    """

    reducer: Reducer
    threads: int
    groups: int
    vector: int
    accumulators: str
    slots: Expr | None


@dataclass(frozen=True, slots=True)
class BlockScan:
    """Exclusive scan over the `threads` (a power of two) of a row: declares `name` as `running`
    combined with the values of the preceding threads, and updates `running` with all values.

    slots   shared memory for a value of each warp; None within a warp
    thread  index of this thread in its row
    """

    name: str
    reducer: Reducer
    threads: int
    value: Expr
    running: str
    slots: Expr | None
    thread: Expr
