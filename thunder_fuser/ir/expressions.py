"""Expressions of a Fusion: one frozen class per operation *family*, in which `op` names a row of a
table in `tables/`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeGuard, TypeVar, get_args

from thunder_fuser.ir.domain import Reduce
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.tables.indexing import lookup
from thunder_fuser.ir.tables.opaque import Attribute
from thunder_fuser.ir.values import Origin, Scalar, TensorView, Val


@dataclass(frozen=True, slots=True)
class PointwiseOp:
    """One value per point from the operands' values at the same point (size-1 dimensions
    broadcast).

    `op` names a row of `tables.pointwise.TABLE`; the result type of the row `cast` is the output's.
    """

    op: str
    inputs: tuple[Val, ...]
    output: Val
    origin: Origin = field(default=Origin(), compare=False)


@dataclass(frozen=True, slots=True)
class ViewOp:
    """A pure index map: the output's domain maps each of its elements to one of the input. The
    output may alias the input.

    op: permute stride_order broadcast broadcast_in_dim expand squeeze reshape slice
    """

    op: str
    input: TensorView
    output: TensorView
    origin: Origin = field(default=Origin(), compare=False)

    @property
    def inputs(self) -> tuple[Val, ...]:
        return (self.input,)


@dataclass(frozen=True, slots=True)
class CopyOp:
    """A copy: the same elements in memory of their own (torch.clone)."""

    input: TensorView
    output: TensorView
    origin: Origin = field(default=Origin(), compare=False)
    op: str = field(default="set", init=False)

    @property
    def inputs(self) -> tuple[Val, ...]:
        return (self.input,)


@dataclass(frozen=True, slots=True)
class CutOp:
    """A segment boundary: consumers of the output run in a later kernel than the producer of the
    input, and read it from memory.
    """

    input: TensorView
    output: TensorView
    origin: Origin = field(default=Origin(), compare=False)
    op: str = field(default="segment_set", init=False)

    @property
    def inputs(self) -> tuple[Val, ...]:
        return (self.input,)


@dataclass(frozen=True, slots=True)
class PadOp:
    """Elements of the input where the output's domain maps to one, `fill` elsewhere."""

    input: TensorView
    fill: Val
    output: TensorView
    origin: Origin = field(default=Origin(), compare=False)
    op: str = field(default="pad", init=False)

    @property
    def inputs(self) -> tuple[Val, ...]:
        return (self.input, self.fill)


MoveOp = ViewOp | CopyOp | CutOp | PadOp
"""Expressions that move data unchanged, by the transforms of the output's domain."""


def move_op(op: str, x: TensorView, output: TensorView, fill: Val | None, origin: Origin) -> MoveOp:
    """The expression that moves data under the definition's operation name."""
    if fill is not None:
        return PadOp(x, fill, output, origin)
    if op == "set":
        return CopyOp(x, output, origin)
    return CutOp(x, output, origin) if op == "segment_set" else ViewOp(op, x, output, origin)


def shows_memory(expr: Expr | None) -> TypeGuard[ViewOp | CutOp]:
    """True if the output aliases the input's memory."""
    return isinstance(expr, ViewOp | CutOp)


@dataclass(frozen=True, slots=True)
class CatOp:
    """Tensors concatenated along `dim`."""

    inputs: tuple[TensorView, ...]
    dim: int
    output: TensorView
    origin: Origin = field(default=Origin(), compare=False)
    op: str = field(default="cat", init=False)


@dataclass(frozen=True, slots=True)
class FullOp:
    """A tensor whose elements are all `fill`."""

    fill: Val
    output: TensorView
    origin: Origin = field(default=Origin(), compare=False)
    op: str = field(default="full", init=False)

    @property
    def inputs(self) -> tuple[Val, ...]:
        return (self.fill,)


@dataclass(frozen=True, slots=True)
class IotaOp:
    """A sequence: element k is start + k * step."""

    start: Val
    step: Val
    output: TensorView
    origin: Origin = field(default=Origin(), compare=False)
    op: str = field(default="iota", init=False)

    @property
    def inputs(self) -> tuple[Val, ...]:
        return (self.start, self.step)


@dataclass(frozen=True, slots=True)
class RandomOp:
    """Random numbers: element n, in logical order, is the n-th value of seed and offset. `op` names
    a row of `random.TABLE`, whose two parameters have the compute dtype of the output's.
    """

    op: str
    seed: Val
    offset: Val
    parameters: tuple[Val, Val]
    output: TensorView
    origin: Origin = field(default=Origin(), compare=False)

    @property
    def inputs(self) -> tuple[Val, ...]:
        return (self.seed, self.offset, *self.parameters)


@dataclass(frozen=True, slots=True)
class ReductionOp:
    """A reduction of `input` over some dimensions; `op` names a row of `reductions.TABLE`.

    The output's transforms from root to logical are one Reduce per reduced dimension. Elements are
    accumulated in `accumulate`, and the result is rounded once to the output's dtype.
    """

    op: str
    input: TensorView
    accumulate: DataType
    output: TensorView
    origin: Origin = field(default=Origin(), compare=False)

    @property
    def inputs(self) -> tuple[Val, ...]:
        return (self.input,)

    @property
    def dims(self) -> tuple[int, ...]:
        """The reduced dimensions of `input`, in increasing order."""
        steps = self.output.domain.transforms
        return tuple(sorted(step.axis for step in steps if isinstance(step, Reduce)))


@dataclass(frozen=True, slots=True)
class ScanOp:
    """An inclusive scan of `input` along `dim`; `op` names a row of `scans.TABLE`.

    Elements are accumulated in `accumulate`, and each result is rounded once to the output's dtype.
    """

    op: str
    input: TensorView
    dim: int
    accumulate: DataType
    output: TensorView
    origin: Origin = field(default=Origin(), compare=False)

    @property
    def inputs(self) -> tuple[Val, ...]:
        return (self.input,)

    @property
    def dims(self) -> tuple[int, ...]:
        """The scanned dimension of `input`, as a tuple."""
        return (self.dim,)


FoldOp = ReductionOp | ScanOp
"""Expressions whose results depend on many elements each: threads cooperate on one, and other
kernels read it from memory.
"""


@dataclass(frozen=True, slots=True)
class GatherOp:
    """`input` read along `dim` at the elements of `index`; `op` names a row of `indexing.TABLE`.

    An index outside of 0 .. size - 1 is an error at execution, never another read.
    """

    op: str
    input: TensorView
    dim: int
    index: TensorView
    output: TensorView
    origin: Origin = field(default=Origin(), compare=False)

    @property
    def inputs(self) -> tuple[Val, ...]:
        return (self.input, self.index)

    @property
    def index_axes(self) -> range:
        """The dimensions of the output that stem from the index tensor."""
        return lookup(self.op).index_axes(self.input.rank, self.dim, self.index.rank)

    @property
    def input_axes(self) -> tuple[int, ...]:
        """The dimensions of the output that stem from the input's dimensions other than `dim`."""
        return lookup(self.op).input_axes(self.input.rank, self.dim, self.index.rank)

    def __str__(self) -> str:
        return f"{self.output.name} = {self.op}({self.input.name}, {self.index.name}, {self.dim})"


@dataclass(frozen=True, slots=True)
class OpaqueOp:
    """One result of a call executed by torch; `op` names a row of `opaque.TABLE`. Operands are in
    memory before the call, results after it.

    parameters  the row's names of the operands
    attributes  constants of the call, by name
    result      index among the row's results
    call        number of the call: expressions with equal numbers are results of one call
    """

    op: str
    inputs: tuple[TensorView, ...]
    parameters: tuple[str, ...]
    attributes: tuple[tuple[str, Attribute], ...]
    result: int
    call: int
    output: TensorView
    origin: Origin = field(default=Origin(), compare=False)


Expr = (
    PointwiseOp
    | MoveOp
    | CatOp
    | FullOp
    | IotaOp
    | RandomOp
    | ReductionOp
    | ScanOp
    | GatherOp
    | OpaqueOp
)
E = TypeVar("E", bound=Expr)
_ARGUMENTS = {family: tuple(f.name for f in fields(family) if f.init) for family in get_args(Expr)}
"""Names of the constructor's arguments per op family. Values are in tuples, or by themselves."""


def with_values(expr: E, new: Mapping[Val, Val]) -> E:
    """The same operation with operands and output replaced by `new`, where that has them."""
    arguments: list[Any] = []
    for name in _ARGUMENTS[type(expr)]:
        old = getattr(expr, name)
        if isinstance(old, TensorView | Scalar):
            arguments.append(new.get(old, old))
        elif isinstance(old, tuple):
            arguments.append(tuple([new.get(v, v) for v in old]))
        else:
            arguments.append(old)
    return type(expr)(*arguments)
