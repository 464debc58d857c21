"""The table of opaque calls, which torch executes: matrix products, attention, convolutions, sorts,
and writes at data-dependent indices.

A row is a torch call and its properties for planning. The call is a Python function: its tensor
parameters are the operands, the others are attributes, which are constants of the program.
"""

from __future__ import annotations

import difflib
import enum
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from thunder_fuser.errors import FuserValueError
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.tables import call_shapes as shapes
from thunder_fuser.ir.tables import collectives, torch_calls
from thunder_fuser.ir.tables.call_shapes import Attributes, Operands, Place, Results

Attribute = int | float | bool | None | DataType | tuple[int, ...]


class Answer(enum.Enum):
    """Error propagation: how a result's error follows from those of the operands."""

    LINEAR = "linear in each operand: sums of products, or of elements"
    CHOICE = "operands' elements or their places, chosen by comparing them"
    OTHER = "nothing is said"


class Order(enum.Enum):
    """Calls that run in program order, and are never one call though they are equal."""

    COLLECTIVES = "all devices must start them in one order, or wait for each other forever"
    DRAWS = "each takes the next numbers of torch's generator"


def _nothing(_o: Operands, _a: Attributes) -> int:
    return 0


def _never(_a: Attributes) -> bool:
    return False


def _no_equations(_o: Operands, _a: Attributes) -> Iterable[tuple[Place, Place]]:
    return ()


@dataclass(frozen=True, slots=True)
class Call:
    """One opaque call.

    run         the torch call, of tensors on one device, and attributes
    results     sizes, dtypes and memory orders of the results; FuserError for invalid operands
    names       names of the results, where a call has several
    equal       pairs of operand dimensions that have equal sizes
    flops       FLOPs of a call of known sizes: a multiply-add counts as two
    terms       products or elements that are summed per element of the result; 0 if each is one
                element of an operand
    is_random   True if it draws from torch's generator: equal calls have different results then
    reference   equivalent of `run` in float64, where `run` does not take that
    start       non-blocking version of a collective, which is waited for later
    """

    run: Callable[..., Any]
    results: Callable[[Operands, Attributes], Results]
    names: tuple[str, ...] = ("output",)
    equal: Callable[[Operands, Attributes], Iterable[tuple[Place, Place]]] = _no_equations
    flops: Callable[[Operands, Attributes], int] = _nothing
    answer: Answer = Answer.OTHER
    terms: Callable[[Operands, Attributes], int] = _nothing
    is_random: Callable[[Attributes], bool] = _never
    reference: Callable[..., Any] | None = None
    start: Callable[..., collectives.Arriving] | None = None

    @property
    def name(self) -> str:
        return self.run.__name__

    @property
    def is_collective(self) -> bool:
        """True if other devices wait for this one in the call: it runs as often as the program says
        so, even if nothing reads its result.
        """
        return self.start is not None

    def order(self, a: Attributes) -> Order | None:
        """The calls that it runs in program order with; None if it runs when its operands are
        there.
        """
        if self.is_collective:
            return Order.COLLECTIVES
        return Order.DRAWS if self.is_random(a) else None

    @property
    def parameters(self) -> Mapping[str, inspect.Parameter]:
        return inspect.signature(self.run).parameters

    @property
    def operands(self) -> tuple[str, ...]:
        """The tensor parameters, in the order of the call."""
        found = self.parameters.items()
        return tuple(name for name, p in found if str(p.annotation).startswith("Tensor"))

    def check(self, o: Operands, a: Attributes) -> Results:
        """The results' shapes; FuserError for operands that do not match each other."""
        found = self.results(o, a)
        for (left, i), (right, j) in self.equal(o, a):
            sizes = o[left].shape[i], o[right].shape[j]
            if all(isinstance(size, int) for size in sizes) and sizes[0] != sizes[1]:
                ours, theirs = i % o[left].rank, j % o[right].rank
                raise FuserValueError(
                    f"{self.name}: dimension {ours} of {left} has size {sizes[0]} and dimension "
                    f"{theirs} of {right} has {sizes[1]}; they must be one size"
                )
        return found

    def evaluate(
        self, tensors: Mapping[str, Any], a: Attributes, *, double: bool
    ) -> tuple[Any, ...]:
        """All results for tensors of the operands' dtypes, or for float64 tensors instead."""
        run = self.reference if double and self.reference is not None else self.run
        found = run(**tensors, **a)
        return found if isinstance(found, tuple) else (found,)


_ROWS = (
    Call(collectives.all_gather, shapes.stacked, start=collectives.start_all_gather),
    Call(collectives.all_reduce, shapes.as_given, start=collectives.start_all_reduce),
    Call(collectives.reduce_scatter, shapes.one_of_stack, start=collectives.start_reduce_scatter),
    Call(collectives.all_to_all, shapes.exchanged, start=collectives.start_all_to_all),
    Call(
        torch_calls.linear, shapes.linear, equal=shapes.linear_equal, answer=Answer.LINEAR,
        flops=shapes.product_flops(shapes.linear, "arg1"), terms=shapes.inner("arg1", "bias"),
    ),
    Call(
        torch_calls.matmul, shapes.matmul, equal=shapes.matmul_equal, answer=Answer.LINEAR,
        flops=shapes.product_flops(shapes.matmul, "arg1"), terms=shapes.inner("arg1"),
    ),
    Call(
        torch_calls.bmm, shapes.bmm, equal=shapes.batches_equal, answer=Answer.LINEAR,
        flops=shapes.product_flops(shapes.bmm, "batch1"), terms=shapes.inner("batch1"),
    ),
    Call(
        torch_calls.baddbmm, shapes.baddbmm, equal=shapes.batches_equal,
        flops=shapes.product_flops(shapes.bmm, "batch1"),
    ),
    Call(
        torch_calls.grouped_mm, shapes.grouped_mm, equal=shapes.groups_equal, answer=Answer.LINEAR,
        flops=shapes.product_flops(shapes.grouped_mm, "mat1"), terms=shapes.inner("mat1"),
        reference=torch_calls.product_of_groups,
    ),
    Call(
        torch_calls.scaled_mm, shapes.scaled_mm, equal=shapes.matrices_equal,
        flops=shapes.product_flops(shapes.scaled_mm, "mat1"),
        reference=torch_calls.product_of_scaled,
    ),
    Call(
        torch_calls.sdpfa_fwd, shapes.sdpfa_fwd, equal=shapes.sdpfa_equal, is_random=shapes.drops,
        names=("output", "logsumexp", "philox_seed", "philox_offset"), flops=shapes.sdpfa_flops(2),
        reference=torch_calls.attention,
    ),
    Call(
        torch_calls.sdpfa_bwd, shapes.sdpfa_bwd, equal=shapes.sdpfa_equal,
        names=("grad_query", "grad_key", "grad_value"), flops=shapes.sdpfa_flops(5),
        reference=torch_calls.attention_gradient,
    ),
    Call(
        torch_calls.convolution, shapes.convolution, answer=Answer.LINEAR,
        flops=shapes.convolution_flops, terms=shapes.convolution_terms,
    ),
    Call(
        torch_calls.scatter, shapes.written("arg", "index"), answer=Answer.LINEAR,
    ),
    Call(
        torch_calls.scatter_add, shapes.written("arg", "index"), answer=Answer.LINEAR,
        terms=shapes.all_sums("arg", "index"),
    ),
    Call(
        torch_calls.index_add, shapes.written("arg", "index"), answer=Answer.LINEAR,
        terms=shapes.all_sums("arg", "index"),
    ),
    Call(
        torch_calls.index_copy, shapes.written("arg", "index"), answer=Answer.LINEAR,
    ),
    Call(
        torch_calls.index_put_accumulate, shapes.written("acc", "index"), answer=Answer.LINEAR,
        terms=shapes.all_sums("acc", "index"),
    ),
    Call(
        torch_calls.embedding_backward, shapes.embedding_backward, equal=shapes.embedding_equal,
        answer=Answer.LINEAR, terms=lambda o, _a: shapes.numel(o["index"].shape) + 1,
    ),
    Call(torch_calls.sort, shapes.sort, names=("values", "indices"), answer=Answer.CHOICE),
    Call(torch_calls.argsort, shapes.argsort, answer=Answer.CHOICE),
    Call(torch_calls.topk, shapes.topk, names=("values", "indices"), answer=Answer.CHOICE),
)  # fmt: skip

TABLE: Mapping[str, Call] = MappingProxyType({row.name: row for row in _ROWS})
"""Every opaque call by name."""


def lookup(name: str) -> Call:
    """The row of that name; FuserValueError with the nearest names if there is none."""
    found = TABLE.get(name)
    if found is None:
        near = difflib.get_close_matches(name, TABLE, n=3)
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        raise FuserValueError(f"there is no torch call {name!r}{hint}")
    return found
