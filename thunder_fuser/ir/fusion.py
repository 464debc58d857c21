"""The IR: the Fusion, a program as frozen data, and its values (`values.py`) and expressions
(`expressions.py`), which this module re-exports. Passes return new Fusions.

A Fusion is a list of expressions in SSA form: traces are linear, and lists are easy to read.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from thunder_fuser.ir.dag import backward_slice
from thunder_fuser.ir.expressions import (
    CatOp,
    CopyOp,
    CutOp,
    Expr,
    FoldOp,
    FullOp,
    GatherOp,
    IotaOp,
    MoveOp,
    OpaqueOp,
    PadOp,
    PointwiseOp,
    RandomOp,
    ReductionOp,
    ScanOp,
    ViewOp,
    move_op,
    shows_memory,
    with_values,
)
from thunder_fuser.ir.tables import opaque
from thunder_fuser.ir.values import Origin, Scalar, TensorView, Val, exactly

__all__ = [
    "CatOp",
    "CopyOp",
    "CutOp",
    "Expr",
    "FoldOp",
    "FullOp",
    "Fusion",
    "GatherOp",
    "IotaOp",
    "MoveOp",
    "OpaqueOp",
    "Origin",
    "PadOp",
    "PointwiseOp",
    "RandomOp",
    "ReductionOp",
    "Scalar",
    "ScanOp",
    "TensorView",
    "Update",
    "Val",
    "ViewOp",
    "exactly",
    "move_op",
    "shows_memory",
    "with_values",
]


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

    def places(self) -> Mapping[Val, int]:
        """The position of the expression that defines each computed value; cached."""
        if not self._places:
            self._places.update({e.output: k for k, e in enumerate(self.exprs)})
        return self._places

    @property
    def roots(self) -> tuple[TensorView, ...]:
        """What a static program computes everything else for: its results, and those of
        collectives, since other devices wait in them for this one. Empty tensors are not sent.
        """
        calls = (e for e in self.exprs if isinstance(e, OpaqueOp) and e.output.numel)
        sent = (e.output for e in calls if opaque.lookup(e.op).is_collective)
        return tuple(dict.fromkeys((*self.results, *sent)))

    def backward_slice(self, roots: Iterable[Val], ends: Container[Val]) -> list[Expr]:
        """The expressions that the roots depend on, in order. Values in `ends` are available,
        unless they are roots.
        """
        definitions, places = self.definitions(), self.places()

        def producers(value: Val) -> list[Val]:
            return [v for v in definitions[value].inputs if v in definitions and v not in ends]

        needed = backward_slice([v for v in roots if v in definitions], producers)
        return [definitions[v] for v in sorted(needed, key=places.__getitem__)]

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
