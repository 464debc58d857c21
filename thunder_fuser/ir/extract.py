"""Extraction: a part of a fusion as a fusion of its own, with values renumbered in order.

The part holds its loads, expressions and stores and nothing else: two parts that compute the same
of different tensors are equal values, whatever the numbering in the whole fusion.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import chain

from thunder_fuser.ir.domain import TensorDomain, tensor_domain
from thunder_fuser.ir.dtypes import DataType, Number
from thunder_fuser.ir.fusion import (
    Expr,
    FullOp,
    Fusion,
    OpaqueOp,
    Scalar,
    TensorView,
    Update,
    Val,
    with_values,
)


@dataclass(frozen=True, slots=True)
class Extract:
    """A part of a fusion, and its values' counterparts in the whole.

    fusion  values numbered from 0: first inputs, in the order of their numbers in the whole, then
            operands and results of the expressions
    values  for each number the value of the whole; a constant of its own for an output without
            elements, which is a fill
    """

    fusion: Fusion
    values: tuple[Val, ...]

    def whole(self, tensor: TensorView) -> TensorView:
        """The tensor of the whole for a tensor of the part."""
        found = self.values[tensor.id]
        assert isinstance(found, TensorView)
        return found


def extract(
    fusion: Fusion,
    outputs: Iterable[TensorView],
    ends: Container[Val],
    updates: Mapping[TensorView, TensorView],
    reductions: Iterable[TensorView] = (),
) -> Extract:
    """The expressions that compute `outputs`, from `ends` and inputs that they read.

    updates     output -> the input that it overwrites; an input of the part, read or not
    reductions  further values to compute, regardless of where the backward walk ends
    """
    outputs = tuple(outputs)
    roots = [*(t for t in outputs if t.numel), *reductions]
    exprs = fusion.backward_slice(roots, ends)
    made = {expr.output for expr in exprs}
    read = {v for v in chain(roots, *(expr.inputs for expr in exprs)) if v not in made}
    targets = {updates[t] for t in outputs if t in updates}
    needed = {v for v in read if isinstance(v, TensorView) or v.value is None} | targets
    part = _Part()
    known = fusion.definitions()
    for value in sorted(needed, key=lambda v: v.id):
        part.given(value, is_computed=value in known)
    inputs = tuple(map(part.new.__getitem__, part.values))
    defined = tuple(map(part.copy, exprs))
    empty = tuple(part.nothing(t) for t in outputs if t not in part.new)
    new = part.tensor
    return Extract(
        Fusion(
            inputs,
            defined + empty,
            tuple(map(new, outputs)),
            tuple(Update(new(updates[t]), new(t)) for t in outputs if t in updates),
        ),
        tuple(part.values),
    )


class _Part:
    """Value maps of an extraction in progress.

    new     value of the whole -> value of the part
    values  values of the whole in the order of their new numbers
    """

    def __init__(self) -> None:
        self.new: dict[Val, Val] = {}
        self.values: list[Val] = []
        self._calls: dict[int, int] = {}

    def tensor(self, old: Val) -> TensorView:
        found = self.new[old]
        assert isinstance(found, TensorView)
        return found

    def given(self, old: Val, *, is_computed: bool) -> Val:
        """Add an input; one that the whole computes has its logical dimensions as root."""
        if isinstance(old, Scalar):
            return self._scalar(old)
        domain = old.domain
        if is_computed and domain.transforms:
            domain = tensor_domain(domain.logical, allocation=domain.allocation)
        return self._tensor(old, domain)

    def nothing(self, old: TensorView) -> FullOp:
        """An expression for an output without elements."""
        fill = self._scalar(Scalar(-1 - old.id, old.dtype, zero_of(old.dtype)))
        return FullOp(fill, self._tensor(old, tensor_domain(old.domain.logical)))

    def copy(self, expr: Expr) -> Expr:
        """The same expression on the part's values; calls are renumbered."""
        for value in expr.inputs:
            if value not in self.new and isinstance(value, Scalar):
                self._scalar(value)
        self._output(expr.output)
        made = with_values(expr, self.new)
        if isinstance(made, OpaqueOp):
            number = self._calls.setdefault(made.call, len(self._calls))
            return replace(made, call=number)
        return made

    def _output(self, old: Val) -> Val:
        return self._scalar(old) if isinstance(old, Scalar) else self._tensor(old, old.domain)

    def _scalar(self, old: Scalar) -> Scalar:
        made = Scalar(len(self.values), old.dtype, old.value, old.origin)
        self.new[old] = made
        self.values.append(old)
        return made

    def _tensor(self, old: TensorView, domain: TensorDomain) -> TensorView:
        made = TensorView(len(self.values), old.dtype, domain, old.is_cpu, old.origin)
        self.new[old] = made
        self.values.append(old)
        return made


def zero_of(dtype: DataType) -> Number:
    """The constant 0 of that dtype, as a Python number."""
    if dtype is DataType.Bool:
        return False
    return 0j if dtype.is_complex else 0.0 if dtype.is_floating else 0
