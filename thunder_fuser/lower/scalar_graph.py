"""Scalar graph of a kernel: the DAG of scalar values from which one element is computed, as
functions of the loop variables.

`pull.py` builds it, `vectorize.py` decides how its loads become vector accesses, and code
generation prints it. Nodes are hash-consed by the `ScalarGraph`: equal values are one node, and
`order` numbers nodes such that operands come first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from thunder_fuser.ir.dag import backward_slice
from thunder_fuser.ir.dtypes import DataType, Number
from thunder_fuser.ir.fusion import Scalar, TensorView
from thunder_fuser.ir.integer.symint import Context, Form, Variable

Condition = Form
"""Predicate `form >= 0`. Its negation is `-form - 1`."""
Conjunction = tuple[Condition, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Literal:
    order: int
    dtype: DataType
    value: Number


@dataclass(frozen=True, slots=True, eq=False)
class Argument:
    """A scalar input of the fusion, or a CPU scalar tensor read by the host at every launch."""

    order: int
    dtype: DataType
    source: Scalar | TensorView


@dataclass(frozen=True, slots=True, eq=False)
class IndexValue:
    """An index used as a value (iota)."""

    order: int
    dtype: DataType
    form: Form
    positions: tuple[IndirectIndex, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class IndirectIndex:
    """Data-dependent index (a "position"). `form` is a variable of the node's name.

    `value` is bounds-checked at its definition: if it is needed and not in 0..extent, the program
    ends with `error`, a format string with places (%lld) for the index, the extent and the last
    index. An invalid index that is not needed is replaced by 0, so that the variable's bounds hold
    at every point.
    """

    order: int
    dtype: DataType
    value: Value
    extent: int
    form: Form
    error: str
    positions: tuple[IndirectIndex, ...]

    @property
    def name(self) -> str:
        return position_name(self.order)


def position_name(order: int) -> str:
    return f"t{order}"


@dataclass(frozen=True, slots=True, eq=False)
class BoundsChecked:
    """`value`, which does not depend on `position`, with the bounds check of the position."""

    order: int
    dtype: DataType
    value: Value
    position: IndirectIndex


@dataclass(frozen=True, slots=True, eq=False)
class Load:
    """Element of `tensor`'s memory at `address`, in elements from its data pointer.

    `positions`, here and in other nodes: those on which its forms and conditions depend.
    """

    order: int
    dtype: DataType
    tensor: TensorView
    address: Form
    positions: tuple[IndirectIndex, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Compute:
    """Pointwise operation; operands are converted to `operand_dtypes`, the result to `dtype`."""

    order: int
    dtype: DataType
    op: str
    operands: tuple[Value, ...]
    operand_dtypes: tuple[DataType, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Select:
    """`inside` if all conditions hold, else `outside`."""

    order: int
    dtype: DataType
    conditions: Conjunction
    inside: Value
    outside: Value
    positions: tuple[IndirectIndex, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class PhiloxCall:
    """Standard samples of the distribution `op`, in `dtype`, from Philox call number `call` with a
    seed and an offset.
    """

    order: int
    dtype: DataType
    op: str
    seed: Value
    offset: Value
    call: Form
    positions: tuple[IndirectIndex, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Random:
    """Random sample with `parameters`, from the standard sample `component` of a Philox call."""

    order: int
    dtype: DataType
    draw: PhiloxCall
    component: Form
    parameters: tuple[Value, Value]
    positions: tuple[IndirectIndex, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Folded:
    """Result of a reduction or a scan, which an earlier stage of the kernel has at `point`."""

    order: int
    dtype: DataType
    tensor: TensorView
    point: tuple[Form, ...]


Value = (
    Literal
    | Argument
    | IndexValue
    | IndirectIndex
    | BoundsChecked
    | Load
    | Compute
    | Select
    | PhiloxCall
    | Random
    | Folded
)


def operands(value: Value) -> tuple[Value, ...]:
    match value:
        case Compute():
            return value.operands
        case Select():
            return (value.inside, value.outside, *value.positions)
        case IndirectIndex():
            return (value.value, *value.positions)
        case BoundsChecked():
            return (value.value, value.position)
        case PhiloxCall():
            return (value.seed, value.offset, *value.positions)
        case Random():
            return (value.draw, *value.parameters, *value.positions)
        case Load() | IndexValue():
            return value.positions
        case _:
            return ()


def reachable(
    roots: Iterable[Value], *, loaded: bool = False, ready: AbstractSet[Value] = frozenset()
) -> set[Value]:
    """Return all nodes from which some values are computed, themselves included. `loaded`: stop at
    loads, which are done already. `ready`: stop at these nodes.
    """

    def producers(node: Value) -> tuple[Value, ...]:
        is_there = node in ready or (loaded and isinstance(node, Load))
        return () if is_there else operands(node)

    return set(backward_slice(roots, producers))


def forms(value: Value) -> tuple[Form, ...]:
    """Return the index forms of a node itself."""
    match value:
        case IndexValue() | IndirectIndex():
            return (value.form,)
        case Load():
            return (value.address,)
        case Select():
            return value.conditions
        case PhiloxCall():
            return (value.call,)
        case Random():
            return (value.component,)
        case _:
            return ()


@dataclass(slots=True)
class ScalarGraph:
    """Hash-consed nodes, and the conditions under which each load and position is needed.

    `contexts[load]` is a disjunction of conjunctions: the load is executed where any of them holds.
    `checks` has the same for positions.
    """

    nodes: dict[tuple[object, ...], Value] = field(default_factory=dict)
    contexts: dict[Load, list[Conjunction]] = field(default_factory=dict)
    checks: dict[IndirectIndex, list[Conjunction]] = field(default_factory=dict)
    positions: dict[Variable, IndirectIndex] = field(default_factory=dict)

    def literal(self, value: Number, dtype: DataType) -> Value:
        key = ("literal", repr(value), dtype)
        return self.nodes.get(key) or self._add(key, Literal(len(self.nodes), dtype, value))

    def argument(self, source: Scalar | TensorView) -> Value:
        key = ("argument", source.id)
        return self.nodes.get(key) or self._add(
            key, Argument(len(self.nodes), source.dtype, source)
        )

    def index(self, form: Form, dtype: DataType) -> Value:
        key = ("index", form, dtype)
        return self.nodes.get(key) or self._add(
            key, IndexValue(len(self.nodes), dtype, form, self._mentioned([form]))
        )

    def position(
        self, value: Value, extent: int, error: str, context: Conjunction, forms: Context
    ) -> IndirectIndex:
        """Return `value` as an index of a dimension with `extent` elements."""
        positions = self._mentioned(context)
        key = ("position", value.order, extent, positions)
        found = self.nodes.get(key)
        if found is None:
            order = len(self.nodes)
            form = forms.var(position_name(order), 0, extent - 1)
            found = IndirectIndex(order, DataType.Int, value, extent, form, error, positions)
            self._add(key, found)
            self.positions.update(dict.fromkeys(form.variables(), found))
        assert isinstance(found, IndirectIndex)
        _note(self.checks.setdefault(found, []), context)
        return found

    def checked(self, value: Value, position: IndirectIndex) -> Value:
        key = ("checked", value.order, position.order)
        return self.nodes.get(key) or self._add(
            key, BoundsChecked(len(self.nodes), value.dtype, value, position)
        )

    def _mentioned(self, forms: Iterable[Form]) -> tuple[IndirectIndex, ...]:
        """Return the positions on which some forms depend, in order."""
        names = {v for form in forms for v in form.variables() if v in self.positions}
        return tuple(sorted((self.positions[v] for v in names), key=lambda p: p.order))

    def load(self, tensor: TensorView, address: Form, context: Conjunction) -> Value:
        # Positions are part of the key: a shared node could depend on a position computed from it.
        positions = self._mentioned([address, *context])
        key = ("load", tensor.id, address, positions)
        found = self.nodes.get(key) or self._add(
            key, Load(len(self.nodes), tensor.dtype, tensor, address, positions)
        )
        assert isinstance(found, Load)
        _note(self.contexts.setdefault(found, []), context)
        return found

    def compute(
        self,
        op: str,
        args: tuple[Value, ...],
        operand_dtypes: tuple[DataType, ...],
        dtype: DataType,
    ) -> Value:
        key = ("compute", op, tuple(a.order for a in args), operand_dtypes, dtype)
        return self.nodes.get(key) or self._add(
            key, Compute(len(self.nodes), dtype, op, args, operand_dtypes)
        )

    def draw(self, op: str, seed: Value, offset: Value, call: Form, dtype: DataType) -> PhiloxCall:
        key = ("draw", op, seed.order, offset.order, call, dtype)
        found = self.nodes.get(key)
        if found is None:
            positions = self._mentioned([call])
            draw = PhiloxCall(len(self.nodes), dtype, op, seed, offset, call, positions)
            found = self._add(key, draw)
        assert isinstance(found, PhiloxCall)
        return found

    def random(
        self, draw: PhiloxCall, component: Form, parameters: tuple[Value, Value], dtype: DataType
    ) -> Value:
        key = ("random", draw.order, component, *(p.order for p in parameters), dtype)
        return self.nodes.get(key) or self._add(
            key,
            Random(
                len(self.nodes), dtype, draw, component, parameters, self._mentioned([component])
            ),
        )

    def folded(self, tensor: TensorView, point: tuple[Form, ...]) -> Value:
        key = ("folded", tensor.id)
        return self.nodes.get(key) or self._add(
            key, Folded(len(self.nodes), tensor.dtype, tensor, point)
        )

    def select(self, conditions: Conjunction, inside: Value, outside: Value) -> Value:
        if inside is outside or not conditions:
            return inside
        key = ("select", conditions, inside.order, outside.order)
        return self.nodes.get(key) or self._add(
            key,
            Select(
                len(self.nodes),
                inside.dtype,
                conditions,
                inside,
                outside,
                self._mentioned(conditions),
            ),
        )

    def _add(self, key: tuple[object, ...], node: Value) -> Value:
        self.nodes[key] = node
        return node

    def __iter__(self) -> Iterator[Value]:
        """Iterate over all nodes, operands before their users."""
        return iter(self.nodes.values())

    @property
    def loads(self) -> list[Load]:
        return list(self.contexts)


def _note(contexts: list[Conjunction], context: Conjunction) -> None:
    if context not in contexts:
        contexts.append(context)
