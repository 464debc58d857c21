"""Random fusions with reductions, compiled and run: every element within its error bound.

A third of the steps folds dimensions, alone or beside others, so that kernels have several
reductions, stages, and values that go through memory. Every other batch is scheduled for an H200:
warps and blocks reduce together then. A part runs between guard pages, with collectives carried out
step by step and threads in other orders.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.support.batch import (
    Batch,
    check_between_guards,
    checked,
    every_other,
    executable,
    fusions_of,
)
from tests.support.generator import Case, random_case
from tests.support.seeds import blocks
from thunder_fuser.compiled_fusion import CompiledFusion
from thunder_fuser.device import DeviceInfo
from thunder_fuser.device_table import H200

CASES = 240
BATCH = 40
GUARDED = range(5_000, 5_024)
FOUND = (31_000, 40_271, 31_663, 32_032)
"""A 16-bit value that is held in fp32; a value of a row behind a load that columns also do; values
that a kernel computes from its reductions, stores for others, and reads.
"""


def case(seed: int) -> Case:
    return random_case(seed, reductions=True)


@blocks(CASES, BATCH, always=80)
def test_random_reductions_equal_float64(device: torch.device, first: int) -> None:
    cases = map(case, range(first, first + BATCH))
    batch = every_other(device, first // BATCH)
    several = staged = 0
    for _, plan, _ in checked(fusions_of(cases), batch, device):
        segments = [s for s in plan.segments if s.folds]
        several += sum(len(s.folds) > 1 for s in segments)
        staged += len({s.index for s in segments} & {b.producer for b in plan.boundaries})
    assert several > 8
    assert staged > 2


def test_no_access_out_of_bounds_and_no_order_of_threads_matters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    batch = Batch(torch.device("cpu"), H200)
    launches = check_between_guards(fusions_of(map(case, GUARDED)), batch, monkeypatch)
    assert launches > len(GUARDED)


@blocks(60, 20, always=20, first=6_000)
def test_plans_for_devices_of_any_prices_are_right(
    monkeypatch: pytest.MonkeyPatch, device: torch.device, first: int
) -> None:
    """Where launches are free, few threads are dear and memory moves kilobytes, much is divided and
    stored that is one kernel for an H200.
    """
    divides = replace(H200, launch_seconds=0.0, sm_count=1 << 20, sector_bytes=1024, l2_bytes=0)
    batch = Batch(device, None)
    planned, kernels = [], dict.fromkeys((H200, divides), 0)
    for seed in range(first, first + 20):
        made = case(seed)
        for info in kernels:
            monkeypatch.setattr("thunder_fuser.compile.planned_for", lambda _, info=info: info)
            inputs = made.fresh_inputs(device)
            compiled = executable(CompiledFusion(made.fusion), inputs, batch, device)
            kernels[info] += compiled.plan.kernels
            planned.append((made, inputs, compiled))
    for made, inputs, compiled in planned:
        made.check(compiled(inputs), made.updated(inputs))
    assert kernels[divides] > kernels[H200]


@pytest.mark.parametrize("info", [None, H200], ids=["own", "H200"])
def test_what_other_seeds_have_found(
    monkeypatch: pytest.MonkeyPatch, info: DeviceInfo | None
) -> None:
    batch = Batch(torch.device("cpu"), info)
    assert check_between_guards(fusions_of(map(case, FOUND)), batch, monkeypatch)
