"""Scalar graph of a kernel: a DAG of the values that one element is computed from, over one
flattened loop variable.

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
"""Holds where the form is >= 0. Its negation is `-form - 1`."""
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
    """An index used as a number (iota)."""

    order: int
    dtype: DataType
    form: Form
    positions: tuple[IndirectIndex, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class IndirectIndex:
    """An index that data decide: forms call it `form`, a variable of the node's name.

    `value` is checked where the node is defined: where it is needed and not below `extent` the
    program ends with `error`, a message with a place (%lld) for the index. Where it is not needed
    0 stands for it, so that the variable's bounds are true at every point.
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
    """`value`, which is the same at any position, with the position checked all the same."""

    order: int
    dtype: DataType
    value: Value
    position: IndirectIndex


@dataclass(frozen=True, slots=True, eq=False)
class Load:
    """The element of `tensor`'s memory at `address` (elements from its data pointer).

    `positions`, of this and other nodes, are those that its forms and its conditions mention.
    """

    order: int
    dtype: DataType
    tensor: TensorView
    address: Form
    positions: tuple[IndirectIndex, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Compute:
    """One row of the op table; operands are converted to `operand_dtypes`, the result
    to `dtype`.
    """

    order: int
    dtype: DataType
    op: str
    operands: tuple[Value, ...]
    operand_dtypes: tuple[DataType, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Select:
    """`inside` where all conditions hold, else `outside`."""

    order: int
    dtype: DataType
    conditions: Conjunction
    inside: Value
    outside: Value
    positions: tuple[IndirectIndex, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class PhiloxCall:
    """The standard numbers of the distribution `op`, in `dtype`, that the generator's call number
    `call` gives for a seed and an offset.
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
    """A number with these parameters from the one at `component` of those that a call gives."""

    order: int
    dtype: DataType
    draw: PhiloxCall
    component: Form
    parameters: tuple[Value, Value]
    positions: tuple[IndirectIndex, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Folded:
    """The result of a reduction or a scan, left at `point` by an earlier stage of the kernel."""

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
    """All nodes that some values are computed from, themselves included. `loaded`: once every load
    is done, and what it waited for does not matter any more. `ready`: nodes that are there already.
    """

    def producers(node: Value) -> tuple[Value, ...]:
        is_there = node in ready or (loaded and isinstance(node, Load))
        return () if is_there else operands(node)

    return set(backward_slice(roots, producers))


def forms(value: Value) -> tuple[Form, ...]:
    """The index forms that a node itself mentions."""
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
    """Interns nodes and remembers under which conditions each load and position is needed.

    `contexts[load]` is a disjunction of conjunctions: the load happens where one of them holds.
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
        """`value` as an index of a dimension with `extent` elements."""
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
        """The positions that some forms mention, in order."""
        names = {v for form in forms for v in form.variables() if v in self.positions}
        return tuple(sorted((self.positions[v] for v in names), key=lambda p: p.order))

    def load(self, tensor: TensorView, address: Form, context: Conjunction) -> Value:
        # Under other positions it is another node: none waits for a position computed from it.
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
        """All nodes, operands before their users."""
        return iter(self.nodes.values())

    @property
    def loads(self) -> list[Load]:
        return list(self.contexts)


def _note(contexts: list[Conjunction], context: Conjunction) -> None:
    if context not in contexts:
        contexts.append(context)
