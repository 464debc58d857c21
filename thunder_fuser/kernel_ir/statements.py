"""Statements of kernel IR; those of reductions and scans are in `reductions.py`."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from typing import get_args

from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.kernel_ir.expressions import Expr, Int, LaunchIndex
from thunder_fuser.kernel_ir.reductions import BlockScan, GroupedReduce, OuterBlockReduce
from thunder_fuser.kernel_ir.types import Type

WRITTEN_OUT = 8
"""Largest known trip count of a serial loop that compilers unroll without a pragma, so that its
loads are in flight together.
"""
_ZERO = Int(0)


@dataclass(frozen=True, slots=True)
class Comment:
    """Comment on the statements that follow.

    line  source lines of the user's program that they come from: "model.py:12"; not compared
    """

    text: str
    line: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Let:
    """Declaration of a name with a value: a constant, or a `variable` that is assigned later."""

    name: str
    type: Type
    value: Expr
    variable: bool = False


@dataclass(frozen=True, slots=True)
class LetPointer:
    """Declaration of a pointer to elements of `type`, or to rows of `row` elements."""

    name: str
    type: Type
    place: Expr
    row: int | None = None


@dataclass(frozen=True, slots=True)
class Registers:
    """Declaration of a register array of `sizes`; of one register if `sizes` is empty.

    in_place  its elements take the registers of the values they are computed from: no extra ones
    """

    name: str
    type: Type
    sizes: tuple[int, ...]
    zeroed: bool = False
    in_place: bool = False


@dataclass(frozen=True, slots=True)
class Pack:
    """Declaration of a constant register array with the given values."""

    name: str
    type: DataType
    values: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Assign:
    target: Expr
    value: Expr


@dataclass(frozen=True, slots=True)
class Flip:
    """Toggle a variable that is 0 or 1."""

    name: str


@dataclass(frozen=True, slots=True)
class LoadFence:
    """Scheduling fence in a loop body: the loads before it are issued before the statements after
    it. Only the next iteration uses these loads, so that ptxas would sink them to the loop's end.
    """


@dataclass(frozen=True, slots=True)
class AsyncCopies:
    """Declaration of a thread's queue of asynchronous copies (cp.async) to the shared memory at
    `shared`, at most `most` in flight.
    """

    name: str
    most: int
    shared: Expr


@dataclass(frozen=True, slots=True)
class CopyAsync:
    """Asynchronous copy of `width` elements, 4, 8 or 16 bytes, from global to shared memory, not
    through registers. Only the issuing thread reads them, after `AwaitCopies`.

    place   byte offset of the destination in shared memory
    source  address of the first element
    """

    copies: str
    width: int
    place: Expr
    source: Expr


@dataclass(frozen=True, slots=True)
class AwaitCopies:
    """Wait until all of this thread's asynchronous copies have arrived (cp.async.wait_all)."""

    copies: str


@dataclass(frozen=True, slots=True)
class SetLane:
    """Assignment to one lane of `ReducerLanes`."""

    lanes: Expr
    lane: Expr
    value: Expr


@dataclass(frozen=True, slots=True)
class VectorLoad:
    """Vector load of `width` consecutive elements into a register array.

    is_aligned  the address is aligned to the access; unaligned loads exist on the host only
    """

    width: int
    address: Expr
    target: Expr
    is_aligned: bool = True


@dataclass(frozen=True, slots=True)
class PickLanes:
    """Permutation of registers: target[i] = source[picks[i]]. Lanes whose pick is None, and those
    after the last pick, are unchanged.
    """

    source: Expr
    target: Expr
    picks: tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class VectorStore:
    """Vector store of `width` consecutive elements.

    streams     it may bypass the caches
    is_aligned  the address is aligned to the access; unaligned stores exist on the host only
    """

    width: int
    address: Expr
    source: Expr
    streams: bool = False
    is_aligned: bool = True


@dataclass(frozen=True, slots=True)
class Unpack:
    """Unpack a `RawVector` into a register array of elements."""

    words: Expr
    target: Expr


@dataclass(frozen=True, slots=True)
class Prefetch:
    """Prefetch of the memory at an address to the L2 cache. Any address is allowed."""

    address: Expr


@dataclass(frozen=True, slots=True)
class DrawNumbers:
    """Declaration of an array of the standard samples of `calls` Philox calls, from `first` on."""

    array: str
    dtype: DataType
    op: str
    calls: int
    seed: Expr
    first: Expr
    offset: Expr


@dataclass(frozen=True, slots=True)
class If:
    """`body` if all tests hold, else `otherwise`."""

    tests: tuple[Expr, ...]
    body: Body
    otherwise: Body = ()


class LoopKind(enum.Enum):
    """Execution of a loop's iterations.

    VECTOR          over the lanes of a vector: SIMD on a CPU, unrolled on a GPU
    UNROLLED        fully unrolled on a GPU: register arrays are indexed by constants
    UNROLLED_SHORT  fully unrolled, on a CPU too, since iterations are few
    SERIAL          one after the other
    """

    VECTOR = "vector"
    UNROLLED = "unrolled"
    UNROLLED_SHORT = "unrolled short"
    SERIAL = "serial"


@dataclass(frozen=True, slots=True)
class Loop:
    """`body` for `axis` in `begin`, `begin + step`, ... below `end`.

    unroll  unroll factor of a serial loop; None: the compiler decides
    """

    axis: str
    end: Expr
    body: Body
    kind: LoopKind = LoopKind.SERIAL
    begin: Expr = _ZERO
    step: int | LaunchIndex = 1
    type: DataType = DataType.Int32
    unroll: int | None = None


@dataclass(frozen=True, slots=True)
class Scope:
    """Block scope: names that `body` declares are local to it."""

    body: Body


@dataclass(frozen=True, slots=True)
class Shared:
    """Declaration of a name for the block's dynamic shared memory, as bytes."""

    name: str


@dataclass(frozen=True, slots=True)
class Barrier:
    """Block barrier (__syncthreads)."""


@dataclass(frozen=True, slots=True)
class ClusterArrive:
    """First half of a cluster barrier: the thread arrives and does not wait."""


@dataclass(frozen=True, slots=True)
class ClusterWait:
    """Second half of a cluster barrier: wait until all threads of its `blocks` have arrived."""

    blocks: int


@dataclass(frozen=True, slots=True)
class GridBarrier:
    """Grid barrier over all threads of all `blocks`; the launch is cooperative."""

    blocks: Expr


@dataclass(frozen=True, slots=True)
class TransposeTile:
    """Declaration of a tile in shared memory, with rows of `columns` elements; a thread writes
    `width` rows at once. 16-byte units are swizzled within `ways`, `spread` further for each group
    of `width` rows (csrc_templates/tile.cuh), so that column accesses have no bank conflicts.
    """

    name: str
    dtype: DataType
    columns: int
    width: int
    spread: int
    ways: int
    place: Expr


@dataclass(frozen=True, slots=True)
class TileStore:
    """Transposing store to a tile: element (row + w, column + n) = source[n][w], n < `depth`."""

    tile: str
    depth: int
    row: Expr
    column: Expr
    source: Expr


@dataclass(frozen=True, slots=True)
class TileLoad:
    """Load from a tile: target[v] = element (row, column + v), for v < `vector`."""

    tile: str
    vector: int
    row: Expr
    column: Expr
    target: Expr


Stmt = (
    Comment
    | Let
    | LetPointer
    | Registers
    | Pack
    | Assign
    | Flip
    | LoadFence
    | AsyncCopies
    | CopyAsync
    | AwaitCopies
    | SetLane
    | VectorLoad
    | PickLanes
    | VectorStore
    | Unpack
    | Prefetch
    | DrawNumbers
    | If
    | Loop
    | Scope
    | Shared
    | Barrier
    | ClusterArrive
    | ClusterWait
    | GridBarrier
    | TransposeTile
    | TileStore
    | TileLoad
    | GroupedReduce
    | OuterBlockReduce
    | BlockScan
)
Body = tuple[Stmt, ...]

_NODES = frozenset(filter(is_dataclass, (*get_args(Stmt), *get_args(Expr), *get_args(Type))))


def fields_of(node: object) -> Iterator[tuple[str, object]]:
    """Yield name and value of the fields of a statement, an expression or a type; other values have
    none.
    """
    for each in fields(node) if type(node) in _NODES else ():  # type: ignore[arg-type]
        yield each.name, getattr(node, each.name)
