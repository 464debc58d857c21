"""Kernel IR: a kernel as statements, before any language spells it.

A kernel is two loops that are always there, over the blocks of a grid and the threads of a block,
around a body. Its statements declare registers, move memory, compute and synchronise; their
expressions are numbers of the program (with dtypes) or indices. Modes of a template are gone: what
a mode does is statements. `kernel_ir_text.py` shows it to readers, `codegen/` prints it for a
compiler.

    y = x * x of 1,000 elements, 4 a vector:

    kernel pointwise.mul(T0: Float*, T1: Float* out), grid 1 x 256 threads, index Int32
      u = block * 256 + thread
      if u < 250:
        x0: Float[4]
        x0 <- T0[4 * u :4]
        y0: Float[4]
        for v in 0..4, vector:
          t1: Float = mul(x0[v], x0[v])
          y0[v] = t1
        T1[4 * u :4] <- y0
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

from thunder_fuser.ir.dtypes import DataType, Number
from thunder_fuser.ir.fusion import Scalar, TensorView

WORD = 4
"""Bytes of a register, and of the smallest accumulator: what shuffles exchange."""
WRITTEN_OUT = 8
"""Iterations of a serial loop of known length that compilers write out unasked, so that its loads
are under way together.
"""


# ---- types


@dataclass(frozen=True, slots=True)
class Reducer:
    """A row of the table of reductions over elements of a type: how it folds, and as a type what it
    carries along.

    position  the type that counts elements, where it folds their positions too
    brief     its short form, of fp32 elements that have no more digits than 16 bits hold
    """

    op: str
    accumulate: DataType
    position: DataType | None = None
    brief: bool = False

    @property
    def element(self) -> DataType:
        """The type that elements are folded in: registers are words."""
        return DataType.Int32 if self.accumulate.itemsize < WORD else self.accumulate


@dataclass(frozen=True, slots=True)
class ReducerLanes:
    """The type of what a reduction of several numbers carries along for each lane of a vector."""

    reducer: Reducer
    lanes: int


@dataclass(frozen=True, slots=True)
class PairedLanes:
    """The type of the lanes of a vector in the order of `lower/paired_lanes.py`."""

    dtype: DataType
    lanes: int


@dataclass(frozen=True, slots=True)
class RawVector:
    """The type of so many elements of memory on their way into registers, 16 bytes at most."""

    dtype: DataType
    width: int


Type = DataType | Reducer | ReducerLanes | PairedLanes | RawVector


# ---- expressions: indices


class LaunchIndex(enum.Enum):
    """Where a thread is: numbers from 0, and how many blocks there are."""

    BLOCK = "block"
    THREAD = "thread"
    BLOCKS = "blocks"


@dataclass(frozen=True, slots=True)
class Var:
    """What a statement or a parameter has named."""

    name: str


@dataclass(frozen=True, slots=True)
class Int:
    """An index that is a constant."""

    value: int


@dataclass(frozen=True, slots=True)
class Binary:
    """Arithmetic of indices, `+ - * / %` (of what is not negative), or a comparison."""

    op: str
    left: Expr
    right: Expr


@dataclass(frozen=True, slots=True)
class OpaqueZero:
    """0, of which a compiler does not know that: an address with it is another each time."""


@dataclass(frozen=True, slots=True)
class Negative:
    value: Expr


@dataclass(frozen=True, slots=True)
class UnsignedBinary:
    """`/` or `%` of an index that is known not to be negative, by one that is positive."""

    op: str
    left: Expr
    right: Expr


@dataclass(frozen=True, slots=True)
class Min:
    left: Expr
    right: Expr


@dataclass(frozen=True, slots=True)
class ClampedAdd:
    """The least of `start + step` and `bound`, for a start below the bound: nothing overflows."""

    start: Expr
    step: int
    bound: Expr


@dataclass(frozen=True, slots=True)
class IntCast:
    """An index in another integer type."""

    value: Expr
    dtype: DataType


@dataclass(frozen=True, slots=True)
class IndexNumber:
    """An index as a number of the program: an Int."""

    index: Expr


@dataclass(frozen=True, slots=True)
class And:
    """Every test holds."""

    tests: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Or:
    """Some test holds."""

    tests: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class BoolConst:
    """What always holds, or never."""

    value: bool


@dataclass(frozen=True, slots=True)
class Select:
    """`inside` where the test holds, else `outside`: of numbers or of indices."""

    test: Expr
    inside: Expr
    outside: Expr


# ---- expressions: memory


@dataclass(frozen=True, slots=True)
class Element:
    """One element of a register array, of global or of shared memory."""

    base: Expr
    index: Expr


@dataclass(frozen=True, slots=True)
class Address:
    """`index` elements behind a pointer."""

    pointer: Expr
    index: Expr


@dataclass(frozen=True, slots=True)
class Reinterpret:
    """Bytes at an address as elements of a type."""

    type: Type
    address: Expr


@dataclass(frozen=True, slots=True)
class RawLoad:
    """`width` elements of memory, 16 bytes at most, of which nothing is used yet."""

    width: int
    address: Expr


# ---- expressions: numbers


@dataclass(frozen=True, slots=True)
class Literal:
    value: Number
    dtype: DataType


@dataclass(frozen=True, slots=True)
class Convert:
    """A number as another dtype, by torch's rules."""

    value: Expr
    source: DataType
    dtype: DataType


@dataclass(frozen=True, slots=True)
class Round:
    """An fp32 number, rounded to what a narrower float can hold."""

    value: Expr
    dtype: DataType


@dataclass(frozen=True, slots=True)
class Narrow:
    """An fp32 number that a narrower float holds, in the type that memory has for it."""

    value: Expr
    dtype: DataType


@dataclass(frozen=True, slots=True)
class Apply:
    """A row of the table of pointwise operations. Operands have the types that it wants.

    brief  its short form, of fp32 operands: what becomes of it is rounded to fewer digits
    """

    op: str
    operands: tuple[Expr, ...]
    brief: bool = False


@dataclass(frozen=True, slots=True)
class DivideByConstant:
    """x / y in fp32 as fma(x, high, x * low), which has the same bits (constant_division.py)."""

    value: Expr
    high: float
    low: float


@dataclass(frozen=True, slots=True)
class MakeComplex:
    dtype: DataType
    real: Expr
    imag: Expr


@dataclass(frozen=True, slots=True)
class CheckedPosition:
    """`value` as an index below `extent`; where it is `needed` and is none, the program ends with
    `error`. Elsewhere 0.
    """

    value: Expr
    extent: int
    needed: Expr
    error: str


@dataclass(frozen=True, slots=True)
class DynamicRegister:
    """An element of registers, chosen as the kernel runs."""

    array: Expr
    begin: Expr | None
    index: Expr


@dataclass(frozen=True, slots=True)
class RandomNumber:
    """A number of a distribution with these parameters, from a standard one."""

    op: str
    dtype: DataType
    parameters: tuple[Expr, ...]
    number: Expr


# ---- expressions: reductions


@dataclass(frozen=True, slots=True)
class InitAccumulator:
    """An accumulator that has seen nothing.

    is_zero  of a sum it is 0.0, to which registers are set in pairs; else -0.0, so that its first
             element takes no instruction
    """

    reducer: Reducer
    is_zero: bool = False


@dataclass(frozen=True, slots=True)
class AsElement:
    """A number in the type that a reduction folds."""

    reducer: Reducer
    value: Expr


@dataclass(frozen=True, slots=True)
class Accumulate:
    """An accumulator that has seen one more element, at that position."""

    reducer: Reducer
    accumulator: Expr
    element: Expr
    position: Expr | None


@dataclass(frozen=True, slots=True)
class AccumulateVector:
    """An accumulator that has seen the first `present` elements of an array."""

    reducer: Reducer
    accumulator: Expr
    elements: Expr
    present: Expr


@dataclass(frozen=True, slots=True)
class Present:
    """How many of a vector's lanes exist where `last` is the last that does."""

    last: Expr
    lanes: int


@dataclass(frozen=True, slots=True)
class Combine:
    """Two accumulators as one that has seen what both have."""

    reducer: Reducer
    left: Expr
    right: Expr


@dataclass(frozen=True, slots=True)
class FinalizeAccumulator:
    """The result of what an accumulator has seen."""

    reducer: Reducer
    accumulator: Expr


@dataclass(frozen=True, slots=True)
class Lane:
    """One lane of `ReducerLanes`."""

    lanes: Expr
    lane: Expr


@dataclass(frozen=True, slots=True)
class WarpReduce:
    """The accumulators of neighbouring threads of a warp as one, which all of them have."""

    reducer: Reducer
    threads: int
    value: Expr


@dataclass(frozen=True, slots=True)
class BlockReduce:
    """Those of several warps: of the block, or of one of its `groups` of so many threads, which do
    not wait for each other. `thread`: its number.

    slots   address of shared memory of this reduction and others
    at      bytes from there to a slot for each warp
    blocks  of a cluster, so many threads of each; one: the block by itself
    rank    the number of this one
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
    """The `count` partial results of a point, `stride` apart, as one: the work of a block, whose
    first threads, as many as there are `points`, have those of their own.
    """

    reducer: Reducer
    threads: int
    points: int
    count: int
    parts: Expr
    stride: int
    point: Expr
    slots: Expr


@dataclass(frozen=True, slots=True)
class GroupedReduce:
    """Several reductions of a block side by side, whose barriers they share: the values are
    BlockReduce of as many threads, or CombineParts of as many parts, at one point.
    """

    lets: tuple[Let, ...]


@dataclass(frozen=True, slots=True)
class MappedRank:
    """What lies where `address` does, but in the shared memory of another block of the cluster."""

    address: Expr
    rank: Expr


Expr = (
    LaunchIndex
    | Var
    | Int
    | OpaqueZero
    | Binary
    | Negative
    | UnsignedBinary
    | Min
    | ClampedAdd
    | IntCast
    | IndexNumber
    | And
    | Or
    | BoolConst
    | Select
    | Element
    | Address
    | Reinterpret
    | RawLoad
    | Literal
    | Convert
    | Round
    | Narrow
    | Apply
    | DivideByConstant
    | MakeComplex
    | CheckedPosition
    | DynamicRegister
    | RandomNumber
    | InitAccumulator
    | AsElement
    | Accumulate
    | AccumulateVector
    | Present
    | Combine
    | FinalizeAccumulator
    | Lane
    | WarpReduce
    | BlockReduce
    | MappedRank
    | ReducePartials
)


# ---- statements


@dataclass(frozen=True, slots=True)
class Comment:
    """What a reader should know of the statements that follow.

    line  of the user's program that asked for them: "model.py:12"
    """

    text: str
    line: str = ""


@dataclass(frozen=True, slots=True)
class Let:
    """A name for a value; one that is a `variable` changes later."""

    name: str
    type: Type
    value: Expr
    variable: bool = False


@dataclass(frozen=True, slots=True)
class LetPointer:
    """A name for a place in memory that holds elements of a type, or rows of so many of them."""

    name: str
    type: Type
    place: Expr
    row: int | None = None


@dataclass(frozen=True, slots=True)
class Registers:
    """An array of registers, of these sizes; one register without.

    in_place  its elements come to be as those of others, which are as many, are wanted no more
    """

    name: str
    type: Type
    sizes: tuple[int, ...]
    zeroed: bool = False
    in_place: bool = False


@dataclass(frozen=True, slots=True)
class Pack:
    """Registers that hold some values and do not change."""

    name: str
    type: DataType
    values: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Assign:
    target: Expr
    value: Expr


@dataclass(frozen=True, slots=True)
class Flip:
    """A variable that is 0 or 1 becomes the other."""

    name: str


@dataclass(frozen=True, slots=True)
class LoadFence:
    """The loads before it are on their way before what comes behind it in a loop's body. Nothing
    but the next iteration waits for them, so that ptxas would move them behind all the rest.
    """


@dataclass(frozen=True, slots=True)
class AsyncCopies:
    """A name for the asynchronous copies (cp.async) that a thread has under way, at most so many,
    to shared memory that begins at `shared`.
    """

    name: str
    most: int
    shared: Expr


@dataclass(frozen=True, slots=True)
class CopyAsync:
    """`width` elements, 4, 8 or 16 bytes, on their way from memory to shared memory, through no
    registers. Only this thread asks for them, once it has waited.

    place   bytes behind where shared memory begins
    source  the address of the first of them
    """

    copies: str
    width: int
    place: Expr
    source: Expr


@dataclass(frozen=True, slots=True)
class AwaitCopies:
    """The copies of a thread have arrived."""

    copies: str


@dataclass(frozen=True, slots=True)
class SetLane:
    """One lane of `ReducerLanes` changes."""

    lanes: Expr
    lane: Expr
    value: Expr


@dataclass(frozen=True, slots=True)
class VectorLoad:
    """`width` neighbouring elements into an array of registers.

    is_aligned  to the bytes of one access; else on the host only
    """

    width: int
    address: Expr
    target: Expr
    is_aligned: bool = True


@dataclass(frozen=True, slots=True)
class PickLanes:
    """Elements of one array of registers into lanes of another: picks[i] becomes lane i, and a lane
    stays where that is None, and after the last pick.
    """

    source: Expr
    target: Expr
    picks: tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class VectorStore:
    """`streams`: past the caches."""

    width: int
    address: Expr
    source: Expr
    streams: bool = False


@dataclass(frozen=True, slots=True)
class Unpack:
    """What was fetched, as elements."""

    words: Expr
    target: Expr


@dataclass(frozen=True, slots=True)
class Prefetch:
    """Memory that a later load will want. Any address will do."""

    address: Expr


@dataclass(frozen=True, slots=True)
class DrawNumbers:
    """The standard numbers of `calls` calls of the generator, from call `first` on."""

    array: str
    dtype: DataType
    op: str
    calls: int
    seed: Expr
    first: Expr
    offset: Expr


@dataclass(frozen=True, slots=True)
class If:
    """`body` where all tests hold, else `otherwise`."""

    tests: tuple[Expr, ...]
    body: Body
    otherwise: Body = ()


class LoopKind(enum.Enum):
    """How the iterations of a loop are done.

    VECTOR          together: the lanes of a vector
    UNROLLED        each with registers of its own, whose numbers are constants
    UNROLLED_SHORT  the same where they are few: by a compiler for a CPU, too
    SERIAL          one after the other
    """

    VECTOR = "vector"
    UNROLLED = "unrolled"
    UNROLLED_SHORT = "unrolled short"
    SERIAL = "serial"


@dataclass(frozen=True, slots=True)
class Loop:
    """`body` for `axis` from `begin` below `end`.

    unroll  iterations of a serial loop that are written out together; None: as a compiler likes
    """

    axis: str
    end: Expr
    body: Body
    kind: LoopKind = LoopKind.SERIAL
    begin: Expr = Int(0)
    step: int | LaunchIndex = 1
    type: DataType = DataType.Int32
    unroll: int | None = None


@dataclass(frozen=True, slots=True)
class Scope:
    """Names of a body end with it."""

    body: Body


@dataclass(frozen=True, slots=True)
class Shared:
    """A name for the shared memory of a block, as bytes."""

    name: str


@dataclass(frozen=True, slots=True)
class Barrier:
    """All threads of a block arrive before any goes on."""


@dataclass(frozen=True, slots=True)
class ClusterArrive:
    """The first half of a cluster's barrier: a thread has arrived, and goes on."""


@dataclass(frozen=True, slots=True)
class ClusterWait:
    """The second half: all of them have arrived before any goes on."""

    blocks: int


@dataclass(frozen=True, slots=True)
class GridBarrier:
    """All threads of all blocks arrive before any goes on."""

    blocks: int


@dataclass(frozen=True, slots=True)
class TransposeTile:
    """A name for a tile in shared memory: rows of `columns` elements, of which a thread writes
    `width` at once. Units of 16 bytes trade places within `ways`, `spread` further for each vector
    (csrc_templates/tile.cuh), so that columns meet no bank twice.
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
    """Element (row + w, column + n) of a tile becomes source[n][w], for n below `depth`."""

    tile: str
    depth: int
    row: Expr
    column: Expr
    source: Expr


@dataclass(frozen=True, slots=True)
class TileLoad:
    """target[v] becomes element (row, column + v) of a tile, for v below `vector`."""

    tile: str
    vector: int
    row: Expr
    column: Expr
    target: Expr


@dataclass(frozen=True, slots=True)
class OuterBlockReduce:
    """Accumulators of `vector` rows, of which a block has `groups` side by side: those of all
    threads of a row as one, which all of them have.

    slots  shared memory for them; None within a warp
    """

    reducer: Reducer
    threads: int
    groups: int
    vector: int
    accumulators: str
    slots: Expr | None


@dataclass(frozen=True, slots=True)
class BlockScan:
    """A name for what comes before a thread's `value` in its row: the accumulator `running`, and
    the values of the threads before it, of which the row has a power of two. `running` becomes what
    it is with all of them.

    slots   shared memory for a value of each warp; None within a warp
    thread  its number in the row
    """

    name: str
    reducer: Reducer
    threads: int
    value: Expr
    running: str
    slots: Expr | None
    thread: Expr


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


# ---- a kernel


@dataclass(frozen=True, slots=True)
class Scratch:
    """Memory that a kernel needs besides tensors: bytes of it, whatever they hold before."""

    bytes: int


Bound = TensorView | Scalar | Scratch


@dataclass(frozen=True, slots=True)
class Parameter:
    """What a kernel is called with: the address of memory, or a number.

    dtype    of the elements, or of the number; None for scratch memory
    bound    what is passed for it
    written  whether the kernel writes this memory
    aliased  whether it may be read and written under two names
    """

    name: str
    dtype: DataType | None
    bound: Bound
    is_pointer: bool
    written: bool = False
    aliased: bool = False

    @property
    def bytes(self) -> int:
        """Memory behind a pointer, of which elements that are shown in many places are in one."""
        match self.bound:
            case Scratch():
                return self.bound.bytes
            case TensorView() as tensor:
                return math.prod(int(d.size) for d in tensor.domain.root) * tensor.dtype.itemsize
        return 0


@dataclass(frozen=True, slots=True)
class KernelIR:
    """A kernel.

    template       the word that its name begins with
    operations     what it does, the most telling first, for its name
    index          the type of indices
    blocks_per_sm  blocks that a multiprocessor must have room for; 0: as many as it has
    shared_bytes   shared memory of a block
    cluster        neighbouring blocks that run at the same time and reach each other's shared
                   memory; 1: none do
    min_blocks_hint  blocks that a multiprocessor had better have room for, if registers allow it
                   without spills; 0: as many as it has
    """

    template: str
    operations: tuple[str, ...]
    parameters: tuple[Parameter, ...]
    index: DataType
    blocks: int
    threads: int
    blocks_per_sm: int
    shared_bytes: int
    body: Body
    cluster: int = 1
    min_blocks_hint: int = 0


# ---- shorthands


def add(left: Expr, right: Expr) -> Binary:
    return Binary("+", left, right)


def times(left: Expr, right: Expr) -> Binary:
    return Binary("*", left, right)


def less(left: Expr, right: Expr | int) -> Binary:
    return Binary("<", left, Int(right) if isinstance(right, int) else right)


def equal(left: Expr, right: Expr | int) -> Binary:
    return Binary("==", left, Int(right) if isinstance(right, int) else right)


def at(base: Expr, *indices: Expr) -> Expr:
    """An element of an array of several dimensions."""
    for index in indices:
        base = Element(base, index)
    return base
