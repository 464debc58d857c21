"""What a call costs before an element is computed: a region with 4 inputs and 2 outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import thunder
import torch
from torch import Tensor

import thunder_fuser
from benchmarks.contenders import COMPILED, EAGER, OURS, compiled_by_torch, failure
from benchmarks.table import Column, Table
from benchmarks.timing import Call, dispatch_clock, interleaved
from thunder_fuser.compiled_fusion import CompiledFusion

FUSION = f"{OURS}, the fusion alone"

_NOTE = (
    "Host time of one call of `a * b + c, (a - b) * d` on 4 x 4 float32 tensors, the tenth "
    "percentile of batches that take turns.  The fusion alone is what a Thunder trace calls; the "
    "whole call adds Thunder's checks of its arguments."
)
_COLUMNS = (
    Column("called", "called"),
    Column("us a call", "seconds", 1e6, 2),
    Column(f"over {EAGER}", "over_torch", digits=2),
)


def program(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> tuple[Tensor, Tensor]:
    return a * b + c, (a - b) * d


def dispatched(device: torch.device, names: Sequence[str], seconds: float) -> Table:
    """A row for each way to call the program; torch is always among them, for the ratios."""
    inputs = [torch.randn(4, 4, device=device) for _ in range(4)]
    calls: dict[str, Call] = {EAGER: partial(program, *inputs)}
    problems: dict[str, str] = {}
    for name in names:
        try:
            calls |= _calls(name, inputs)
        except Exception as error:  # whatever it is, it belongs in the table
            problems[name] = failure(error)
    timings = interleaved(calls, dispatch_clock, seconds)
    rows: list[Mapping[str, Any]] = [
        {"called": name, "seconds": t.seconds, "over_torch": t.over(timings[EAGER])}
        for name, t in timings.items()
    ]
    rows += [
        {"called": name, "seconds": problem, "failed": name == OURS}
        for name, problem in problems.items()
    ]
    return Table(f"Dispatch on {device.type}", _NOTE, _COLUMNS, tuple(rows))


def _calls(name: str, inputs: Sequence[Tensor]) -> dict[str, Call]:
    """Callables that have run once."""
    if name == OURS:
        whole = thunder.jit(program, executors=[thunder_fuser.executor])
        whole(*inputs)
        (report,) = thunder_fuser.fusions(whole)
        alone = CompiledFusion(report.fusion)
        alone(inputs)
        return {FUSION: partial(alone, inputs), OURS: partial(whole, *inputs)}
    if name == COMPILED:
        compiled = compiled_by_torch(program)
        compiled(*inputs)
        return {COMPILED: partial(compiled, *inputs)}
    return {}
