"""Isomorphic parts: parts of a fusion that compute the same, each from tensors of its own.

The layers of a model are such parts. Results for one hold for all of them, up to the names of
values: which elements it reads, whether one kernel can compute it.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Mapping, Sequence
from dataclasses import dataclass, fields

from thunder_fuser.analysis.footprint import Footprint, demanded, footprint
from thunder_fuser.ir.fusion import Expr, Fusion, Scalar, TensorView, Val, exactly

_Read = Callable[[Fusion, Sequence[TensorView], Container[Val]], Mapping[TensorView, Footprint]]


@dataclass(frozen=True, slots=True)
class Part:
    """The expressions that some values are computed with. Parts with equal keys are isomorphic:
    their values correspond in order of `numbers`.
    """

    key: Hashable
    numbers: Mapping[Val, int]


_OF_ONE = frozenset(("inputs", "output", "origin", "call"))
"""Fields in which equivalent expressions differ."""


class Parts:
    """Parts of one fusion, and cached results about them. Sizes must be plain ints: equal
    representative sizes may have different formulas.
    """

    def __init__(self, fusion: Fusion) -> None:
        self._fusion = fusion
        self._inputs = frozenset(fusion.inputs)
        self._kinds: dict[Hashable, int] = {}
        self._of_exprs: dict[Val, int] = {}
        self._of_leaves: dict[Val, int] = {}
        self._read: dict[Hashable, list[tuple[int, Footprint]]] = {}
        self.is_static = all(
            type(d.size) is int for t in fusion.tensor_inputs for d in t.domain.logical
        )

    def of(self, roots: Sequence[Val], ends: Container[Val]) -> Part:
        """The part that `roots` are computed with, back to `ends` (`Fusion.backward_slice`)."""
        numbers: dict[Val, int] = {}
        found: list[Hashable] = []

        def number(value: Val) -> int:
            known = numbers.get(value)
            if known is None:
                known = numbers[value] = len(numbers)
                found.append((self._leaf(value), value in ends))
            return known

        for expr in self._fusion.backward_slice(roots, ends):
            operands = tuple(map(number, expr.inputs))
            out = expr.output
            numbers[out] = len(numbers)
            known = self._of_exprs.get(out)
            if known is None:
                known = self._of_exprs[out] = self.kind(expr)
            found.append((known, operands, out in ends))
        return Part((tuple(map(number, roots)), tuple(found)), numbers)

    def footprint(
        self, outputs: Sequence[TensorView], sources: Container[Val]
    ) -> Mapping[TensorView, Footprint]:
        """`analysis.footprint.footprint`, measured once for isomorphic parts."""
        return self._known(footprint, outputs, sources)

    def demanded(
        self, outputs: Sequence[TensorView], sources: Container[Val]
    ) -> Mapping[TensorView, Footprint]:
        """`analysis.footprint.demanded`, measured once for isomorphic parts."""
        return self._known(demanded, outputs, sources)

    def _known(
        self, read: _Read, outputs: Sequence[TensorView], sources: Container[Val]
    ) -> Mapping[TensorView, Footprint]:
        if not self.is_static:
            return read(self._fusion, outputs, sources)
        part = self.of(outputs, sources)
        key = read, part.key
        if key not in self._read:
            found = read(self._fusion, outputs, sources)
            self._read[key] = [(part.numbers[t], f) for t, f in found.items()]
        values = list(part.numbers)
        made = {values[k]: f for k, f in self._read[key]}
        return {t: made[t] for t in sorted(made, key=lambda t: t.id) if isinstance(t, TensorView)}

    def _kind(self, kind: Hashable) -> int:
        return self._kinds.setdefault(kind, len(self._kinds))

    def _leaf(self, value: Val) -> int:
        known = self._of_leaves.get(value)
        if known is None:
            own: Hashable = (
                (value.dtype, value.domain, value.is_cpu)
                if isinstance(value, TensorView)
                else exactly(value.value)
            )
            kind = type(value), value.dtype, own, value in self._inputs
            known = self._of_leaves[value] = self._kind(kind)
        return known

    def kind(self, expr: Expr) -> int:
        """Number of the expression's kind: equal for the same operation with other operands."""
        own = (getattr(expr, f.name) for f in fields(expr) if f.name not in _OF_ONE)
        attributes = tuple(None if _holds_values(a) else a for a in own)
        return self._kind((type(expr), attributes, self._leaf(expr.output)))


def _holds_values(attribute: object) -> bool:
    if isinstance(attribute, tuple):
        return any(map(_holds_values, attribute))
    return isinstance(attribute, TensorView | Scalar)
