"""Kernel IR: the statements of a kernel, independent of the output language.

A kernel body is executed by every thread of every block of the grid. Its statements declare
registers, move memory, compute and synchronise; their expressions are values of the program (with
dtypes) or indices. Template modes do not appear: lowering has turned them into statements.
`kernel_ir_text.py` lists a kernel for readers, `codegen/` prints it for a compiler.

The listing of y = x * x, 1,000 elements in vectors of 4:

    kernel pointwise mul (T0: const Float*, T1: Float*)
    1 blocks of 256 threads, indices Int32:
      u = block * 256 + thread
      if u < 250:
        x0: Float[4]
        x0 = load 4 at T0 + 4 * u
        y0: Float[4]
        for v in 0..4, vector:
          t1: Float = mul(x0[v], x0[v])
          y0[v] = t1
        store 4 at T1 + 4 * u: y0
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

from thunder_fuser.ir.dtypes import DataType, Number
from thunder_fuser.ir.fusion import Scalar, TensorView

WORD = 4
"""Bytes of a register, which is also the smallest accumulator and the unit of a warp shuffle."""
WRITTEN_OUT = 8
"""Largest known trip count of a serial loop that compilers unroll without a pragma, so that its
loads are in flight together.
"""


# ---- types


@dataclass(frozen=True, slots=True)
class Reducer:
    """A reduction operation over elements of a dtype; as a `Type`, the type of its accumulator.

    op        a row of the table of reductions
    position  integer type of element positions, if the operation reduces them too (argmax)
    brief     the short form, for fp32 elements that have no more digits than 16 bits hold
    """

    op: str
    accumulate: DataType
    position: DataType | None = None
    brief: bool = False

    @property
    def element(self) -> DataType:
        """Type in which elements are reduced: Int32 if the dtype is narrower than a register."""
        return DataType.Int32 if self.accumulate.itemsize < WORD else self.accumulate


@dataclass(frozen=True, slots=True)
class ReducerLanes:
    """Type of the accumulators of a vector's lanes, as a struct of arrays (`tf::Lanes`)."""

    reducer: Reducer
    lanes: int


@dataclass(frozen=True, slots=True)
class PairedLanes:
    """Type of a vector's lanes in the register order of `lower/paired_lanes.py`."""

    dtype: DataType
    lanes: int


@dataclass(frozen=True, slots=True)
class RawVector:
    """Type of `width` loaded elements that are not unpacked yet, 16 bytes at most."""

    dtype: DataType
    width: int


Type = DataType | Reducer | ReducerLanes | PairedLanes | RawVector


# ---- expressions: indices


class LaunchIndex(enum.Enum):
    """Launch coordinates: block index, thread index (both from 0), and blocks in the grid."""

    BLOCK = "block"
    THREAD = "thread"
    BLOCKS = "blocks"


@dataclass(frozen=True, slots=True)
class Var:
    """Reference to a name that a statement or a parameter has declared."""

    name: str


@dataclass(frozen=True, slots=True)
class Int:
    """Constant index."""

    value: int


@dataclass(frozen=True, slots=True)
class Binary:
    """Index arithmetic, `+ - * / %` (`/ %` of non-negative operands), or a comparison."""

    op: str
    left: Expr
    right: Expr


@dataclass(frozen=True, slots=True)
class OpaqueZero:
    """0 that compilers do not know to be constant: loads at an address with it are not hoisted."""


@dataclass(frozen=True, slots=True)
class Negative:
    value: Expr


@dataclass(frozen=True, slots=True)
class UnsignedBinary:
    """`/` or `%` in unsigned arithmetic: `left` is known to be >= 0, `right` to be > 0."""

    op: str
    left: Expr
    right: Expr


@dataclass(frozen=True, slots=True)
class Min:
    left: Expr
    right: Expr


@dataclass(frozen=True, slots=True)
class ClampedAdd:
    """min(start + step, bound) without overflow, for `start` below `bound`."""

    start: Expr
    step: int
    bound: Expr


@dataclass(frozen=True, slots=True)
class IntCast:
    """Conversion of an index to another integer type."""

    value: Expr
    dtype: DataType


@dataclass(frozen=True, slots=True)
class IndexNumber:
    """An index as a value of the program, of dtype Int."""

    index: Expr


@dataclass(frozen=True, slots=True)
class And:
    """True if all tests hold."""

    tests: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Or:
    """True if any test holds."""

    tests: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class BoolConst:
    """Constant predicate."""

    value: bool


@dataclass(frozen=True, slots=True)
class Select:
    """`inside` if the test holds, else `outside`; both are values or both are indices."""

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
    """Address of element `index` of what `pointer` points to."""

    pointer: Expr
    index: Expr


@dataclass(frozen=True, slots=True)
class Reinterpret:
    """Pointer cast: the bytes at an address as elements of `type`."""

    type: Type
    address: Expr


@dataclass(frozen=True, slots=True)
class RawLoad:
    """Load of `width` elements, 16 bytes at most, as a `RawVector`, to be unpacked later."""

    width: int
    address: Expr


# ---- expressions: numbers


@dataclass(frozen=True, slots=True)
class Literal:
    value: Number
    dtype: DataType


@dataclass(frozen=True, slots=True)
class Convert:
    """Dtype conversion of a value, by torch's rules."""

    value: Expr
    source: DataType
    dtype: DataType


@dataclass(frozen=True, slots=True)
class Round:
    """An fp32 value rounded to the precision of a narrower float; the result is fp32."""

    value: Expr
    dtype: DataType


@dataclass(frozen=True, slots=True)
class Narrow:
    """An fp32 value that a narrower float holds exactly, converted to that float's storage type."""

    value: Expr
    dtype: DataType


@dataclass(frozen=True, slots=True)
class Apply:
    """A row of the table of pointwise operations, on operands of the dtypes that it takes.

    brief  the short form, for fp32 operands: all uses of the result are rounded to fewer digits
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
    """`value` as an index below `extent`, or 0 where it is not `needed`. The program ends with
    `error` if it is needed and out of bounds.
    """

    value: Expr
    extent: int
    needed: Expr
    error: str


@dataclass(frozen=True, slots=True)
class DynamicRegister:
    """Element `begin + index` of a register array, selected at run time."""

    array: Expr
    begin: Expr | None
    index: Expr


@dataclass(frozen=True, slots=True)
class RandomNumber:
    """A sample of a distribution with `parameters`, made of the standard sample `number`."""

    op: str
    dtype: DataType
    parameters: tuple[Expr, ...]
    number: Expr


# ---- expressions: reductions


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
    stride: int
    point: Expr
    slots: Expr


@dataclass(frozen=True, slots=True)
class GroupedReduce:
    """Several reductions of a block that share barriers. Each declares one name; the values are all
    `BlockReduce` of equally many threads, or all `ReducePartials` of equal shape at one point.
    """

    lets: tuple[Let, ...]


@dataclass(frozen=True, slots=True)
class MappedRank:
    """Distributed shared memory: the place of `address` in block `rank` of the cluster."""

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
    """Comment on the statements that follow.

    line  source lines of the user's program that they come from: "model.py:12"
    """

    text: str
    line: str = ""


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

    place   byte offset of the target in shared memory
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
    """Vector store of `width` consecutive elements. `streams`: it may bypass the caches."""

    width: int
    address: Expr
    source: Expr
    streams: bool = False


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
    begin: Expr = Int(0)
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

    blocks: int


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
    """Workspace of a kernel in global memory, in bytes; its initial contents do not matter."""

    bytes: int


Bound = TensorView | Scalar | Scratch


@dataclass(frozen=True, slots=True)
class Parameter:
    """Kernel parameter: a pointer to memory, or a scalar.

    dtype    of the elements, or of the scalar; None for a workspace
    bound    tensor, scalar or workspace that is passed
    written  the kernel writes this memory
    aliased  the memory may be accessed through two parameters: no __restrict__
    """

    name: str
    dtype: DataType | None
    bound: Bound
    is_pointer: bool
    written: bool = False
    aliased: bool = False

    @property
    def bytes(self) -> int:
        """Bytes of the memory behind a pointer; an element at several indices counts once."""
        match self.bound:
            case Scratch():
                return self.bound.bytes
            case TensorView() as tensor:
                return math.prod(int(d.size) for d in tensor.domain.root) * tensor.dtype.itemsize
        return 0


@dataclass(frozen=True, slots=True)
class KernelIR:
    """A kernel: parameters, launch configuration and body.

    template       name of the template, with which the kernel's name begins
    operations     names of operations, the most telling first, for the kernel's name
    index          integer type of indices
    blocks_per_sm  blocks that must be resident on a multiprocessor; 0: no requirement
    shared_bytes   shared memory of a block
    cluster        blocks of a thread block cluster; 1: no clusters
    min_blocks_hint  resident blocks per multiprocessor to ask for in launch bounds, unless
                   registers spill; 0: none
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
    """Return an element of a multi-dimensional array."""
    for index in indices:
        base = Element(base, index)
    return base
