"""Random updates of windows of inputs: numbers, in results and in memory, and what plans write.

Every other batch is scheduled for an H200. A part runs between guard pages, so that nothing is
written beside a window.
"""

from __future__ import annotations

import pytest
import torch

from tests.support.batch import Batch, check_between_guards, executable
from tests.support.generator import Case, random_case
from tests.support.seeds import blocks
from thunder_fuser.compiled_fusion import CompiledFusion
from thunder_fuser.device_table import H200

CASES = 240
BATCH = 40
GUARDED = range(9_000, 9_024)


def _case(seed: int) -> Case:
    return random_case(seed, steps=5, windows=True, updates=False, reductions=seed % 3 == 0)


@blocks(CASES, BATCH, always=80)
def test_random_windows_equal_float64(device: torch.device, first: int) -> None:
    for_gpu = device.type == "cpu" and first // BATCH % 2 == 1
    batch = Batch(device, H200 if for_gpu else None)
    planned = []
    written = 0
    for seed in range(first, first + BATCH):
        case = _case(seed)
        inputs = case.fresh_inputs(device)
        compiled = executable(CompiledFusion(case.fusion), inputs, batch, device)
        written += bool(compiled.plan.placement.slices)
        planned.append((case, inputs, compiled))
    for case, inputs, compiled in planned:
        outputs = compiled(inputs)
        case.check(outputs, case.updated(inputs))
    assert written > BATCH / 6


def test_nothing_is_written_beside_a_window(monkeypatch: pytest.MonkeyPatch) -> None:
    guarded = ((case, CompiledFusion(case.fusion)) for case in map(_case, GUARDED))
    launches = check_between_guards(guarded, Batch(torch.device("cpu"), H200), monkeypatch)
    assert launches > len(GUARDED) / 2
