"""Kernels in the making: what each is to compute, and what can be asked about them meanwhile.

A kernel reads what those of lower levels leave in memory. Computing a value ends at its frontier:
at reductions, which some kernel does, at cuts, and at tensors in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from thunder_fuser.analysis.layout import View, declared_layout, dense_layout, memory_orders
from thunder_fuser.analysis.rows import refuse_rows
from thunder_fuser.errors import Refusal
from thunder_fuser.ir.domain import Layout
from thunder_fuser.ir.fusion import Expr, Fusion, ReductionOp, TensorView, Val
from thunder_fuser.segment.destinations import destinations
from thunder_fuser.segment.plan import Kind

MAX_OUTPUTS = 128
"""Outputs of one kernel: keeps parameter lists within what every GPU takes."""


@dataclass(slots=True, eq=False)
class Group:
    """A kernel in the making. It reads only what groups of lower levels leave in memory."""

    kind: Kind
    level: int
    outputs: list[TensorView] = field(default_factory=list)
    folds: list[ReductionOp] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    reads: set[TensorView] = field(default_factory=set)
    """Values that it could compute and loads instead."""

    @property
    def folded(self) -> set[TensorView]:
        return {f.output for f in self.folds}


@dataclass(frozen=True, slots=True)
class Frontier:
    """Where computing a value ends: reductions, cuts, and tensors in memory."""

    folds: tuple[ReductionOp, ...]
    cuts: tuple[TensorView, ...]
    sources: frozenset[TensorView]


class Kernels:
    """The kernels of a fusion.

    layouts  of every tensor in memory so far
    storage  a segment_set result is its input, seen from behind the cut
    views    results that lie in the memory of other tensors
    level    of the kernel that writes a tensor; -1 for inputs
    home     the kernel that computes a tensor
    reasons  values that other kernels than their own load, and why these do not compute them
    stored   values that kernels could compute and load instead, and why
    """

    def __init__(
        self,
        fusion: Fusion,
        layouts: Sequence[Layout] | None,
        joined: Sequence[TensorView] = (),
    ) -> None:
        """`joined`: tensors whose pieces are written where these have them."""
        tensors = fusion.tensor_inputs
        given = layouts or [declared_layout(t) for t in tensors]
        self.layouts: dict[TensorView, Layout] = dict(zip(tensors, given, strict=True))
        orders = memory_orders(fusion, self.layouts)
        self.destinations = destinations(fusion, joined, orders)
        self.fusion = self.destinations.fusion
        added = self.fusion is not fusion
        self.orders = memory_orders(self.fusion, self.layouts) if added else orders
        self.definitions: dict[Val, Expr] = self.fusion.definitions()
        self.storage: dict[TensorView, TensorView] = {}
        self.views: dict[TensorView, View] = {}
        self.level: dict[TensorView, int] = dict.fromkeys(tensors, -1)
        self.groups: list[Group] = []
        self.home: dict[TensorView, Group] = {}
        self.reasons: dict[TensorView, str] = {}
        self.stored: dict[TensorView, str] = {}

    def layout_of(self, tensor: TensorView) -> Layout:
        """Of what is to be written."""
        return self.destinations.layout(tensor) or dense_layout(tensor, self.orders[tensor])

    def may_read(self, group: Group, frontier: Frontier) -> bool:
        """Whether all that a value needs is there when the group runs."""
        folds = (self.home[f.output] for f in frontier.folds)
        return all(home is group or home.level < group.level for home in folds) and all(
            self.level[cut] < group.level for cut in frontier.cuts
        )

    def is_sibling(
        self, group: Group, frontier: Frontier, wanted: ReductionOp | TensorView
    ) -> bool:
        """Whether both read the same tensors at the same points, or a reduction of values of rows
        reads what the group computes of rows.
        """
        sizes = wanted.input.sizes if isinstance(wanted, ReductionOp) else wanted.sizes
        (first, *_) = group.folds
        read = [f.input for f in group.folds]
        if sizes != first.input.sizes:
            rows = [n for k, n in enumerate(first.input.sizes) if k not in first.dims]
            if not isinstance(wanted, ReductionOp) or _points(sizes) != _points(rows):
                return False
            read = [t for t in (*read, *group.outputs) if _points(t.sizes) == _points(rows)]
        shared = {s for t in read for s in self.frontier(t).sources if s.numel > 1}
        return bool(shared & frontier.sources)

    def refuse(self, group: Group, wanted: ReductionOp | TensorView | None) -> Refusal | None:
        """Why one row kernel cannot do the group's work and `wanted`."""
        folds, outputs = list(group.folds), list(group.outputs)
        if isinstance(wanted, ReductionOp):
            folds.append(wanted)
        elif wanted is not None:
            outputs.append(wanted)
        if len(outputs) > MAX_OUTPUTS:
            return Refusal("outputs", f"a kernel writes at most {MAX_OUTPUTS} tensors")
        # What it computes itself it cannot load, whoever else does.
        mine = {*(f.output for f in folds), *outputs} - self.stops()
        memory = {t: layout for t, layout in self.memory().items() if t not in mine}
        return refuse_rows(outputs, folds, self.definitions, memory)

    def memory(self) -> dict[TensorView, Layout]:
        """Tensors that kernels read, as far as it is known."""
        stored = {t: self.layouts[t] for t in self.reasons if t in self.layouts}
        return {t: self.layouts[t] for t in self.stops()} | stored

    def floor(self, frontier: Frontier) -> int:
        """The lowest level at which all that a value needs is in memory."""
        levels = [self.home[f.output].level for f in frontier.folds]
        levels += [self.level[cut] for cut in frontier.cuts]
        return 1 + max(levels, default=-1)

    def frontier(self, tensor: TensorView) -> Frontier:
        folds: list[ReductionOp] = []
        cuts: list[TensorView] = []
        sources: set[TensorView] = set()
        seen: set[int] = set()
        stack: list[Val] = [tensor]
        while stack:
            value = stack.pop()
            if value.id in seen or not isinstance(value, TensorView):
                continue
            seen.add(value.id)
            expr = self.definitions.get(value)
            if value in self.storage:
                cuts.append(value)
                sources.add(value)
            elif isinstance(expr, ReductionOp):
                folds.append(expr)
            elif expr is not None:
                stack.extend(expr.inputs)
            else:
                sources.add(value)
        return Frontier(tuple(folds), tuple(cuts), frozenset(sources))

    def sources(self, group: Group) -> frozenset[TensorView]:
        """Tensors of more than one element that a kernel reads."""
        wanted = [*group.outputs, *(f.input for f in group.folds)]
        return frozenset(s for t in wanted for s in self.frontier(t).sources if s.numel > 1)

    def stops(self) -> set[TensorView]:
        return {*self.fusion.tensor_inputs, *self.storage}

    def stops_of(self, group: Group) -> set[TensorView]:
        """Tensors that a kernel loads where it needs them."""
        foreign = {t for t in self.reasons if t in self.level and self.home[t] is not group}
        return self.stops() | foreign | group.reads

    def cone(self, group: Group) -> tuple[set[Val], set[TensorView]]:
        """What a kernel computes, and what it loads where computing ends."""
        stops = self.stops_of(group)
        computed: set[Val] = set()
        loaded: set[TensorView] = set()
        stack: list[Val] = [*group.outputs, *(f.output for f in group.folds)]
        while stack:
            value = stack.pop()
            if isinstance(value, TensorView) and value in stops and value not in group.outputs:
                loaded.add(value)
            elif value in self.definitions and value not in computed:
                computed.add(value)
                stack.extend(self.definitions[value].inputs)
        return computed, loaded


def _points(sizes: Sequence[int]) -> list[int]:
    """Sizes of the dimensions that tell points apart."""
    return [n for n in sizes if n != 1]
