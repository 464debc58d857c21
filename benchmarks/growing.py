"""What compiling costs as programs grow: planning and code generation, in CPU seconds.

    python -m benchmarks.growing

Families of programs that repeat one thing, of about so many operations, or pieces of a cat. The
tests hold that nothing grows much faster than the program does (tests/test_cost.py).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.table import Column, Table
from thunder_fuser import passes
from thunder_fuser.compile import generate_kernels
from thunder_fuser.device_table import H200
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import TensorView
from thunder_fuser.segment.plan import SegmentedFusion
from thunder_fuser.segment.planner import partition

SIZES = (10, 100, 1000, 5000)
_SHAPE = [64, 256]
_REPEATS = 3
_COLUMNS = (
    Column("program", "program"),
    *(
        column
        for size in SIZES
        for column in (
            Column(f"{size:,}: s", f"seconds {size}", 1, 3),
            Column("kernels", f"kernels {size}"),
        )
    ),
    Column("100 to 1,000", "growth", 1, 1),
)
_NOTE = (
    "Passes, plan and code of programs of so many operations, or pieces, from fp32 tensors "
    f"{_SHAPE} for an {H200.name}: CPU seconds, medians of {_REPEATS}; nothing is compiled or run. "
    "Norms: x * rsqrt(sum(x * x)) + w, again and again; with cuts: a segment_set behind each. "
    "Kernels that are the same program on other tensors are generated once. Growth: the ratio of "
    "the costs of 1,000 and 100."
)


def pointwise(b: FusionBuilder, count: int) -> None:
    """A chain of operations on two tensors."""
    x, y = _input(b), _input(b)
    for k in range(count):
        name = ("add", "mul", "sub", "maximum", "tanh", "neg")[k % 6]
        x = _op(b, name, x, y) if k % 6 < 4 else _op(b, name, x)
    b.output(x)


def norms(b: FusionBuilder, count: int, cuts: bool = False) -> None:
    """Norms, one of the other's result."""
    x, w = _input(b), _input(b)
    for _ in range(0, count, 7 if cuts else 6):
        total = b.reduce("sum", _op(b, "mul", x, x), [1], keepdim=True)
        x = _op(b, "add", _op(b, "mul", x, _op(b, "rsqrt", total)), w)
        x = b.segment_set(x) if cuts else x
    b.output(x)


def norms_with_cuts(b: FusionBuilder, count: int) -> None:
    """The same through memory."""
    norms(b, count, cuts=True)


def cat(b: FusionBuilder, count: int) -> None:
    """Small tensors side by side, as gradients are gathered."""
    b.output(b.cat([b.tensor([7], DataType.Float) for _ in range(count)], 0))


def inputs(b: FusionBuilder, count: int) -> None:
    """A sum of tensors."""
    x = _input(b)
    for _ in range(count):
        x = _op(b, "add", x, _input(b))
    b.output(x)


def outputs(b: FusionBuilder, count: int) -> None:
    """A chain of which every value is a result."""
    x = _input(b)
    for _ in range(count):
        x = _op(b, "tanh", x)
        b.output(x)


def updates(b: FusionBuilder, count: int) -> None:
    """Steps of an optimizer with momentum: 5 operations a parameter."""
    for k in range(0, count, 5):
        shape = [16 + k % 9, 32]
        weight, gradient, momentum = (b.tensor(shape, DataType.Float) for _ in range(3))
        new = _op(b, "add", _op(b, "mul", momentum, 0.9), gradient)
        b.output(new, alias=momentum)
        decayed = _op(b, "mul", weight, 0.999)
        b.output(_op(b, "sub", decayed, _op(b, "mul", new, 0.01)), alias=weight)


FAMILIES: dict[str, Callable[[FusionBuilder, int], None]] = {
    "pointwise": pointwise,
    "norms": norms,
    "norms with cuts": norms_with_cuts,
    "cat": cat,
    "sum of inputs": inputs,
    "outputs": outputs,
    "updates": updates,
}


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one program: CPU seconds, its plan, and the texts of its different kernels."""

    seconds: float
    plan: SegmentedFusion
    sources: tuple[str, ...]


def cost(family: str, count: int) -> Cost:
    """Planning and code generation for a program of about so many operations."""
    b = FusionBuilder()
    FAMILIES[family](b, count)
    fusion = b.build()
    start = time.process_time()
    plan = partition(passes.run(fusion), device=H200)
    kernels = generate_kernels(plan, H200)
    seconds = time.process_time() - start
    return Cost(seconds, plan, tuple({k.kernel.source: None for k in kernels.values()}))


def table() -> Table:
    """A row for each family."""
    cost("norms", SIZES[0])
    rows = []
    for family in FAMILIES:
        row: dict[str, str | float] = {"program": family}
        for size in SIZES:
            found = [cost(family, size) for _ in range(_REPEATS)]
            row[f"seconds {size}"] = statistics.median(each.seconds for each in found)
            row[f"kernels {size}"] = found[0].plan.kernels
        row["growth"] = float(row["seconds 1000"]) / float(row["seconds 100"])
        rows.append(row)
    return Table("Cost of large programs", _NOTE, _COLUMNS, tuple(rows))


def _input(b: FusionBuilder) -> TensorView:
    return b.tensor(_SHAPE, DataType.Float)


def _op(b: FusionBuilder, name: str, *operands: TensorView | float) -> TensorView:
    made = b.pointwise(name, *operands)
    assert isinstance(made, TensorView)
    return made


if __name__ == "__main__":
    print(table().markdown())
