"""Lanes of a vector: V consecutive points of a loop, and uniformity of forms over them.

Positions (data-dependent indices) diverge if their values differ between lanes. A form of a
diverging position is no function of u and v, and is not analysed further.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import pairwise

from thunder_fuser.ir.integer.symint import Context, Form, Variable
from thunder_fuser.lower.scalar_graph import (
    Condition,
    Conjunction,
    Folded,
    IndexValue,
    IndirectIndex,
    Load,
    PhiloxCall,
    Random,
    ScalarGraph,
    Select,
    Value,
    forms,
    operands,
)


class LaneForms:
    """Forms at the V lanes of one of `vectors` vectors: the loop's variables are substituted in
    `steps`; `v` is the lane.
    """

    def __init__(
        self, steps: Sequence[Mapping[Form, Form]], v: Form, vector: int, vectors: int
    ) -> None:
        self.v = v
        self.vector = vector
        self.vectors = vectors
        # Positions that differ between the lanes of a vector; `plan_accesses` finds them.
        self.diverging: set[Variable] = set()
        self._steps = steps
        self._memo: dict[Form, Form] = {}
        self._at: dict[Form, tuple[Form, ...]] = {}

    def __call__(self, form: Form) -> Form:
        """Return the form with all variables substituted."""
        found = self._memo.get(form)
        if found is None:
            found = form
            for step in self._steps:
                found = found.substitute(step)
            self._memo[form] = found
        return found

    def at(self, form: Form) -> tuple[Form, ...]:
        """Return a substituted form at each lane, without v."""
        found = self._at.get(form)
        if found is None:
            if form.depends_on(self.v):
                found = tuple(form.substitute({self.v: k}) for k in range(self.vector))
            else:
                found = (form,) * self.vector
            self._at[form] = found
        return found

    def diverges(self, forms: Iterable[Form]) -> bool:
        """True if any form depends on a position that differs between lanes."""
        return bool(self.diverging) and any(
            not self.diverging.isdisjoint(form.variables()) for form in forms
        )

    def varies(self, form: Form) -> bool:
        """True if the form differs between the lanes of a vector."""
        return self.diverges([form]) or self(form).depends_on(self.v)

    def walks(self, form: Form) -> bool:
        """True if the form differs between vectors that a thread holds in separate registers."""
        return False

    def uniform(self, condition: Condition) -> Condition | None:
        """Return the condition without v if it has one truth value over a vector, else None."""
        if self.diverges([condition]):
            return None
        whole = self(condition)
        if not whole.depends_on(self.v):
            return whole
        found = {lane // self.vector for lane in self.at(whole)}
        return found.pop() if len(found) == 1 else None


class Lanes(LaneForms):
    """Lanes of one flat loop: i = offset + V * u + v; `index` is i."""

    def __init__(
        self, index: Form, count: int, offset: int, vector: int, *, is_kept: bool = False
    ) -> None:
        """is_kept: a thread holds several vectors at once, each in registers of its own."""
        self.index = index
        self.is_kept = is_kept
        context: Context = index.context
        vectors = count // vector
        self.u = context.var("u", 0, max(vectors - 1, 0))
        v = context.var("v", 0, vector - 1)
        super().__init__([{index: self.u * vector + v + offset}], v, vector, vectors)

    def moves(self, form: Form) -> bool:
        """True if the form differs from lane to lane or from vector to vector."""
        own = self(form)
        return any(own.depends_on(variable) for variable in (*self.numbers, self.v))

    @property
    def numbers(self) -> tuple[Form, ...]:
        """Variables that number the vectors."""
        return (self.u,)

    def step(self, form: Form) -> int | None:
        """Return the increment of a form of u per vector if it is constant, else None."""
        first = form.substitute({self.u: 0})
        step = form.substitute({self.u: 1}) - first
        is_linear = not step.terms and form == first + self.u * step.const
        return step.const if is_linear else None

    def walks(self, form: Form) -> bool:
        own = self(form)
        return self.is_kept and any(own.depends_on(number) for number in self.numbers)

    def are_neighbours(self, address: Form) -> bool:
        """True if lanes access consecutive elements, or one element, across vectors too."""
        form = self(address)
        points = [(0, 0), (0, self.vector - 1)] if self.vector > 1 else [(0, 0)]
        points += [(1, 0)] if self.vectors > 1 else []
        found = [form.substitute({self.u: u, self.v: v}) for u, v in points]
        steps = [b - a for a, b in pairwise(found)]
        ahead = [b[0] * self.vector + b[1] - a[0] * self.vector - a[1] for a, b in pairwise(points)]
        return all(
            not step.terms and step.const in (0, n) for step, n in zip(steps, ahead, strict=True)
        )


class RunLanes(Lanes):
    """Lanes of the points of several runs: vectors begin with a run, and its last one is partial,
    so that no vector lies in two runs. i = V * inner + v within the run; u = run * each + inner.

    run    number of the run, a variable of forms
    inner  number of the vector within it
    each   vectors of a run
    """

    def __init__(self, index: Form, count: int, run: Form, vector: int) -> None:
        """`index`: point within the run, in 0..count, padding included."""
        assert run.hi is not None
        super().__init__(index, count, 0, vector, is_kept=True)
        self.each = self.vectors
        self.u = index.context.var("inner", 0, self.each - 1)
        self.run = run
        steps = [{index: self.u * vector + self.v}]
        LaneForms.__init__(self, steps, self.v, vector, self.each * (run.hi + 1))

    @property
    def numbers(self) -> tuple[Form, ...]:
        return (self.run, self.u)


def lane_condition(condition: Condition, lanes: LaneForms) -> Condition:
    """Return a condition over u alone if it is uniform over the lanes, else over u and v."""
    uniform = lanes.uniform(condition)
    return lanes(condition) if uniform is None else uniform


def wave_of(graph: ScalarGraph) -> dict[Value, int]:
    """Return for each node the length of the longest chain of positions that it depends on."""
    waves: dict[Value, int] = {}
    for node in graph:
        before = max((waves[o] for o in operands(node)), default=0)
        waves[node] = before + isinstance(node, IndirectIndex)
    return waves


def diverging_positions(
    graph: ScalarGraph, scattered: AbstractSet[Value], lanes: LaneForms
) -> set[Variable]:
    """Return the positions that differ between lanes, given the loads planned so far."""
    if not graph.checks or lanes.vector == 1:
        return set()
    varying = varying_nodes(graph, graph.checks, scattered, lanes)
    return {v for p in graph.checks if p in varying for v in p.form.variables()}


def varying_nodes(
    nodes: Iterable[Value],
    checks: Mapping[IndirectIndex, Sequence[Conjunction]],
    scattered: AbstractSet[Value],
    lanes: LaneForms,
) -> set[Value]:
    """Return the nodes whose value differs between the lanes of a vector. `nodes`: operands first;
    `scattered`: loads whose lanes do not all read one element.
    """
    varying: set[Value] = set()
    for node in nodes:
        match node:
            case Load():
                differs = node in scattered
            case IndexValue() | PhiloxCall() | Random():
                differs = any(map(lanes.varies, forms(node)))
            case Folded():
                differs = any(map(lanes.varies, node.point))
            case Select():
                differs = any(lanes.uniform(c) is None for c in node.conditions)
            case IndirectIndex():
                differs = any(lanes.uniform(c) is None for each in checks[node] for c in each)
            case _:
                differs = False
        if differs or any(o in varying for o in operands(node)):
            varying.add(node)
    return varying
