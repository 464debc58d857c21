"""The plans of programs and definitions whose figures are known, and docs/' tables of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import thunder

from tests.frontends.thunder.programs import jit
from tests.zoo.arithmetic import Arithmetic
from tests.zoo.issue_2473 import full_plan
from tests.zoo.plan_programs import PROGRAMS, Program
from tests.zoo.rope import define_keys_across_cuts
from tests.zoo.workloads import BY_NAME
from thunder_fuser.compiled_fusion import CompiledFusion
from thunder_fuser.frontends.thunder.compiled import last_traces
from thunder_fuser.frontends.thunder.plans.report import fusions_of_trace, saved_for_backward
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.segment.plan import SegmentedFusion, counted


@dataclass(frozen=True, slots=True)
class Half:
    """The fusions of a forward, or of a backward."""

    plans: tuple[SegmentedFusion, ...]

    @property
    def kernels(self) -> int:
        return sum(plan.kernels for plan in self.plans)

    @property
    def bytes(self) -> int:
        return sum(plan.bytes for plan in self.plans)

    @property
    def ideal(self) -> int:
        return sum(plan.bytes_ideal for plan in self.plans)

    @property
    def again(self) -> float:
        """Bytes of sectors that multiprocessors read once more, as the time model has it."""
        found = [s.estimate for plan in self.plans for s in plan.segments]
        return sum(e.bytes_again for e in found if e is not None)

    def __str__(self) -> str:
        if not self.kernels:
            return "no kernel"
        size = f"{self.bytes / 1e6:,.1f} MB" if self.bytes >= 1e6 else f"{self.bytes:,} B"
        more = "ideal" if self.bytes == self.ideal else f"{self.bytes / self.ideal:.2f} x ideal"
        if self.again > self.bytes / 4 and self.again >= 1e6:
            more += f", {float(f'{self.again / 1e6:.2g}'):,.0f} MB again"
        return f"{counted(self.kernels, 'kernel')}, {size}, {more}"


@dataclass(frozen=True, slots=True)
class Planned:
    """saved  bytes that the backward gets and that are neither inputs nor results"""

    forward: Half
    backward: Half | None
    saved: int

    @property
    def plans(self) -> tuple[SegmentedFusion, ...]:
        return self.forward.plans + (self.backward.plans if self.backward else ())


def compiled_for(function: Callable[..., Any], inputs: Sequence[Any]) -> Any:
    """The function with the traces that a call makes, on fake inputs for a GPU."""
    compiled = jit(function)
    thunder.compile_data(compiled).get_computation_and_inputs(*inputs)
    return compiled


def planned_for(compiled: Any) -> Planned:
    forward, backward = last_traces(compiled)
    first = Half(tuple(r.plan for r in fusions_of_trace(forward)))
    if backward is None:
        return Planned(first, None, 0)
    return Planned(
        first, Half(tuple(r.plan for r in fusions_of_trace(backward))), saved_for_backward(compiled)
    )


@cache
def planned(name: str) -> Planned:
    return planned_now(name)


def planned_now(name: str) -> Planned:
    """The same under the options of now."""
    (program,) = (p for p in PROGRAMS if p.name == name)
    return planned_for(compiled_for(program.function, program.inputs()))


def text_of(planned: Planned) -> str:
    """Plans that are equal once, in order, with how often."""
    times = Counter(map(str, planned.plans))
    return "".join(f"{f'{n} x ' if n > 1 else ''}{text}\n" for text, n in times.items())


# ---- definitions


def _constant(cut: bool) -> SegmentedFusion:
    """The unit of NVIDIA/Fuser 4269, with its cut and without."""
    b = FusionBuilder()
    op, x = Arithmetic(b), b.tensor([1024], DataType.Float)
    two = b.full([1024], 2.0, DataType.Float)
    y = op.add(x, two)
    b.output(op.add(b.segment_set(y) if cut else y, two))
    return CompiledFusion(b.build()).plan()


def _workload(name: str) -> SegmentedFusion:
    workload = BY_NAME[name]
    return CompiledFusion(workload.fusion(workload.full)).plan()


def _keys() -> SegmentedFusion:
    b = FusionBuilder()
    shapes = [2, 1024, 768], [1024, 8], [1024, 8]
    define_keys_across_cuts(b, *(b.tensor(shape, DataType.BFloat16) for shape in shapes))
    return CompiledFusion(b.build()).plan()


@dataclass(frozen=True, slots=True)
class Definition:
    """A FusionDefinition, and the launches and bytes that its plan may take."""

    name: str
    plan: Callable[[], SegmentedFusion]
    kernels: int
    bytes: int
    golden: str

    def __str__(self) -> str:
        return self.name


DEFINITIONS = (
    Definition("Fuser 2473, backward of a modulated norm", full_plan, 1, 360_000_000, "issue_2473"),
    Definition("Fuser 2577, whole", lambda: _workload("rope_2577"), 1, 9_469_952, "rope_2577"),
    Definition("Fuser 2577, keys, cut as it was", _keys, 2, 3_702_784, "issue_2577_cut"),
    Definition("Fuser 4269, cut", lambda: _constant(True), 2, 16_384, "issue_4269_cut"),
    Definition("Fuser 4269, not cut", lambda: _constant(False), 1, 8_192, "issue_4269"),
    Definition(
        "RoPE of Llama-3, backward",
        lambda: _workload("rope_llama_backward"),
        1,
        239_075_328,
        "rope_llama_backward",
    ),
)


# ---- tables of docs/


def definitions_table() -> str:
    rows = ["| definition | plan | boundaries |", "| --- | --- | ---: |"]
    for definition in DEFINITIONS:
        plan = definition.plan()
        stored = sum(b.bytes for b in plan.boundaries)
        rows.append(f"| {definition} | {Half((plan,))} | {f'{stored:,} B' if stored else 0} |")
    return "\n".join(rows) + "\n"


def programs_table() -> str:
    rows = [
        "| torch code | saved for backward | forward | backward |",
        "| --- | ---: | --- | --- |",
    ]
    rows += [_row(program, planned(program.name)) for program in PROGRAMS]
    return "\n".join(rows) + "\n"


def _row(program: Program, found: Planned) -> str:
    saved = f"{found.saved:,} B" if found.saved else "0"
    if found.backward is None:
        saved = ""
    return f"| {program} | {saved} | {found.forward} | {found.backward or ''} |"
