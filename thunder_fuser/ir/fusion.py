"""The IR: values, expressions and the Fusion that holds them, as frozen data. Passes rebuild it.

A Fusion is a linear SSA list, because traces are linear and people read lists. There is one
expression class per op *family*; the op itself is a row of the table in `tables/`.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, TypeGuard, TypeVar, get_args

from thunder_fuser.ir.dag import backward_slice
from thunder_fuser.ir.domain import Extent, Reduce, TensorDomain
from thunder_fuser.ir.dtypes import DataType, Number
from thunder_fuser.ir.integer.symint import Form
from thunder_fuser.ir.tables import opaque
from thunder_fuser.ir.tables.indexing import lookup
from thunder_fuser.ir.tables.opaque import Attribute


@dataclass(frozen=True, slots=True)
class Origin:
    """Source of an expression: the trace symbol or definition op, and the user's line.

    result  the trace's name of the value that the symbol returns
    """

    symbol: str = ""
    file: str = ""
    line: int = 0
    result: str = field(default="", compare=False)

    def __str__(self) -> str:
        place = f" at {self.file}:{self.line}" if self.file else ""
        return f"{self.symbol or 'definition'}{place}"


@dataclass(frozen=True, slots=True, repr=False)
class TensorView:
    """A tensor in a Fusion. `id` is unique within its Fusion and numbers all values in order."""

    id: int
    dtype: DataType
    domain: TensorDomain
    is_cpu: bool = False
    """A 0-dim CPU tensor among CUDA tensors: read by the host at every launch, passed as a
    scalar.
    """
    origin: Origin = field(default=Origin(), compare=False)
    """For an input, the user's line that defines it. Expressions have their own."""

    def __hash__(self) -> int:
        return self.id

    @property
    def name(self) -> str:
        return f"T{self.id}"

    @property
    def rank(self) -> int:
        return self.domain.rank

    @property
    def sizes(self) -> tuple[int, ...]:
        return self.domain.sizes

    @property
    def numel(self) -> int:
        return math.prod(self.domain.sizes)

    @property
    def bytes(self) -> int:
        """Size in bytes of the tensor stored densely."""
        return self.numel * self.dtype.itemsize

    def __str__(self) -> str:
        return f"{self.name}:{self.dtype.name}{self.domain}"

    __repr__ = __str__


@dataclass(frozen=True, slots=True, repr=False)
class Scalar:
    """A scalar: a constant, a symbolic integer (a size), or, if `value` is None, an input or
    result.
    """

    id: int
    dtype: DataType
    value: Number | Form | None = None
    origin: Origin = field(default=Origin(), compare=False)
    """For an input, the user's line that defines it."""

    def __eq__(self, other: object) -> bool:
        """Bitwise equality of constants: 0.0 and -0.0, 1 and True differ."""
        if not isinstance(other, Scalar):
            return NotImplemented
        same = self.id == other.id and self.dtype is other.dtype
        return same and exactly(self.value) == exactly(other.value)

    def __hash__(self) -> int:
        return self.id

    @property
    def name(self) -> str:
        return f"S{self.id}"

    @property
    def rank(self) -> int:
        return 0

    @property
    def is_constant(self) -> bool:
        return self.value is not None and not isinstance(self.value, Form)

    def __str__(self) -> str:
        return f"{self.name}:{self.dtype.name}" + ("" if self.value is None else f"={self.value}")

    __repr__ = __str__


def exactly(value: Number | Form | None) -> object:
    """A key equal for indistinguishable constants only."""
    return (type(value), repr(value)) if isinstance(value, int | float | complex) else value


Val = TensorView | Scalar


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


@dataclass(frozen=True, slots=True)
class Update:
    """An in-place update: `value` is written into the input `target` (nvFuser's alias_input)."""

    target: TensorView
    value: TensorView


@dataclass(frozen=True, slots=True)
class Fusion:
    """A program: inputs in calling order, expressions in SSA order, returned outputs, in-place
    updates.

    The same value may be returned twice; an input may be an output; a value may be both returned
    and an update, and then shares the updated input's memory.

    draws  number of RNG offsets, which are the last inputs, after their seed; the caller of the
           fusion draws them (see `drawn`)
    """

    inputs: tuple[Val, ...]
    exprs: tuple[Expr, ...]
    outputs: tuple[TensorView, ...]
    updates: tuple[Update, ...] = ()
    draws: int = 0
    _definitions: dict[Val, Expr] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    _places: dict[Val, int] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def drawn(self) -> tuple[Val, ...]:
        """The RNG seed and offset inputs, which the caller draws for each call."""
        return self.inputs[len(self.inputs) - self.draws - 1 :] if self.draws else ()

    @property
    def tensor_inputs(self) -> tuple[TensorView, ...]:
        return tuple(v for v in self.inputs if isinstance(v, TensorView))

    @property
    def results(self) -> tuple[TensorView, ...]:
        """The tensors that must be in memory when the fusion ends, without duplicates."""
        return tuple(dict.fromkeys([*self.outputs, *(u.value for u in self.updates)]))

    @property
    def is_static(self) -> bool:
        return all(v.domain.is_static for v in self.values() if isinstance(v, TensorView))

    def definitions(self) -> Mapping[Val, Expr]:
        """The expression that defines each computed value, in order; cached."""
        if not self._definitions:
            self._definitions.update({e.output: e for e in self.exprs})
        return self._definitions

    @property
    def roots(self) -> tuple[TensorView, ...]:
        """What a static program computes everything else for: its results, and those of
        collectives, since other devices wait in them for this one. Nobody sends an empty tensor.
        """
        calls = (e for e in self.exprs if isinstance(e, OpaqueOp) and e.output.numel)
        sent = (e.output for e in calls if opaque.lookup(e.op).is_collective)
        return tuple(dict.fromkeys((*self.results, *sent)))

    def backward_slice(self, roots: Iterable[Val], ends: Container[Val]) -> list[Expr]:
        """The expressions that the roots depend on, in order. Values in `ends` are available,
        unless they are roots.
        """
        definitions = self.definitions()
        if not self._places:
            self._places.update({v: k for k, v in enumerate(definitions)})

        def producers(value: Val) -> list[Val]:
            return [v for v in definitions[value].inputs if v in definitions and v not in ends]

        needed = backward_slice([v for v in roots if v in definitions], producers)
        return [definitions[v] for v in sorted(needed, key=self._places.__getitem__)]

    def calls(self) -> dict[int, list[OpaqueOp]]:
        """The results of each opaque call, in order, by call number."""
        found: dict[int, list[OpaqueOp]] = {}
        for expr in self.exprs:
            if isinstance(expr, OpaqueOp):
                found.setdefault(expr.call, []).append(expr)
        return found

    def uses(self) -> dict[Val, list[Expr]]:
        """The expressions that read each value, in order."""
        found: dict[Val, list[Expr]] = {}
        for expr in self.exprs:
            for value in dict.fromkeys(expr.inputs):
                found.setdefault(value, []).append(expr)
        return found

    def values(self) -> Iterator[Val]:
        """All inputs and computed values, in order."""
        yield from self.inputs
        for expr in self.exprs:
            yield expr.output

    def __str__(self) -> str:
        from thunder_fuser.ir.printer import to_python

        return to_python(self)


def shape_text(shape: Sequence[Extent]) -> str:
    return f"[{', '.join(map(str, shape))}]"
