"""Expressions of kernel IR: indices, memory, numbers; `reductions.py` has those of reductions."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from thunder_fuser.ir.dtypes import DataType, Number
from thunder_fuser.kernel_ir.reductions import (
    Accumulate,
    AccumulateVector,
    AsElement,
    BlockReduce,
    Combine,
    FinalizeAccumulator,
    InitAccumulator,
    Lane,
    Present,
    ReducePartials,
    WarpReduce,
)
from thunder_fuser.kernel_ir.types import Type

# ---- indices


class LaunchIndex(enum.Enum):
    """Launch coordinates: block index, thread index (both from 0), and blocks in the grid."""

    BLOCK = "block"
    THREAD = "thread"
    BLOCKS = "blocks"


@dataclass(frozen=True, slots=True)
class Var:
    """Reference to a name that a statement or a parameter has declared."""

    name: str


LANE = Var("v")
"""Number of a lane, in the loops over the lanes of a vector."""


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
    step: Expr
    bound: Expr


@dataclass(frozen=True, slots=True)
class IntCast:
    """Conversion of an index to another integer type."""

    value: Expr
    dtype: DataType


@dataclass(frozen=True, slots=True)
class IndexNumber:
    """An index as a value of the program: of dtype Int, or Int32, into which it fits."""

    index: Expr
    dtype: DataType = DataType.Int


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


# ---- memory


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


@dataclass(frozen=True, slots=True)
class MappedRank:
    """Distributed shared memory: `address` in block `rank` of the cluster."""

    address: Expr
    rank: Expr


# ---- numbers


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
    high: Expr
    low: Expr


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
    extent: Expr
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


# ---- all of them


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
