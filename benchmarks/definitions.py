"""Plans of the definitions of nvFuser's benchmarks, at sizes that a GPU is measured with.

Fake tensors stand for the inputs, so that nothing runs and no GPU is needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from benchmarks.table import Column, Table
from tests.frontends.definition.benchmark_definitions import FULL, Benchmark, benchmarks
from thunder_fuser.segment.plan import SegmentedFusion

_COLUMNS = (
    Column("definition", "definition"),
    Column("inputs", "inputs"),
    Column("kernels", "kernels"),
    Column("MB", "bytes", 1e-6, 1),
    Column("of ideal", "ratio", 1.0, 3),
    Column("what goes through memory between kernels, and why", "boundaries"),
)
_NOTE = (
    "Planned, not measured: the definitions of tests/frontends/definition/benchmark_definitions.py "
    "on fake CUDA tensors.  Ideal: every input read once and every output written once."
)


def plans() -> Iterator[tuple[Benchmark, SegmentedFusion]]:
    """Every definition with its plan for large sizes."""
    with FakeTensorMode():
        for benchmark in benchmarks(FULL):
            inputs = [torch.empty_like(x, device="cuda") for x in benchmark.inputs]
            yield benchmark, benchmark.definition().plan(inputs)


def table(name: str = "") -> Table:
    """A row for each definition whose name contains `name`."""
    rows = [_row(b, plan) for b, plan in plans() if name.lower() in b.name.lower()]
    return Table("Definitions of nvFuser's benchmarks", _NOTE, _COLUMNS, tuple(rows))


def _row(benchmark: Benchmark, plan: SegmentedFusion) -> Mapping[str, Any]:
    shapes = dict.fromkeys(f"{_short(x.dtype)}{list(x.shape)}" for x in benchmark.inputs)
    return {
        "definition": benchmark.name,
        "inputs": ", ".join(shapes),
        "kernels": plan.kernels,
        "bytes": int(plan.bytes),
        "ratio": int(plan.bytes) / int(plan.bytes_ideal),
        "boundaries": "; ".join(dict.fromkeys(str(b.reason) for b in plan.boundaries)),
    }


def _short(dtype: torch.dtype) -> str:
    return {torch.bfloat16: "bf16 ", torch.float32: ""}.get(dtype, f"{dtype} ".split(".")[-1])
