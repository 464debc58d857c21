"""What a call costs before an element is computed: of a region, of further tensors, of kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any
from unittest.mock import patch

import thunder
import torch
from torch import Tensor

import thunder_fuser
from benchmarks.contenders import COMPILED, EAGER, OURS, compiled_by_torch, failure
from benchmarks.table import Column, Table
from benchmarks.timing import Call, dispatch_clock, interleaved
from tests.zoo.models import Llama, Sizes
from thunder_fuser.codegen.kernel import Kernel
from thunder_fuser.compiled_fusion import CompiledFusion
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.runtime.host.target import HostLaunch, HostTarget

FUSION = f"{OURS}, the fusion alone"
ABOVE = f"{FUSION}, above the launch"

_NOTE = (
    "Host time of one call on 4 x 4 float32 tensors, the tenth percentile of batches that take "
    "turns: `a * b + c, (a - b) * d`; the same with 8 more tensors added to `c`; and 11 sums of "
    "two tensors, each a kernel.  The fusion alone is what a Thunder trace calls, and on a "
    "CPU it is there once more with launches that do nothing; the whole call adds Thunder's checks "
    "of its arguments.  A model's checks are of all that its program read of it: modules, hooks, "
    "numbers and parameters."
)
_KERNELS = 11
_MODEL = Sizes(layers=4, width=16, heads=4, length=4, hidden=16, classes=16, batch=1)
_COLUMNS = (
    Column("region", "region"),
    Column("called", "called"),
    Column("us a call", "seconds", 1e6, 2),
    Column(f"over {EAGER}", "over_torch", digits=2),
)


def program(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> tuple[Tensor, Tensor]:
    return a * b + c, (a - b) * d


def of_more_tensors(a: Tensor, b: Tensor, c: Tensor, d: Tensor, *more: Tensor) -> Any:
    for e in more:
        c = c + e
    return program(a, b, c, d)


def sums(x: Tensor, y: Tensor) -> Tensor:
    for _ in range(_KERNELS):
        x = x + y
    return x


def sum_by_sum(x: Tensor, y: Tensor) -> Fusion:
    """What is segmented is in memory."""
    builder = FusionBuilder()
    result, other = (builder.tensor(t.shape, DataType.Float) for t in (x, y))
    for _ in range(_KERNELS):
        result = builder.segment_set(builder.pointwise("add", result, other))
    builder.output(result)
    return builder.build()


_REGIONS: Mapping[str, tuple[Callable[..., Any], int]] = {
    "4 inputs, 2 outputs": (program, 4),
    "12 inputs, 2 outputs": (of_more_tensors, 12),
    f"{_KERNELS} kernels": (sums, 2),
}
"""Programs, and how many inputs they are given."""


def dispatched(device: torch.device, names: Sequence[str], seconds: float) -> Table:
    """A row for each way to call a program; torch is always among them, for the ratios."""
    rows: list[Mapping[str, Any]] = []
    regions = {
        region: (function, [torch.randn(4, 4, device=device) for _ in range(count)])
        for region, (function, count) in _REGIONS.items()
    }
    words = torch.zeros(1, _MODEL.length, dtype=torch.long, device=device)
    model = Llama(_MODEL).to(device).requires_grad_(False)
    regions[f"Llama, {_MODEL.layers} layers"] = model, [words, words]
    for region, (function, inputs) in regions.items():
        calls: dict[str, Call] = {EAGER: partial(function, *inputs)}
        problems: dict[str, str] = {}
        for name in names:
            try:
                calls |= _calls(name, function, inputs)
            except Exception as error:  # whatever it is, it belongs in the table
                problems[name] = failure(error)
        timings = interleaved(calls, dispatch_clock, seconds)
        for name, t in timings.items():
            ratio = t.over(timings[EAGER])
            row = {"region": region, "called": name, "seconds": t.seconds, "over_torch": ratio}
            rows.append(row)
        for name, problem in problems.items():
            failed = {"seconds": problem, "failed": name == OURS}
            rows.append({"region": region, "called": name, **failed})
    return Table(f"Dispatch on {device.type}", _NOTE, _COLUMNS, tuple(rows))


def _calls(name: str, function: Callable[..., Any], inputs: Sequence[Tensor]) -> dict[str, Call]:
    """Callables that have run once."""
    if name == OURS and function is sums:
        return _alone(sum_by_sum(*inputs), inputs)
    if name == OURS:
        whole = thunder.jit(function, executors=[thunder_fuser.executor])
        whole(*inputs)
        if isinstance(function, Llama):
            return {OURS: partial(whole, *inputs)}
        (report,) = thunder_fuser.fusions(whole)
        return _alone(report.fusion, inputs) | {OURS: partial(whole, *inputs)}
    if name == COMPILED:
        compiled = compiled_by_torch(function)
        compiled(*inputs)
        return {COMPILED: partial(compiled, *inputs)}
    return {}


def _alone(fusion: Fusion, inputs: Sequence[Tensor]) -> dict[str, Call]:
    compiled = CompiledFusion(fusion)
    compiled(inputs)
    found: dict[str, Call] = {FUSION: partial(compiled, inputs)}
    if inputs[0].device.type == "cpu":
        found[ABOVE] = partial(_without_launches(fusion, inputs), inputs)
    return found


def _without_launches(fusion: Fusion, inputs: Sequence[Tensor]) -> CompiledFusion:
    """What a call does above the driver: arguments are packed, and nothing is launched."""
    compiled = HostTarget.compile

    def idle(target: HostTarget, kernels: Sequence[Kernel]) -> tuple[HostLaunch, ...]:
        launches = compiled(target, kernels)
        for launch in launches:
            launch._run = _launch_of_nothing
        return launches

    found = CompiledFusion(fusion)
    with patch.object(HostTarget, "compile", idle):
        found(inputs)
    return found


def _launch_of_nothing(address: int) -> int:
    return 0
