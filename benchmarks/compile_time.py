"""What the first call of a model costs, forward and backward, as models grow.

CPU time with that of the compilers' processes, which other programs on the machine hardly change;
nothing is cached from a run before. Planning is also counted in calls of functions, which no
machine changes.
"""

from __future__ import annotations

import cProfile
import pstats
import resource
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import thunder
import torch
import torch._inductor.config
from torch import Tensor, nn
from torch._inductor.utils import fresh_cache

import thunder_fuser
from benchmarks.contenders import COMPILED, OURS, Program, compiled_by_torch, failure
from benchmarks.table import Column, Table
from tests.zoo.models import MODELS, Model
from thunder_fuser.compiled_fusion import CompiledFusion
from thunder_fuser.config import options
from thunder_fuser.ir.fusion import Fusion

LAYERS = (1, 4, 12)
_MODELS = ("Llama", "GPT-2")

_COLUMNS = (
    Column("model", "model"),
    Column("layers", "layers"),
    Column("kernels", "kernels"),
    Column("planning, calls", "calls"),
    Column("planning, s", "planning", digits=2),
    Column(f"{OURS}: Python, s", "python", digits=1),
    Column("compilers, s", "compilers", digits=1),
    Column("together, s", "ours", digits=1),
    Column(f"{COMPILED}, s", "torch", digits=1),
)
_NOTE = (
    "The first forward and backward of models of tests/zoo/models.py, of small sizes, on a CPU, in "
    "CPU seconds, each once, with empty caches. Planning: passes and plans of all fusions of the "
    "two traces, and how many functions of Python that calls. Python: Thunder's tracing and "
    "transforms, planning, and generation of code. Compilers: what both hand their C++ to. "
    f"{COMPILED} compiles in one process, with its guards, and computes the same."
)


def table(name: str = "", layers: Sequence[int] = LAYERS) -> Table:
    """A row for each model whose name contains `name` and each number of its layers."""
    chosen = [m for m in MODELS if m.name in _MODELS and name.lower() in m.name.lower()]
    for model in MODELS:  # What a process pays once, by another model.
        if model.name == "ViT":
            list(_rows(model, [1]))
    rows = tuple(row for model in chosen for row in _rows(model, layers))
    return Table("First calls of models", _NOTE, _COLUMNS, rows)


def _rows(model: Model, layers: Sequence[int]) -> Iterator[Mapping[str, Any]]:
    for count in layers:
        sizes = replace(model.small, layers=count)
        torch.manual_seed(0)
        net, batch = model.make(sizes), model.batch(sizes, torch.float32, "cpu")
        row: dict[str, Any] = {"model": model.name, "layers": count}
        with tempfile.TemporaryDirectory() as folder:
            try:
                row |= _ours(net, batch, folder)
            except Exception as error:  # whatever it is, it belongs in the table
                row |= {"ours": failure(error), "failed": True}
            try:
                with fresh_cache(), torch._inductor.config.patch(compile_threads=1):
                    row["torch"] = sum(first_call(compiled_by_torch(net), batch))
            except Exception as error:
                row["torch"] = failure(error)
        yield row


def _ours(net: nn.Module, batch: Sequence[Tensor], folder: str) -> dict[str, Any]:
    compiled: Program = thunder.jit(net, executors=[thunder_fuser.executor])
    with options(cache_dir=folder):
        python, compilers = first_call(compiled, batch)
    reports = thunder_fuser.fusions(compiled)
    fusions = [report.fusion for report in reports]
    calls, planning = _planned(fusions)
    return {
        "kernels": sum(report.plan.kernels for report in reports),
        "calls": calls,
        "planning": planning,
        "python": python,
        "compilers": compilers,
        "ours": python + compilers,
    }


def first_call(program: Program, batch: Sequence[Tensor]) -> tuple[float, float]:
    """CPU seconds of this process, and of those that it runs."""
    before = _cpu_seconds()
    program(*batch).backward()
    return tuple(b - a for a, b in zip(before, _cpu_seconds(), strict=True))  # type: ignore[return-value]


def _planned(fusions: Sequence[Fusion]) -> tuple[int, float]:
    """Calls of functions, and CPU seconds without counting them."""

    def plan() -> None:
        for fusion in fusions:
            CompiledFusion(fusion).plan()

    (before, _), _, (after, _) = _cpu_seconds(), plan(), _cpu_seconds()
    profile = cProfile.Profile()
    profile.runcall(plan)
    return pstats.Stats(profile).total_calls, after - before  # type: ignore[attr-defined]


def _cpu_seconds() -> tuple[float, float]:
    """Of this process, and of those that it has run."""
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    own, others = (usage.ru_utime + usage.ru_stime for usage in usages)
    return own, others
