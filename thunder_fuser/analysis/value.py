"""What an element is computed from: a DAG of scalar values over one flattened loop variable.

`pull.py` builds it, `access.py` decides how its loads become vector accesses, and code generation
prints it. Nodes are hash-consed by the `ValueGraph`: equal values are one node, and `order` numbers
nodes such that operands come first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from thunder_fuser.ir.dtypes import DataType, Number
from thunder_fuser.ir.fusion import Scalar, TensorView
from thunder_fuser.ir.symint import Form

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


@dataclass(frozen=True, slots=True, eq=False)
class Load:
    """The element of `tensor`'s memory at `address` (elements from its data pointer)."""

    order: int
    dtype: DataType
    tensor: TensorView
    address: Form


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


@dataclass(frozen=True, slots=True, eq=False)
class Folded:
    """The result of a reduction, left by an earlier stage of the same kernel at the same point."""

    order: int
    dtype: DataType
    tensor: TensorView


Value = Literal | Argument | IndexValue | Load | Compute | Select | Folded


def operands(value: Value) -> tuple[Value, ...]:
    match value:
        case Compute():
            return value.operands
        case Select():
            return (value.inside, value.outside)
        case _:
            return ()


def reachable(roots: Iterable[Value]) -> set[Value]:
    """All nodes that some values are computed from, themselves included."""
    seen: set[Value] = set()
    stack = list(roots)
    while stack:
        node = stack.pop()
        if node not in seen:
            seen.add(node)
            stack.extend(operands(node))
    return seen


def forms(value: Value) -> tuple[Form, ...]:
    """The index forms that a node itself mentions."""
    match value:
        case IndexValue():
            return (value.form,)
        case Load():
            return (value.address,)
        case Select():
            return value.conditions
        case _:
            return ()


@dataclass(slots=True)
class ValueGraph:
    """Interns nodes and remembers under which conditions each load is needed.

    `contexts[load]` is a disjunction of conjunctions: the load happens where one of them holds.
    """

    nodes: dict[tuple[object, ...], Value] = field(default_factory=dict)
    contexts: dict[Load, list[Conjunction]] = field(default_factory=dict)

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
        return self.nodes.get(key) or self._add(key, IndexValue(len(self.nodes), dtype, form))

    def load(self, tensor: TensorView, address: Form, context: Conjunction) -> Value:
        key = ("load", tensor.id, address)
        found = self.nodes.get(key) or self._add(
            key, Load(len(self.nodes), tensor.dtype, tensor, address)
        )
        assert isinstance(found, Load)
        needed = self.contexts.setdefault(found, [])
        if context not in needed:
            needed.append(context)
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

    def folded(self, tensor: TensorView) -> Value:
        key = ("folded", tensor.id)
        return self.nodes.get(key) or self._add(key, Folded(len(self.nodes), tensor.dtype, tensor))

    def select(self, conditions: Conjunction, inside: Value, outside: Value) -> Value:
        if inside is outside or not conditions:
            return inside
        key = ("select", conditions, inside.order, outside.order)
        return self.nodes.get(key) or self._add(
            key, Select(len(self.nodes), inside.dtype, conditions, inside, outside)
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
