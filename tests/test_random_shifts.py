"""Random stencils: one tensor read at several offsets, in short rows, against float64.

Every other batch is scheduled for an H200. A part runs between guard pages.
"""

from __future__ import annotations

import pytest
import torch

from tests.support.batch import Batch, check_between_guards, executable
from tests.support.generator_shifts import shift_case
from tests.support.seeds import blocks
from thunder_fuser.compiled_fusion import CompiledFusion
from thunder_fuser.device_table import H200

CASES = 160
BATCH = 40
GUARDED = range(7_000, 7_024)


@blocks(CASES, BATCH, always=80)
def test_random_shifts_equal_float64(device: torch.device, first: int) -> None:
    for_gpu = device.type == "cpu" and first // BATCH % 2 == 1
    batch, planned = Batch(device, H200 if for_gpu else None), []
    for seed in range(first, first + BATCH):
        case = shift_case(seed)
        inputs = case.fresh_inputs(device)
        planned.append((case, executable(CompiledFusion(case.fusion), inputs, batch, device)))
    for case, run in planned:
        case.check(run(case.fresh_inputs(device)))


def test_nothing_beside_a_tensor_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = map(shift_case, GUARDED)
    guarded = ((case, CompiledFusion(case.fusion)) for case in cases)
    launches = check_between_guards(guarded, Batch(torch.device("cpu"), H200), monkeypatch)
    assert launches > len(GUARDED) / 2
